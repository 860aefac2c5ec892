"""How a launch plan cuts the problem up: the tile sizes that maps and findings speak of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.base.launch import TensorMapArg
from engine.plan import LaunchPlan
from engine.problem import Problem
from kernels.variant import ceil_div

_USUAL_TILE = 64


@dataclass(frozen=True, slots=True)
class Box:
    """What TMA copies at a time; a row is as wide as the swizzle."""

    columns: int
    rows: int
    swizzle_bytes: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Query tiles, key tiles and K/V chunks of one plan."""

    seqlen: int
    num_keys: int
    block_m: int  # query rows per CTA
    block_n: int  # K/V rows per tile
    num_splits: int  # K/V chunks per query tile, empty ones included
    chunk_rows: int  # K/V rows of one chunk, the last may be shorter
    threads: int  # per CTA of the main pass
    num_passes: int
    has_scratch: bool
    chunk_name: str = "split"  # what takes a chunk: a split (a CTA), or a warp of one CTA
    page_rows: int = 0  # keys of a page of K and V; 0: they do not lie in pages
    boxes: Mapping[str, Box] = field(default_factory=dict)  # of Q, K and V that TMA copies

    @property
    def num_query_tiles(self) -> int:
        return ceil_div(self.seqlen, self.block_m)

    @property
    def num_key_tiles(self) -> int:
        return ceil_div(self.num_keys, self.block_n)

    @property
    def padding(self) -> int:
        """Key rows of the last tile that lie past the last key."""
        return self.num_key_tiles * self.block_n - self.num_keys

    @property
    def num_chunks(self) -> int:
        """Chunks that hold at least one key."""
        return ceil_div(self.num_keys, self.chunk_rows)

    @property
    def rows_per_warp(self) -> int:
        """Query rows of one warp, if a CTA's rows are dealt to its warps in order."""
        return max(1, self.block_m * 32 // self.threads)


def tiles_of(problem: Problem, plan: LaunchPlan | None) -> Tiles:
    """The plan's tiles; without a plan, the usual 64 × 64 with one chunk."""
    keys = problem.num_keys
    if plan is None:
        return Tiles(problem.seqlen, keys, _USUAL_TILE, _USUAL_TILE, 1, keys, 128, 1, False)
    num_splits = plan.config.get("num_splits", plan.config.get("splits", 1))
    chunk_rows = plan.kv_rows if num_splits > 1 and plan.kv_rows else keys
    if num_splits > 1 and chunk_rows >= keys and "num_splits" not in plan.config:
        chunk_rows = ceil_div(keys, num_splits)  # an own kernel that does not say
    chunk_name = "split"
    block_n = plan.config.get("block_n", _USUAL_TILE)
    if "keys_per_warp" in plan.config:  # the warps of a CTA take the splits
        block_n = chunk_rows = plan.config["keys_per_warp"]
        num_splits, chunk_name = plan.passes[0].threads // 32, "warp"
    return Tiles(
        seqlen=problem.seqlen,
        num_keys=keys,
        block_m=plan.query_rows,
        block_n=block_n,
        num_splits=num_splits,
        chunk_rows=chunk_rows,
        threads=plan.passes[0].threads,
        num_passes=len(plan.passes),
        has_scratch=bool(plan.scratch),
        chunk_name=chunk_name,
        page_rows=plan.pages.rows if plan.pages is not None else 0,
        boxes={
            argument.buffer: Box(argument.box[0], argument.box[1], argument.swizzle_bytes)
            for argument in plan.passes[0].args
            if isinstance(argument, TensorMapArg)
            and len(argument.box) >= 2
            and argument.swizzle_bytes == argument.box[0] * argument.element_bytes
        },
    )
