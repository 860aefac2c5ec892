"""Checks on the GPU: a launch, guard zones, the occupancy model, NVML."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.arguments import TensorArg
from engine.backends.base import RunOptions, RunResult
from engine.backends.cuda import CudaBackend, why_not_cuda
from engine.compile import compile_plan, resources
from engine.correctness import check_output
from engine.devices import limits_for
from engine.devices.detect import detect_local
from engine.errors import ToolMissing
from engine.evaluation import Correctness, Status
from engine.measure.local_gpu import gpu_states
from engine.model.occupancy import occupancy
from engine.plan import LaunchPlan, PassLaunch, make_plan
from engine.problem import Problem
from engine.selfcheck.check import CheckFailed
from engine.selfcheck.software import PROBLEM
from engine.tensors import make_inputs
from kernels.ladder import LADDER

MAX_READING_MS = 0.2  # longer, the clock that is read is no more that of the sample
_READINGS = 200


def driver() -> str:
    if (why := why_not_cuda()) is not None:
        raise ToolMissing(why)
    local = detect_local()
    if isinstance(local, str):
        raise CheckFailed(f"CUDA finds a GPU and NVML does not: {local}")
    known = "" if local.in_table else ", which is not in Attune's table of GPUs"
    differences = "".join(f" {each}" for each in local.differences)
    return f"{local.driver_name}{known}; driver {local.driver_version or 'unknown'}.{differences}"


def launch(backend: CudaBackend) -> str:
    """The first variant, on the GPU, compared with the reference."""
    checked(backend, plan := first_plan())
    return f"{plan.variant} was launched and agrees with the float64 reference."


def first_plan() -> LaunchPlan:
    return make_plan(LADDER[0], PROBLEM, LADDER[0].default_config())


def checked(backend: CudaBackend, plan: LaunchPlan) -> Correctness:
    """The verdict on a plan that must pass. Raises CheckFailed."""
    inputs = make_inputs(plan.problem)
    result = backend.run(plan, inputs, RunOptions())
    if result.status is not Status.PASSED:
        raise CheckFailed(f"{plan.variant} is {result.status}: {result.reason}")
    correctness = check_output(inputs, result, plan=plan)
    if not correctness.passed:
        raise CheckFailed(f"{plan.variant} is wrong on this GPU: {correctness.reason}")
    return correctness


@contextmanager
def small_plan(body: str) -> Iterator[LaunchPlan]:
    """`k(q, out)` with this body, in one CTA of 32 threads on a problem of 16 rows of 32."""
    source = f'extern "C" __global__ void k(unsigned short* q, unsigned short* out) {{ {body} }}\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.cu"
        path.write_text(source)
        yield LaunchPlan(
            variant="selfcheck",
            problem=Problem(1, 1, 16, 32),
            config={},
            source=path,
            defines=(),
            scratch=(),
            passes=(PassLaunch("k", (1, 1, 1), 32, 0, (TensorArg("q"), TensorArg("out"))),),
        )


def guard_zones(backend: CudaBackend) -> str:
    """A write behind the output must be noticed, and one inside of it must not."""
    inside = _run(backend, "out[threadIdx.x] = 1;")
    behind = _run(backend, "if (threadIdx.x == 0) out[16 * 32] = 1;")
    if not inside.guards_intact or behind.guards_intact:
        raise CheckFailed(
            "The guard zones do not detect a write past the end of a buffer: results of this GPU "
            "cannot be trusted; send this report."
        )
    return "A write past the end of the output is detected."


def _run(backend: CudaBackend, body: str) -> RunResult:
    with small_plan(body) as plan:
        result = backend.run(plan, make_inputs(plan.problem), RunOptions())
    if result.status is not Status.PASSED:
        raise CheckFailed(f"A kernel of one line is {result.status}: {result.reason}")
    return result


def occupancy_model(backend: CudaBackend) -> str:
    """CTAs per SM of every variant's default config: the model beside the driver."""
    calls = backend.calls
    number = int(calls.arch.removeprefix("sm_"))
    has = (number // 10, number % 10)
    compared = 0
    for variant in LADDER:
        needed = variant.min_compute_capability
        if has < needed or (variant.arch_specific and has != needed):
            continue
        plan = make_plan(variant, PROBLEM, variant.default_config())
        compiled = compile_plan(plan, calls.arch)
        smem = {p.entry: p.dynamic_smem_bytes for p in plan.passes}
        kernels = calls.load(compiled.cubin, smem, compiled.symbols)
        try:
            for each, used in zip(plan.passes, resources(plan, compiled), strict=True):
                by_driver = calls.ctas_per_sm(
                    kernels[each.entry], each.threads, each.dynamic_smem_bytes
                )
                model = occupancy(
                    limits_for(has),
                    None,
                    each.ctas,
                    each.threads,
                    used.registers_per_thread,
                    used.smem_bytes,
                ).ctas_per_sm
                if model != by_driver:
                    raise CheckFailed(
                        f"{each.entry} of {variant.id} has {by_driver} CTAs per SM by the driver "
                        f"and {model} by Attune's model: occupancy is wrong on this GPU; send this "
                        "report."
                    )
                compared += 1
        finally:
            calls.unload(kernels)
    return f"Model and driver agree about CTAs per SM of {compared} kernels."


def nvml_readings() -> str:
    """Clock and throttle reasons are there, and quick to read."""
    with gpu_states() as read:
        state = read()
        if state.sm_clock_mhz is None:
            raise CheckFailed(
                "NVML gives no SM clock, so that samples at a low clock cannot be dropped: update "
                "the driver, or run outside of the container or MIG slice that hides it."
            )
        times_ms = []
        for _ in range(_READINGS):
            begin = time.perf_counter()
            read()
            times_ms.append(1000 * (time.perf_counter() - begin))
    each_ms = statistics.median(times_ms)
    if each_ms > MAX_READING_MS:
        raise CheckFailed(
            f"One NVML reading takes {each_ms:.2f} ms, more than {MAX_READING_MS} ms: clocks may "
            "be read after the sample has ended. Look for other programs that poll the GPU."
        )
    return f"SM clock {state.sm_clock_mhz:,} MHz; one reading takes {each_ms:.3f} ms."
