"""Time of the CPU backend: cold and warm compile, round trip to the child, execution per shape.

    python tests/bench/bench_cpu_backend.py [--variants v01 v02 v05] [--runs 5] [--check]

Cold is a build into an empty cache; the first one also builds the runtime library, which is printed
separately. Warm is the cost in later runs: reading and hashing the sources and the library. The
round trip is the time in the caller minus that of the kernels. CPU is the child's processor time of
a run over all threads, for comparisons on a busy machine. Times are of this CPU, not of a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.cxx import find_toolchain
from engine.base.errors import Status
from engine.cuda_on_host.build import build_kernels, build_runtime
from engine.cuda_on_host.client import worker_threads
from kernels.ladder import by_id

SHAPES = ((1, 1, 128, 64), (1, 1, 512, 64), (8, 4, 128, 64), (32, 8, 128, 64))
WARM_LOOKUPS = 20


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def build(plan: LaunchPlan, check: bool) -> None:
    build_kernels(plan.source, [p.entry for p in plan.passes], plan.defines, check)


def make_plan_of(variant_id: str, shape: tuple[int, int, int, int], causal: bool) -> LaunchPlan:
    variant = by_id(variant_id)
    return make_plan(variant, Problem(*shape, causal=causal), variant.default_config())


def mask(causal: bool) -> str:
    return "causal" if causal else "full"


def measure(
    backend: CpuBackend, plan: LaunchPlan, runs: int, check: bool
) -> tuple[list[float], list[float], list[float]]:
    """Return (execution, round trip, CPU) of each run in ms, without the first, which loads the
    library."""
    inputs = make_inputs(plan.problem)
    executions, trips, cpu = [], [], []
    for _ in range(runs + 1):
        before = _child_cpu_ms(backend)
        start = time.perf_counter()
        result = backend.run(plan, inputs, RunOptions(check=check, repeat=False))
        whole = (time.perf_counter() - start) * 1000
        if result.status is not Status.PASSED or result.execution_ms is None:
            raise SystemExit(f"{plan.variant} {plan.problem.label()}: {result.reason}")
        executions.append(result.execution_ms)
        trips.append(whole - result.execution_ms)
        cpu.append(_child_cpu_ms(backend) - before)
    return executions[1:], trips[1:], cpu[1:]


def _child_cpu_ms(backend: CpuBackend) -> float:
    """Return the processor time of all threads of the child in ms; 0 except on Linux."""
    process = backend.process_id
    if process is None or not sys.platform.startswith("linux"):
        return 0.0
    of_process = (~process << 3) | 2  # clock_getcpuclockid(3)
    return time.clock_gettime(of_process) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--variants", nargs="+", default=["v01", "v02", "v05"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="the check build")
    options = parser.parse_args()
    toolchain = find_toolchain()
    print(f"{toolchain.version}; {worker_threads()} worker threads")
    print(f"runtime library, cold: {milliseconds(lambda: build_runtime(toolchain)):.0f} ms\n")
    print(f"{'variant':<9}{'mask':<8}{'compile, ms: cold':>18}{'warm':>8}")
    for name in options.variants:
        for causal in (False, True):
            plan = make_plan_of(name, SHAPES[0], causal)
            cold = milliseconds(lambda plan=plan: build(plan, options.check))
            warm = statistics.median(
                milliseconds(lambda plan=plan: build(plan, options.check))
                for _ in range(WARM_LOOKUPS)
            )
            print(f"{name:<9}{mask(causal):<8}{cold:18.0f}{warm:8.2f}", flush=True)

    print(f"\n{'variant':<9}{'shape':<18}{'mask':<8}", end="")
    print(
        f"{'execution, ms: best':>20}{'median':>10}{'round trip, ms: best':>24}{'median':>10}",
        end="",
    )
    print(f"{'CPU, ms: best':>16}{'median':>10}")
    backend = CpuBackend()
    for name in options.variants:
        for shape in SHAPES:
            for causal in (False, True):
                plan = make_plan_of(name, shape, causal)
                executions, trips, cpu = measure(backend, plan, options.runs, options.check)
                print(f"{name:<9}{shape!s:<18}{mask(causal):<8}", end="")
                print(f"{min(executions):20.2f}{statistics.median(executions):10.2f}", end="")
                print(f"{min(trips):24.2f}{statistics.median(trips):10.2f}", end="")
                print(f"{min(cpu):16.2f}{statistics.median(cpu):10.2f}", flush=True)
    backend.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="attune-bench-") as empty_cache:
        os.environ["ATTUNE_CACHE_DIR"] = empty_cache
        main()
