"""Bugs that the checker was not tuned on, with the words that name each one's cause.

The table was written before any of it was run, and `tests/bench/bench_unseen.py` reports how many
are found, and how many named by their cause, for each kind. What the checker says of a bug here is
no reason to change the checker for it: take it to the other tables then, where it is tuned on.

`words` are regular expressions. Unlike in the other tables the changed line alone names nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from engine.problem import Problem
from planted_bugs.mutation import Mutation, Shapes

Kind = Literal[
    "mask",
    "key loop",
    "softmax",
    "fusion",
    "addressing",
    "fragments",
    "precision",
    "barrier",
    "copy",
    "mbarrier",
    "wgmma",
    "registers",
    "store",
    "overflow",
]


@dataclass(frozen=True)
class Unseen(Mutation):
    """A mutation of a kind, on problems of its own where it needs some."""

    kind: Kind = "mask"
    on: tuple[Problem, ...] = field(default=())

    def is_named(self, text: str, places: tuple[str, ...]) -> bool:  # noqa: ARG002
        return any(re.search(word, text) for word in self.words)

    def problems(self, variant: str) -> tuple[Problem, ...]:
        return self.on or super().problems(variant)


_WIDE = (Problem(1, 2, 200, 128),)
_LONGER_KV = (Problem(1, 2, 77, 64, seqlen_kv=200),)
_GQA_CAUSAL = (Problem(1, 4, 40, 64, causal=True, num_heads_kv=2),)
_MANY_KEYS = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)
_REUSED = {"block_n": 64}
_SEVERAL = {"num_ctas": 4, "block_n": 64}

_Row = tuple[str, tuple[str, ...], str, str, tuple[str, ...]]
_ROUNDED = (r"precision", r"16 bits", r"times (that of )?(SDPA|torch|PyTorch|the )")
_SCALE = (r"factor of 0?\.7", r"√2", r"scale 1/√", r"scaled? by 1/√")
_LEFT = (r"leav(es|ing) out", r"rounded up")
_COLUMNS = (r"column",)
_QUERY = (r"query (row|index|tile)", r"rows that hold", r"Q being read", r"Q of a head")


def rows(
    kind: Kind,
    *rows: _Row,
    shapes: Shapes = "odd",
    nth: int | None = None,
    config: dict[str, int] | None = None,
    on: tuple[Problem, ...] = (),
) -> Iterator[Unseen]:
    for name, variants, old, new, words in rows:
        for variant in variants:
            yield Unseen(name, (variant,), old, new, words, shapes, nth, "", config or {}, kind, on)


UNSEEN: tuple[Unseen, ...] = (
    # ---- masks ----
    *rows(
        "mask",
        (
            "one key too many",
            ("v07", "v14", "v15", "v19"),
            "key <= query)",
            "key <= query + 1)",
            (r"off by one",),
        ),
        (
            "both rows of a lane masked as the first",
            ("v15", "v16", "v18"),
            "query0 + i / 2 % 2 * 8",
            "query0",
            (r"mask",),
        ),
        (
            "both columns of a lane masked as the first",
            ("v08", "v17"),
            "8 + pair + i % 2;",
            "8 + pair;",
            (r"mask",),
        ),
        ("rows of the tile, not of the head", ("v03", "v04"), "<= m0 + row", "<= row", (r"mask",)),
        ("keys counted from 1", ("v02", "v06"), "key = n0 + n;", "key = n0 + n + 1;", (r"mask",)),
        (
            "every second row sees its successor's key",
            ("v10",),
            "key <= query)",
            "key <= query + query % 2)",
            (r"mask",),
        ),
        (
            "visible keys counted from the tile's start",
            ("v22",),
            "query + 1) : seqlen_kv) - pair",
            "query + 1) : seqlen_kv)",
            (r"mask",),
        ),
        ("no keys of the own tile", ("v12",), "cta_m0 + BLOCK_M)", "cta_m0)", (r"visible key",)),
        shapes="causal",
    ),
    *rows(
        "mask",
        (
            "keys masked by the number of queries",
            ("v01", "v08", "v10"),
            "key < seqlen_kv && ",
            "key < seqlen && ",
            (r"number of queries", r"queries"),
        ),
        on=_LONGER_KV,
    ),
    *rows(
        "mask",
        (
            "packed rows taken for queries",
            ("v14", "v21"),
            "(row0 + lane / 4 + i / 2 * 8) / group;",
            "row0 + lane / 4 + i / 2 * 8;",
            (r"mask",),
        ),
        (
            "last query's own key not visited",
            ("v14", "v21"),
            "last_query / group + 1)",
            "last_query / group)",
            (r"own key", r"off by one", r"last key", r"leaves out"),
        ),
        on=_GQA_CAUSAL,
    ),
    # ---- the key loop ----
    *rows(
        "key loop",
        (
            "tiles rounded down",
            ("v15", "v16", "v18"),
            "(kv_end + BLOCK_N - 1) / BLOCK_N",
            "kv_end / BLOCK_N",
            _LEFT,
        ),
        (
            "tiles rounded down",
            ("v19", "v20"),
            "found.tiles = (seqlen_kv + BLOCK_N - 1)",
            "found.tiles = (seqlen_kv)",
            _LEFT,
        ),
        config=_REUSED,
    ),
    *rows(
        "key loop",
        (
            "loop ends at the number of queries",
            ("v02", "v03"),
            ": seqlen_kv;",
            ": seqlen;",
            (r"number of queries", r"queries"),
        ),
        on=_LONGER_KV,
    ),
    *rows(
        "key loop",
        (
            "the tile is visited twice",
            ("v07", "v09"),
            "n0 += BLOCK_N) {",
            "n0 += n0 == BLOCK_N ? 1 + BLOCK_N - 1 : BLOCK_N / 2) {",
            (r"twice", r"step of the key loop"),
        ),
        (
            "last 16 keys of a tile not multiplied by V",
            ("v08", "v10"),
            "for (int key_step = 0; key_step < KEY_STEPS; key_step++) {\n            const float",
            "for (int key_step = 0; key_step < KEY_STEPS - 1; key_step++) {\n"
            "            const float",
            (r"keys .* of (each|every) (key )?tile", r"row sum", r"leav(es|ing) out"),
        ),
    ),
    *rows(
        "key loop",
        (
            "splits of a rounded length",
            ("v14", "v21"),
            "(int)((long long)tiles * split / NUM_SPLITS)",
            "(tiles + NUM_SPLITS - 1) / NUM_SPLITS * split",
            (r"twice", r"leav(es|ing) out", r"split"),
        ),
        (
            "every warp begins at the first tile",
            ("v14",),
            "for (int tile = first_tile + warp;",
            "for (int tile = first_tile;",
            (r"twice", r"key tile", r"copy"),
        ),
        on=_MANY_KEYS,
    ),
    # ---- softmax ----
    *rows(
        "softmax",
        (
            "scale of twice the columns",
            ("v03", "v09", "v16"),
            "softmax_scale * LOG2_E;",
            "softmax_scale * 0.70710678f * LOG2_E;",
            _SCALE,
        ),
        (
            "scale of half the columns",
            ("v12", "v20"),
            "softmax_scale * LOG2_E;",
            "softmax_scale * 1.41421356f * LOG2_E;",
            (r"factor of 1\.4", r"√2", r"scale 1/√"),
        ),
        (
            "maximum not kept",
            ("v07", "v05"),
            "m = m_new;",
            "",
            (r"maximum", r"last key tile"),
        ),
        (
            "maximum not kept",
            ("v10",),
            "m_rmem[r] = m_new[r];",
            "",
            (r"maximum", r"last key tile"),
        ),
        (
            "maximum not kept",
            ("v15", "v18"),
            "m_rmem[r] = m_new;",
            "",
            (r"maximum", r"last key tile"),
        ),
        (
            "correction upside down",
            ("v01", "v06", "v07"),
            "fast_exp2(m * scale_log2 - m_scaled)",
            "fast_exp2(m_scaled - fmaxf(m * scale_log2, -1e4f))",
            (r"rescale", r"maximum", r"correction"),
        ),
        (
            "O rescaled twice",
            ("v02", "v05"),
            "acc_rmem[j].x *= correction;\n            acc_rmem[j].y *= correction;",
            "acc_rmem[j].x *= correction * correction;\n"
            "            acc_rmem[j].y *= correction * correction;",
            (r"rescale",),
        ),
        (
            "O rescaled twice",
            ("v15", "v17"),
            "acc_rmem[i] *= correction[i / 2 % 2];",
            "acc_rmem[i] *= correction[i / 2 % 2] * correction[i / 2 % 2];",
            (r"rescale",),
        ),
        (
            "last key of a tile not in l",
            ("v02", "v07"),
            "l += p;",
            "if (n < BLOCK_N - 1) l += p;",
            (r"row sum",),
        ),
        (
            "first scores of a tile twice in l",
            ("v16",),
            "l_rmem[r] += left + right;",
            "l_rmem[r] += i == 2 * r ? 2.0f * (left + right) : left + right;",
            (r"row sum",),
        ),
        (
            "first scores of a tile twice in l",
            ("v19",),
            "l_rmem[i / 2 % 2] += s_rmem[i];",
            "l_rmem[i / 2 % 2] += i < 4 ? 2.0f * s_rmem[i] : s_rmem[i];",
            (r"row sum",),
        ),
        (
            "exponential relative to the other row's maximum",
            ("v08", "v10"),
            "scale_log2 - m_scaled[i / 2]",
            "scale_log2 - m_scaled[1 - i / 2]",
            (r"maximum", r"row"),
        ),
        (
            "the last column left out of the scores",
            ("v01",),
            "for (int d = 0; d < HEAD_DIM; d++) {\n                    score",
            "for (int d = 0; d < HEAD_DIM - 1; d++) {\n                    score",
            (r"column.* of Q and K", r"over d"),
        ),
        (
            "the last 16 columns left out of the scores",
            ("v10",),
            "step < DIM_STEPS; step++) {\n#pragma unroll\n            for (int key_step",
            "step < DIM_STEPS - 1; step++) {\n#pragma unroll\n            for (int key_step",
            (r"column.* of Q and K", r"over d"),
        ),
        config={},
    ),
    *rows(
        "softmax",
        (
            "O is rescaled for far too large a growth alone",
            ("v20",),
            "MOST_GROWTH = 8.0f;",
            "MOST_GROWTH = 40.0f;",
            (r"maximum", r"rescale", r"overflow"),
        ),
        config=_SEVERAL,
    ),
    # ---- fusion of splits ----
    *rows(
        "fusion",
        (
            "weights without the scale",
            ("v05", "v06"),
            "fast_exp2((m_split - m) * scale_log2)",
            "fast_exp2(m_split - m)",
            (r"fusion", r"exp\(m_i"),
        ),
        (
            "weight of l squared",
            ("v05", "v06"),
            "l += weight * l_partial[partial_row]",
            "l += weight * weight * l_partial[partial_row]",
            (r"fusion", r"row sum"),
        ),
        (
            "maxima handed over scaled",
            ("v05", "v06"),
            "m_partial[partial_row] = m;",
            "m_partial[partial_row] = m * scale_log2;",
            (r"fusion", r"m_i"),
        ),
        (
            "sums of one lane handed over",
            ("v05", "v06"),
            "    l = row_sum(l);\n",
            "",
            (r"row sum", r"fusion"),
        ),
        (
            "partials of the splits over each other",
            ("v05", "v06"),
            "split * num_rows + ",
            "split * seqlen + ",
            (r"partial'", r"fusion"),
        ),
        ("nobody fuses", ("v06",), "== NUM_SPLITS - 1;", "== NUM_SPLITS;", (r"arriv", r"fus")),
    ),
    *rows(
        "fusion",
        (
            "merge forgets the weight of l",
            ("v14", "v21"),
            "l += weight * l_smem[w",
            "l += l_smem[w",
            (r"weight", r"row sum", r"fusion"),
        ),
        (
            "merge relative to the first warp's maximum",
            ("v14",),
            "m = fmaxf(m, m_smem[w * BLOCK_M + tile_row])",
            "m = fmaxf(m, m_smem[tile_row])",
            (r"maximum",),
        ),
        (
            "merge of the warps' O without weights",
            ("v21",),
            "merged_rmem[j].x += weight * o.x;\n            merged_rmem[j].y += weight * o.y;",
            "merged_rmem[j].x += o.x;\n            merged_rmem[j].y += o.y;",
            (r"weight", r"fusion"),
        ),
        on=_MANY_KEYS,
    ),
    # ---- addressing ----
    *rows(
        "addressing",
        (
            "stride of K and V is Q's",
            ("v01", "v04", "v10"),
            "* seqlen_kv * HEAD_DIM;",
            "* seqlen * HEAD_DIM;",
            (r"stride",),
        ),
        on=_LONGER_KV,
    ),
    *rows(
        "addressing",
        (
            "scores of other rows than they are stored to",
            ("v03", "v04"),
            "q_smem + (group + i * ROW_GROUPS)",
            "q_smem + (group * ROWS_PER_THREAD + i)",
            _QUERY,
        ),
        (
            "K and V a row too far on",
            ("v15", "v16", "v18"),
            "tile * BLOCK_N, kv_head",
            "tile * BLOCK_N + 1, kv_head",
            (r"one row too far on",),
        ),
        (
            "every warp reads the first warp's Q",
            ("v07",),
            "q_smem + warp * WARP_ROWS * ROW_STRIDE + d",
            "q_smem + d",
            _QUERY,
        ),
        (
            "every group reads the first group's Q",
            ("v16", "v17"),
            "shared_address(q_smem) + group * GROUP_ROWS * ROW_BYTES",
            "shared_address(q_smem)",
            _QUERY,
        ),
        (
            "O of two rounds ago stored where the last belongs",
            ("v19", "v20"),
            "query_tile(round - 2);",
            "query_tile(round - 1);",
            (*_QUERY, r"[Nn]ever written"),
        ),
        (
            "the first 64 columns of V",
            ("v02",),
            "pair_at(v_smem + n",
            "pair_at(k_smem + n",
            (r"K in V",),
        ),
        config={},
    ),
    *rows(
        "addressing",
        (
            "batch and head exchanged",
            ("v17",),
            "m0, head,\n                     batch);",
            "m0, batch,\n                     head);",
            (r"batch and head", r"batch.*head.*place"),
        ),
        on=(Problem(3, 3, 77, 64),),
    ),
    *rows(
        "addressing",
        (
            "K/V head by the remainder",
            ("v07", "v11", "v13", "v19"),
            "/ (num_heads / num_heads_kv)",
            "% num_heads_kv",
            (r"head % num_heads_kv", r"K/V head"),
        ),
        (
            "rows packed by head",
            ("v14",),
            "row % group;\n        return head * seqlen + row / group;",
            "row / seqlen;\n        return head * seqlen + row / group;",
            (r"query (row|head)", r"rows", r"head"),
        ),
        shapes="gqa",
    ),
    *rows(
        "addressing",
        (
            "V a row further than K",
            ("v21",),
            "v + start, seqlen_kv",
            "v + start + HEAD_DIM, seqlen_kv",
            (r"V of a head read one row too far on", r"page"),
        ),
        (
            "head beside head in the pages, as outside of them",
            ("v21",),
            "((size_t)page * num_heads_kv + kv_head_index) * PAGE_SIZE",
            "((size_t)page + kv_head_index) * PAGE_SIZE",
            (r"page", r"head"),
        ),
        on=_MANY_KEYS,
    ),
    # ---- fragments, swizzles, descriptors ----
    *rows(
        "fragments",
        (
            "halves of the second K exchanged",
            ("v08", "v10"),
            "q_rmem[step], k_rmem[2], k_rmem[3])",
            "q_rmem[step], k_rmem[3], k_rmem[2])",
            (r"fragment",),
        ),
        (
            "ldmatrix of V by other lanes",
            ("v08", "v09"),
            "lane / 16 * 8;\n                unsigned v_rmem",
            "lane / 8 % 2 * 8;\n                unsigned v_rmem",
            (r"fragment", r"column"),
        ),
        (
            "Q gathered in another order",
            ("v12",),
            "upper.z, lower.z, upper.w, lower.w",
            "upper.z, upper.w, lower.z, lower.w",
            (r"fragment",),
        ),
        (
            "P packed in another order",
            ("v11",),
            "[tile % 2 * 2 + r] = pack",
            "[tile % 2 + 2 * r] = pack",
            (r"fragment",),
        ),
        (
            "Q's registers in another order",
            ("v14",),
            "q_rmem[step][half * 2 + r]",
            "q_rmem[step][r * 2 + half]",
            (r"fragment",),
        ),
        (
            "rows of P exchanged",
            ("v15", "v17"),
            "p_rmem[i / 8][i / 2 % 4] = pack(left",
            "p_rmem[i / 8][i / 2 % 4 ^ 1] = pack(left",
            (r"fragment", r"rows"),
        ),
        (
            "rows of P exchanged",
            ("v19",),
            "p_rmem[i / 8][i / 2 % 4] = pack(s_rmem",
            "p_rmem[i / 8][i / 2 % 4 ^ 1] = pack(s_rmem",
            (r"fragment", r"rows"),
        ),
        (
            "K by rows in wmma",
            ("v07",),
            "element, wmma::col_major>",
            "element, wmma::row_major>",
            (r"fragment", r"transposed"),
        ),
        (
            "swizzle where K is read alone is gone",
            ("v09", "v10"),
            "k_smem + swizzled(row, d)",
            "k_smem + row * HEAD_DIM + d",
            (r"swizzle",),
        ),
        (
            "another swizzle where V is read",
            ("v09",),
            "v_smem + swizzled(row, d)",
            "v_smem + (swizzled(row, d) ^ 8)",
            (r"swizzle",),
        ),
        (
            "O stored without its swizzle",
            ("v15", "v18", "v20"),
            "column % COLUMNS / 8 ^ row * ROW_BYTES / 128 % (COLUMNS / 8)",
            "column % COLUMNS / 8",
            (r"swizzle",),
        ),
        (
            "O's chunks by a sum in place of an XOR",
            ("v22",),
            "box_smem ^ step % STEPS * 32",
            "(box_smem & ~127u) + (box_smem + step % STEPS * 32) % 128",
            (r"swizzle", r"column"),
        ),
    ),
    *rows(
        "fragments",
        (
            "boxes of V as far apart as Q's",
            ("v16", "v17"),
            "BLOCK_N * ROW_BYTES));",
            "2 * BLOCK_N * ROW_BYTES));",
            (r"descriptor", r"column"),
        ),
        (
            "second box of Q and K a row further",
            ("v15", "v18"),
            "step / STEPS * ROWS * ROW_BYTES",
            "step / STEPS * ROW_BYTES",
            (r"descriptor", r"column.* of Q and K"),
        ),
        config={"block_n": 64},
        on=_WIDE,
    ),
    # ---- precision ----
    *rows(
        "precision",
        (
            "O rounded every tile",
            ("v03",),
            "acc_rmem[i][j].x *= correction;",
            "acc_rmem[i][j].x = to_float(to_element(acc_rmem[i][j].x * correction));",
            _ROUNDED,
        ),
        (
            "O rounded every tile",
            ("v15", "v17", "v19"),
            "acc_rmem[i] *= correction[i / 2 % 2];",
            "acc_rmem[i] = to_float(to_element(acc_rmem[i] * correction[i / 2 % 2]));",
            _ROUNDED,
        ),
        (
            "maximum rounded for P alone",
            ("v02", "v05"),
            "* scale_log2 - m_scaled);\n            s_row[n] = p;",
            "* scale_log2 - to_float(to_element(m_scaled)));\n            s_row[n] = p;",
            (*_ROUNDED, r"maximum"),
        ),
        (
            "exp2 in steps of a 32nd",
            ("v04",),
            "fast_exp2(s_rmem[i][j] * scale_log2 - m_scaled)",
            "fast_exp2(rintf((s_rmem[i][j] * scale_log2 - m_scaled) * 32.0f) / 32.0f)",
            (*_ROUNDED, r"coarse exp"),
        ),
        (
            "1 / l rounded",
            ("v08", "v15"),
            "= 1.0f / row_sum(l_rmem[r]);",
            "= to_float(to_element(1.0f / row_sum(l_rmem[r])));",
            (*_ROUNDED, r"factor of its own"),
        ),
        (
            "partial O rounded",
            ("v05", "v06"),
            "= acc_rmem[j];",
            "= to_float2(to_element2(acc_rmem[j].x, acc_rmem[j].y));",
            _ROUNDED,
        ),
    ),
    *rows(
        "precision",
        (
            "polynomial with a coefficient rounded",
            ("v20",),
            "0.24261113f",
            "0.25f",
            (*_ROUNDED, r"exp"),
        ),
        config={"polynomial": 4},
    ),
    # ---- barriers ----
    *rows(
        "barrier",
        (
            "no warp barrier behind S",
            ("v07",),
            "        __syncwarp();\n\n        // Online",
            "\n        // Online",
            (r"__syncwarp",),
        ),
        (
            "no warp barrier behind P",
            ("v07",),
            "        __syncwarp();\n\n        // O +=",
            "\n        // O +=",
            (r"__syncwarp",),
        ),
        (
            "no barrier before the next tile",
            ("v07",),
            "        __syncthreads();\n    }",
            "    }",
            (r"__syncthreads",),
        ),
        (
            "barrier between the loads of K and of V",
            ("v03", "v07"),
            "        load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);",
            "        __syncthreads();\n"
            "        load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);\n        if (false)",
            (r"__syncthreads", r"barrier"),
        ),
        (
            "barrier for rows that are there",
            ("v08",),
            "        __syncthreads();\n    }\n\n    // O = O / l",
            "        if (query0 < seqlen) __syncthreads();\n    }\n\n    // O = O / l",
            (r"diverge",),
        ),
        (
            "barrier for computing threads",
            ("v01",),
            "            m = m_new;\n        }",
            "            m = m_new;\n            __syncthreads();\n        }",
            (r"diverge",),
        ),
        (
            "rows drop out before the shuffles",
            ("v02",),
            "    const float inv_l = 1.0f / row_sum(l);",
            "    if (query >= seqlen) return;\n    const float inv_l = 1.0f / row_sum(l);",
            (r"warp|lane",),
        ),
        (
            "the answer of thread 0 for itself alone",
            ("v06",),
            "__syncthreads_or(came_last)",
            "came_last",
            (r"barrier|__syncthreads", r"thread"),
        ),
        ("no barrier in the loop", ("v10",), "        __syncthreads();\n", "", (r"__syncthreads",)),
    ),
    *rows(
        "barrier",
        (
            "no barrier before the merge",
            ("v14", "v21"),
            "    // The merge reads what all warps left.\n    __syncthreads();",
            "",
            (r"__syncthreads",),
        ),
        (
            "no warp barrier before O takes the ring",
            ("v14",),
            "    // Every lane has read its last tile: O takes the ring's place.\n"
            "    __syncwarp();",
            "",
            (r"__syncwarp",),
        ),
        on=_MANY_KEYS,
    ),
    *rows(
        "barrier",
        (
            "barrier of half of the group",
            ("v15", "v17"),
            "named_barrier(1 + group, WARPGROUP);",
            "named_barrier(1 + group, 64);",
            (r"barrier \d.*(threads|count)",),
        ),
        (
            "one barrier for all groups",
            ("v17", "v18"),
            "named_barrier(1 + group, WARPGROUP);",
            "named_barrier(1, WARPGROUP);",
            (r"barrier 1\b",),
        ),
        (
            "turn of a group that is not there",
            ("v17", "v19"),
            "TURNS + (group + 1) % CONSUMERS",
            "TURNS + group + 1",
            (r"barrier \d",),
        ),
        (
            "turn of one group's threads",
            ("v18", "v20"),
            "named_barrier(turn, 2 * WARPGROUP);",
            "named_barrier(turn, WARPGROUP);",
            (r"barrier \d",),
        ),
        config=_REUSED,
    ),
    # ---- cp.async ----
    *rows(
        "copy",
        (
            "a tile too many under way",
            ("v10",),
            "cp_async_wait<STAGES - 2>();",
            "cp_async_wait<STAGES - 1>();",
            (r"copy not complete",),
        ),
        (
            "copies over the tile that is read",
            ("v10",),
            "start_copies(stage == 0 ? STAGES - 1 : stage - 1,",
            "start_copies(stage,",
            (r"race|copy",),
        ),
        (
            "copies before the barrier",
            ("v10",),
            "        cp_async_wait<STAGES - 2>();\n",
            "        cp_async_wait<STAGES - 2>();\n"
            "        start_copies(stage == 0 ? STAGES - 1 : stage - 1,"
            " n0 + (STAGES - 1) * BLOCK_N);\n        if (false)\n",
            (r"race|copy",),
        ),
        ("no waiting for V", ("v12",), "cp_async_wait_all();", "", (r"copy not complete",)),
    ),
    *rows(
        "copy",
        (
            "a tile too many under way",
            ("v14", "v21"),
            "cp_async_wait<STAGES - 2>();",
            "cp_async_wait<STAGES - 1>();",
            (r"copy not complete",),
        ),
        (
            "no warp barrier behind the copies",
            ("v14", "v21"),
            "        __syncwarp();\n        ",
            "        ",
            (r"__syncwarp",),
        ),
        on=_MANY_KEYS,
        nth=0,
    ),
    # ---- mbarriers and TMA ----
    *rows(
        "mbarrier",
        (
            "waits for the next stage",
            ("v15",),
            "mbarrier_wait(full + stage, ",
            "mbarrier_wait(full + (stage + 1) % STAGES, ",
            (r"(other|another) (phase|stage|mbarrier)", r"mbarrier.*phase"),
        ),
        (
            "waits for the next stage of K",
            ("v16",),
            "mbarrier_wait(k_full + stage, ",
            "mbarrier_wait(k_full + (stage + 1) % STAGES, ",
            (r"(other|another) (phase|stage|mbarrier)", r"mbarrier.*phase"),
        ),
        (
            "waits for K in V's place",
            ("v16",),
            "mbarrier_wait(v_full + stage, ",
            "mbarrier_wait(k_full + stage, ",
            (r"(other|another) (phase|stage|mbarrier)", r"v_full"),
        ),
        (
            "the other phase of K",
            ("v16",),
            "mbarrier_wait(k_full + stage, ",
            "mbarrier_wait(k_full + stage, 1 ^ ",
            (r"phase",),
        ),
        (
            "the other phase of K",
            ("v18",),
            "mbarrier_wait(k_full + tile % STAGES, ",
            "mbarrier_wait(k_full + tile % STAGES, 1 ^ ",
            (r"phase",),
        ),
        (
            "K given back before it is read",
            ("v17", "v20"),
            "    wgmma_wait<0>(s_rmem);\n    if (lane == 0) mbarrier_arrive(k_empty);",
            "    if (lane == 0) mbarrier_arrive(k_empty);\n    wgmma_wait<0>(s_rmem);",
            (r"given back", r"still reads"),
        ),
        (
            "two arrivals for the one that comes",
            ("v16", "v18"),
            "mbarrier_init(k_full + stage, 1);",
            "mbarrier_init(k_full + stage, 2);",
            (r"of its 2 arrivals",),
        ),
        (
            "an arrival more than warps",
            ("v17", "v19"),
            "mbarrier_init(k_empty + stage, 4 * CONSUMERS);",
            "mbarrier_init(k_empty + stage, 4 * CONSUMERS + 1);",
            (r"of its 9 arrivals",),
        ),
        (
            "every lane asks for tiles",
            ("v15",),
            "&& elect_one()) load_tile",
            ") load_tile",
            (r"too many mbarrier arrivals", r"arriv"),
        ),
        (
            "two warps produce",
            ("v16", "v18"),
            "threadIdx.x >= 32 || !elect_one()",
            "threadIdx.x >= 64 || !elect_one()",
            (r"arriv",),
        ),
        (
            "arrival without its bytes",
            ("v18",),
            "mbarrier_arrive_expect(full + stage, TILE_BYTES);",
            "mbarrier_arrive(full + stage);",
            (r"bytes",),
        ),
        (
            "a fence of threads in place of the proxies'",
            ("v16", "v20"),
            "async_proxy_fence();",
            "__threadfence_block();",
            (r"fence\.proxy\.async",),
        ),
        (
            "one lane fences for its warp",
            ("v22",),
            "async_proxy_fence();",
            "if (lane == 0) async_proxy_fence();",
            (r"fence\.proxy\.async",),
        ),
        (
            "K's second half is waited for behind its use",
            ("v22",),
            "if (half == 1) mbarrier_wait(k_full, 0);",
            "if (half == 2) mbarrier_wait(k_full, 0);",
            (r"k_full", r"mbarrier"),
        ),
        config={},
    ),
    *rows(
        "mbarrier",
        (
            "parity of the ring never changes",
            ("v19", "v20"),
            "parity ^= stage == 0;",
            "",
            (r"phase",),
        ),
        (
            "parity of the tile before is 0",
            ("v19",),
            "mbarrier_wait(v_full + last_stage, parity ^ stage == 0);",
            "mbarrier_wait(v_full + last_stage, 0);",
            (r"phase",),
        ),
        (
            "K of the first stage for every tile",
            ("v19", "v20"),
            "shared_address(k_ring) + stage * TILE_BYTES, 16)",
            "shared_address(k_ring), 16)",
            (r"stage", r"mbarrier", r"key tile", r"copy"),
        ),
        (
            "one group says that O is there",
            ("v19",),
            "mbarrier_init(o_full + place, 4 * CONSUMERS);",
            "mbarrier_init(o_full + place, 4);",
            (r"arriv",),
        ),
        config=_SEVERAL,
    ),
    # ---- wgmma ----
    *rows(
        "wgmma",
        (
            "O and P touched while they are multiplied",
            ("v18",),
            "        wgmma_wait<0>(acc_rmem);\n"
            "        if (lane == 0) mbarrier_arrive(v_empty + last_stage);\n"
            "        rescale_and_pack(correction);",
            "        rescale_and_pack(correction);\n        wgmma_wait<0>(acc_rmem);\n"
            "        if (lane == 0) mbarrier_arrive(v_empty + last_stage);",
            (r"registers.*wgmma", r"wgmma.*registers", r"acc_rmem"),
        ),
        (
            "S read while it is multiplied",
            ("v18",),
            "wgmma_wait<1>(s_rmem);",
            "wgmma_wait<2>(s_rmem);",
            (r"registers.*wgmma", r"wgmma.*registers", r"s_rmem"),
        ),
        (
            "the group of S is not closed",
            ("v17", "v20"),
            "else wgmma<true>(s_rmem, q_columns, k_columns);\n        }\n        wgmma_commit();",
            "else wgmma<true>(s_rmem, q_columns, k_columns);\n        }",
            (r"wgmma",),
        ),
        (
            "O is waited for with one group left",
            ("v15",),
            "        wgmma_commit();\n        wgmma_wait<0>(acc_rmem);\n    }",
            "        wgmma_commit();\n        wgmma_wait<1>(acc_rmem);\n    }",
            (r"wgmma",),
        ),
        (
            "one warp issues for its group",
            ("v15",),
            "        wgmma_fence();\n#pragma unroll\n        for (int step = 0; step < KEY_STEPS",
            "        if (warp == 0) wgmma_fence();\n#pragma unroll\n"
            "        for (int step = 0; step < KEY_STEPS",
            (r"wgmma_fence", r"wgmma\.fence"),
        ),
        config=_REUSED,
    ),
    # ---- registers of a warp ----
    *rows(
        "registers",
        (
            "one warp of the producer gives registers back",
            ("v17", "v19"),
            "fewer_registers<PRODUCER_REGISTERS>();",
            "if (threadIdx.x < 32) fewer_registers<PRODUCER_REGISTERS>();",
            (r"setmaxnreg",),
        ),
        (
            "the producer takes in place of giving",
            ("v18", "v20"),
            "fewer_registers<PRODUCER_REGISTERS>();",
            "more_registers<PRODUCER_REGISTERS>();",
            (r"setmaxnreg",),
        ),
        (
            "the producer keeps what it has",
            ("v17", "v20"),
            "fewer_registers<PRODUCER_REGISTERS>();",
            "",
            (r"setmaxnreg",),
        ),
        (
            "consumers take too many",
            ("v18",),
            "CONSUMERS == 2 ? 240 : 160;",
            "CONSUMERS == 2 ? 248 : 160;",
            (r"setmaxnreg", r"registers"),
        ),
    ),
    # ---- stores ----
    *rows(
        "store",
        (
            "last pair of a thread not stored",
            ("v02",),
            "PAIRS_PER_THREAD; j++) {\n            element* pair",
            "PAIRS_PER_THREAD - 1; j++) {\n            element* pair",
            (r"[Nn]ever written",),
        ),
        (
            "half of the columns stored",
            ("v08", "v10"),
            "tile < HEAD_DIM / 8; tile++) {\n            *reinterpret",
            "tile < HEAD_DIM / 16; tile++) {\n            *reinterpret",
            (r"[Nn]ever written",),
        ),
        (
            "stored a row further on",
            ("v04", "v08", "v13"),
            "q_head + (size_t)query * HEAD_DIM",
            "q_head + (size_t)(query + 1) * HEAD_DIM",
            (r"row", r"out of bounds"),
        ),
        (
            "every group stores to the first one's rows",
            ("v16", "v17"),
            "m0 + group * GROUP_ROWS, head, batch);",
            "m0, head, batch);",
            (r"[Nn]ever written", r"race"),
        ),
        (
            "row past the end stored",
            ("v07",),
            "if (query >= seqlen) return;",
            "if (query > seqlen) return;",
            (r"out of bounds", r"race", r"row"),
        ),
    ),
    # ---- products in 32 bits ----
    *rows(
        "overflow",
        (
            "index of a head in 32 bits",
            ("v02", "v04"),
            "const size_t head_index = (size_t)blockIdx.z",
            "const int head_index = blockIdx.z",
            (r"32.bit", r"2\^31"),
        ),
        (
            "index of a head in 32 bits",
            ("v08", "v11"),
            "const size_t q_index = (size_t)blockIdx.z",
            "const int q_index = blockIdx.z",
            (r"32.bit", r"2\^31"),
        ),
        (
            "number of rows in 32 bits",
            ("v05", "v06"),
            "const size_t num_rows = (size_t)gridDim.z",
            "const int num_rows = gridDim.z",
            (r"32.bit", r"2\^31"),
        ),
    ),
)


# ---- changes that a kernel may have: nothing may be said of these ----
# Three were meant as bugs and are none: of tiles of 64 keys the mask begins in time; the first
# correction, exp(−inf), wipes out what l began with; and the next stage of V is given back a tile
# later than its own would be, which only waits longer.
LEGAL: tuple[Unseen, ...] = (
    *rows(
        "mask",
        (
            "every tile masked",
            ("v08", "v15"),
            "if (n0 + BLOCK_N > (IS_CAUSAL ? min(seqlen_kv, m0 + 1) : seqlen_kv)) {",
            "{",
            (),
        ),
        (
            "splits end at the last key",
            ("v05",),
            "min(kv_end, (split + 1) * chunk_rows)",
            "min(seqlen_kv, (split + 1) * chunk_rows)",
            (),
        ),
        (
            "mask left out below the diagonal's first row",
            ("v08", "v10", "v15", "v17"),
            "min(seqlen_kv, m0 + 1)",
            "min(seqlen_kv, m0 + 33)",
            (),
        ),
        shapes="causal",
    ),
    *rows(
        "fragments",
        ("l begins at 1", ("v01", "v02"), "float l = 0.0f;", "float l = 1.0f;", ()),
        (
            "l begins at 1",
            ("v08", "v14"),
            "l_rmem[2] = {0.0f, 0.0f}",
            "l_rmem[2] = {1.0f, 1.0f}",
            (),
        ),
        ("a smaller swizzle", ("v09", "v10"), "row % 8 : row / 2 % 4", "row % 4 : row / 2 % 4", ()),
        ("rows without padding", ("v08",), "= HEAD_DIM + VECTOR;", "= HEAD_DIM;", ()),
        (
            "sums over rounded P",
            ("v02",),
            "            l += p;",
            "            l += to_float(to_element(p));",
            (),
        ),
        (
            "a barrier more",
            ("v03", "v08"),
            "        __syncthreads();\n    }",
            "        __syncthreads();\n        __syncthreads();\n    }",
            (),
        ),
        (
            "a rescale by each lane for itself",
            ("v20",),
            "is_grown = __any_sync(FULL_WARP, is_grown);",
            "",
            (),
        ),
        ("maximum from a low number on", ("v02",), "float m = -INFINITY;", "float m = -1e30f;", ()),
        (
            "a division in place of a product",
            ("v01",),
            "acc_rmem[d] * inv_l)",
            "acc_rmem[d] / l + 0.0f * inv_l)",
            (),
        ),
        (
            "consumers keep what they have",
            ("v16",),
            "more_registers<CONSUMER_REGISTERS>();",
            "",
            (),
        ),
        (
            "every tile of K waited for twice",
            ("v16",),
            "mbarrier_wait(k_full + stage, parity);",
            "mbarrier_wait(k_full + stage, parity);\n"
            "        mbarrier_wait(k_full + stage, parity);",
            (),
        ),
        (
            "a fence of all memory, too",
            ("v15",),
            "    async_proxy_fence();",
            "    async_proxy_fence();\n    __threadfence();",
            (),
        ),
        config={},
    ),
    *rows(
        "mbarrier",
        (
            "V's next stage given back",
            ("v19", "v20"),
            "mbarrier_arrive(v_empty + last_stage);",
            "mbarrier_arrive(v_empty + stage);",
            (),
        ),
        config=_SEVERAL,
    ),
)
