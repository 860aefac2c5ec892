"""The sampler, the bench and the backend on the GPU in software through the real CuPy: a clock with
noise, drift and placement set by the test, and planted faults. Only run by `pytest --software-gpu`;
its times are not measurements, and none is stored."""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import expm1
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from verdicts import RIGHT
from words import raises, says

from engine.attention.evaluation import Evaluation
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend
from engine.base.errors import MeasureError, Status
from engine.base.launch_arguments import PassLaunch, ScalarArg, TensorArg
from engine.measure.device_lock import gpu_states
from engine.measure.sampler import SamplerSettings, SamplingRun
from engine.measure.side_by_side import TimingGroup, time_evaluation
from engine.measure.statistics import Verdict

pytestmark = pytest.mark.gpu

Set: TypeAlias = Callable[[str], None]

PROBLEM = Problem(1, 1, 16, 32)
INPUTS = make_inputs(PROBLEM)
WARM = SamplerSettings(kinds=("device_warm",), min_rounds=10, max_rounds=30)
ROUGH = "cta_us=20 noise=0.01 drift=0.01 drift_period_s=0.05"
SOURCE = """
extern "C" __global__ void k(const unsigned short* q, unsigned short* out, int n) {
    for (int i = threadIdx.x; i < n; i += 32) out[i] = q[i];
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "k.cu"
    path.write_text(SOURCE)
    return path


def plan_of(source: Path, ctas: int = 10) -> LaunchPlan:
    args = (TensorArg("q"), TensorArg("out"), ScalarArg("n", "int32", PROBLEM.elements))
    return LaunchPlan(
        variant="t01",
        problem=PROBLEM,
        config={},
        source=source,
        defines=(),
        scratch=(),
        passes=(PassLaunch("k", (ctas, 1, 1), 32, 0, args),),
    )


def compared(
    backend: CudaBackend, one: LaunchPlan, other: LaunchPlan, seed: int, placements: int = 4
) -> SamplingRun:
    """Measure both side by side; `a` is the incumbent."""
    settings = dataclasses.replace(WARM, seed=seed)
    with gpu_states() as read, TimingGroup(read, WARM.kinds, placements=placements) as group:
        for name, plan in (("a", one), ("b", other)):
            assert group.add(name, partial(backend.timer, plan, INPUTS, RIGHT)), group.failures
        return group.run("a", settings)


def test_unknown_settings_are_refused(set_gpu: Set) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    for text, word in (("noise=0.01 drfit=1", 2), ("noise", 1), ("cuInit=2x", 1), ("seed=a", 1)):
        assert library.softwareGpuSet(text.encode()) == word
    set_gpu("noise=0")


# ---- the virtual clock ----


def test_a_kernel_compared_with_itself_gets_no_verdict(
    backend: CudaBackend, set_gpu: Set, source: Path
) -> None:
    """Except for the share of false verdicts, at most 2 % (`test_sampler_statistics`)."""
    plan = plan_of(source)
    seen: Counter[Verdict] = Counter()
    for seed in range(3):
        set_gpu(f"{ROUGH} placement=0.01 seed={seed}")
        seen[compared(backend, plan, plan, seed).comparison("b").verdict] += 1
    assert seen[Verdict.SAME] + seen[Verdict.UNDECIDED] >= 2, seen


def test_a_tenth_is_detected_despite_noise_and_drift(
    backend: CudaBackend, set_gpu: Set, source: Path
) -> None:
    for seed, (ctas, verdict) in enumerate(((11, Verdict.SLOWER), (9, Verdict.FASTER))):
        set_gpu(f"{ROUGH} seed={seed}")
        found = compared(backend, plan_of(source), plan_of(source, ctas), seed).comparison("b")
        assert found.verdict is verdict, found.reason
        assert found.ratio == pytest.approx(ctas / 10, rel=0.02)


def test_effects_of_placement_are_no_verdict(
    backend: CudaBackend, set_gpu: Set, source: Path
) -> None:
    """Times that differ by 10 % between placements hide a difference of 3 %."""
    one, other = plan_of(source, 100), plan_of(source, 103)
    floors = []
    for placement in (0.0, 0.1):
        set_gpu(f"cta_us=2 noise=0.002 placement={placement}")
        run = compared(backend, one, other, seed=1)
        floors.append(expm1(run.table.floor("device_warm")))
        seen = run.comparison("b").verdict
        assert (seen is Verdict.SLOWER) == (placement == 0.0), run.comparison("b").reason
    assert floors[1] > 4 * floors[0]


def test_a_graph_takes_the_time_of_its_launches(
    backend: CudaBackend, set_gpu: Set, source: Path
) -> None:
    set_gpu("cta_us=7")
    with backend.timer(plan_of(source), INPUTS, RIGHT) as timer:
        for launches in (1, 3, 50):
            assert timer.graph(launches, 1)() == pytest.approx(70 * launches, rel=1e-3)
        set_gpu("cta_us=7 clock_share=0.5")
        assert timer.once_us() == pytest.approx(140, rel=1e-3)


# ---- order of queued work ----


@pytest.mark.parametrize(
    ("ordered_by", "allowed"),
    [("nothing", {0, 1}), ("an event", {1}), ("the legacy stream", {1}), ("a graph", {0, 1})],
)
def test_streams_interleave_in_every_allowed_order(
    set_gpu: Set, ordered_by: str, allowed: set[int]
) -> None:
    """One stream sets a byte that another one copies."""
    import cupy

    cuda, runtime = cupy.cuda, cupy.cuda.runtime
    one = cuda.Stream(non_blocking=ordered_by != "the legacy stream")
    other = (
        cuda.Stream.null if ordered_by == "the legacy stream" else cuda.Stream(non_blocking=True)
    )
    begun, ended = cuda.Event(disable_timing=True), cuda.Event(disable_timing=True)
    memory, result = cupy.zeros(2, np.uint8), np.empty(1, np.uint8)
    source, target = memory.data.ptr, memory.data.ptr + 1

    def queue() -> None:
        runtime.memsetAsync(source, 1, 1, one.ptr)
        if ordered_by == "an event":
            begun.record(one)
            other.wait_event(begun)
        runtime.memcpyAsync(target, source, 1, runtime.memcpyDeviceToDevice, other.ptr)

    graph = None
    if ordered_by == "a graph":
        one.begin_capture()
        begun.record(one)
        other.wait_event(begun)
        queue()
        ended.record(other)
        one.wait_event(ended)
        graph = one.end_capture()
    seen = set()
    for seed in range(12):
        set_gpu(f"order={seed}")
        runtime.memset(source, 0, 2)
        if graph is None:
            queue()
        else:
            graph.launch(one)
        runtime.deviceSynchronize()
        runtime.memcpy(result.ctypes.data, target, 1, runtime.memcpyDeviceToHost)
        seen.add(int(result[0]))
    assert seen == allowed


# ---- NVML ----


@pytest.mark.parametrize(
    ("said", "status"),
    [("sm_clock_mhz=1500", Status.PASSED), ("reasons=64", Status.THROTTLED)],
)
def test_a_throttled_gpu_is_a_status(
    backend: CudaBackend,
    set_gpu: Set,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    status: Status,
) -> None:
    file = tmp_path / "nvml"
    file.write_text(said)
    monkeypatch.setenv("ATTUNE_SOFTWARE_NVML", str(file))
    set_gpu(ROUGH)
    passed = Evaluation(
        status=Status.PASSED,
        reason="right",
        variant="t01",
        problem=PROBLEM,
        config={},
        device="L4",
        when="",
        correctness=RIGHT,
    )
    with gpu_states() as read:
        found = time_evaluation(
            backend, plan_of(source), INPUTS, passed, read, full=False, settings=WARM
        )
    assert found.status is status
    throttled = status is Status.THROTTLED
    assert says(found.reason, "hardware_thermal_slowdown") is throttled


# ---- planted faults ----


@pytest.mark.parametrize(
    ("planted", "status", "name"),
    [
        ("cuMemAlloc=2", Status.OUT_OF_MEMORY, "ran_out_memory"),
        ("cuMemAlloc=2@2", Status.OUT_OF_MEMORY, "ran_out_memory"),
        ("cuLaunchKernel=701", Status.LAUNCH_ERROR, "launch_needs_more"),
        ("cuMemGetInfo=46", Status.LAUNCH_ERROR, "gpu_is_taken"),
        ("cuModuleLoadData=209", Status.LAUNCH_ERROR, ""),
    ],
)
def test_a_failing_call_is_a_status_and_the_next_run_passes(
    backend: CudaBackend, set_gpu: Set, source: Path, planted: str, status: Status, name: str
) -> None:
    backend.calls.free_bytes()  # frees the pool, so that memory is allocated anew
    set_gpu(planted)
    result = backend.run(plan_of(source), INPUTS, RunOptions())
    assert result.status is status, result.reason
    assert says(result.reason, name) if name else "NO_BINARY_FOR_GPU" in result.reason
    set_gpu("")
    assert backend.gpu_error is None
    again = backend.run(plan_of(source), INPUTS, RunOptions())
    assert (again.status, again.reason) == (Status.PASSED, "")
    assert again.out is not None
    np.testing.assert_array_equal(again.out.view(np.uint16), INPUTS.q.view(np.uint16))


def test_memory_of_another_process_is_not_available(
    backend: CudaBackend, set_gpu: Set, source: Path
) -> None:
    """Found before any allocation if CUDA reports it, otherwise at the allocation."""
    free = backend.calls.free_bytes()
    plan = plan_of(source)
    for held, words in ((free - plan.device_bytes // 2, "is free"), (free, "is free")):
        set_gpu(f"foreign_bytes={held}")
        result = backend.run(plan, INPUTS, RunOptions())
        assert result.status is Status.OUT_OF_MEMORY, result.reason
        assert words in result.reason
    set_gpu(f"foreign_bytes={free // 2}")
    assert backend.run(plan, INPUTS, RunOptions()).status is Status.PASSED


def test_a_graph_that_is_not_instantiated_gives_a_one_sentence_message(
    backend: CudaBackend, set_gpu: Set, source: Path
) -> None:
    set_gpu("cta_us=20 cuGraphInstantiateWithFlags=2")
    with gpu_states() as read, TimingGroup(read, WARM.kinds, placements=1) as group:
        added = group.add("k", partial(backend.timer, plan_of(source), INPUTS, RIGHT))
        if added:
            with raises(MeasureError, "ran_out_memory"):
                group.run("k", WARM)
        else:
            assert says(group.failures["k"], "ran_out_memory")
    set_gpu("cta_us=20")
    assert backend.gpu_error is None
    compared(backend, plan_of(source), plan_of(source), 0, placements=1)


@pytest.mark.parametrize(
    "planted",
    [
        "cuLaunchKernel=719!",
        "cuLaunchKernel=214!",  # memory errors that ECC cannot correct
        "cuStreamQuery=700!",
        "cuStreamQuery=702!",  # the time limit of a display's driver
    ],
)
@pytest.mark.usefixtures("set_gpu")
def test_a_lost_context_is_reported_and_the_process_continues(source: Path, planted: str) -> None:
    code = f"""
import ctypes, sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from test_virtual_gpu import INPUTS, plan_of
from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend
backend = CudaBackend()
plan = plan_of(Path({str(source)!r}))
print(backend.run(plan, INPUTS, RunOptions()).status)
ctypes.CDLL("libcuda.so.1").softwareGpuSet({planted.encode()!r})
for _ in range(2):
    result = backend.run(plan, INPUTS, RunOptions())
    print(result.status, result.reason)
backend.close()
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    lines = found.stdout.splitlines()
    assert len(lines) == 3, found.stdout + found.stderr
    assert lines[0] == "PASSED"
    assert lines[1].startswith(("LAUNCH_ERROR", "OUT_OF_BOUNDS"))
    assert says(lines[2], "use_gpu_again")
