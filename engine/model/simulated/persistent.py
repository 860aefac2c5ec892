"""CTAs that stay for several query tiles: problems whose CTAs take more or fewer of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.model.equations import visited_share
from engine.model.launches import collect
from engine.model.simulated.heaviest import heaviest_cta
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from engine.sass.cubin import Entry
from engine.sass.emulation import Emulator
from engine.sass.instruction import Program
from engine.sass.launch import launch_of_pass
from engine.sass.trace import CtaTrace
from kernels.variant import Config, Variant

_SEQLEN_OF_PERSISTENT = 1 << 10  # of the heads whose query tiles a CTA takes in turn
# Heads that a causal CTA takes query tiles of, at least: of few, one CTA has long ones by chance.
_CAUSAL_HEADS = 4


def is_persistent(variant: Variant, problem: Problem, config: Config) -> bool:
    """Whether CTAs stay for several query tiles, so that more heads are more rows for each."""
    few, many = (replace(problem, batch=batch) for batch in (1, 4096))
    return variant.work.kv_rows(few, config) != variant.work.kv_rows(many, config)


def visited_rows(variant: Variant, problem: Problem, config: Config) -> float:
    """K/V rows of a CTA that stays, without those that the mask spares it."""
    launches = collect(variant, config, [problem])
    return float((launches.kv_rows * visited_share(launches))[0])


def seqlen_of(problem: Problem) -> int:
    return _SEQLEN_OF_PERSISTENT // 2 if problem.causal else _SEQLEN_OF_PERSISTENT


def more_heads(
    variant: Variant, problem: Problem, config: Config, rows: Sequence[int]
) -> Iterator[LaunchPlan]:
    """Each at least twice as many rows as the one before, so that a line through them is steady."""
    heads, before = 1, 0
    fewest = _CAUSAL_HEADS * seqlen_of(problem) if problem.causal else 0
    for least in rows:
        while True:
            short = _heads_of(problem, heads, seqlen_of(problem))
            if (visited := variant.work.kv_rows(short, config)) >= max(least, 2 * before, fewest):
                before = visited
                yield make_plan(variant, short, config)
                break
            heads *= 2


def _heads_of(problem: Problem, heads: int, seqlen: int) -> Problem:
    return replace(problem, batch=heads, num_heads=1, num_heads_kv=None, seqlen=seqlen)


def other_tiles(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan
) -> list[tuple[float, float, CtaTrace]]:
    """Of CTAs that stay, in shorter heads and in longer ones: (how many query tiles more they begin
    than in those of `more_heads` for as many rows, the rows, a trace)."""
    problem, config = plan.problem, plan.config
    if problem.seqlen_kv is not None or not is_persistent(variant, problem, config):
        return []
    usual = seqlen_of(problem)
    others = []
    for seqlen in (usual // 4, usual * 4):
        heads = 1
        while True:
            short = _heads_of(problem, heads, seqlen)
            rows = variant.work.kv_rows(short, config)
            if rows >= _CAUSAL_HEADS * max(seqlen if problem.causal else 0, usual // 4):
                break
            heads *= 2
        emulator = Emulator(program, entry, launch_of_pass(make_plan(variant, short, config), 0))
        visited = visited_rows(variant, short, config)
        others.append((rows / seqlen - rows / usual, visited, heaviest_cta(emulator)))
    return others
