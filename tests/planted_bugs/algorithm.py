"""Bugs of the algorithm: masks, the key loop, the online softmax."""

from __future__ import annotations

from planted_bugs.causes import MAXIMUM, RESCALE, ROW_SUM
from planted_bugs.mutation import (
    ALL,
    HOPPER,
    LOOPED,
    PERSISTENT,
    SCALAR,
    SPLIT,
    TILED,
    Mutation,
)

_MASK = ("bug_reads_past_head", "bug_missing_tail_mask")
_ONE_KEY = ("one_padded_key",)
_OFF_BY_ONE = ("bug_key_too_many", "bug_misses_own_key")

MUTATIONS: tuple[Mutation, ...] = (
    # ---- masks ----
    Mutation("no tail mask", ALL, "key < seqlen_kv && ", "", _MASK),
    Mutation("tail mask off by one", ALL, "key < seqlen_kv &&", "key <= seqlen_kv &&", _ONE_KEY),
    Mutation(
        "causal mask misses the diagonal",
        (*SCALAR, "v08", "v09", "v10", "v11", "v12", "v13"),
        "key <= query",
        "key < query",
        _OFF_BY_ONE,
        "causal",
    ),
    Mutation(
        "causal mask misses the diagonal",
        TILED,
        "key <= m0 + row",
        "key < m0 + row",
        _OFF_BY_ONE,
        "causal",
    ),
    Mutation(
        "causal mask with one key too many",
        (*SCALAR, "v08", "v09", "v10", "v11", "v12", "v13"),
        "key <= query",
        "key <= query + 1",
        _OFF_BY_ONE,
        "causal",
    ),
    Mutation(
        "causal mask with one key too many",
        TILED,
        "key <= m0 + row",
        "key <= m0 + row + 1",
        _OFF_BY_ONE,
        "causal",
    ),
    Mutation(
        "no causal mask inside the tiles",
        (*SCALAR, "v08", "v09", "v10", "v11", "v12", "v13"),
        "(!IS_CAUSAL || key <= query)",
        "true",
        ("bug_causal_by_tiles", "without_causal_mask"),
        "causal",
    ),
    Mutation(
        "no causal mask inside the tiles",
        TILED,
        "(!IS_CAUSAL || key <= m0 + row)",
        "true",
        ("bug_causal_by_tiles", "without_causal_mask"),
        "causal",
    ),
    # ---- the key loop ----
    Mutation(
        "causal loop ends a query tile early",
        LOOPED,
        "min(seqlen_kv, m0 + BLOCK_M)",
        "min(seqlen_kv, m0)",
        ("row_without_visible_key", "part_without_visible_key"),
        "causal",
    ),
    Mutation(
        "loop leaves out the last key",
        LOOPED,
        ": seqlen_kv;",
        ": seqlen_kv - 1;",
        ("bug_no_last_key", "bug_no_partial_key_tile"),
        "one more",
    ),
    Mutation(
        "loop begins at the second tile",
        ("v01", "v02", "v03", "v04", "v08", "v09", "v10"),
        "for (int n0 = 0; n0",
        "for (int n0 = BLOCK_N; n0",
        (("bug_leaving_out", "key tile 0"),),
    ),
    Mutation(
        "loop takes every second tile",
        ("v01", "v02", "v03", "v04", "v08", "v09", "v10"),
        "n0 += BLOCK_N",
        "n0 += 2 * BLOCK_N",
        (("loop_every_key_tile", "second"), ("bug_leaving_out", "key tile 1")),
    ),
    # ---- the online softmax ----
    Mutation("l not rescaled", ("v01", "v02"), "l *= correction;", "", ("rescales_o_not_l",)),
    Mutation(
        "l not rescaled",
        SPLIT,
        "l *= correction;",
        "",
        ("rescales_o_not_l",),
        config={"num_splits": 2},
    ),
    Mutation("l not rescaled", TILED, "l_rmem[i] *= correction;", "", ("rescales_o_not_l",)),
    Mutation("l not rescaled", ("v07",), "l *= correction;", "", ("rescales_o_not_l",)),
    Mutation("O not rescaled", ("v07",), "+ d] *= correction;", "+ d];", ("rescales_l_not_o",)),
    Mutation(
        "l not rescaled",
        ("v08", "v09", "v10", "v15", "v16", "v17", "v18", "v19"),
        "l_rmem[r] *= correction[r];",
        "",
        ("rescales_o_not_l",),
    ),
    Mutation(
        "O not rescaled",
        ("v01",),
        "acc_rmem[d] *= correction;",
        ";",
        ("rescales_l_not_o",),
    ),
    Mutation(
        "half of O not rescaled",
        ("v02",),
        "acc_rmem[j].x *= correction;",
        "",
        ("rescales_l_not_o",),
    ),
    Mutation(
        "half of O not rescaled",
        SPLIT,
        "acc_rmem[j].x *= correction;",
        "",
        ("rescales_l_not_o",),
        config={"num_splits": 2},
    ),
    Mutation(
        "half of O not rescaled",
        TILED,
        "acc_rmem[i][j].x *= correction;",
        "",
        ("rescales_l_not_o",),
    ),
    Mutation(
        "O not rescaled",
        (
            "v08",
            "v09",
            "v10",
        ),
        "acc_rmem[tile][i] *= correction[i / 2];",
        ";",
        ("rescales_l_not_o",),
    ),
    Mutation(
        "rows' corrections exchanged",
        ("v08", "v09", "v10", "v11", "v13"),
        "*= correction[i / 2];",
        "*= correction[1 - i / 2];",
        RESCALE,
    ),
    Mutation(
        "O not rescaled",
        ("v15", "v16", "v17", "v18", "v19"),
        "acc_rmem[i] *= correction[i / 2 % 2];",
        ";",
        ("rescales_l_not_o",),
    ),
    Mutation(
        "l not rescaled",
        ("v11", "v13"),
        "l_rmem[r] *= correction[r];",
        "",
        ("rescales_o_not_l",),
    ),
    Mutation(
        "l not rescaled",
        ("v14",),
        "l_rmem[r] *= correction;",
        "",
        ("rescales_o_not_l",),
        config={"num_splits": 1, "num_warps": 2},
    ),
    Mutation(
        "half of O not rescaled",
        ("v14",),
        "acc_rmem[t][2 * r + 1] *= correction;",
        "",
        ("rescales_l_not_o",),
        config={"num_splits": 1, "num_warps": 2},
    ),
    # Rescaled if a maximum grows by more than 2^8: only growing scores show the bug.
    *(
        Mutation(name + of, (variant,), old, new, words, config=config)
        for variant, of, config in (
            ("v20", "", {}),
            ("v19", ", beyond growth", {"rescale_threshold": 8}),
        )
        for name, old, new, words in (
            (
                "l not rescaled",
                "l_rmem[r] *= correction[r];",
                "",
                ("rescales_o_not_l",),
            ),
            (
                "O not rescaled",
                "if (is_grown) rescale_o(correction);",
                "",
                ("rescales_l_not_o",),
            ),
            (
                "growth of the first row not seen",
                "is_grown |= m_new[r]",
                "is_grown = m_new[r]",
                ("NaN",),
            ),
            (
                "maxima stay where they were",
                "is_grown ? fmaxf(m_old, m_new[r]) : m_old;",
                "tile == 0 ? m_new[r] : m_old;",
                ("NaN",),
            ),
        )
    ),
    # A causal row with few keys, without a positive score.
    *(
        Mutation(name, PERSISTENT, old, new, ("NaN",), "causal")
        for name, old, new in (
            (
                "maxima below zero compared as whole numbers",
                "if (__any_sync(FULL_WARP, is_low)) {",
                "if (false) {",
            ),
            (
                "maxima below zero of a lane's first row not seen",
                "is_low |= most < 0",
                "is_low = most < 0",
            ),
        )
    ),
    Mutation(
        "scores not scaled",
        (*SCALAR, *TILED),
        "softmax_scale * LOG2_E",
        "LOG2_E",
        ("bug_no_scale",),
    ),
    Mutation(
        "scores not scaled",
        ("v07", "v08", "v09", "v10", "v11", "v12", "v13", "v14", "v21", *HOPPER),
        "softmax_scale * LOG2_E",
        "LOG2_E",
        ("bug_no_scale",),
    ),
    Mutation(
        "exp2 for exp",
        ("v07", "v08", "v09", "v10", "v11", "v12", "v13", "v14", "v21", *HOPPER),
        "softmax_scale * LOG2_E",
        "softmax_scale",
        ("bug_exp2_unscaled",),
    ),
    Mutation(
        "exp2 for exp",
        (*SCALAR, *TILED),
        "softmax_scale * LOG2_E",
        "softmax_scale",
        ("bug_exp2_unscaled",),
    ),
    Mutation(
        "maximum begins at 0",
        ("v01", "v02"),
        "float m = -INFINITY;",
        "float m = 0.0f;",
        MAXIMUM,
    ),
    Mutation(
        "maximum begins at 0",
        SPLIT,
        "float m = -INFINITY;",
        "float m = 0.0f;",
        MAXIMUM,
        nth=0,
    ),
    Mutation("maximum begins at 0", TILED, "m_rmem[i] = -INFINITY;", "m_rmem[i] = 0.0f;", MAXIMUM),
    Mutation(
        "maximum begins at 0",
        (
            "v08",
            "v09",
            "v10",
        ),
        "{-INFINITY, -INFINITY};",
        "{0.0f, 0.0f};",
        MAXIMUM,
    ),
    Mutation(
        "maximum begins at 0",
        ("v12",),
        "m_rmem[t][1] = -INFINITY;",
        "m_rmem[t][1] = 0.0f;",
        MAXIMUM,
    ),
    Mutation(
        "maximum never taken",
        SCALAR,
        "m_new = fmaxf(m_new, score);",
        "m_new = 0.0f;",
        MAXIMUM,
    ),
    Mutation(
        "maximum never taken",
        TILED,
        "m_new = fmaxf(m_new, s_rmem[i][j]);",
        "m_new = 0.0f;",
        MAXIMUM,
    ),
    Mutation(
        "maximum never taken",
        (
            "v08",
            "v09",
            "v10",
        ),
        "m_new[i / 2] = fmaxf(m_new[i / 2], s_rmem[tile][i]);",
        "m_new[i / 2] = 0.0f;",
        MAXIMUM,
    ),
    Mutation(
        "maximum of the other row",
        (
            "v08",
            "v09",
            "v10",
        ),
        "m_new[i / 2] = fmaxf(m_new[i / 2], s_rmem[tile][i]);",
        "m_new[1 - i / 2] = fmaxf(m_new[1 - i / 2], s_rmem[tile][i]);",
        MAXIMUM,
    ),
    Mutation(
        "maximum of the other row",
        ("v12",),
        "fmaxf(scores[2 * r], scores[2 * r + 1])",
        "fmaxf(scores[2 - 2 * r], scores[3 - 2 * r])",
        MAXIMUM,
    ),
    Mutation(
        "maximum of the last key alone",
        SCALAR,
        "m_new = fmaxf(m_new, score);",
        "m_new = fmaxf(m, score);",
        MAXIMUM,
    ),
    Mutation(
        "maximum over the whole warp",
        ("v02", "v05", "v06"),
        "lane_bit < THREADS_PER_ROW; lane_bit *= 2) {\n        x = fmaxf",
        "lane_bit < 32; lane_bit *= 2) {\n        x = fmaxf",
        MAXIMUM,
    ),
    Mutation(
        "maximum over half of the lanes",
        ("v02", "v05", "v06"),
        "lane_bit < THREADS_PER_ROW; lane_bit *= 2) {\n        x = fmaxf",
        "lane_bit < THREADS_PER_ROW / 2; lane_bit *= 2) {\n        x = fmaxf",
        MAXIMUM,
    ),
    Mutation(
        "maximum over half of the lanes",
        TILED,
        "lane_bit < ROW_THREADS; lane_bit *= 2) {\n        x = fmaxf",
        "lane_bit < ROW_THREADS / 2; lane_bit *= 2) {\n        x = fmaxf",
        MAXIMUM,
    ),
    Mutation(
        "maximum over half of the lanes",
        ("v08", "v09", "v10", "v11", "v12", "v13"),
        "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));",
        "return x;",
        MAXIMUM,
        header="rows.cuh",
    ),
    Mutation(
        "maximum over the wrong lanes",
        ("v08", "v09", "v10", "v11", "v12", "v13"),
        "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));",
        "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 4));",
        MAXIMUM,
        header="rows.cuh",
    ),
    Mutation(
        "sum over half of the lanes",
        ("v02", "v05", "v06"),
        "lane_bit < THREADS_PER_ROW; lane_bit *= 2) {\n        x +=",
        "lane_bit < THREADS_PER_ROW / 2; lane_bit *= 2) {\n        x +=",
        ROW_SUM,
    ),
    Mutation(
        "sum over half of the lanes",
        TILED,
        "lane_bit < ROW_THREADS; lane_bit *= 2) {\n        x +=",
        "lane_bit < ROW_THREADS / 2; lane_bit *= 2) {\n        x +=",
        ROW_SUM,
    ),
    Mutation(
        "sum over half of the lanes",
        ("v08", "v09", "v10", "v11", "v13"),
        "return x + __shfl_xor_sync(FULL_WARP, x, 2);",
        "return x;",
        ROW_SUM,
        header="rows.cuh",
    ),
    Mutation("not divided by l", ("v01",), "1.0f / l;", "1.0f;", ("bug_not_divided",)),
    Mutation("not divided by l", ("v02",), "1.0f / row_sum(l);", "1.0f;", ("bug_not_divided",)),
    Mutation(
        "not divided by l", TILED, "1.0f / row_sum(l_rmem[i]);", "1.0f;", ("bug_not_divided",)
    ),
    Mutation(
        "not divided by l",
        (
            "v08",
            "v09",
            "v10",
        ),
        "1.0f / row_sum(l_rmem[r]);",
        "1.0f;",
        ("bug_not_divided",),
    ),
    Mutation(
        "not divided by l", ("v05",), "acc_rmem[i] / l)", "acc_rmem[i])", ("bug_not_divided",)
    ),
    Mutation(
        "not divided by l", ("v06",), "acc_rmem[j].x / l,", "acc_rmem[j].x,", ("bug_not_divided",)
    ),
    Mutation(
        "not divided by l",
        ("v12",),
        "__fdividef(1.0f, l[r]);",
        "1.0f;",
        ("bug_not_divided",),
    ),
    Mutation("sum of the other row", ("v12",), "[i % 2 * 2];", "[2 - i % 2 * 2];", ROW_SUM),
    Mutation(
        "sum of this warp's keys",
        ("v12",),
        "l[r] += l_smem[w * BLOCK_M",
        "l[r] = l_smem[w * BLOCK_M",
        (*ROW_SUM, "bug_mean_of_splits"),
    ),
    Mutation("sum of this thread's keys", ("v02",), "1.0f / row_sum(l);", "1.0f / l;", ROW_SUM),
    Mutation("sum of this thread's keys", SPLIT, "l = row_sum(l);", "", ROW_SUM),
    Mutation(
        "sum of this thread's keys",
        TILED,
        "1.0f / row_sum(l_rmem[i]);",
        "1.0f / l_rmem[i];",
        ROW_SUM,
    ),
    Mutation(
        "sum of this thread's keys",
        (
            "v08",
            "v09",
            "v10",
        ),
        "1.0f / row_sum(l_rmem[r]);",
        "1.0f / l_rmem[r];",
        ROW_SUM,
    ),
)
