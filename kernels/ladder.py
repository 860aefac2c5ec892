"""The ladder: the only list of variants, in order."""

from __future__ import annotations

from kernels.entries import (
    v01_fa1_baseline,
    v02_all_threads,
    v03_vectorized,
    v04_small_tiles,
    v05_kv_split,
    v06_kv_split_onepass,
    v08_mma_sync,
    v12_one_shot,
)
from kernels.variant import Variant

LADDER: tuple[Variant, ...] = (
    v01_fa1_baseline.VARIANT,
    v02_all_threads.VARIANT,
    v03_vectorized.VARIANT,
    v04_small_tiles.VARIANT,
    v05_kv_split.VARIANT,
    v06_kv_split_onepass.VARIANT,
    v08_mma_sync.VARIANT,
    v12_one_shot.VARIANT,
)


def by_id(variant_id: str) -> Variant:
    """The variant whose id (`v01`) or name (`v01_fa1_baseline`) this is; KeyError otherwise."""
    for variant in LADDER:
        if variant_id in (variant.id, variant.name):
            return variant
    raise KeyError(variant_id)


def markdown_table() -> str:
    """The README's table of the ladder: one row per variant, no newline at the end."""
    rows = ["| # | variant | the one idea | D | tunables | launches |", "|---|---|---|---|---|---|"]
    for variant in LADDER:
        dims = ", ".join(map(str, variant.head_dims))
        tunables = "; ".join(
            f"`{t.name}` {', '.join(map(str, t.values))}" for t in variant.tunables
        )
        rows.append(
            f"| {variant.id.removeprefix('v')} | `{variant.name}` | {variant.idea} | {dims} "
            f"| {tunables} | {len(variant.passes)} |"
        )
    return "\n".join(rows)
