"""Compile times of the ladder: cold, and warm from the cache on disk.

    python tests/bench/bench_compile.py [--arch sm_89 ...]

Cold is the first compile into an empty cache; loading NVRTC itself is printed separately. Warm is
the cost in later evaluations: reading and hashing the sources, and reading the entry.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

from engine.attention.plan import make_plan, resources
from engine.attention.problem import Problem
from engine.cuda_source.nvrtc import toolchain
from engine.model.kernel import compile_plan
from kernels.ladder import LADDER

PROBLEM = Problem(1, 1, 128, 64)
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
WARM_LOOKUPS = 50


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, usage="%(prog)s [--arch ARCH ...]")
    parser.add_argument("--arch", nargs="+", default=list(ARCHS))
    archs = parser.parse_args().arch
    print(f"{'load NVRTC':<28}{milliseconds(toolchain):8.0f} ms   {toolchain().name}")
    print(f"\n{PROBLEM.label()}, default config; warm is the median of {WARM_LOOKUPS}")
    print(
        f"{'variant':<20}{'arch':<8}{'cold ms':>9}{'warm ms':>9}  registers, spill bytes per pass"
    )
    colds, warms = [], []
    for variant in LADDER:
        plan = make_plan(variant, PROBLEM, variant.default_config())
        for arch in archs:
            number = int(arch.removeprefix("sm_").rstrip("af"))
            capability = (number // 10, number % 10)
            needed = variant.min_compute_capability
            if capability < needed or (variant.arch_specific and capability != needed):
                continue
            cold = milliseconds(lambda plan=plan, arch=arch: compile_plan(plan, arch))
            warm = statistics.median(
                milliseconds(lambda plan=plan, arch=arch: compile_plan(plan, arch))
                for _ in range(WARM_LOOKUPS)
            )
            found = resources(plan, compile_plan(plan, arch))
            passes = "; ".join(f"{r.registers_per_thread}, {r.spill_bytes}" for r in found)
            print(f"{variant.name:<20}{arch:<8}{cold:9.0f}{warm:9.2f}  {passes}")
            colds.append(cold)
            warms.append(warm)
    print(
        f"\n{len(colds)} compiles: cold {min(colds):.0f} to {max(colds):.0f} ms, median "
        f"{statistics.median(colds):.0f}; warm at most {max(warms):.2f} ms (goal: 5)"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTUNE_CACHE_DIR"] = folder
        main()
