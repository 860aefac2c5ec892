"""The CUDA backend's control flow on the GPU in software (`pytest --software-gpu`): kernels' errors
are found, errors of calls are statuses, and only correct kernels are measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verdicts import RIGHT
from words import raises, says

from engine.attention.evaluation import ALL_KINDS, Evaluation, Latency
from engine.attention.paged_kv import Pages
from engine.attention.plan import LaunchPlan, ScratchBuffer
from engine.attention.problem import Problem
from engine.attention.tensors import POISON_BITS, Inputs, make_inputs
from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend
from engine.backends.cuda.calls import CupyCalls
from engine.base.errors import MeasureError, Status
from engine.base.launch_arguments import PassLaunch, ScalarArg, StructArg, TensorArg, TensorMapArg
from engine.cuda_on_host.client import RunResult
from engine.devices.nvml import GpuState
from engine.measure.sampler import SamplerSettings, SamplingRun
from engine.measure.side_by_side import TimingGroup, time_evaluation
from engine.pipeline import selfcheck as checks
from kernels.ladder import LADDER

pytestmark = pytest.mark.gpu

PROBLEM = Problem(1, 2, 8, 32)
COUNT = PROBLEM.elements
CTAS = COUNT // 256
INPUTS = make_inputs(PROBLEM)
OUT, SCRATCH = TensorArg("out"), TensorArg("partial")


def copies(problem: Problem = PROBLEM, **macros: str) -> LaunchPlan:
    """Return a plan of two passes over a poisoned scratch buffer, with counters that start at 0."""
    count = ScalarArg("count", "int32", problem.elements)
    last = (SCRATCH, TensorArg("counter"), OUT, count, ScalarArg("scale", "float32", 1.0))
    return LaunchPlan(
        variant="t01",
        problem=problem,
        config={},
        source=Path(__file__).with_name("copy_kernels.cu"),
        defines=tuple(macros.items()),
        scratch=(
            ScratchBuffer("partial", "float32", (problem.elements,), "poison"),
            ScratchBuffer("counter", "int32", (CTAS,), "zero"),
        ),
        passes=(
            PassLaunch("produce", (CTAS, 1, 1), 256, 1024, (TensorArg("q"), SCRATCH, count)),
            PassLaunch("finish", (CTAS, 1, 1), 256, 0, last),
        ),
    )


def one_pass(entry: str, *args: Any, problem: Problem = PROBLEM, **changes: Any) -> LaunchPlan:
    launch = PassLaunch(entry, (1, 1, 1), 256, 0, args)
    return dataclasses.replace(copies(problem), passes=(launch,), **changes)


def bits(result: RunResult) -> np.ndarray:
    assert (result.status, result.reason) == (Status.PASSED, ""), result.log
    assert result.out is not None
    return result.out.view(np.uint16).reshape(-1)


# ---- a run ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_passes_run_and_the_output_is_returned(backend: CudaBackend, dtype: str) -> None:
    problem = dataclasses.replace(PROBLEM, dtype=dtype)
    inputs = make_inputs(problem)
    result = backend.run(copies(problem), inputs, RunOptions())
    np.testing.assert_array_equal(bits(result), inputs.q.view(np.uint16).reshape(-1))
    assert result.out is not None
    assert (result.out.dtype, result.out.shape) == (inputs.q.dtype, problem.shape)
    assert (result.inputs_unchanged, result.repeatable, result.guards_intact) == (True,) * 3
    assert result.execution_ms is not None
    assert "produce" in result.log


def test_unwritten_output_remains_poisoned(backend: CudaBackend) -> None:
    result = backend.run(copies(WHERE="i < 5 || i > 8"), INPUTS, RunOptions())
    assert np.flatnonzero(bits(result) == POISON_BITS).tolist() == [5, 6, 7, 8]


def test_output_and_scratch_start_poisoned_in_both_runs(backend: CudaBackend) -> None:
    plan = copies(
        VALUE="partial[i] == partial[i] && stop() ? 0 : q[i]",
        WHERE=f"out[i] == {POISON_BITS} || stop()",
    )
    result = backend.run(plan, INPUTS, RunOptions())
    np.testing.assert_array_equal(bits(result), INPUTS.q.view(np.uint16).reshape(-1))


def test_a_counter_starts_at_zero_and_keeps_its_value_between_runs(backend: CudaBackend) -> None:
    result = backend.run(copies(AFTER="out[0] = before + 7"), INPUTS, RunOptions())
    assert bits(result)[0] == 7
    assert not result.repeatable


def test_fills_are_repeated_before_a_second_run(backend: CudaBackend) -> None:
    highest = ScratchBuffer("highest", "float32", (7,), "-inf", each_launch=True)
    args = (OUT, ScalarArg("count", "int32", COUNT), TensorArg("highest"))
    plan = one_pass("raise", *args, scratch=(highest,), out_fill="zero")
    result = backend.run(plan, INPUTS, RunOptions(repeat=True))
    assert set(bits(result).tolist()) == {1}
    assert result.repeatable


@pytest.mark.parametrize(
    ("at", "name", "facts"),
    [
        (COUNT, "wrote_past_the_end", ("out", f"({2 * COUNT:,} bytes)", "0 to 1")),
        (COUNT + 30_000, "wrote_past_the_end", ("out", "(1,024 bytes)", "60,000 to")),
        (-1, "wrote_in_front", ("out", "-2 to -1")),
    ],
)
def test_a_write_outside_a_buffer_is_noticed(
    backend: CudaBackend, at: int, name: str, facts: tuple[str, ...]
) -> None:
    result = backend.run(copies(AFTER=f"out[{at}] = 0"), INPUTS, RunOptions())
    assert not result.guards_intact
    assert says(result.reason, name, *facts)


@pytest.mark.parametrize("error", [TypeError("Unsupported type"), RuntimeError("a bug")])
def test_unknown_errors_are_a_status_with_their_name(
    backend_with: Callable[..., CudaBackend], error: Exception
) -> None:
    def defect(*_: object) -> None:
        raise error

    backend = backend_with(launch=defect)
    result = backend.run(copies(), INPUTS, RunOptions())
    assert result.status is Status.LAUNCH_ERROR
    assert f"{type(error).__name__}: {error}" in result.reason
    assert backend.gpu_error is None


def test_too_little_memory_is_reported_before_any_allocation(
    backend_with: Callable[..., CudaBackend],
) -> None:
    backend = backend_with(
        free_bytes=lambda _: copies().device_bytes - 1,
        alloc=lambda *_: pytest.fail("allocated"),
    )
    result = backend.run(copies(), INPUTS, RunOptions())
    assert result.status is Status.OUT_OF_MEMORY
    assert says(result.reason, "gpu_memory_needs")


def test_too_much_shared_memory_is_reported_with_both_figures(backend: CudaBackend) -> None:
    plan = copies()
    large = dataclasses.replace(plan.passes[0], dynamic_smem_bytes=300 * 1024)
    plan = dataclasses.replace(plan, passes=(large, plan.passes[1]))
    result = backend.run(plan, INPUTS, RunOptions())
    assert result.status is Status.LAUNCH_ERROR
    assert says(result.reason, "smem_more_than_gpu", "produce", "300 KiB")


def test_a_source_that_does_not_compile(backend: CudaBackend) -> None:
    result = backend.run(copies(AFTER="int x = ;"), INPUTS, RunOptions())
    assert result.status is Status.COMPILE_ERROR
    assert result.reason.startswith("copy_kernels.cu(")
    assert "error" in result.log


def test_a_missing_compiler_gives_a_message(backend: CudaBackend) -> None:
    result = backend.run(copies(NVRTC="901"), INPUTS, RunOptions())
    assert result.status is Status.COMPILE_ERROR
    assert says(result.reason, "nvrtc_version_missing", "9.1")


def test_a_launch_that_is_refused_keeps_the_context(
    backend: CudaBackend, set_gpu: Callable[[str], None]
) -> None:
    set_gpu("cuLaunchKernel=1@1")
    result = backend.run(copies(), INPUTS, RunOptions())
    assert result.status is Status.LAUNCH_ERROR
    assert says(result.reason, "launched_argument_cuda")
    set_gpu("")
    assert backend.run(copies(), INPUTS, RunOptions()).status is Status.PASSED
    backend.close()
    backend.close()


# ---- arguments of kernels ----


@pytest.mark.parametrize("spoils", [False, True])
def test_a_kernel_gets_the_pages_and_may_not_write_the_table(
    backend: CudaBackend, spoils: bool
) -> None:
    pages = Pages(PROBLEM, 4)
    page, count = pages.kv_bytes // pages.count // 2, COUNT
    numbers = (("page", page), ("count", count), ("spoils", int(spoils)))
    args = (TensorArg("k"), TensorArg("block_table"), OUT)
    scalars = (ScalarArg(name, "int32", value) for name, value in numbers)
    plan = one_pass("gather", *args, *scalars, pages=pages)
    result = backend.run(plan, INPUTS, RunOptions(repeat=False))
    shape = (2, PROBLEM.num_heads, 4, PROBLEM.head_dim)
    found = bits(result).reshape(shape).transpose(1, 0, 2, 3).reshape(INPUTS.k[0].shape)
    np.testing.assert_array_equal(found, INPUTS.k[0].view(np.uint16))
    assert result.inputs_unchanged is not spoils


def mixed(inputs: Inputs) -> np.ndarray:
    of_k, of_v = (np.bitwise_xor.reduce(x.view(np.uint16), axis=None) for x in (inputs.k, inputs.v))
    return np.asarray(inputs.q.view(np.uint16) ^ of_k ^ (of_v >> 1)).reshape(-1)


@pytest.mark.parametrize(
    "problem",
    # One query more than fills a 256-byte step, and keys that do not fill one either.
    [Problem(1, 2, 1, 32, seqlen_kv=77), Problem(1, 1, 9, 32, seqlen_kv=5)],
    ids=Problem.label,
)
def test_every_tensor_has_its_own_size(backend: CudaBackend, problem: Problem) -> None:
    inputs = make_inputs(problem)
    sizes = (("rows", problem.elements), ("keys", problem.k_bytes // 2))
    args = (*map(TensorArg, ("q", "k", "v", "out")), *(ScalarArg(n, "int32", s) for n, s in sizes))
    plan = one_pass("combine", *args, problem=problem)
    result = backend.run(plan, inputs, RunOptions())
    np.testing.assert_array_equal(bits(result), mixed(inputs))
    with backend.timer(plan, inputs, RIGHT) as timer:
        assert timer.copy_bytes >= problem.io_bytes
        timer.make_copies(3)
        timer.graph(3, 3)()
        timer.verify()


def test_a_structure_is_passed_by_value(backend: CudaBackend) -> None:
    """A structure is one array element, because CuPy rejects arrays of several."""
    fields = StructArg("s", (ScalarArg("a", "int32", 7), ScalarArg("b", "float64", 0.5)))
    plan = one_pass("by_value", OUT, ScalarArg("count", "int32", COUNT), fields)
    assert set(bits(backend.run(plan, INPUTS, RunOptions())).tolist()) == {15}


def test_tensor_maps_and_clusters_that_the_driver_refuses_give_a_message(
    backend: CudaBackend,
) -> None:
    """Either the GPU lacks the compute capability (L4), or a stride is no multiple of 16."""
    row = PROBLEM.head_dim * 2
    odd = TensorMapArg("m", "q", (PROBLEM.head_dim, 3, 5), (row, 3 * row + 2), (16, 8, 1), 32)
    plan = one_pass("mapped", OUT, ScalarArg("count", "int32", COUNT), odd)
    result = backend.run(plan, INPUTS, RunOptions())
    assert result.status is Status.LAUNCH_ERROR
    assert "cuTensorMapEncodeTiled" in result.reason
    plan = copies()
    wide = dataclasses.replace(plan.passes[0], cluster=(64, 1, 1), grid=(64, 1, 1))
    plan = dataclasses.replace(plan, passes=(wide, plan.passes[1]))
    result = backend.run(plan, INPUTS, RunOptions())
    assert result.status is Status.LAUNCH_ERROR
    assert "cuLaunchKernelEx" in result.reason
    assert backend.run(copies(), INPUTS, RunOptions()).status is Status.PASSED


# ---- measurement ----

SHORT = SamplerSettings(kinds=ALL_KINDS, min_rounds=6, max_rounds=6, max_s=60.0)
WARM = dataclasses.replace(SHORT, kinds=("device_warm",))
STEADY = GpuState(1980, 1980, None, 300.0, 700.0, 50, None, ())


@pytest.fixture
def slow_gpu(set_gpu: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Set launches of 1 ms, so that few make a sample, and a small L2."""
    set_gpu(f"cta_us={1000 / CTAS}")
    monkeypatch.setattr(CupyCalls, "l2_bytes", 8 * COUNT)


