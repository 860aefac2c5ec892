"""Stand-ins for the compiler: what the ladder's kernels compiled to on an L4."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_history import MadeUpHistory

from engine.plan import LaunchPlan

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
def known() -> MadeUpHistory:
    """Takes the compiler's place: fixed registers, the plan's own shared memory."""

    def registers(plan: LaunchPlan, number: int) -> int:
        return 32 if number else at_most(plan.passes[0].threads, plan.problem.head_dim)

    return MadeUpHistory(registers_of=registers)
