"""Check what works on this machine, one check for each tool that a measurement or a page needs.

Checks without a GPU run first, then those on it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import expm1, isinf
from pathlib import Path
from typing import TypeAlias

import numpy as np

from engine.attention.evaluation import Correctness
from engine.attention.plan import LaunchPlan, make_plan, resources
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend, why_not_cuda
from engine.backends.cuda.backend import SOFTWARE_TIMES
from engine.backends.sdpa import BACKENDS, baseline, require_torch_on_gpu
from engine.base.cxx import find_toolchain
from engine.base.errors import AttuneError, CompileError, Status, ToolMissing
from engine.base.launch_arguments import PassLaunch, TensorArg
from engine.correctness import check_output
from engine.cuda_on_host.client import RunResult
from engine.cuda_source.nvrtc import toolchain
from engine.devices import DeviceSpec, find_device, limits_for, target_gpu
from engine.devices.environment import collect_environment
from engine.devices.spec import detect_local
from engine.measure.device_lock import gpu_states
from engine.measure.side_by_side import QUICK, TimingGroup
from engine.model.kernel import compile_plan
from engine.model.occupancy import occupancy
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest
from kernels.ladder import LADDER
from kernels.variant import Variant


class State(StrEnum):
    """The result of a check."""

    OK = "OK"
    FAILED = "FAILED"
    NOT_POSSIBLE = "NOT POSSIBLE HERE"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The state, and a sentence with what was seen, or what is wrong and what to do."""

    name: str
    state: State
    sentence: str


class CheckFailed(AttuneError):
    """A check failed; the text says what to do."""


Check: TypeAlias = Callable[[], str]  # the sentence of a check that passed


def perform(name: str, check: Check) -> CheckResult:
    """Run one check. ToolMissing means that the check is not possible here; any other exception is
    a failure."""
    try:
        return CheckResult(name, State.OK, check())
    except ToolMissing as error:
        return CheckResult(name, State.NOT_POSSIBLE, str(error))
    except AttuneError as error:
        return CheckResult(name, State.FAILED, str(error))
    except Exception as error:
        sentence = f"Attune itself failed ({type(error).__name__}: {error}): send this report."
        return CheckResult(name, State.FAILED, " ".join(sentence.split()))


# Checks that need no GPU: versions, both compilers, execution on the CPU, the browser.

PROBLEM = Problem(1, 2, 65, 64)  # a tile and one row more
_PACKAGES = ("attune", "numpy", "cupy", "torch", "nvrtc", "cuda_runtime")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def versions() -> str:
    """List the versions of Python and of the packages that Attune uses."""
    environment = collect_environment()
    packages = [f"{name} {environment[name] or 'not installed'}" for name in _PACKAGES]
    return f"Python {environment['python']}, {', '.join(packages)}."


def _running_on(has: tuple[int, int], variants: Iterable[Variant]) -> Iterator[Variant]:
    """Yield the variants that run on a compute capability."""
    for variant in variants:
        needed = variant.min_compute_capability
        if has >= needed and (has == needed or not variant.arch_specific):
            yield variant


def gpu_compiler(device: DeviceSpec) -> str:
    """Compile every variant of the ladder that the GPU can run with NVRTC."""
    name = toolchain().name
    compiled = []
    for variant in _running_on(device.compute_capability, LADDER):
        plan = make_plan(variant, PROBLEM, variant.default_config())
        try:
            compile_plan(plan, device.arch)
        except CompileError as error:
            raise CheckFailed(
                f"{variant.id} does not compile for {device.arch} by {name}: {error}"
            ) from error
        compiled.append(variant.id)
    return f"{name} compiles {', '.join(compiled)} for {device.name} ({device.arch})."


def host_compiler() -> str:
    """Find the C++ compiler of host builds and return its version."""
    return f"{find_toolchain().version}."


def cpu_execution(device: DeviceSpec) -> str:
    """Compile the first variant for the host, execute it and compare it with the reference."""
    find_toolchain()
    request = EvaluationRequest(LADDER[0].id, PROBLEM, gpu=device.name, backend="cpu")
    evaluation = evaluate(request).evaluation
    if evaluation.status is not Status.PASSED:
        raise CheckFailed(
            f"{request.variant} on the CPU is {evaluation.status}: {evaluation.reason} See "
            f"`attune evaluate {request.variant} --backend cpu`."
        )
    return f"{request.variant} was executed on the CPU and agrees with the float64 reference."