def measure(
    backend: CudaBackend, plan: LaunchPlan
) -> tuple[tuple[Latency, ...], SamplingRun, TimingGroup]:
    with TimingGroup(lambda: STEADY, placements=1) as group:
        assert group.add("k", partial(backend.timer, plan, INPUTS, RIGHT)), group.failures
        run = group.run("k", SHORT)
        return group.latencies(run, "k"), run, group


@pytest.mark.usefixtures("slow_gpu")
def test_times_are_those_of_the_launch(backend: CudaBackend) -> None:
    (warm, cold, end_to_end), run, _ = measure(backend, copies())
    # Two passes of 1 ms each.
    assert warm.median_us == pytest.approx(2000.0, rel=0.003)
    assert cold.median_us == pytest.approx(2000.0, rel=0.003)
    assert [x.kind for x in (warm, cold, end_to_end)] == list(ALL_KINDS)
    assert {x.origin for x in (warm, cold, end_to_end)} == {"measured"}
    assert len(warm.samples_us) == 12  # six rounds, and the A/A pair in each
    assert says(warm.reason, "replay_of_a_graph", "2 launches")
    assert says(warm.reason, "on_the_same_inputs")
    assert says(warm.reason, "identical_runs_differ")
    assert says(cold.reason, "rotating_over_copies", "4")
    assert warm.sm_clocks_mhz == (1980,) * 12
    assert not says(warm.reason, "samples_dropped")
    assert run.rounds == 6


