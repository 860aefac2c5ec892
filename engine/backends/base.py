"""The interface between the pipeline and the backends that execute kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import FloatArray, Inputs, RawArray
from engine.cuda_on_host.build import DEFAULT_ARCH
from engine.cuda_on_host.client import JobResult, Schedule

BackendName: TypeAlias = Literal["cuda", "cpu", "machine-code"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to execute. `seed` is for the CPU backend alone, `schedule`, `check` and `arch` also for
    machine code."""

    # The check build: races, bounds, uninitialised reads, divergent barriers. Of machine code:
    # races of shared memory.
    check: bool = False
    schedule: Schedule = "in_order"
    seed: int = 0
    timeout_s: float = 60.0
    repeat: bool = True  # run twice and compare bits
    arch: str = DEFAULT_ARCH  # the target GPU, as the kernel's __CUDA_ARCH__ says it


@dataclass(frozen=True, slots=True)
class RunResult(JobResult):
    """One execution for correctness: the status of its launches, and their output.

    `status` is PASSED ("it ran"), COMPILE_ERROR, OUT_OF_MEMORY, TIMEOUT, one of FAULTS, or SKIPPED:
    not executed here. `out` is None unless it is PASSED.
    """

    out: RawArray | None = None  # [batch, num_heads, seqlen, head_dim], poisoned before the run
    # Of the backward pass, in place of `out`: dQ, dK and dV by name.
    gradients: Mapping[str, RawArray] | None = None
    lse: FloatArray | None = None  # natural, [batch, num_heads, seqlen], where there is one
    repeated: str = ""  # the sentence on what ran a second time; empty: everything, or nothing


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a launch to execute when all of it would take too long."""

    problem: Problem  # the chosen slices as a problem of their own, one head for each
    pairs: tuple[tuple[int, int], ...]  # (batch, head) of each of them
    rows: tuple[tuple[int, int], ...]  # (first, behind the last) query rows, of every pair
    ctas: int  # of all passes, that are executed
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
    """Executes launch plans. Expected failures come back as statuses, not exceptions."""

    @property
    def name(self) -> BackendName: ...

    def run(self, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
        """Execute every pass on poisoned output and scratch, and report what happened."""
        ...

    def close(self) -> None:
        """Release child processes and device memory. Safe to call twice."""
        ...
