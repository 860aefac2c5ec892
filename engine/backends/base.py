"""The interface between the pipeline and the backends that execute kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import Inputs
from engine.cuda_on_host.build import DEFAULT_ARCH
from engine.cuda_on_host.client import RunResult, Schedule

BackendName: TypeAlias = Literal["cuda", "cpu", "machine-code"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of an execution.

    `schedule`, `check` and `arch` apply to the CPU and the machine-code backend, `seed` to the CPU
    backend.
    """

    # Use the check build, which finds races, accesses out of bounds, uninitialised reads and
    # divergent barriers. With machine code, only races in shared memory are found.
    check: bool = False
    schedule: Schedule = "in_order"
    seed: int = 0
    timeout_s: float = 60.0
    repeat: bool = True  # run twice and compare bits
    arch: str = DEFAULT_ARCH  # the target, which sets __CUDA_ARCH__


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a launch to execute if all of it would take too long."""

    problem: Problem  # contains only the chosen slices, one head each
    pairs: tuple[tuple[int, int], ...]  # (batch, head) of each slice
    rows: tuple[tuple[int, int], ...]  # (first, last + 1) query rows, the same for every pair
    ctas: int  # executed CTAs, summed over all passes
    total_ctas: int

    @property
    def row_numbers(self) -> tuple[int, ...]:
        return tuple(row for begin, end in self.rows for row in range(begin, end))

    def counts(self) -> str:
        return f"partial: {self.ctas:,} of {self.total_ctas:,} CTAs"

    def sentence(self) -> str:
        pairs = ", ".join(f"({batch:,}, {head:,})" for batch, head in self.pairs)
        rows = ", ".join(f"{begin:,}–{end - 1:,}" for begin, end in self.rows)
        counts = self.counts()
        return f"{counts[0].upper()}{counts[1:]}: (batch, head) {pairs}, query rows {rows}."


class Backend(Protocol):
    """Interface of backends, which execute launch plans. Expected failures are returned as
    statuses, not raised."""

    @property
    def name(self) -> BackendName: ...

    def run(self, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
        """Execute every pass on poisoned output and scratch, and report what happened."""
        ...

    def close(self) -> None:
        """Release child processes and device memory. Safe to call twice."""
        ...
