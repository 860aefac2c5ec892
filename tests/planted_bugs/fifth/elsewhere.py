"""Bugs that the requested problem cannot show: it has one tile, one head, or only whole tiles."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.unseen import Unseen, rows

_ONE_TILE = (Problem(1, 1, 30, 64),)
_WHOLE = (Problem(1, 1, 64, 64),)

_LEFT = (r"leav(es|ing) out", r"left out", r"never visited", r"only the first")
_END = (
    r"out of bounds",
    r"behind the (last|end)",
    r"past",
    r"padd",
    r"another (row|head)",
    r"race",
)
_RACE = (r"__sync", r"barrier")

ELSEWHERE: tuple[Unseen, ...] = (
    *rows(
        "elsewhere",
        (
            "l is not rescaled",
            ("v08",),
            "            l_rmem[r] *= correction[r];\n",
            "",
            (r"row sum", r"rescale"),
        ),
        (
            "O is not rescaled",
            ("v03",),
            "acc_rmem[i][j].x *= correction;",
            "",
            (r"rescale", r"column"),
        ),
        (
            "no barrier at the end of a tile",
            ("v09",),
            "        // The next tile overwrites K",
            "        if (n0 + BLOCK_N >= kv_end) // K",
            _RACE,
        ),
        (
            "a ring without an end",
            ("v10",),
            "stage == STAGES - 1 ? 0 : stage + 1;",
            "stage + 1;",
            (r"stage", r"out of bounds", r"ring"),
        ),
        (
            "heads of all sequences in one line",
            ("v02",),
            "(size_t)blockIdx.z * num_heads + blockIdx.y;",
            "(size_t)blockIdx.z + blockIdx.y;",
            (r"\bheads?\b", r"batch", r"several CTAs|two CTAs", r"[Nn]ever written"),
        ),
        (
            "l of a split without its weight",
            ("v06",),
            "l += weight * l_partial[partial_row];",
            "l += l_partial[partial_row];",
            (r"fusion", r"weight", r"row sum"),
        ),
        (
            "K/V heads are those of Q",
            ("v07",),
            "blockIdx.y / (num_heads / num_heads_kv);",
            "blockIdx.y;",
            (r"\bheads?\b", r"out of bounds"),
        ),
        (
            "the maximum is not kept",
            ("v01",),
            "            m = m_new;\n",
            "",
            (r"maximum", r"last key tile", r"rescale"),
        ),
        (
            "splits to the end of the keys",
            ("v05",),
            "(split + 1) * chunk_rows)",
            "(split + 1) * chunk_rows + (split > 0) * seqlen_kv)",
            (r"twice", r"split"),
        ),
        on=_ONE_TILE,
    ),
    *rows(
        "elsewhere",
        ("absent keys are not masked", ("v03",), "key < seqlen_kv && ", "", (*_END, r"mask")),
        (
            "rows behind the last are stored",
            ("v08",),
            "        if (query >= seqlen) continue;\n",
            "",
            _END,
        ),
        (
            "two key tiles at most",
            ("v04",),
            "n0 < kv_end; n0 += BLOCK_N) {",
            "n0 < min(kv_end, 2 * BLOCK_N); n0 += BLOCK_N) {",
            _LEFT,
        ),
        (
            "copies behind the last row",
            ("v10",),
            "                    first_row + row < length);",
            "                    true);",
            _END,
        ),
        on=_WHOLE,
    ),
)
