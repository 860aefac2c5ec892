"""The CUDA backend on a real GPU; skipped with a reason if there is none."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fitting import fitting_config, is_supported
from verdicts import RIGHT
from words import says

from engine.attention.evaluation import Latency
from engine.attention.plan import LaunchPlan, make_plan, resources
from engine.attention.problem import Dtype, Problem
from engine.attention.tensors import Inputs, decode, make_inputs
from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend, why_not_cuda
from engine.backends.sdpa import BACKENDS, baseline, sdpa_same_dtype
from engine.base.errors import Status
from engine.base.launch_arguments import PassLaunch, TensorArg
from engine.correctness import check_output
from engine.correctness.gradients import with_forward
from engine.devices import limits_for
from engine.measure.device_lock import gpu_states
from engine.measure.side_by_side import TimingGroup
from engine.measure.statistics import Verdict
from engine.model.kernel import compile_plan
from engine.model.occupancy import occupancy
from kernels.ladder import LADDER
from kernels.variant import Variant

pytestmark = pytest.mark.gpu


def murmur_sum(data: bytes) -> int:
    """Return what fingerprint.cu computes."""
    words = np.frombuffer(data, np.uint32).astype(np.uint64)
    with np.errstate(over="ignore"):
        index = np.arange(1, words.size + 1, dtype=np.uint64)
        x = index * np.uint64(0x9E3779B97F4A7C15) ^ words
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            x = (x ^ (x >> np.uint64(33))) * np.uint64(factor)
        return int((x ^ (x >> np.uint64(33))).sum(dtype=np.uint64))


@pytest.fixture(scope="module")
def backend() -> Iterator[CudaBackend]:
    if (why := why_not_cuda()) is not None:
        pytest.skip(why)
    made = CudaBackend()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def alone_on_the_gpu(backend: CudaBackend) -> Iterator[None]:
    """Make other test processes wait, as these tests measure and fill the memory."""
    if backend.is_software:  # each process has its own
        yield
        return
    import fcntl

    with (Path(tempfile.gettempdir()) / "attune-gpu-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def variant_problems() -> list[object]:
    return [
        pytest.param(variant, dataclasses.replace(problem, head_dim=head_dim), id=name)
        for variant in LADDER
        for head_dim in variant.head_dims
        for problem in (
            Problem(1, 2, 65, head_dim, causal=False, dtype="float16"),
            Problem(2, 1, 203, head_dim, causal=True, dtype="bfloat16"),
            Problem(2, 3, 1, head_dim, seqlen_kv=100),
        )
        if is_supported(variant, dataclasses.replace(problem, head_dim=head_dim))
        for name in [f"{variant.id}-{problem.label()}"]
    ]


def skip_unless_it_runs_here(variant: Variant, backend: CudaBackend) -> tuple[int, int]:
    number = int(backend._calls.arch.removeprefix("sm_"))
    here = (number // 10, number % 10)
    needed = variant.min_compute_capability
    if here < needed or (variant.arch_specific and here != needed):
        pytest.skip(f"{variant.id} needs compute capability {needed}, this GPU has {here}")
    return here


@pytest.mark.parametrize(("variant", "problem"), variant_problems())
def test_every_variant_agrees_with_sdpa(
    backend: CudaBackend, variant: Variant, problem: Problem
) -> None:
    skip_unless_it_runs_here(variant, backend)
    plan = make_plan(variant, problem, fitting_config(variant, problem))
    inputs = make_inputs(problem, seed=1)
    result = backend.run(plan, inputs, RunOptions())
    assert (result.status, result.reason) == (Status.PASSED, "")
    assert (result.inputs_unchanged, result.repeatable, result.guards_intact) == (True,) * 3
    assert result.out is not None
    expected, _ = sdpa_same_dtype(inputs)
    tolerance = 4e-3 if problem.dtype == "float16" else 3e-2
    assert np.abs(decode(result.out, problem.dtype) - expected).max() < tolerance


@pytest.mark.parametrize(
    "variant", [v for v in LADDER.every() if v.is_backward], ids=lambda v: v.id
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_agree_with_the_reference(
    backend: CudaBackend, variant: Variant, dtype: Dtype
) -> None:
    skip_unless_it_runs_here(variant, backend)
    problem = Problem(1, 2, 65, 64, causal=True, dtype=dtype, direction="backward")
    plan = make_plan(variant, problem, fitting_config(variant, problem))
    inputs = with_forward(make_inputs(problem, seed=1))
    result = backend.run(plan, inputs, RunOptions())
    assert (result.status, result.reason) == (Status.PASSED, "")
    assert (result.inputs_unchanged, result.repeatable, result.guards_intact) == (True,) * 3
    assert check_output(inputs, result, plan=plan).passed


@pytest.mark.parametrize(("variant", "problem"), variant_problems())
def test_the_driver_agrees_about_resources_and_occupancy(
    backend: CudaBackend, variant: Variant, problem: Problem
) -> None:
    capability = skip_unless_it_runs_here(variant, backend)
    from cupy.cuda import driver

    plan = make_plan(variant, problem, fitting_config(variant, problem))
    compiled = compile_plan(plan, backend._calls.arch)
    kernels = backend._load(plan, compiled)
    for launch, ours in zip(plan.passes, resources(plan, compiled), strict=True):
        pointer = kernels[launch.entry].ptr

        def attribute(name: str, pointer: int = pointer) -> int:
            return int(
                driver.funcGetAttribute(getattr(driver, f"CU_FUNC_ATTRIBUTE_{name}"), pointer)
            )

        assert attribute("NUM_REGS") == ours.registers_per_thread
        assert attribute("SHARED_SIZE_BYTES") == ours.static_smem_bytes
        driver_says = driver.occupancyMaxActiveBlocksPerMultiprocessor(
            pointer, launch.threads, launch.dynamic_smem_bytes
        )
        model = occupancy(
            limits_for(capability),
            None,
            launch.ctas,
            launch.threads,
            ours.registers_per_thread,
            ours.smem_bytes,
        )
        assert model.ctas_per_sm == driver_says, launch.entry


@pytest.mark.parametrize("size", [4, 1020, 1024, 4_000_000])
def test_the_fingerprint_is_the_documented_one(backend: CudaBackend, size: int) -> None:
    calls = backend._calls
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    address = calls.alloc(size)
    try:
        calls.write(address, data)
        assert calls.fingerprints([(address, size)]) == [murmur_sum(data.tobytes())]
        calls.write(address, data[::-1])
        assert calls.fingerprints([(address, size)]) != [murmur_sum(data.tobytes())]
    finally:
        calls.free(address)


@pytest.mark.parametrize("size", [2, 1 << 20, (1 << 20) + 2, (5 << 20) - 2])
def test_fill_covers_exactly_the_given_range(backend: CudaBackend, size: int) -> None:
    calls = backend._calls
    address = calls.alloc(size + 4)
    try:
        for pattern in (np.uint16(0x7FA5), np.uint16(0)):
            calls.fill(address, size + 4, np.uint16(0x1111))
            calls.fill(address + 2, size, pattern)
            words = calls.read(address, size + 4).view(np.uint16)
            assert words[0] == words[-1] == 0x1111
            assert (words[1:-1] == pattern).all()
    finally:
        calls.free(address)


def plan_of(source: Path, entry: str = "k") -> LaunchPlan:
    """Return a plan of `k(q, out)` in one CTA of 32 threads."""
    args = (TensorArg("q"), TensorArg("out"))
    return LaunchPlan(
        variant="t01",
        problem=Problem(1, 1, 16, 32),
        config={},
        source=source,
        defines=(),
        scratch=(),
        passes=(PassLaunch(entry, (1, 1, 1), 32, 0, args),),
    )


def kernel(body: str) -> str:
    return f'extern "C" __global__ void k(unsigned short* q, unsigned short* out) {{\n{body}\n}}\n'


@pytest.mark.parametrize(
    ("body", "unchanged", "repeatable", "guards"),
    [
        ("out[threadIdx.x] = 1;", True, True, True),
        ("if (threadIdx.x == 0) out[16 * 32] = 1;", True, True, False),
        ("if (threadIdx.x == 0) out[-1] = 1;", True, True, False),
        ("if (threadIdx.x == 0) q[3] ^= 1;", False, True, True),
        ("if (threadIdx.x == 0) out[0] = (unsigned short)clock64();", True, False, True),
    ],
)
def test_misbehaving_kernels_are_detected(
    backend: CudaBackend,
    tmp_path: Path,
    body: str,
    unchanged: bool,
    repeatable: bool,
    guards: bool,
) -> None:
    source = tmp_path / "k.cu"
    source.write_text(kernel(body))
    plan = plan_of(source)
    result = backend.run(plan, make_inputs(plan.problem), RunOptions())
    assert result.status is Status.PASSED
    assert result.inputs_unchanged == unchanged
    assert result.repeatable == repeatable
    assert result.guards_intact == guards


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        ("*(int*)16 = 1;", Status.OUT_OF_BOUNDS, "foreign_memory"),
        ("while (*(volatile unsigned short*)q != 0x7fa5) {}", Status.TIMEOUT, "may_loop_for_ever"),
        ('asm volatile("trap;");', Status.LAUNCH_ERROR, ""),
    ],
)
def test_a_kernel_that_breaks_the_context_is_a_status(
    backend: CudaBackend, tmp_path: Path, body: str, status: Status, name: str
) -> None:
    del backend  # used only to skip: the context is lost in another process
    source = tmp_path / "k.cu"
    source.write_text(kernel(body))
    code = f"""
import sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from test_cuda_gpu import plan_of
from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend
from engine.attention.tensors import make_inputs
plan = plan_of(Path({str(source)!r}))
backend = CudaBackend()
for _ in range(2):
    result = backend.run(plan, make_inputs(plan.problem), RunOptions(timeout_s=2.0))
    print(result.status, result.reason, flush=True)
backend.close()
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    first, second = found.stdout.splitlines()
    assert first.startswith(f"{status} k "), found.stderr
    assert not name or says(first, name)
    assert says(second, "use_gpu_again")


def skip_where_times_mean_nothing(backend: CudaBackend) -> None:
    if backend.is_software:
        pytest.skip("A GPU in software takes no time that could be measured.")


def timed(backend: CudaBackend, plan: LaunchPlan, inputs: Inputs) -> tuple[Latency, ...]:
    skip_where_times_mean_nothing(backend)
    with gpu_states() as read_state, TimingGroup(read_state) as group:
        assert group.add("k", partial(backend.timer, plan, inputs, RIGHT)), group.failures
        latencies = group.latencies(group.run("k"), "k")
        assert latencies, group.failures
        return latencies


def test_an_empty_kernel_takes_less_than_the_overhead_of_events(
    backend: CudaBackend, tmp_path: Path
) -> None:
    source = tmp_path / "k.cu"
    source.write_text(kernel(""))
    plan = plan_of(source)
    warm, _, end_to_end = timed(backend, plan, make_inputs(plan.problem))
    # An H200 takes 0.5 µs in a graph; events around a single launch give 5 to 6 µs on any GPU.
    assert 0.1 < warm.median_us < 3.0
    assert end_to_end.median_us > warm.median_us


