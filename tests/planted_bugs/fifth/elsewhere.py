"""Bugs that the requested problem cannot show: it has one tile, one head, or only whole tiles."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.causes import (
    BEYOND,
    LAST_KEY_TILE,
    LEFT_OUT,
    MASK,
    MAXIMUM,
    NEVER_WRITTEN,
    OUT_OF_BOUNDS,
    RACE,
    RESCALE,
    ROW_SUM,
    SHARED_PLACE,
    TWICE,
    WEIGHTS,
)
from planted_bugs.unseen import Unseen, rows

_ONE_TILE = (Problem(1, 1, 30, 64),)
_WHOLE = (Problem(1, 1, 64, 64),)


ELSEWHERE: tuple[Unseen, ...] = (
    *rows(
        "elsewhere",
        (
            "l is not rescaled",
            ("v08",),
            "            l_rmem[r] *= correction[r];\n",
            "",
            (*ROW_SUM, *RESCALE),
        ),
        (
            "O is not rescaled",
            ("v03",),
            "acc_rmem[i][j].x *= correction;",
            "",
            (*RESCALE, "column"),
        ),
        (
            "no barrier at the end of a tile",
            ("v09",),
            "        // The next tile overwrites K",
            "        if (n0 + BLOCK_N >= kv_end) // K",
            ("__sync", "barrier"),
        ),
        (
            "a ring without an end",
            ("v10",),
            "stage == STAGES - 1 ? 0 : stage + 1;",
            "stage + 1;",
            (*OUT_OF_BOUNDS, "stage"),
        ),
        (
            "heads of all sequences in one line",
            ("v02",),
            "(size_t)blockIdx.z * num_heads + blockIdx.y;",
            "(size_t)blockIdx.z + blockIdx.y;",
            (*SHARED_PLACE, *NEVER_WRITTEN, "head", "batch"),
        ),
        (
            "l of a split without its weight",
            ("v06",),
            "l += weight * l_partial[partial_row];",
            "l += l_partial[partial_row];",
            (*WEIGHTS, *ROW_SUM),
        ),
        (
            "K/V heads are those of Q",
            ("v07",),
            "blockIdx.y / (num_heads / num_heads_kv);",
            "blockIdx.y;",
            (*OUT_OF_BOUNDS, "head"),
        ),
        (
            "the maximum is not kept",
            ("v01",),
            "            m = m_new;\n",
            "",
            (*MAXIMUM, *LAST_KEY_TILE, *RESCALE),
        ),
        (
            "splits to the end of the keys",
            ("v05",),
            "(split + 1) * chunk_rows)",
            "(split + 1) * chunk_rows + (split > 0) * seqlen_kv)",
            (*TWICE, "split"),
        ),
        on=_ONE_TILE,
    ),
    *rows(
        "elsewhere",
        (
            "absent keys are not masked",
            ("v03",),
            "key < seqlen_kv && ",
            "",
            (*BEYOND, *RACE, *MASK),
        ),
        (
            "rows behind the last are stored",
            ("v08",),
            "        if (query >= seqlen) continue;\n",
            "",
            (*BEYOND, *RACE),
        ),
        (
            "two key tiles at most",
            ("v04",),
            "n0 < kv_end; n0 += BLOCK_N) {",
            "n0 < min(kv_end, 2 * BLOCK_N); n0 += BLOCK_N) {",
            LEFT_OUT,
        ),
        (
            "copies behind the last row",
            ("v10",),
            "                    first_row + row < length);",
            "                    true);",
            (*BEYOND, *RACE),
        ),
        on=_WHOLE,
    ),
)
