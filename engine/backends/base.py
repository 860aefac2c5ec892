"""The seam between the pipeline and whatever executes kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from engine.backends.executed import ExecutedStatements
from engine.evaluation import Status
from engine.plan import LaunchPlan
from engine.tensors import FloatArray, Inputs, RawArray

DEFAULT_ARCH = "sm_80"  # where nobody names a GPU

BackendName: TypeAlias = Literal["cuda", "cpu"]
Schedule: TypeAlias = Literal["in_order", "random", "reverse"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to execute. `check`, `schedule`, `seed` and `arch` are for the CPU backend alone."""

    check: bool = False  # the check build: races, bounds, uninitialised reads, divergent barriers
    schedule: Schedule = "in_order"
    seed: int = 0
    timeout_s: float = 60.0
    repeat: bool = True  # run twice and compare bits
    arch: str = DEFAULT_ARCH  # the target GPU, as the kernel's __CUDA_ARCH__ says it


@dataclass(frozen=True, slots=True)
class RunResult:
    """One execution for correctness. `out` is None unless status is PASSED ("it ran")."""

    status: Status  # PASSED, COMPILE_ERROR, LAUNCH_ERROR, OUT_OF_MEMORY, CRASHED, TIMEOUT
    reason: str = ""  # one sentence with file.cu:line, CTA and thread where known
    log: str = ""
    out: RawArray | None = None  # [batch, num_heads, seqlen, head_dim], poisoned before the run
    lse: FloatArray | None = None  # natural, [batch, num_heads, seqlen], where there is one
    inputs_unchanged: bool = True
    repeatable: bool = True
    guards_intact: bool = True
    execution_ms: float | None = None  # wall time of all passes of one run, inside the backend
    executed: ExecutedStatements | None = None  # what ran of the source, where the backend knows


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