def browser() -> str:
    """Look for a browser, which only the browser tests need; the app opens in any."""
    names = (os.environ.get("ATTUNE_CHROMIUM"), *_BROWSERS)
    if not any(name and shutil.which(name) for name in names):
        raise ToolMissing(
            "No Chromium or Chrome was found, which the browser tests drive: install one, or set "
            "ATTUNE_CHROMIUM to it. The app itself opens in any browser."
        )
    return "Chromium or Chrome is installed."


# Checks on the GPU: a launch, guard zones, the occupancy model, NVML.

MAX_READING_MS = 0.2  # above this, the clock may be read after the sample has ended
_READINGS = 200


def driver() -> str:
    """Compare the GPU as CUDA, NVML and the device table describe it."""
    if (why := why_not_cuda()) is not None:
        raise ToolMissing(why)
    local = detect_local()
    if isinstance(local, str):
        raise CheckFailed(f"CUDA finds a GPU and NVML does not: {local}")
    known = "" if local.in_table else ", which is not in Attune's table of GPUs"
    differences = "".join(f" {each}" for each in local.differences)
    return f"{local.driver_name}{known}; driver {local.driver_version or 'unknown'}.{differences}"


def launch(backend: CudaBackend) -> str:
    """Launch the first variant on the GPU and compare it with the reference."""
    checked(backend, plan := first_plan())
    return f"{plan.variant} was launched and agrees with the float64 reference."


def first_plan() -> LaunchPlan:
    """Return the launch of the first variant of the ladder on `PROBLEM`."""
    return make_plan(LADDER[0], PROBLEM, LADDER[0].default_config())


def checked(backend: CudaBackend, plan: LaunchPlan) -> Correctness:
    """Return the verdict on a plan that must pass. Raises CheckFailed."""
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
    """Yield the plan of a kernel `k(q, out)` with this body, in one CTA of 32 threads, on a problem
    of 16 rows of 32."""
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
    """Check that a write past the end of the output is detected and a write inside it is not."""
    inside = _run(backend, "out[threadIdx.x] = 1;")
    behind = _run(backend, "if (threadIdx.x == 0) out[16 * 32] = 1;")
    if not inside.guards_intact or behind.guards_intact:
        raise CheckFailed(
            "The guard zones do not detect a write past the end of a buffer: results of this GPU "
            "cannot be trusted; send this report.",
            code="guard_zones",
        )
    return "A write past the end of the output is detected."


def _run(backend: CudaBackend, body: str) -> RunResult:
    with small_plan(body) as plan:
        result = backend.run(plan, make_inputs(plan.problem), RunOptions())
    if result.status is not Status.PASSED:
        raise CheckFailed(f"A kernel of one line is {result.status}: {result.reason}")
    return result


def occupancy_model(backend: CudaBackend, variants: Iterable[Variant] = LADDER) -> str:
    """Compare CTAs per SM of each variant's default config by the model and by the driver."""
    calls = backend.calls
    number = int(calls.arch.removeprefix("sm_"))
    has = (number // 10, number % 10)
    compared = 0
    for variant in _running_on(has, variants):
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
                        "report.",
                        code="occupancy_differs",
                    )
                compared += 1
        finally:
            calls.unload(kernels)
    return f"Model and driver agree about CTAs per SM of {compared} kernels."


def nvml_readings() -> str:
    """Check that NVML gives clock and throttle reasons, and quickly."""
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


# Checks of what is timed on the GPU: graphs, identical runs, PyTorch's backends.


_LAUNCHES = 1_000
_REPLAYS = 20
_MAX_EMPTY_US = 100.0
_MAX_DISAGREEMENT = 0.05
MAX_FLOOR = 0.02


def graph_timing(backend: CudaBackend) -> str:
    """Check that twice the launches take twice the time, without the time of an empty graph."""
    calls = backend.calls
    with small_plan("") as plan:
        compiled = compile_plan(plan, calls.arch)
        kernels = calls.load(compiled.cubin, {"k": 0}, compiled.symbols)
        (launch,) = plan.passes
        memory = calls.alloc(plan.problem.tensor_bytes)
        try:

            def replay_us(launches: int) -> float:
                def queue() -> None:
                    for _ in range(launches):
                        calls.launch(kernels["k"], launch.grid, launch.block, 0, arguments)

                graph = calls.capture(queue)
                try:
                    return min(calls.replay_us(graph) for _ in range(_REPLAYS))
                finally:
                    calls.discard(graph)

            arguments = (np.uint64(memory), np.uint64(memory))
            empty, once, twice = (replay_us(n) for n in (0, _LAUNCHES, 2 * _LAUNCHES))
        finally:
            calls.free(memory)
            calls.unload(kernels)
    if backend.is_software:
        return f"Graphs replay. {SOFTWARE_TIMES}"
    ratio = (twice - empty) / max(once - empty, 1e-9)
    if empty > _MAX_EMPTY_US or abs(ratio / 2 - 1) > _MAX_DISAGREEMENT:
        raise CheckFailed(
            f"An empty graph takes {empty:.1f} µs and twice the launches {ratio:.2f} times as "
            "long: times of short kernels cannot be trusted here. Stop what else runs on this GPU.",
            code="graph_times",
        )
    each = (once - empty) / _LAUNCHES
    return f"An empty graph takes {empty:.1f} µs, an empty kernel in a graph {each:.2f} µs."


