"""Wrong values: masks, key loops, softmax, fusion of splits, precision, products in 32 bits."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.unseen.bug import Unseen, rows

_LONGER_KV = (Problem(1, 2, 77, 64, seqlen_kv=200),)
_GQA_CAUSAL = (Problem(1, 4, 40, 64, causal=True, num_heads_kv=2),)
_MANY_KEYS = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)
_REUSED = {"block_n": 64}
_SEVERAL = {"num_ctas": 4, "block_n": 64}
_ROUNDED = (r"precision", r"16 bits", r"times (that of )?(SDPA|torch|PyTorch|the )")
_SCALE = (r"factor of 0?\.7", r"√2", r"scale 1/√", r"scaled? by 1/√")
_LEFT = (r"leav(es|ing) out", r"rounded up")

VALUES: tuple[Unseen, ...] = (
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
            ("v01",),
            "key < seqlen_kv && ",
            "key < seqlen && ",
            (r"number of queries", r"queries"),
        ),
        (
            "keys masked by the number of queries",
            ("v08",),
            "mask_scores(s_rmem, n0, query0, pair, seqlen_kv);",
            "mask_scores(s_rmem, n0, query0, pair, seqlen);",
            (r"number of queries", r"queries"),
        ),
        (
            "keys masked by the number of queries",
            ("v10",),
            "mask_scores(s_rmem, n0, query0, pair, LENGTHS);",
            "mask_scores(s_rmem, n0, query0, pair, seqlen);",
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
