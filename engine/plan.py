"""variant × problem × config → a launch plan: what any backend needs to run it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from engine.errors import InvalidProblem
from engine.problem import Problem
from kernels.variant import Config, Tensor, Variant

# CUDA limits of the launch grid.
MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A pointer: `q`, `k`, `v`, `out` or a scratch buffer's name."""

    name: str


@dataclass(frozen=True, slots=True)
class ScalarArg:
    name: str
    ctype: Literal["int32", "float32"]
    value: float


@dataclass(frozen=True, slots=True)
class ScratchBuffer:
    name: str
    dtype: Literal["float32", "int32"]
    shape: tuple[int, ...]
    fill: Literal["poison", "zero"]

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

    @property
    def device_bytes(self) -> int:
        """Global memory the call needs: Q, K, V, O and scratch."""
        return self.problem.io_bytes + sum(s.size_bytes for s in self.scratch)


def make_plan(variant: Variant, problem: Problem, config: Config) -> LaunchPlan:
    """Build the launch plan.

    Raises:
        InvalidProblem: the variant does not take (problem, config) (callers who want a SKIPPED row
            ask `variant.unsupported` first), or the grid exceeds CUDA's limits.
    """
    if (why := variant.unsupported(problem, config)) is not None:
        raise InvalidProblem(why)
    passes = []
    for p in variant.passes:
        grid = p.grid(problem, config)
        for axis, size, limit in zip("xyz", grid, MAX_GRID, strict=True):
            if not 1 <= size <= limit:
                raise InvalidProblem(
                    f"{variant.id} would launch a grid of {size:,} CTAs in {axis}, and CUDA "
                    f"allows 1 to {limit:,}: choose a smaller problem."
                )
        args = tuple(
            TensorArg(a.name)
            if isinstance(a, Tensor)
            else ScalarArg(a.name, a.ctype, a.value(problem, config))
            for a in p.args
        )
        passes.append(
            PassLaunch(
                entry=p.entry,
                grid=grid,
                threads=p.threads(problem, config),
                dynamic_smem_bytes=p.dynamic_smem_bytes(problem, config),
                args=args,
            )
        )
    return LaunchPlan(
        variant=variant.id,
        problem=problem,
        config=dict(config),
        source=variant.source,
        defines=variant.defines(problem, config),
        scratch=tuple(
            ScratchBuffer(s.name, s.dtype, s.shape(problem, config), s.fill)
            for s in variant.scratch
        ),
        passes=tuple(passes),
        arch_specific=variant.arch_specific,
    )
