"""Further problems that a thorough check executes beside the requested one.

*A sharper problem*, of about a second: several query tiles, and enough key tiles to reuse every
pipeline stage and barrier phase; several key tiles per split; partial last tiles of both; several
heads, which share K and V if the kernel supports that; more query tiles than persistent CTAs.
Problems of one tile or of whole tiles hide bugs.

*Another config*, if a block of the kernel never ran and its condition names a tunable.

*The last CTA of a problem past 2³¹ elements*, which fits on a GPU of some 20 GB but is rarely
tested. It is executed on buffers without memory behind most addresses, which costs nothing. A
32-bit product that overflows is negative there, and the access is out of bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

from engine.attention.coverage import Block
from engine.attention.evaluation import Evaluation
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import MAX_HEADS, Problem
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import InvalidProblem, Status
from engine.cuda_on_host.error_kinds import ErrorKind
from engine.cuda_source.host_code import without_comments
from engine.cuda_source.sources import read_sources
from kernels.variant import Config, MathUnit, Variant

# Elements of Q, K and V each: beyond 2³¹, where int overflows, and below 2³², where an overflowed
# product would be inside the buffer again.
_MIN_ELEMENTS, _MAX_ELEMENTS = 1.1 * 2**31, 1.9 * 2**31
_MAX_GRID_Z = 65_535
_TIMEOUT_S = 10.0

# Limits of a sharper problem, which is executed three times, by math unit: some seconds.
_MAX_FLOPS: Mapping[MathUnit, float] = {"tensor": 2e8, "fma": 6e7}
_USUAL_TILE = 64  # keys of a tile if no tunable gives them
# Of a run on another problem or config.
_SAYS_NOTHING = (Status.COMPILE_ERROR, Status.OUT_OF_MEMORY, Status.SKIPPED)
# Numbers of persistent CTAs, at least one of which does not divide the query tiles.
_FEW_CTAS = (2, 3, 5, 7)
_PERSISTENT_TILES = 8  # query tiles: some CTA takes three, so that one of two buffers is reused


@dataclass(frozen=True, slots=True)
class OtherProblem:
    """A problem and a config to execute in addition to the requested ones."""

    problem: Problem
    config: Config
    plan: LaunchPlan
    changed: Mapping[str, int]  # tunables that differ

    def label(self) -> str:
        """`B1 H4 HKV2 S133 KV677 D64 fp16, num_ctas=3`."""
        changed = "".join(f", {name}={value}" for name, value in self.changed.items())
        return f"{self.problem.label()}{changed}"


def judge_elsewhere(
    variant: Variant,
    asked: LaunchPlan,
    passed: Evaluation,
    judge_at: Callable[[OtherProblem], Evaluation],
    largest_block: Callable[[LaunchPlan], Block | None],
) -> Evaluation:
    """Return the verdict on `asked`, combined with verdicts on other problems.

    Args:
        passed: the verdict on `asked`.
        judge_at: executes a problem and checks its output.
        largest_block: the largest block that never ran so far.

    Returns:
        `passed` with the other problems and their warnings; else the verdict on the first problem
        that fails, reported as one on `asked`.
    """
    tried = sharper_problem(variant, asked)
    if tried is not None:
        passed = _with(passed, tried, judge_at(tried))
    block = largest_block(asked)
    if passed.status is not Status.PASSED or block is None or not block.tunable:
        return passed
    at = tried.problem if tried is not None else asked.problem
    if at.flops > _MAX_FLOPS[variant.work.math_unit]:
        return passed
    changed = other_config(variant, at, asked.config, block.tunable)
    return passed if changed is None else _with(passed, changed, judge_at(changed))


def _with(passed: Evaluation, other: OtherProblem, there: Evaluation) -> Evaluation:
    """Return the verdict on the requested problem, combined with one on another problem."""
    right, label = passed.correctness, other.label()
    if right is None or there.status in _SAYS_NOTHING:
        return passed
    if there.status is not Status.PASSED:
        reason = f"It passes at {passed.problem.label()}, but not at {label}: {there.reason}"
        wrong = there.correctness
        if wrong is not None:  # the index refers to another problem
            wrong = replace(wrong, reason=reason, first_bad_index=None)
        return replace(passed, status=there.status, reason=reason, log=there.log, correctness=wrong)
    assert there.correctness is not None
    found = there.correctness
    said = (
        f"Also executed at {label}: the largest error, {found.max_abs_err:.3g}, is within "
        f"{found.tolerance:.3g}."
    )
    warnings = (*right.warnings, *(f"At {label}: {warning}" for warning in found.warnings))
    return replace(
        passed, reason=f"{passed.reason} {said}", correctness=replace(right, warnings=warnings)
    )


def sharper_problem(variant: Variant, asked: LaunchPlan) -> OtherProblem | None:
    """Return a small problem that may reach more of a kernel than `asked`, with the same build.

    None if no such problem meets the kernel's constraints.
    """
    config = dict(asked.config)
    few = [t for t in variant.tunables if t.per_sm and t.name in config]
    for problem in _candidates(variant, asked, bool(few)):
        if problem == asked.problem or problem.flops > _MAX_FLOPS[variant.work.math_unit]:
            continue
        changed = {}
        for tunable in few:
            tiles = ceil(problem.seqlen / asked.query_rows) * problem.batch * problem.num_heads
            number = next((n for n in _FEW_CTAS if tiles % n), 11)
            if number < config[tunable.name]:
                changed[tunable.name] = number
        other = _planned(variant, problem, config | changed, changed)
        if other is None:
            continue
        plan = other.plan
        if plan.defines != asked.defines and changed and not _reads(asked, changed):
            other = replace(other, plan=replace(plan, defines=asked.defines))
        if other.plan.defines == asked.defines and other.plan.entries == asked.entries:
            return other
    return None


def other_config(
    variant: Variant, problem: Problem, config: Config, tunable: str
) -> OtherProblem | None:
    """Return `problem` with another value of a tunable, the nearest that the kernel supports."""
    offered = next((t.values for t in variant.tunables if t.name == tunable), ())
    for value in sorted(offered, key=lambda value: abs(value - config[tunable])):
        if value != config[tunable]:
            changed = {tunable: value}
            other = _planned(variant, problem, dict(config) | changed, changed)
            if other is not None:
                return other
    return None


def _planned(
    variant: Variant, problem: Problem, config: Config, changed: Mapping[str, int]
) -> OtherProblem | None:
    if variant.unsupported(problem, config) is not None:
        return None
    try:
        return OtherProblem(problem, config, make_plan(variant, problem, config), changed)
    except InvalidProblem:
        return None


def _candidates(variant: Variant, asked: LaunchPlan, is_persistent: bool) -> Iterator[Problem]:
    """Yield other sizes of the problem, those that find most bugs first."""
    p, config, rows = asked.problem, asked.config, asked.query_rows
    tile = max(16, config.get("block_n", _USUAL_TILE))
    stages = config.get("stages", 1)
    splits = ceil(p.num_keys / max(asked.kv_rows or p.num_keys, 1))
    splits = max(splits, config.get("num_splits", 1))
    if tile < _USUAL_TILE and splits > 1:  # warps take tiles in turn
        splits *= config.get("num_warps", 1)
    group = p.head_group if p.head_group > 1 or not variant.gqa else 2
    heads_of = [(2, 2 * group, 2), (1, 2 * group, 2), (1, group, 1)]
    if p.head_group == 1:
        heads_of.append((1, 1, 1))
    heads_of.append((p.batch, p.num_heads, p.kv_heads))
    key_tiles = dict.fromkeys((2 * stages + 1, stages + 2, stages + 1))
    ends = list(product((tile // 2 + 5, 0), (rows // 2 + 5, 0)))  # whole tiles last
    for end_keys, end_rows in ends:
        for (batch, *heads), tiles in product(heads_of, key_tiles):
            whole = ceil(_PERSISTENT_TILES / (batch * heads[0])) - 1 if is_persistent else 1
            seqlen = max(1, whole) * rows + end_rows
            yield from _sized(p, batch, heads, seqlen, tile * tiles * splits + end_keys)
        # A kernel that keeps all keys of a head on chip limits their number.
        keys = p.num_keys - (3 if end_keys else 0)
        for batch, *heads in heads_of if bool(end_keys) == bool(end_rows) else ():
            yield from _sized(p, batch, heads, min(rows + end_rows, keys), keys)


def _sized(
    asked: Problem, batch: int, heads: Sequence[int], seqlen: int, keys: int
) -> Iterator[Problem]:
    """Return `asked` with other sizes, if valid; S = KV if its positions require that."""
    if asked.seqlen_kv is None and (asked.causal or asked.features):
        seqlen = keys = max(seqlen, keys)
    seqlens = None
    if asked.seqlens is not None:
        batch, seqlens, seqlen = 2, (keys, keys // 3 + 2), min(seqlen, keys)
    try:
        sized = replace(
            asked,
            batch=batch,
            num_heads=heads[0],
            num_heads_kv=heads[1],
            seqlen=seqlen,
            seqlen_kv=keys,
            seqlens=seqlens,
        )
    except InvalidProblem:
        return
    yield sized


_STATIC_ASSERT = re.compile(r"\bstatic_assert\s*\((?:[^()]|\([^()]*\))*\)")


def _reads(plan: LaunchPlan, tunables: Mapping[str, int]) -> bool:
    """True if the source or a header of it uses one of these tunables outside of assertions."""
    for file in read_sources(plan.source, plan.include_folders).files:
        text = _STATIC_ASSERT.sub("", without_comments(file.code))
        if any(re.search(rf"\b{name.upper()}\b", text) for name in tunables):
            return True
    return False


def offset_warning(
    backend: CpuBackend, variant: Variant, asked: LaunchPlan, options: RunOptions
) -> str | None:
    """Return a warning if the kernel fails at a size that its description allows; else None.

    Args:
        asked: the checked launch; only its problem's batch and heads are increased.
    """
    large, config = large_problem(asked.problem), asked.config
    if large is None or variant.unsupported(large, config) is not None:
        return None
    try:
        plan = make_plan(variant, large, config)
    except InvalidProblem:
        return None
    if any(prod(p.cluster) > 1 or prod(p.grid) < large.batch for p in plan.passes):
        return None  # clusters run as a whole, and a persistent CTA runs too long
    result = backend.run_last_ctas(plan, replace(options, timeout_s=_TIMEOUT_S, repeat=False))
    if result.code not in (ErrorKind.GLOBAL_BOUNDS, ErrorKind.ILLEGAL_ADDRESS):
        return None
    return (
        f"The output passes here, but fails at {large.label()} ({large.elements:,} elements), "
        f"which the kernel takes: {result.reason} Look for a product of batch, heads, rows and "
        "columns in 32 bits: past 2^31 one factor has to be a size_t."
    )


def large_problem(problem: Problem) -> Problem | None:
    """`problem` with enough batches (and heads) for Q or K to pass 2³¹ elements.

    None if no such number keeps both below 2³² elements.
    """
    if problem.head_dim_v is not None or problem.kv_dtype is not None:
        return None
    if problem.alibi or problem.sinks or problem.seqlens is not None:
        return None  # its heads and sequences differ, so no part represents the others
    heads = 1
    size = max(problem.elements, problem.k_bytes // 2) // problem.batch
    while size * heads * _MAX_GRID_Z < _MIN_ELEMENTS:
        heads *= 2
    if problem.num_heads * heads > MAX_HEADS:
        return None
    kv_heads = problem.num_heads_kv
    large = replace(
        problem,
        batch=ceil(_MIN_ELEMENTS / (size * heads)),
        num_heads=problem.num_heads * heads,
        num_heads_kv=None if kv_heads is None else kv_heads * heads,
    )
    return large if max(large.elements, large.k_bytes // 2) < _MAX_ELEMENTS else None
