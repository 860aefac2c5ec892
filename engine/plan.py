"""variant × problem × config → a launch plan: what any backend needs to run it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from engine.errors import InvalidProblem
from engine.problem import Problem
from kernels.variant import Config, ScalarType, ScratchFill, ScratchType, Variant

MAX_THREADS = 1024  # per CTA: CUDA programming guide, technical specifications


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A pointer: `q`, `k`, `v`, `out` or a scratch buffer's name."""

    name: str


@dataclass(frozen=True, slots=True)
class ScalarArg:
    name: str
    ctype: ScalarType
    value: float


@dataclass(frozen=True, slots=True)
class ScratchBuffer:
    name: str
    dtype: ScratchType
    shape: tuple[int, ...]
    fill: ScratchFill

    @property
    def size_bytes(self) -> int:
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True)
class PassLaunch:
    entry: str
    grid: tuple[int, int, int]
    threads: int
    dynamic_smem_bytes: int
    args: tuple[TensorArg | ScalarArg, ...]

    @property
    def ctas(self) -> int:
        return prod(self.grid)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One compile (source + defines) and the launches that use it, in order."""

    variant: str
    problem: Problem
    config: dict[str, int]
    source: Path
    defines: tuple[tuple[str, str], ...]
    scratch: tuple[ScratchBuffer, ...]
    passes: tuple[PassLaunch, ...]
    arch_specific: bool = False  # the kernel needs the "a" target of its arch (sm_90a)
    query_rows: int = 64  # of one CTA of the main pass
    kv_rows: int | None = None  # K/V rows such a CTA visits at most; None: all of them

    @property
    def device_bytes(self) -> int:
        """Global memory the call needs: Q, K, V, O and scratch."""
        return self.problem.io_bytes + sum(s.size_bytes for s in self.scratch)


def make_plan(variant: Variant, problem: Problem, config: Config) -> LaunchPlan:
    """Build the launch plan.

    Raises:
        InvalidProblem: the variant does not take (problem, config) (callers who want a SKIPPED row
            ask `variant.unsupported` first), or its formulas yield a launch that cannot exist.
    """
    if (why := variant.unsupported(problem, config)) is not None:
        raise InvalidProblem(why)
    scratch = tuple(
        ScratchBuffer(s.name, s.dtype, s.shape(problem, config), s.fill) for s in variant.scratch
    )
    passes = tuple(
        PassLaunch(
            entry=p.entry,
            grid=p.grid(problem, config),
            threads=p.threads(problem, config),
            dynamic_smem_bytes=p.dynamic_smem_bytes(problem, config),
            args=tuple(
                TensorArg(a)
                if isinstance(a, str)
                else ScalarArg(a.name, a.ctype, a.value(problem, config))
                for a in p.args
            ),
        )
        for p in variant.passes
    )
    for p in passes:
        if min(p.grid) < 1 or not 1 <= p.threads <= MAX_THREADS or p.dynamic_smem_bytes < 0:
            raise InvalidProblem(
                f"{variant.id} would launch {p.entry} with a grid of {p.grid}, {p.threads} threads "
                f"and {p.dynamic_smem_bytes} bytes of shared memory, which CUDA does not allow: "
                f"see the formulas in {variant.source.name}."
            )
    return LaunchPlan(
        variant=variant.id,
        problem=problem,
        config=dict(config),
        source=variant.source,
        defines=variant.defines(problem, config),
        scratch=scratch,
        passes=passes,
        arch_specific=variant.arch_specific,
        query_rows=variant.work.query_rows(problem, config),
        kv_rows=variant.work.kv_rows(problem, config),
    )
