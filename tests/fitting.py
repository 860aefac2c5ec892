"""Find a config of a variant that supports a problem."""

from __future__ import annotations

import functools
import itertools

from engine.attention.problem import Problem
from kernels.variant import Variant


@functools.cache
def configs(variant: Variant) -> tuple[dict[str, int], ...]:
    """Yield every combination of the variant's tunables."""
    names = [t.name for t in variant.tunables]
    values = itertools.product(*(t.values for t in variant.tunables))
    return tuple(dict(zip(names, row, strict=True)) for row in values)


def fitting_config(
    variant: Variant, problem: Problem, wanted: dict[str, int] | None = None
) -> dict[str, int]:
    """Return `wanted` (by default the variant's default config) if it supports the problem, else
    the first config that does."""
    candidates = [wanted or variant.default_config(), *configs(variant)]
    return next(c for c in candidates if variant.unsupported(problem, c) is None)


def is_supported(variant: Variant, problem: Problem) -> bool:
    """Return True if a config supports the problem."""
    return any(variant.unsupported(problem, c) is None for c in configs(variant))


def supports_seqlen(variant: Variant, seqlen: int) -> bool:
    """Return True if a config supports problems of this length."""
    problem = Problem(1, 1, seqlen, variant.head_dims[0], dtype=variant.dtypes[0])
    return is_supported(variant, problem)