@pytest.mark.usefixtures("slow_gpu")
@pytest.mark.parametrize(
    "macros",
    [
        {"AFTER": "if (before > 50) out[0] += 1"},  # correct only when launched once
        # On copies of earlier launches' buffers, which without poison would hold the right output.
        {"VALUE": "!first || first == q ? (first = q, q[i]) : 0"},
        {"WHERE": "before < 30"},  # leaves an earlier launch's output
    ],
)
def test_launches_with_another_output_have_no_time(
    backend: CudaBackend, macros: dict[str, str]
) -> None:
    latencies, _, group = measure(backend, copies(**macros))
    assert latencies == ()
    assert says(group.failures["k"], "another_output_single")


@pytest.mark.usefixtures("slow_gpu")
def test_a_kernel_that_writes_nothing_is_timed(backend: CudaBackend) -> None:
    """An output that is not written is equal after every launch, whatever memory held before."""
    latencies, _, group = measure(backend, copies(WHERE="false"))
    assert latencies, group.failures


def test_no_wrong_kernel_is_timed(backend: CudaBackend) -> None:
    wrong = dataclasses.replace(RIGHT, passed=False)
    timer = backend.timer(copies(), INPUTS, wrong)
    with raises(ValueError, "wrong_result_not_timed"), timer:
        pass