def aa_floor(backend: CudaBackend) -> str:
    """Measure the difference between identical runs."""
    if backend.is_software:
        raise ToolMissing(SOFTWARE_TIMES)
    plan = first_plan()
    correctness = checked(backend, plan)
    name = plan.variant
    with gpu_states() as read, TimingGroup(read, QUICK.kinds) as group:
        inputs = make_inputs(plan.problem)
        if not group.add(name, lambda: backend.timer(plan, inputs, correctness)):
            raise CheckFailed(group.failures[name])
        run = group.run(name, QUICK)
    if run.throttled:
        raise CheckFailed(run.throttled)
    floor = run.table.floor(QUICK.kinds[0])
    if isinf(floor) or expm1(floor) > MAX_FLOOR:
        shown = (
            "by an amount that could not be determined"
            if isinf(floor)
            else f"by {expm1(floor):.1%}"
        )
        raise CheckFailed(
            f"Identical runs differ {shown}, so smaller differences between kernels will not be "
            "seen: stop what else runs on this GPU, or lock its clocks."
        )
    return f"Identical runs differ by up to {expm1(floor):.2%}."


def sdpa_backends() -> str:
    """List PyTorch's attention backends that work as baselines."""
    require_torch_on_gpu()
    inputs = make_inputs(PROBLEM)
    with gpu_states() as read, TimingGroup(read, QUICK.kinds, placements=1) as group:
        for name in BACKENDS:
            group.add(name, partial(baseline, name, PROBLEM, inputs))
        names, failures = group.names, dict(group.failures)
    refused = "".join(f" {reason}" for reason in failures.values())
    if not names:
        raise CheckFailed(f"None of PyTorch's attention backends works:{refused}")
    return f"Baselines: {', '.join(names)}.{refused}"


# All checks in order.

DEFAULT_GPU = "L4"  # target without a local GPU or a named one


def selfcheck(gpu: str | None = None) -> Iterator[CheckResult]:
    """Yield the results one by one; the slowest checks take seconds.

    Args:
        gpu: target of the compilers; this machine's GPU by default.

    Raises:
        UnknownName: `gpu` is not in the table.
    """
    target = _target(gpu)

    yield perform("versions", versions)
    yield perform("NVRTC", lambda: gpu_compiler(target))
    yield perform("host compiler", host_compiler)
    yield perform("CPU backend", lambda: cpu_execution(target))
    yield perform("browser", browser)
    yield from _on_gpu()


def _target(gpu: str | None) -> DeviceSpec:
    if gpu is not None:
        return target_gpu(gpu)
    local = detect_local()
    return find_device(DEFAULT_GPU) if isinstance(local, str) else local.spec


def _on_gpu() -> Iterator[CheckResult]:
    """Yield the checks on a GPU; without one, each is listed with the reason."""
    from engine.backends.cuda import CudaBackend, why_not_cuda
    from engine.measure.device_lock import gpu_lock

    made: list[CudaBackend] = []

    def with_backend(check: Callable[[CudaBackend], str]) -> Check:
        def body() -> str:
            if why_not_cuda() is not None:
                raise ToolMissing("This needs a GPU: see driver.")
            if not made:
                made.append(CudaBackend())
            if (why := made[0].gpu_error) is not None:
                raise ToolMissing(why)
            with gpu_lock("selfcheck", lambda sentence: print(sentence, file=sys.stderr)):
                return check(made[0])

        return body

    yield perform("driver", driver)
    for name, check in (
        ("launch", launch),
        ("guard zones", guard_zones),
        ("graph timing", graph_timing),
        ("occupancy", occupancy_model),
        ("NVML", lambda _: nvml_readings()),
        ("SDPA", lambda _: sdpa_backends()),
        ("A/A floor", aa_floor),
    ):
        yield perform(name, with_backend(check))
    for backend in made:
        backend.close()
