"""Wrong values: masks, the key loop, the softmax, precision, sizes, LSE."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.unseen import Unseen, rows

_GQA_CAUSAL = (Problem(1, 4, 40, 64, causal=True, num_heads_kv=2),)
_MANY_KEYS = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)
_OWN = (Problem(2, 4, 77, 64, num_heads_kv=2),)
_PIECES = (Problem(1, 3, 200, 64),)
_REUSED = {"block_n": 64}
_MASK = (r"mask", r"causal", r"diagonal")
_LEFT = (r"leav(es|ing) out", r"left out", r"never visited", r"only the first")
_PRECISION = (r"precision", r"16 bits", r"times (that of )?(SDPA|torch|PyTorch|the )")

VALUES: tuple[Unseen, ...] = (
    # ---- masks ----
    *rows(
        "mask",
        (
            "a query does not see its own key",
            ("v17",),
            "key <= query)",
            "key < query)",
            (r"off by one", r"own key", *_MASK),
        ),
        (
            "tiles on the diagonal count as wholly visible",
            ("v08",),
            "(IS_CAUSAL ? min(seqlen_kv, m0 + 1) : seqlen_kv)",
            "(IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv)",
            _MASK,
        ),
        (
            "second group masked as the first",
            ("v18",),
            "m0 + group * GROUP_ROWS + warp * 16 + lane / 4;",
            "m0 + warp * 16 + lane / 4;",
            _MASK,
        ),
        (
            "every warp masked as the first",
            ("v10",),
            "m0 + threadIdx.x / 32 * WARP_ROWS + lane / 4;",
            "m0 + lane / 4;",
            (*_MASK, r"written", r"rows"),
        ),
        (
            "lower rows masked as the upper ones",
            ("v12",),
            "+ i / 2 * 8;\n",
            "+ i / 2 * 0;\n",
            _MASK,
        ),
        (
            "second of two columns masked as the first",
            ("v22",),
            "i / 4 * 8 + i % 2 >= visible",
            "i / 4 * 8 >= visible",
            _MASK,
        ),
        (
            "visible keys end with the tile's middle row",
            ("v16",),
            "min(seqlen_kv, m0 + BLOCK_M)",
            "min(seqlen_kv, m0 + BLOCK_M / 2)",
            (*_MASK, *_LEFT, r"visible key"),
        ),
        (
            "upper triangle in place of the lower",
            ("v09",),
            "key <= query)",
            "key >= query)",
            _MASK,
        ),
        shapes="causal",
    ),
    *rows(
        "mask",
        (
            "absent keys score 0",
            ("v02",),
            "score = -INFINITY;",
            "score = 0.0f;",
            (*_MASK, r"padd", r"zero", r"behind the last key"),
        ),
        (
            "absent keys are not masked",
            ("v15",),
            "key < seqlen_kv && (",
            "(",
            (*_MASK, r"padd", r"behind the last key"),
        ),
        (
            "one absent key is not masked",
            ("v03",),
            "key < seqlen_kv && ",
            "key <= seqlen_kv && ",
            (*_MASK, r"padd", r"behind the last key", r"off by one"),
        ),
    ),
    *rows(
        "mask",
        (
            "absent keys are not masked",
            ("v14", "v21"),
            "key < seqlen_kv && (",
            "(",
            (*_MASK, r"padd", r"behind the last key"),
        ),
        on=_MANY_KEYS,
    ),
    *rows(
        "mask",
        (
            "heads of a group counted as queries",
            ("v14",),
            "(row0 + lane / 4 + i / 2 * 8) / group;",
            "(row0 + lane / 4 + i / 2 * 8) % group;",
            _MASK,
        ),
        on=_GQA_CAUSAL,
    ),
    # ---- the key loop ----
    *rows(
        "key loop",
        (
            "the last part of a tile is not visited",
            ("v10",),
            "n0 < kv_end; n0 += BLOCK_N) {",
            "n0 + BLOCK_N <= kv_end; n0 += BLOCK_N) {",
            _LEFT,
        ),
        (
            "the first tile is not visited",
            ("v03",),
            "for (int n0 = 0; n0 < kv_end",
            "for (int n0 = BLOCK_N; n0 < kv_end",
            (*_LEFT, r"first key tile"),
        ),
        (
            "half steps",
            ("v02",),
            "n0 < kv_end; n0 += BLOCK_N) {",
            "n0 < kv_end; n0 += BLOCK_N / 2) {",
            (r"twice", r"step of the key loop", r"2 times"),
        ),
        (
            "the first key of a chunk is skipped",
            ("v06",),
            "for (int n0 = split * chunk_rows;",
            "for (int n0 = split * chunk_rows + (split > 0);",
            (*_LEFT, r"split", r"seam"),
        ),
        (
            "chunks overlap",
            ("v05",),
            "(split + 1) * chunk_rows)",
            "(split + 1) * chunk_rows + 1)",
            (r"twice", r"split", r"seam"),
        ),
        (
            "every chunk ends with the first one's",
            ("v05",),
            "(split + 1) * chunk_rows)",
            "chunk_rows)",
            (*_LEFT, r"split"),
        ),
    ),
    *rows(
        "key loop",
        (
            "the last stage's V is that of the first",
            ("v18",),
            "shared_address(v_ring) + tile % STAGES * TILE_BYTES",
            "shared_address(v_ring) + 0 * tile * TILE_BYTES",
            (r"V of", r"stage", r"key tile", r"another tile"),
        ),
        (
            "K of the first stage alone",
            ("v17",),
            "shared_address(k_ring) + tile % STAGES * TILE_BYTES",
            "shared_address(k_ring) + 0 * tile * TILE_BYTES",
            (r"K of", r"stage", r"key tile", r"another tile"),
        ),
        (
            "the producer loads the first tile again and again",
            ("v16",),
            "box * COLUMNS, tile * BLOCK_N, kv_head",
            "box * COLUMNS, 0 * tile * BLOCK_N, kv_head",
            (r"first key tile", r"every key tile", r"twice", r"key tile"),
        ),
        config=_REUSED,
    ),
    *rows(
        "key loop",
        (
            "the last warp's partial sums are not merged",
            ("v21",),
            "    for (int w = 0; w < NUM_WARPS; w++) {",
            "    for (int w = 0; w < NUM_WARPS - 1; w++) {",
            (*_LEFT, r"warp"),
        ),
        (
            "warps step by one tile",
            ("v14", "v21"),
            "tile < end_tile; tile += NUM_WARPS) {",
            "tile < end_tile; tile += 1) {",
            (r"twice", r"key tile", r"warp"),
        ),
        (
            "splits end a tile early",
            ("v14",),
            "(long long)tiles * (split + 1) / NUM_SPLITS);",
            "(long long)tiles * (split + 1) / NUM_SPLITS) - (split < NUM_SPLITS - 1);",
            (*_LEFT, r"split"),
        ),
        on=_MANY_KEYS,
    ),
    *rows(
        "key loop",
        (
            "pieces end a tile early",
            ("v13",),
            "min(seqlen_kv, end_tile * BLOCK_N);",
            "min(seqlen_kv, (end_tile - 1) * BLOCK_N);",
            (*_LEFT, r"key tile", r"piece"),
        ),
        config={"block_n": 32},
        on=_PIECES,
    ),
    # ---- softmax ----
    *rows(
        "softmax",
        (
            "maximum over the wrong lanes",
            ("v08",),
            "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));",
            "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 4));",
            (r"maximum", r"shuffle", r"lanes"),
        ),
        (
            "sum over the wrong lanes",
            ("v18",),
            "return x + __shfl_xor_sync(FULL_WARP, x, 2);",
            "return x + __shfl_xor_sync(FULL_WARP, x, 8);",
            (r"row sum", r"shuffle", r"lanes"),
        ),
        header="rows.cuh",
    ),
    *rows(
        "softmax",
        (
            "l is not rescaled",
            ("v07",),
            "l *= correction;",
            "",
            (r"row sum", r"rescale"),
        ),
        (
            "O is not rescaled",
            ("v17",),
            "acc_rmem[i] *= correction[i / 2 % 2];",
            ";",
            (r"rescale",),
        ),
        (
            "upper row's correction for both",
            ("v08",),
            "l_rmem[r] *= correction",
            "l_rmem[0] *= correction",
            (r"row sum", r"rescale", r"correction"),
        ),
        (
            "the maximum begins at 0",
            ("v02",),
            "float m = -INFINITY;",
            "float m = 0.0f;",
            (r"maximum",),
        ),
        (
            "maxima begin at 0",
            ("v17",),
            "{-INFINITY, -INFINITY}",
            "{0.0f, 0.0f}",
            (r"maximum",),
        ),
        (
            "half of a row's threads",
            ("v02",),
            "lane_bit < THREADS_PER_ROW; lane_bit *= 2",
            "lane_bit < THREADS_PER_ROW / 2; lane_bit *= 2",
            (r"row sum", r"maximum", r"threads|lanes"),
        ),
        (
            "scores scaled twice",
            ("v02",),
            "s_row[n] * scale_log2 - m_scaled",
            "s_row[n] * softmax_scale * scale_log2 - m_scaled",
            (r"scale",),
        ),
        (
            "exp of what is in base 2",
            ("v08", "v19"),
            "= fast_exp2(s_rmem",
            "= __expf(s_rmem",
            (r"base", r"log2", r"factor of", r"scale"),
        ),
        (
            "log2(e) forgotten",
            ("v21",),
            "softmax_scale * LOG2_E;",
            "softmax_scale;",
            (r"log2", r"factor of", r"scale", r"base"),
        ),
        (
            "scale of the whole D",
            ("v12",),
            "softmax_scale * LOG2_E;",
            "softmax_scale * softmax_scale * LOG2_E;",
            (r"scale", r"factor of"),
        ),
        (
            "the correction is of the new maximum",
            ("v01",),
            "fast_exp2(m * scale_log2 - m_scaled)",
            "fast_exp2(m_new * scale_log2 - m_scaled)",
            (r"rescale", r"maximum", r"correction"),
        ),
        (
            "divided by one lane's sum",
            ("v15",),
            "1.0f / row_sum(l_rmem[r])",
            "1.0f / l_rmem[r]",
            (r"row sum",),
        ),
        (
            "divided by one lane's sum",
            ("v19",),
            "inv_l[r] = 1.0f / row_sum(l_rmem[r]);",
            "inv_l[r] = 1.0f / l_rmem[r];",
            (r"row sum",),
        ),
        (
            "not divided at all",
            ("v17",),
            "1.0f / row_sum(l_rmem[r]);",
            "1.0f;",
            (r"row sum", r"divi", r"normalis"),
        ),
        (
            "l of the last tile alone",
            ("v01",),
            "l *= correction;",
            "l = 0.0f;",
            (r"row sum", r"last key tile"),
        ),
        (
            "the first group's sums begin at 1",
            ("v16",),
            "float l_rmem[2] = {};",
            "float l_rmem[2] = {1.0f, 1.0f};",
            (r"row sum",),
        ),
        (
            "a maximum without the other warps'",
            ("v12",),
            "                m = fmaxf(m, m_smem[w * BLOCK_M + row0 + i * 8]);\n",
            "",
            (r"maximum",),
        ),
    ),
    # ---- precision ----
    *rows(
        "precision",
        (
            "scores summed in 16 bits",
            ("v05",),
            "score += q_pair.y * k_pair.y;",
            "score = to_float(to_element(score + q_pair.y * k_pair.y));",
            _PRECISION,
        ),
        (
            "l kept in 16 bits",
            ("v07",),
            "l += p;",
            "l = to_float(to_element(l + p));",
            (*_PRECISION, r"row sum", r"factor of its own"),
        ),
        (
            "log2(e) of three digits",
            ("v16",),
            "softmax_scale * LOG2_E;",
            "softmax_scale * 1.44f;",
            (*_PRECISION, r"scale", r"factor"),
        ),
        (
            "O summed in 16 bits",
            ("v04",),
            "acc_rmem[i][j].y *= correction;",
            "acc_rmem[i][j].y = to_float(to_element(acc_rmem[i][j].y * correction));",
            _PRECISION,
        ),
    ),
    *rows(
        "precision",
        (
            "sums of the warps in 16 bits",
            ("v14",),
            "l_smem[warp * BLOCK_M + row] = l;",
            "l_smem[warp * BLOCK_M + row] = to_float(to_element(l));",
            (*_PRECISION, r"row sum", r"factor of its own"),
        ),
        on=_MANY_KEYS,
    ),
    # ---- products in 32 bits ----
    *rows(
        "overflow",
        (
            "index of a head in 32 bits",
            ("v03",),
            "const size_t head_index = (size_t)blockIdx.z",
            "const int head_index = blockIdx.z",
            (r"32.bit", r"2\^31"),
        ),
        (
            "index of a K/V head in 32 bits",
            ("v08",),
            "const size_t kv_index = (size_t)blockIdx.z",
            "const int kv_index = blockIdx.z",
            (r"32.bit", r"2\^31"),
        ),
    ),
    # ---- LSE ----
    *rows(
        "LSE",
        (
            "the sum counted twice",
            ("flash_split.cu",),
            "lse[at] = merged;",
            "lse[at] = top + __logf(2.0f * total);",
            (r"LSE",),
        ),
        (
            "negative",
            ("flash_split.cu",),
            "lse[at] = merged;",
            "lse[at] = -merged;",
            (r"LSE",),
        ),
        (
            "without ln 2 in a split",
            ("flash_split.cu",),
            "row_max[r] * p.scale_log2 * float(M_LN2) + logf(sum)",
            "row_max[r] * p.scale_log2 + logf(sum)",
            (r"LSE", r"base", r"fusion", r"split", r"weight"),
        ),
        (
            "the sum of one lane",
            ("flash_split.cu",),
            "for (int mask = 16; mask > 0; mask >>= 1) total +=",
            "for (int mask = 1; mask > 0; mask >>= 1) total +=",
            (r"LSE", r"split", r"fusion", r"row sum"),
        ),
        (
            "the next query's place",
            ("flash_split.cu",),
            "lse[at] = merged;",
            "lse[query + 1 < (int)gridDim.x ? at + 1 : at] = merged;",
            (r"LSE",),
        ),
        on=_OWN,
    ),
)
