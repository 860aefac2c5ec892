"""What the CTAs of a persistent kernel take: which parts of query tiles, one behind the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.model.occupancy import IntArray
from engine.problem import Problem
from kernels.variant import Config, Schedule, Variant

BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Query tiles and, where CTAs cut them, parts of such: arrays `[n]`, CTA after CTA."""

    cta: IntArray  # ascending
    place: IntArray  # among its CTA's pieces: 0, 1, …
    tiles: IntArray  # K/V tiles that it visits
    masked: IntArray  # those of them that cross the end of the keys or the diagonal
    is_cut: BoolArray  # other CTAs visit the rest of the query tile's K/V tiles

    @property
    def num_ctas(self) -> int:
        return int(self.cta[-1]) + 1


def pieces_of(variant: Variant, problem: Problem, config: Config, ctas: int) -> Pieces:
    """The pieces of all CTAs of a launch, by the schedule that the variant describes."""
    schedule = variant.work.schedule
    assert schedule is not None
    tiles, visible = _query_tiles(problem, variant.work.query_rows(problem, config), config)
    if schedule.shares == "key tiles":
        start = 0
        if schedule.start_tiles is not None:
            start = schedule.start_tiles(problem, config)
        return _key_tiles(problem, tiles, visible, start, ctas)
    return _query_tiles_in_turn(problem, config, schedule, tiles, visible, ctas)


def _query_tiles(problem: Problem, query_rows: int, config: Config) -> tuple[IntArray, IntArray]:
    """K/V tiles of each query tile of a head, and how many of them need no mask."""
    first = np.arange(-(-problem.seqlen // query_rows)) * query_rows
    keys = np.full(len(first), problem.num_keys)
    all_see = keys
    if problem.causal:
        keys, all_see = np.minimum(keys, first + query_rows), np.minimum(keys, first + 1)
    rows = config.get("block_n", 1)
    return -(-keys // rows), all_see // rows


def _key_tiles(
    problem: Problem, tiles: IntArray, visible: IntArray, start: int, ctas: int
) -> Pieces:
    heads = problem.batch * problem.num_heads
    of_head, seen = tiles[::-1], visible[::-1]
    costs = np.tile(of_head + start, heads)
    starts = np.cumsum(costs) - costs
    begins = int(costs.sum()) * np.arange(ctas + 1) // ctas
    cuts = np.union1d(starts, begins)
    first, last = cuts[:-1], cuts[1:]
    cta = np.searchsorted(begins, first, "right") - 1
    tile = np.searchsorted(starts, first, "right") - 1
    begin, end = (np.maximum(0, at - starts[tile] - start) for at in (first, last))
    visits = begin < end  # some key tiles, not only what comes before them
    cta, within, begin, end = cta[visits], (tile % len(tiles))[visits], begin[visits], end[visits]
    masked = end - np.clip(seen[within], begin, end)
    return _ordered(cta, end - begin, masked, end - begin < of_head[within])


def _query_tiles_in_turn(
    problem: Problem,
    config: Config,
    schedule: Schedule,
    tiles: IntArray,
    visible: IntArray,
    ctas: int,
) -> Pieces:
    heads, of_head = problem.batch * problem.num_heads, len(tiles)
    at_once = 1
    if schedule.heads_at_once is not None:
        at_once = schedule.heads_at_once(problem, config)
    turn, place = np.divmod(np.arange(-(-heads * of_head // ctas) * ctas), ctas)
    position = turn * ctas + np.where(turn % 2 == 0, place, ctas - 1 - place)
    there = position < heads * of_head
    cta, position = place[there], position[there]
    section = position // (of_head * at_once)
    in_section = np.minimum(at_once, heads - section * at_once)
    tile = (position - section * of_head * at_once) // in_section
    if problem.causal:
        is_falling = ((heads - 1) // at_once - section) % 2 == 0
        tile = np.where(is_falling, of_head - 1 - tile, tile)
    order = np.argsort(cta, kind="stable")
    tile = tile[order]
    masked = tiles[tile] - visible[tile]
    return _ordered(cta[order], tiles[tile], masked, np.zeros(len(tile), np.bool_))


def _ordered(cta: IntArray, tiles: IntArray, masked: IntArray, is_cut: BoolArray) -> Pieces:
    first = np.searchsorted(cta, cta, "left")
    return Pieces(cta, np.arange(len(cta)) - first, tiles, masked, is_cut)