@pytest.mark.usefixtures("slow_gpu")
def test_a_failure_in_mid_run_gives_a_one_sentence_message(
    backend: CudaBackend, set_gpu: Callable[[str], None]
) -> None:
    with TimingGroup(lambda: STEADY, placements=1) as group:
        assert group.add("k", partial(backend.timer, copies(), INPUTS, RIGHT)), group.failures
        set_gpu(f"cta_us={1000 / CTAS} cuGraphLaunch=1@5")
        with raises(MeasureError, "launched_argument_cuda", "t01"):
            group.run("k", SHORT)


def passed() -> Evaluation:
    right: dict[str, Any] = {"status": Status.PASSED, "reason": "right", "correctness": RIGHT}
    return Evaluation(**right, variant="t01", problem=PROBLEM, config={}, device="L4", when="")


@pytest.mark.usefixtures("slow_gpu")
@pytest.mark.parametrize("full", [False, True])
def test_the_pipeline_measures_kernel_and_baselines_in_one_run(
    backend: CudaBackend, full: bool
) -> None:
    found = time_evaluation(
        backend,
        copies(),
        INPUTS,
        passed(),
        lambda: STEADY,
        full=full,
        settings=SHORT if full else WARM,
    )
    assert found.status is Status.PASSED
    assert found.latency is not None
    assert found.latency.kind == "device_warm"
    others = ["device_cold", "end_to_end"] if full else []
    assert [x.kind for x in found.other_latencies] == others
    # PyTorch has no GPU here: each baseline has a reason and no time.
    names = ["flash", "cudnn", "efficient", "math"] if full else []
    assert [b.name for b in found.baselines] == names
    assert all(b.latency is None and b.reason for b in found.baselines)


