"""Wrong values: masks, key loops, softmax, fusion of splits, precision, products in 32 bits."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.causes import (
    COPY,
    EVERY,
    FUSION,
    LAST_KEY,
    LAST_KEY_TILE,
    LEFT_OUT,
    MASK,
    MAXIMUM,
    NUMBER_OF_QUERIES,
    OFF_BY_ONE,
    OVER_D,
    OVERFLOW,
    PRECISION,
    PRODUCT_IN_32_BITS,
    RESCALE,
    ROUNDED_UP,
    ROW_SUM,
    SCALE,
    STEP,
    TWICE,
    VISIBLE,
    WEIGHTS,
)
from planted_bugs.unseen.bug import Unseen, rows

_LONGER_KV = (Problem(1, 2, 77, 64, seqlen_kv=200),)
_GQA_CAUSAL = (Problem(1, 4, 40, 64, causal=True, num_heads_kv=2),)
_MANY_KEYS = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)
_REUSED = {"block_n": 64}
_SEVERAL = {"num_ctas": 4, "block_n": 64}


VALUES: tuple[Unseen, ...] = (
    # ---- masks ----
    *rows(
        "mask",
        (
            "one key too many",
            ("v07", "v14", "v15", "v19"),
            "key <= query)",
            "key <= query + 1)",
            OFF_BY_ONE,
        ),
        (
            "both rows of a lane masked as the first",
            ("v15", "v16", "v18"),
            "query0 + i / 2 % 2 * 8",
            "query0",
            MASK,
        ),
        (
            "both columns of a lane masked as the first",
            ("v08", "v17"),
            "8 + pair + i % 2;",
            "8 + pair;",
            MASK,
        ),
        ("rows of the tile, not of the head", ("v03", "v04"), "<= m0 + row", "<= row", MASK),
        ("keys counted from 1", ("v02", "v06"), "key = n0 + n;", "key = n0 + n + 1;", MASK),
        (
            "every second row sees its successor's key",
            ("v10",),
            "key <= query)",
            "key <= query + query % 2)",
            MASK,
        ),
        (
            "visible keys counted from the tile's start",
            ("v22",),
            "query + 1) : seqlen_kv) - pair",
            "query + 1) : seqlen_kv)",
            MASK,
        ),
        ("no keys of the own tile", ("v12",), "cta_m0 + BLOCK_M)", "cta_m0)", VISIBLE),
        shapes="causal",
    ),
    *rows(
        "mask",
        (
            "keys masked by the number of queries",
            ("v01", "v08", "v10"),
            "key < seqlen_kv && ",
            "key < seqlen && ",
            NUMBER_OF_QUERIES,
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
            MASK,
        ),
        (
            "last query's own key not visited",
            ("v14", "v21"),
            "last_query / group + 1)",
            "last_query / group)",
            (*OFF_BY_ONE, *LAST_KEY, *LEFT_OUT),
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
            (*LEFT_OUT, *ROUNDED_UP),
        ),
        (
            "tiles rounded down",
            ("v19", "v20"),
            "found.tiles = (seqlen_kv + BLOCK_N - 1)",
            "found.tiles = (seqlen_kv)",
            (*LEFT_OUT, *ROUNDED_UP),
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
            NUMBER_OF_QUERIES,
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
            (*TWICE, *STEP),
        ),
        (
            "last 16 keys of a tile not multiplied by V",
            ("v08", "v10"),
            "for (int key_step = 0; key_step < KEY_STEPS; key_step++) {\n            const float",
            "for (int key_step = 0; key_step < KEY_STEPS - 1; key_step++) {\n"
            "            const float",
            (*EVERY, *ROW_SUM, *LEFT_OUT),
        ),
    ),
    *rows(
        "key loop",
        (
            "splits of a rounded length",
            ("v14", "v21"),
            "(int)((long long)tiles * split / NUM_SPLITS)",
            "(tiles + NUM_SPLITS - 1) / NUM_SPLITS * split",
            (*TWICE, *LEFT_OUT, "split"),
        ),
        (
            "every warp begins at the first tile",
            ("v14",),
            "for (int tile = first_tile + warp;",
            "for (int tile = first_tile;",
            (*TWICE, *COPY, "key tile"),
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
            (*SCALE, ("bug_scores_by_factor", "0.7"), ("bug_scores_by_factor", "0.707")),
        ),
        (
            "scale of half the columns",
            ("v12", "v20"),
            "softmax_scale * LOG2_E;",
            "softmax_scale * 1.41421356f * LOG2_E;",
            (*SCALE, ("bug_scores_by_factor", "1.4"), ("bug_scores_by_factor", "1.41")),
        ),
        (
            "maximum not kept",
            ("v07", "v05"),
            "m = m_new;",
            "",
            (*MAXIMUM, *LAST_KEY_TILE),
        ),
        (
            "maximum not kept",
            ("v10",),
            "m_rmem[r] = m_new[r];",
            "",
            (*MAXIMUM, *LAST_KEY_TILE),
        ),
        (
            "maximum not kept",
            ("v15", "v18"),
            "m_rmem[r] = m_new;",
            "",
            (*MAXIMUM, *LAST_KEY_TILE),
        ),
        (
            "correction upside down",
            ("v01", "v06", "v07"),
            "fast_exp2(m * scale_log2 - m_scaled)",
            "fast_exp2(m_scaled - fmaxf(m * scale_log2, -1e4f))",
            (*RESCALE, *MAXIMUM),
        ),
        (
            "O rescaled twice",
            ("v02", "v05"),
            "acc_rmem[j].x *= correction;\n            acc_rmem[j].y *= correction;",
            "acc_rmem[j].x *= correction * correction;\n"
            "            acc_rmem[j].y *= correction * correction;",
            RESCALE,
        ),
        (
            "O rescaled twice",
            ("v15", "v17"),
            "acc_rmem[i] *= correction[i / 2 % 2];",
            "acc_rmem[i] *= correction[i / 2 % 2] * correction[i / 2 % 2];",
            RESCALE,
        ),
        (
            "last key of a tile not in l",
            ("v02", "v07"),
            "l += p;",
            "if (n < BLOCK_N - 1) l += p;",
            ROW_SUM,
        ),
        (
            "first scores of a tile twice in l",
            ("v16",),
            "l_rmem[r] += left + right;",
            "l_rmem[r] += i == 2 * r ? 2.0f * (left + right) : left + right;",
            ROW_SUM,
        ),
        (
            "first scores of a tile twice in l",
            ("v19",),
            "l_rmem[i / 2 % 2] += s_rmem[i];",
            "l_rmem[i / 2 % 2] += i < 4 ? 2.0f * s_rmem[i] : s_rmem[i];",
            ROW_SUM,
        ),
        (
            "exponential relative to the other row's maximum",
            ("v08", "v10"),
            "scale_log2 - m_scaled[i / 2]",
            "scale_log2 - m_scaled[1 - i / 2]",
            (*MAXIMUM, "row"),
        ),
        (
            "the last column left out of the scores",
            ("v01",),
            "for (int d = 0; d < HEAD_DIM; d++) {\n                    score",
            "for (int d = 0; d < HEAD_DIM - 1; d++) {\n                    score",
            OVER_D,
        ),
        (
            "the last 16 columns left out of the scores",
            ("v10",),
            "step < DIM_STEPS; step++) {\n#pragma unroll\n            for (int key_step",
            "step < DIM_STEPS - 1; step++) {\n#pragma unroll\n            for (int key_step",
            OVER_D,
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
            (*MAXIMUM, *RESCALE, *OVERFLOW),
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
            (*FUSION, "exp(m_i"),
        ),
        (
            "weight of l squared",
            ("v05", "v06"),
            "l += weight * l_partial[partial_row]",
            "l += weight * weight * l_partial[partial_row]",
            (*FUSION, *ROW_SUM),
        ),
        (
            "maxima handed over scaled",
            ("v05", "v06"),
            "m_partial[partial_row] = m;",
            "m_partial[partial_row] = m * scale_log2;",
            (*FUSION, "m_i"),
        ),
        (
            "sums of one lane handed over",
            ("v05", "v06"),
            "    l = row_sum(l);\n",
            "",
            (*ROW_SUM, *FUSION),
        ),
        (
            "partials of the splits over each other",
            ("v05", "v06"),
            "split * num_rows + ",
            "split * seqlen + ",
            (*FUSION, "partial'"),
        ),
        (
            "nobody fuses",
            ("v06",),
            "== NUM_SPLITS - 1;",
            "== NUM_SPLITS;",
            (*FUSION, "arrive", "arrival"),
        ),
    ),
    *rows(
        "fusion",
        (
            "merge forgets the weight of l",
            ("v14", "v21"),
            "l += weight * l_smem[w",
            "l += l_smem[w",
            (*WEIGHTS, *ROW_SUM),
        ),
        (
            "merge relative to the first warp's maximum",
            ("v14",),
            "m = fmaxf(m, m_smem[w * BLOCK_M + tile_row])",
            "m = fmaxf(m, m_smem[tile_row])",
            MAXIMUM,
        ),
        (
            "merge of the warps' O without weights",
            ("v21",),
            "merged_rmem[j].x += weight * o.x;\n            merged_rmem[j].y += weight * o.y;",
            "merged_rmem[j].x += o.x;\n            merged_rmem[j].y += o.y;",
            WEIGHTS,
        ),
        on=_MANY_KEYS,
    ),
    # ---- precision ----
    *rows(
        "precision",
        (
            "O rounded every tile",
            ("v03",),
            "acc_rmem[i][j].x *= correction;",
            "acc_rmem[i][j].x = to_float(to_element(acc_rmem[i][j].x * correction));",
            PRECISION,
        ),
        (
            "O rounded every tile",
            ("v15", "v17", "v19"),
            "acc_rmem[i] *= correction[i / 2 % 2];",
            "acc_rmem[i] = to_float(to_element(acc_rmem[i] * correction[i / 2 % 2]));",
            PRECISION,
        ),
        (
            "maximum rounded for P alone",
            ("v02", "v05"),
            "* scale_log2 - m_scaled);\n            s_row[n] = p;",
            "* scale_log2 - to_float(to_element(m_scaled)));\n            s_row[n] = p;",
            (*PRECISION, *MAXIMUM),
        ),
        (
            "exp2 in steps of a 32nd",
            ("v04",),
            "fast_exp2(s_rmem[i][j] * scale_log2 - m_scaled)",
            "fast_exp2(rintf((s_rmem[i][j] * scale_log2 - m_scaled) * 32.0f) / 32.0f)",
            PRECISION,
        ),
        (
            "1 / l rounded",
            ("v08", "v15"),
            "= 1.0f / row_sum(l_rmem[r]);",
            "= to_float(to_element(1.0f / row_sum(l_rmem[r])));",
            PRECISION,
        ),
        (
            "partial O rounded",
            ("v05", "v06"),
            "= acc_rmem[j];",
            "= to_float2(to_element2(acc_rmem[j].x, acc_rmem[j].y));",
            PRECISION,
        ),
    ),
    *rows(
        "precision",
        (
            "polynomial with a coefficient rounded",
            ("v20",),
            "0.24261113f",
            "0.25f",
            (*PRECISION, "exp"),
        ),
        config={"polynomial": 4},
    ),
    # ---- products in 32 bits ----
    *rows(
        "overflow",
        (
            "index of a head in 32 bits",
            ("v02", "v04"),
            "const size_t head_index = (size_t)blockIdx.z",
            "const int head_index = blockIdx.z",
            PRODUCT_IN_32_BITS,
        ),
        (
            "index of a head in 32 bits",
            ("v08", "v11"),
            "const size_t q_index = (size_t)blockIdx.z",
            "const int q_index = blockIdx.z",
            PRODUCT_IN_32_BITS,
        ),
        (
            "number of rows in 32 bits",
            ("v05", "v06"),
            "const size_t num_rows = (size_t)gridDim.z",
            "const int num_rows = gridDim.z",
            PRODUCT_IN_32_BITS,
        ),
    ),
)