def test_cold_and_warm_differ_as_the_memory_does(backend: CudaBackend) -> None:
    variant = LADDER[0]
    problem = Problem(1, 1, 128, 64)
    plan = make_plan(variant, problem, variant.default_config())
    warm, cold, end_to_end = timed(backend, plan, make_inputs(problem))
    assert {x.origin for x in (warm, cold, end_to_end)} == {"measured"}
    assert cold.median_us > 0.98 * warm.median_us
    assert end_to_end.median_us > warm.median_us
    assert (warm.high_us - warm.low_us) / warm.median_us < 0.05


def test_a_kernel_against_itself_has_no_winner(backend: CudaBackend) -> None:
    skip_where_times_mean_nothing(backend)
    variant = LADDER[0]
    problem = Problem(1, 8, 256, 64)
    plan = make_plan(variant, problem, variant.default_config())
    inputs = make_inputs(problem)
    with gpu_states() as read_state, TimingGroup(read_state) as group:
        for name in ("a", "b"):
            assert group.add(name, partial(backend.timer, plan, inputs, RIGHT)), group.failures
        found = group.run("a").comparison("b")
    assert found.verdict in (Verdict.SAME, Verdict.UNDECIDED), found.reason


def test_the_baselines_are_named_and_timed(backend: CudaBackend) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"PyTorch {torch.__version__} finds no CUDA device")
    variant = LADDER[0]
    problem = Problem(1, 2, 128, 64)
    plan = make_plan(variant, problem, variant.default_config())
    inputs = make_inputs(problem)
    with gpu_states() as read_state, TimingGroup(read_state) as group:
        assert group.add("k", partial(backend.timer, plan, inputs, RIGHT)), group.failures
        for name in BACKENDS:
            group.add(name, partial(baseline, name, problem, inputs))
        run = group.run("k")
        assert "math" in group.names, group.failures
        kinds = [x.kind for x in group.latencies(run, "math")]
        assert kinds == ["device_warm", "device_cold", "end_to_end"]
        assert all(group.failures[name] for name in set(BACKENDS) - set(group.names))
