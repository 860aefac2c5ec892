"""Bugs in the backward rungs, v23 to v25."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.causes import (
    BASE,
    BEYOND,
    DIAGONAL,
    LANES,
    LEFT_OUT,
    MASK,
    POSITION,
    SAME_PLACE,
    SEQUENCE,
    UNINITIALISED,
    UNWRITTEN,
    WEIGHT,
    ZERO,
)
from planted_bugs.unseen import Unseen, rows

_PLAIN = (Problem(1, 2, 90, 64, direction="backward"),)
_OFFSET = (Problem(1, 2, 70, 64, causal=True, seqlen_kv=150, direction="backward"),)
_GQA = (Problem(1, 4, 70, 64, num_heads_kv=2, direction="backward"),)
_TWO = (Problem(2, 2, 150, 64, direction="backward"),)


TWO_WAYS: tuple[Unseen, ...] = (
    *rows(
        "backward",
        (
            "LSE taken for base 2",
            ("v23",),
            "const float own_lse = exists ? lse[q_index * seqlen + query] * LOG2_E : 0.0f;\n"
            "            const float own_delta",
            "const float own_lse = exists ? lse[q_index * seqlen + query] : 0.0f;\n"
            "            const float own_delta",
            (*BASE, "LSE"),
        ),
        (
            "D of the first 32 columns",
            ("v23",),
            "for (int d = 0; d < HEAD_DIM; d += 32) {",
            "for (int d = 0; d < 32; d += 32) {",
            ("D", "delta", "rowsum", "dO"),
        ),
        (
            "dV weighs as dK does",
            ("v23",),
            "add_row(dv_rmem, p, dout_smem",
            "add_row(dv_rmem, ds, dout_smem",
            (*WEIGHT, "dS", "P"),
        ),
        (
            "dQ sums the rows of V",
            ("v23",),
            "add_row(dq_rmem, ds_row[n], k_smem",
            "add_row(dq_rmem, ds_row[n], v_smem",
            ("V", "K"),
        ),
        (
            "P is a column of the weights in dV alone",
            ("v23",),
            "const float p = p_smem[m * P_STRIDE + own];",
            "const float p = p_smem[own * P_STRIDE + m];",
            ("transpose", "P"),
        ),
        (
            "dP of dO and Q",
            ("v25",),
            "multiply_rows<BLOCK>(ds_rmem, v_smem + warp * 16 * ROW_STRIDE, dout_smem, lane);",
            "multiply_rows<BLOCK>(ds_rmem, v_smem + warp * 16 * ROW_STRIDE, q_smem, lane);",
            ("dP", "D", "delta", "rowsum", "dO"),
        ),
        (
            "the scale of exp2 for dQ's",
            ("v25",),
            "store_rows(dq + q_head, dq_rmem, softmax_scale,",
            "store_rows(dq + q_head, dq_rmem, scale_log2,",
            (*BASE, "scale"),
        ),
        (
            "D of every second row",
            ("v25",),
            "row_d[r] = exists ? delta[row] : 0.0f;",
            "row_d[r] = exists && r == 0 ? delta[row] : 0.0f;",
            ("D", "delta", "rowsum", "dO"),
        ),
        (
            "dS read by columns of the wrong lanes",
            ("v24",),
            "ds_smem + key * DS_STRIDE + dq_row + lane / 8 % 2 * 8);",
            "ds_smem + key * DS_STRIDE + dq_row + lane / 16 * 8);",
            (*LANES, "transpose", "dS"),
        ),
        (
            "LSE and D of the tile before",
            ("v24",),
            "        load_rows(visit + 1);\n",
            "        load_rows(visit);\n",
            (*BASE, "D", "delta", "rowsum", "dO", "LSE"),
        ),
        (
            "sums of dQ are not set to zero",
            ("v24",),
            "dq_sum[row * HEAD_DIM + d + lane] = 0.0f;",
            "dq_sum[row * HEAD_DIM + d + lane] += 0.0f;",
            (*UNWRITTEN, *ZERO),
        ),
        (
            "the weights of dV are rounded like those of dK: D too early",
            ("v24",),
            "p_rmem[tile][i] = p;",
            "p_rmem[tile][i] = p * (1.0f - row.y);",
            ("P", "D", "delta", "rowsum", "dO"),
        ),
        on=_PLAIN,
    ),
    *rows(
        "backward",
        (
            "dQ's queries stand at the first key",
            ("v23",),
            "visible = exists && key < seqlen_kv && (!IS_CAUSAL || key <= query + offset);",
            "visible = exists && key < seqlen_kv && (!IS_CAUSAL || key <= query);",
            (*DIAGONAL, *POSITION, "offset"),
        ),
        (
            "dQ's keys end with the queries' numbers",
            ("v23",),
            "min(seqlen_kv, m0 + TILE_ROWS + offset)",
            "min(seqlen_kv, m0 + TILE_ROWS)",
            (*DIAGONAL, *POSITION, *LEFT_OUT, "offset"),
        ),
        (
            "dK's queries begin at the keys' numbers",
            ("v25",),
            "max(0, n0 - offset) / BLOCK * BLOCK",
            "max(0, n0) / BLOCK * BLOCK",
            (*DIAGONAL, *POSITION, *LEFT_OUT, "offset"),
        ),
        (
            "tiles without a mask by the keys' numbers",
            ("v24",),
            "(IS_CAUSAL && n0 + BLOCK_N > m0 + offset + 1);",
            "(IS_CAUSAL && n0 + BLOCK_N > m0 + offset + BLOCK_M);",
            (*DIAGONAL, *POSITION, *MASK, "offset"),
        ),
        on=_OFFSET,
    ),
    *rows(
        "backward",
        (
            "tiles of a group in turns of its heads",
            ("v24",),
            "const size_t head = (first_head + visit / tiles) * seqlen * HEAD_DIM;",
            "const size_t head = (first_head + visit % group) * seqlen * HEAD_DIM;",
            ("head",),
        ),
        (
            "the last head's dK and dV alone",
            ("v25",),
            "        for (int m0 = m_begin; m0 < seqlen; m0 += BLOCK) {",
            "        for (int i = 0; i < HEAD_DIM / 2; i++) dk_rmem[i / 4][i % 4] = "
            "dv_rmem[i / 4][i % 4] = 0.0f;\n"
            "        for (int m0 = m_begin; m0 < seqlen; m0 += BLOCK) {",
            ("head",),
        ),
        on=_GQA,
    ),
    *rows(
        "backward",
        (
            "rows behind the last are stored",
            ("v25",),
            "        if (row >= length) continue;\n",
            "",
            (*SAME_PLACE, *BEYOND),
        ),
        header="backward.cuh",
        on=_PLAIN,
    ),
    *rows(
        "backward",
        (
            "D of one sequence for all",
            ("v25",),
            "const size_t row = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * seqlen + query;\n"
            "    const float sum = row_delta(out + row * HEAD_DIM, dout + row * HEAD_DIM, lane);\n"
            "    if (lane == 0) delta[row] = sum;",
            "const size_t row = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * seqlen + query;\n"
            "    const float sum = row_delta(out + row * HEAD_DIM, dout + row * HEAD_DIM, lane);\n"
            "    if (lane == 0) delta[blockIdx.y * seqlen + query] = sum;",
            (*SAME_PLACE, *UNINITIALISED, "D", "delta", "rowsum", "dO"),
        ),
        (
            "dV of the first sequence's dO",
            ("v23",),
            "load_tile(dout_smem, dout + q_head, m0, seqlen);\n            const int query",
            "load_tile(dout_smem, dout + blockIdx.y * seqlen * HEAD_DIM, m0, seqlen);\n"
            "            const int query",
            SEQUENCE,
        ),
        on=_TWO,
    ),
)
