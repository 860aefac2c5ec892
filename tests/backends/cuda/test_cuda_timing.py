"""Measuring on a fake GPU whose launches take a known time: sampler and pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from fake_gpu import FakeGpu
from fake_kernels import COUNT, PROBLEM, finish, gpu_with, make_plan, produce, verdict

from engine.backends.cuda import CudaBackend
from engine.backends.cuda.cupy_calls import CupyCalls
from engine.base.errors import MeasureError, Status
from engine.devices.detect import GpuState
from engine.evaluation import ALL_KINDS, Evaluation, Latency
from engine.measure.sampler import SamplerSettings, SamplingRun
from engine.measure.side_by_side import TimingGroup, time_evaluation
from engine.plan import LaunchPlan
from engine.tensors import Inputs

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

SHORT = SamplerSettings(kinds=ALL_KINDS, min_rounds=6, max_rounds=6, max_s=60.0)
STEADY = GpuState(1980, 1980, None, 300.0, 700.0, 50, None, ())


def steady() -> GpuState:
    return STEADY


def measure(
    gpu: FakeGpu, inputs: Inputs, plan: LaunchPlan | None = None
) -> tuple[tuple[Latency, ...], SamplingRun, TimingGroup]:
    with TimingGroup(steady, placements=1) as group:
        timer = partial(CudaBackend(gpu.calls()).timer, plan or make_plan(), inputs)
        assert group.add("k", partial(timer, verdict(passed=True))), group.failures
        run = group.run("k", SHORT)
        return group.latencies(run, "k"), run, group


def slow_gpu(**kernels: object) -> FakeGpu:
    """Launches of 1 ms: few of them make a sample, and the fake executes every one."""
    gpu = gpu_with(**kernels)  # type: ignore[arg-type]
    gpu.launch_us = 1000.0
    gpu.l2_bytes = 4 * 2 * COUNT
    return gpu


def test_times_are_those_of_the_launch(inputs: Inputs) -> None:
    gpu = slow_gpu()
    (warm, cold, end_to_end), run, _ = measure(gpu, inputs)
    # Two passes of 1 ms each, and the events' own 5 µs on top of a replay of 4 ms.
    assert warm.median_us == pytest.approx(2000.0, rel=0.003)
    assert cold.median_us == pytest.approx(2000.0, rel=0.003)
    assert [x.kind for x in (warm, cold, end_to_end)] == list(ALL_KINDS)
    assert {x.origin for x in (warm, cold, end_to_end)} == {"measured"}
    assert len(warm.samples_us) == 12  # six rounds, and the A/A pair in each
    assert "each a replay of a CUDA graph of 2 launches on the same inputs" in warm.reason
    assert "identical runs differ by up to" in warm.reason
    assert warm.sm_clocks_mhz == (1980,) * 12
    assert "dropped" not in warm.reason
    assert run.rounds == 6
    assert gpu.allocations == 0


def test_no_wrong_kernel_is_timed(inputs: Inputs) -> None:
    gpu = gpu_with()
    opened = CudaBackend(gpu.calls()).timer(make_plan(), inputs, verdict(passed=False))
    with pytest.raises(ValueError, match="not correct"), opened:
        pass
    assert gpu.launches == []


def test_a_kernel_that_is_right_only_alone_has_no_time(inputs: Inputs) -> None:
    def forgets_to_reset(gpu: FakeGpu, *args: np.generic) -> None:
        finish(gpu, *args)
        count = int(gpu.view(int(args[1]), 4).view(np.int32)[0])
        if count > 50:
            gpu.view(int(args[2]), 2).view(np.uint16)[0] += 1

    gpu = slow_gpu(finish=forgets_to_reset)
    latencies, _, group = measure(gpu, inputs)
    assert latencies == ()
    assert "another output than a single one" in group.failures["k"]
    assert gpu.allocations == 0


def test_copies_have_inputs_outputs_and_scratch_of_their_own(inputs: Inputs) -> None:
    gpu = slow_gpu()
    seen: set[tuple[int, ...]] = set()

    def notes_its_buffers(gpu: FakeGpu, *args: np.generic) -> None:
        seen.add(tuple(int(x) for x in args[:3]))  # partial, counter, out
        finish(gpu, *args)

    gpu.kernels = {"produce": produce, "finish": notes_its_buffers}
    (_, cold, _), _, _ = measure(gpu, inputs)
    assert "rotating over 4 copies" in cold.reason
    assert len(seen) == 4
    addresses = [address for each in seen for address in each]
    assert len(set(addresses)) == 12  # a scratch shared by all would stay in L2
    assert all(address % 256 == 0 for address in addresses)


def test_launches_on_copies_are_verified(inputs: Inputs) -> None:
    """A copy is made of a launched one: without poison it would hold the right answer already."""
    gpu = slow_gpu()
    first: list[int] = []

    def writes_the_first_only(gpu: FakeGpu, *args: np.generic) -> None:
        first.append(int(args[2]))
        if int(args[2]) == first[0]:
            finish(gpu, *args)

    gpu.kernels = {"produce": produce, "finish": writes_the_first_only}
    latencies, _, group = measure(gpu, inputs)
    assert latencies == ()
    assert "another output than a single one" in group.failures["k"]


def test_launches_that_stop_writing_are_noticed(inputs: Inputs) -> None:
    """Their output is right: it is the one of an earlier launch."""

    def stops_writing(gpu: FakeGpu, *args: np.generic) -> None:
        if int(gpu.view(int(args[1]), 4).view(np.int32)[0]) < 30:
            finish(gpu, *args)

    latencies, _, group = measure(slow_gpu(finish=stops_writing), inputs)
    assert latencies == ()
    assert "another output than a single one" in group.failures["k"]


def test_a_replay_that_does_not_end_is_a_sentence(
    inputs: Inputs, kept: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = slow_gpu()
    backend = CudaBackend(gpu.calls())
    with TimingGroup(steady, placements=1) as group:
        group.add("k", lambda: backend.timer(make_plan(), inputs, verdict(passed=True)))
        monkeypatch.setattr(CupyCalls.wait, "__defaults__", (0.01,))
        gpu.hang = True
        with pytest.raises(MeasureError, match="t01 did not finish within 60 s: it may loop"):
            group.run("k", SHORT)
    assert backend.gpu_error is not None
    assert len(kept) == 1
    assert gpu.modules > 0


def test_running_out_of_memory_is_a_sentence_and_frees_what_there_was(inputs: Inputs) -> None:
    def exhausts(*_: object) -> None:
        raise MemoryError("no memory")

    gpu = gpu_with(finish=exhausts)
    with TimingGroup(steady, placements=1) as group:
        backend = CudaBackend(gpu.calls())
        assert not group.add("k", lambda: backend.timer(make_plan(), inputs, verdict(passed=True)))
        assert "GPU ran out of memory" in group.failures["k"]
        assert group.names == ()
        assert gpu.allocations == 0


def test_a_failure_in_mid_run_is_a_sentence(inputs: Inputs) -> None:
    launches = 0

    def breaks_down(gpu: FakeGpu, *args: np.generic) -> None:
        nonlocal launches
        launches += 1
        finish(gpu, *args)
        if launches > 200:
            gpu.view(64, 4)

    gpu = slow_gpu(finish=breaks_down)
    backend = CudaBackend(gpu.calls())
    with TimingGroup(steady, placements=1) as group:
        group.add("k", lambda: backend.timer(make_plan(), inputs, verdict(passed=True)))
        with pytest.raises(MeasureError, match="t01 read or wrote memory"):
            group.run("k", SHORT)
    assert backend.gpu_error is not None
    assert gpu.modules > 0  # destructors would raise


def passed() -> Evaluation:
    return Evaluation(
        status=Status.PASSED,
        reason="right",
        variant="t01",
        problem=PROBLEM,
        config={},
        device="L4",
        when="",
        correctness=verdict(passed=True),
    )


def test_the_pipeline_measures_kernel_and_baselines_in_one_run(inputs: Inputs) -> None:
    backend = CudaBackend(slow_gpu().calls())
    found = time_evaluation(
        backend, make_plan(), inputs, passed(), steady, full=True, settings=SHORT
    )
    assert found.status is Status.PASSED
    assert found.latency is not None
    assert found.latency.kind == "device_warm"
    assert [x.kind for x in found.other_latencies] == ["device_cold", "end_to_end"]
    # PyTorch has no GPU here: each baseline says so and has no time.
    assert [b.name for b in found.baselines] == ["flash", "cudnn", "efficient", "math"]
    assert all(b.latency is None and b.reason for b in found.baselines)


def test_quick_measures_the_kernel_alone(inputs: Inputs) -> None:
    short = replace(SHORT, kinds=("device_warm",))
    found = time_evaluation(
        CudaBackend(slow_gpu().calls()),
        make_plan(),
        inputs,
        passed(),
        steady,
        full=False,
        settings=short,
    )
    assert found.latency is not None
    assert (found.other_latencies, found.baselines) == ((), ())


def test_a_throttled_gpu_is_a_status_with_its_numbers(inputs: Inputs) -> None:
    hot = replace(STEADY, throttle_reasons=("hardware thermal slowdown",))
    found = time_evaluation(
        CudaBackend(slow_gpu().calls()),
        make_plan(),
        inputs,
        passed(),
        lambda: hot,
        full=False,
        settings=SHORT,
    )
    assert found.status is Status.THROTTLED
    assert "hardware thermal slowdown" in found.reason
    assert found.latency is not None


def test_every_sample_keeps_its_clock_and_dropped_ones_are_explained(inputs: Inputs) -> None:
    readings = 0

    def mostly_fast() -> GpuState:
        nonlocal readings
        readings += 1
        return replace(STEADY, sm_clock_mhz=1000 if readings % 12 == 0 else 1900 + readings % 5)

    with TimingGroup(mostly_fast, placements=1) as group:
        backend = CudaBackend(slow_gpu().calls())
        group.add("k", lambda: backend.timer(make_plan(), inputs, verdict(passed=True)))
        run = group.run("k", SHORT)
        latencies = group.latencies(run, "k")
    assert not run.throttled
    assert sum(len(x.samples_us) for x in latencies) == len(run.samples) - 3
    for latency in latencies:
        counted = {
            s.time_us: s.state.sm_clock_mhz
            for s, why in zip(run.samples, run.table.dropped, strict=True)
            if s.kind == latency.kind and not why
        }
        pairs = zip(latency.samples_us, latency.sm_clocks_mhz, strict=True)
        if latency.kind == "end_to_end":  # its times are all different
            assert all(counted[time_us] == clock for time_us, clock in pairs)
        assert 1000 not in latency.sm_clocks_mhz
    assert any("; dropped" in x.reason and "for SM clock under 95%" in x.reason for x in latencies)


def test_a_kernel_that_writes_nothing_is_timed(inputs: Inputs) -> None:
    """What is not written is the same after every launch: it is not what memory held before."""
    gpu = slow_gpu()
    gpu.kernels = {"produce": lambda *_: None, "finish": lambda *_: None}
    with TimingGroup(steady, ("device_warm",), placements=1) as group:
        backend = CudaBackend(gpu.calls())
        assert group.add("k", lambda: backend.timer(make_plan(), inputs, verdict(passed=True)))
        run = group.run("k", replace(SHORT, kinds=("device_warm",)))
        assert group.latencies(run, "k"), group.failures


def test_a_kernel_that_cannot_be_timed_raises_its_sentence(inputs: Inputs) -> None:
    gpu = slow_gpu()
    gpu.out_of_memory_at = 1
    with pytest.raises(MeasureError, match="ran out of memory"):
        time_evaluation(CudaBackend(gpu.calls()), make_plan(), inputs, passed(), steady, full=True)


@pytest.mark.parametrize(("memory_bytes", "placements"), [(1 << 28, 4), (24 * COUNT, 1)])
def test_second_runs_have_buffers_and_graphs_of_their_own(
    inputs: Inputs, memory_bytes: int, placements: int
) -> None:
    """Where memory allows it. With those of the first runs the A/A pair cannot see placement."""
    gpu = slow_gpu()
    gpu.memory_bytes = memory_bytes
    outputs: set[int] = set()

    def notes_its_output(gpu: FakeGpu, *args: np.generic) -> None:
        outputs.add(int(args[2]))
        finish(gpu, *args)

    gpu.kernels = {"produce": produce, "finish": notes_its_output}
    with TimingGroup(steady, ("device_warm",), placements=4) as group:
        backend = CudaBackend(gpu.calls())
        assert group.add("k", lambda: backend.timer(make_plan(), inputs, verdict(passed=True)))
        run = group.run("k", replace(SHORT, kinds=("device_warm",)))
        (latency,) = group.latencies(run, "k")
    firsts = {s.placement for s in run.samples if not s.twin}
    seconds = {s.placement for s in run.samples if s.twin}
    assert len(outputs) == placements
    if placements == 4:
        assert (firsts, seconds) == ({0, 1}, {2, 3})
        assert "in 4 places of memory in turn" in latency.reason
    else:
        assert firsts == seconds == {0}
    assert gpu.allocations == 0
