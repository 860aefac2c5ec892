"""Stand-ins for the compiler: what the ladder's kernels compiled to on an L4."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.devices.spec import DeviceSpec
from engine.evaluation import Resources
from engine.model.estimate import Footprint
from engine.plan import make_plan
from engine.problem import Problem
from kernels.variant import Config, Variant

# Registers per thread of the first pass by head_dim; later passes take 32.
REGISTERS = {4: 43, 32: 64, 64: 95, 96: 128, 128: 161}


def at_most(threads: int, head_dim: int) -> int:
    """The listed registers, or as many as a CTA of this size may have."""
    return min(REGISTERS[head_dim], 65536 // (-(-threads // 128) * 128) // 8 * 8, 255)


@pytest.fixture(scope="session")
def reference_csv() -> Path:
    """The L4 study's two series."""
    return Path(__file__).parent / "data" / "l4_fa1_baseline.csv"


@pytest.fixture(scope="session")
def footprint_of() -> Callable[[Variant, Config, DeviceSpec], Footprint]:
    """Takes the compiler's place: fixed registers, the plan's own shared memory."""

    def of(variant: Variant, config: Config, device: DeviceSpec) -> Footprint:
        def footprint(problem: Problem) -> tuple[Resources, ...]:
            plan = make_plan(variant, problem, config)
            return tuple(
                Resources(
                    entry=p.entry,
                    arch=device.arch,
                    threads_per_cta=p.threads,
                    registers_per_thread=32 if i else at_most(p.threads, problem.head_dim),
                    static_smem_bytes=0,
                    dynamic_smem_bytes=p.dynamic_smem_bytes,
                    spill_store_bytes=0,
                    spill_load_bytes=0,
                    stack_bytes=0,
                )
                for i, p in enumerate(plan.passes)
            )

        return footprint

    return of