@pytest.mark.usefixtures("slow_gpu")
def test_every_sample_has_its_clock_and_dropped_ones_a_reason(backend: CudaBackend) -> None:
    readings = 0

    def mostly_fast() -> GpuState:
        nonlocal readings
        readings += 1
        clock = 1000 if readings % 12 == 0 else 1900 + readings % 5
        return dataclasses.replace(STEADY, sm_clock_mhz=clock)

    with TimingGroup(mostly_fast, placements=1) as group:
        group.add("k", partial(backend.timer, copies(), INPUTS, RIGHT))
        run = group.run("k", SHORT)
        latencies = group.latencies(run, "k")
    assert not run.throttled
    assert sum(len(x.samples_us) for x in latencies) == len(run.samples) - 3
    assert all(1000 not in latency.sm_clocks_mhz for latency in latencies)
    assert any(
        says(x.reason, "samples_dropped") and says(x.reason, "clock_below_median", "95%")
        for x in latencies
    )


@pytest.mark.usefixtures("slow_gpu")
@pytest.mark.parametrize("is_tight", [False, True])
def test_second_runs_have_separate_buffers_and_graphs(
    backend_with: Callable[..., CudaBackend], is_tight: bool
) -> None:
    """If memory allows it. With shared buffers an A/A pair cannot show the effect of placement."""
    little = {"free_bytes": lambda _: 24 * COUNT} if is_tight else {}
    backend = backend_with(**little)
    with TimingGroup(lambda: STEADY, WARM.kinds, placements=4) as group:
        assert group.add("k", partial(backend.timer, copies(), INPUTS, RIGHT)), group.failures
        run = group.run("k", WARM)
        (latency,) = group.latencies(run, "k")
    firsts, seconds = ({s.placement for s in run.samples if s.twin is t} for t in (False, True))
    if is_tight:
        assert firsts == seconds == {0}
    else:
        assert (firsts, seconds) == ({0, 1}, {2, 3})
        assert says(latency.reason, "places_memory_turn", "4")


# ---- selfcheck: each check can pass and fail ----


def test_the_check_of_guard_zones_covers_both_sides(backend: CudaBackend) -> None:
    class Blind(CudaBackend):
        def __init__(self) -> None:
            """Do not query a GPU."""

        def run(self, *_: object) -> RunResult:
            return RunResult(Status.PASSED)

    assert says(checks.guard_zones(backend), "write_past_end")
    with raises(checks.CheckFailed, "guard_zones"):
        checks.guard_zones(Blind())


def test_graphs_are_timed_against_an_empty_one(
    backend: CudaBackend,
    set_gpu: Callable[[str], None],
    backend_with: Callable[..., CudaBackend],
) -> None:
    set_gpu("cta_us=0.5")
    assert says(checks.graph_timing(backend), "empty_kernel_graph", "0.50")
    backend = backend_with(replay_us=lambda *_: 5.0)
    with raises(checks.CheckFailed, "graph_times"):
        checks.graph_timing(backend)


def test_occupancy_is_compared_with_the_driver(
    backend: CudaBackend, backend_with: Callable[..., CudaBackend]
) -> None:
    few = (LADDER.by_id("v01"), LADDER.by_id("v05"))
    count = sum(len(variant.passes) for variant in few)
    assert says(checks.occupancy_model(backend, few), "agree_about_ctas", f"{count}")
    with raises(checks.CheckFailed, "occupancy_differs", "77", "v01"):
        checks.occupancy_model(backend_with(ctas_per_sm=lambda *_: 77), few)
