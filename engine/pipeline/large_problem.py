"""Whether offsets hold where 32 bits end: one CTA of a problem of that size is executed.

`batch * num_heads * seqlen * head_dim` passes 2³¹ on a GPU of some 20 GB, and hardly ever in a
test. A launch on that many elements costs nothing as long as only its last CTA runs, on buffers
that are addresses alone: a product that wraps is negative there, and the access lies outside.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import InvalidProblem
from engine.cuda_on_host.error_kinds import ErrorKind
from engine.plan import make_plan
from engine.problem import MAX_HEADS, Problem
from kernels.variant import Config, Variant

# Elements of Q, K and V each: beyond 2³¹, where int ends, and below 2³², where a product that has
# wrapped would lie inside of the buffer again.
_LEAST, _MOST = 1.1 * 2**31, 1.9 * 2**31
_MAX_GRID_Z = 65_535
_TIMEOUT_S = 10.0


def offset_warning(
    backend: CpuBackend, variant: Variant, problem: Problem, config: Config, options: RunOptions
) -> str | None:
    """What goes wrong at a size that the description allows, as a warning; None where nothing does.

    Args:
        problem: the one that was checked; only its batch and heads grow.
    """
    large = large_problem(problem)
    if large is None or variant.unsupported(large, config) is not None:
        return None
    try:
        plan = make_plan(variant, large, config)
    except InvalidProblem:
        return None
    if any(prod(p.cluster) > 1 or prod(p.grid) < large.batch for p in plan.passes):
        return None  # clusters run whole, and a CTA that stays for many tiles runs too long
    result = backend.run_last_ctas(plan, replace(options, timeout_s=_TIMEOUT_S, repeat=False))
    if result.code not in (ErrorKind.GLOBAL_BOUNDS, ErrorKind.ILLEGAL_ADDRESS):
        return None
    return (
        f"The output passes, but at {large.label()} ({large.elements:,} elements), which the "
        f"kernel takes, it does not: {result.reason} Look for a product of batch, heads, rows and "
        "columns in 32 bits: past 2^31 one factor has to be a size_t."
    )


def large_problem(problem: Problem) -> Problem | None:
    """As `problem`, with so many batches (and heads) that Q or K passes 2³¹ elements.

    None where no number of them brings both below 2³² elements.
    """
    if problem.head_dim_v is not None:
        return None
    if problem.alibi or problem.sinks or problem.seqlens is not None:
        return None  # its heads and sequences differ, so that no part stands for the others
    heads = 1
    size = max(problem.elements, problem.k_bytes // 2) // problem.batch
    while size * heads * _MAX_GRID_Z < _LEAST:
        heads *= 2
    if problem.num_heads * heads > MAX_HEADS:
        return None
    kv_heads = problem.num_heads_kv
    large = replace(
        problem,
        batch=ceil(_LEAST / (size * heads)),
        num_heads=problem.num_heads * heads,
        num_heads_kv=None if kv_heads is None else kv_heads * heads,
    )
    return large if max(large.elements, large.k_bytes // 2) < _MOST else None
