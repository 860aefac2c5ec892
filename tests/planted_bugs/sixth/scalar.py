"""Bugs in the rungs without inline PTX for tensor cores, v01 to v07."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.sixth.words import (
    BASE,
    BATCH,
    CAUSAL,
    COLUMN,
    END,
    FUSION,
    HEAD,
    LEFT,
    MAXIMUM,
    OF_Q,
    OF_V,
    RACE,
    RESCALE,
    SHARED,
    SUM,
    TAIL,
    TILE,
    UNWRITTEN,
)
from planted_bugs.unseen import Unseen, rows

_MORE_QUERIES = (Problem(1, 2, 100, 64, seqlen_kv=70),)
_MORE_KEYS = (Problem(1, 2, 70, 64, seqlen_kv=100),)
_TWO = (Problem(2, 2, 150, 64),)
_GQA = (Problem(2, 4, 100, 64, num_heads_kv=2),)

SCALAR: tuple[Unseen, ...] = (
    *rows(
        "fragments",
        (
            "V's neighbouring rows exchanged",
            ("v01",),
            "v_smem[n * HEAD_DIM + d]",
            "v_smem[(n ^ 1) * HEAD_DIM + d]",
            (*OF_V, r"exchang", r"neighbour"),
        ),
        (
            "K's pairs of columns exchanged",
            ("v02",),
            "pair_at(k_smem + n * ROW_STRIDE, d);",
            "pair_at(k_smem + n * ROW_STRIDE, d ^ 2);",
            COLUMN,
        ),
        (
            "a thread's columns side by side in O alone",
            ("v02",),
            "out_row + 2 * (part + j * THREADS_PER_ROW);",
            "out_row + 2 * (part * PAIRS_PER_THREAD + j);",
            COLUMN,
        ),
        (
            "the third weight of four is the second",
            ("v03",),
            ": step == 2 ? p_rmem[i].z",
            ": step == 2 ? p_rmem[i].y",
            (r"weight", *COLUMN),
        ),
        (
            "K's even columns twice",
            ("v04",),
            "to_float(k8.at[e])",
            "to_float(k8.at[e / 2 * 2])",
            COLUMN,
        ),
        (
            "V by columns in wmma",
            ("v07",),
            "v_smem + n * ROW_STRIDE + d, ROW_STRIDE",
            "v_smem + d * ROW_STRIDE + n, ROW_STRIDE",
            (r"transpos", *OF_V, *RACE, *UNWRITTEN, r"operand", r"exchang"),
        ),
    ),
    *rows(
        "softmax",
        (
            "a correction of e's scale to base 2",
            ("v01",),
            "fast_exp2(m * scale_log2 - m_scaled);",
            "fast_exp2((m - m_new) * softmax_scale);",
            (*RESCALE, *BASE),
        ),
        (
            "the sum of another row's lane",
            ("v07",),
            "l += __shfl_xor_sync(FULL_WARP, l, 1);",
            "l += __shfl_xor_sync(FULL_WARP, l, 2);",
            (*SUM, r"lanes?"),
        ),
        (
            "the left half of O is rescaled",
            ("v07",),
            "d < HEAD_DIM; d += LANES_PER_ROW) {\n            o_smem",
            "d < HEAD_DIM / 2; d += LANES_PER_ROW) {\n            o_smem",
            RESCALE,
        ),
        (
            "the maximum is of the scaled score",
            ("v05",),
            "            m_new = fmaxf(m_new, score);",
            "            m_new = fmaxf(m_new, score * softmax_scale);",
            MAXIMUM,
        ),
        (
            "scores rescaled with O",
            ("v03",),
            "fast_exp2(s_rmem[i][j] * scale_log2 - m_scaled);",
            "fast_exp2(s_rmem[i][j] * scale_log2 - m_scaled) * correction;",
            (*RESCALE, r"weight", r"last key tile"),
        ),
        (
            "O is divided by the maximum",
            ("v04",),
            "1.0f / row_sum(l_rmem[i]);",
            "1.0f / row_max(l_rmem[i]);",
            SUM,
        ),
    ),
    *rows(
        "mask",
        (
            "the mask upside down",
            ("v02",),
            "key <= query)",
            "key <= 2 * m0 + BLOCK_M - 1 - query)",
            (*CAUSAL, r"mask"),
        ),
        (
            "keys to the middle of the diagonal tile",
            ("v01",),
            "min(seqlen_kv, m0 + BLOCK_M)",
            "min(seqlen_kv, m0 + BLOCK_M / 2)",
            (*LEFT, *CAUSAL),
        ),
        (
            "a query sees keys as far as its thread's number",
            ("v06",),
            "key <= query)",
            "key <= m0 + (int)threadIdx.x)",
            (*CAUSAL, r"mask"),
        ),
        (
            "nothing is masked behind the first tile",
            ("v04",),
            "const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= m0 + row);",
            "const bool visible = n0 > 0 || key <= m0 + row;",
            (*CAUSAL, *TAIL),
        ),
        shapes="causal",
    ),
    *rows(
        "mask",
        (
            "keys of the mask side by side in a thread",
            ("v03",),
            "const int key = n0 + part + j * ROW_THREADS;",
            "const int key = n0 + part * KEYS_PER_THREAD + j;",
            TAIL,
        ),
        (
            "absent keys score nearly nothing",
            ("v05",),
            "if (!visible) score = -INFINITY;",
            "if (!visible) score = 1.2e-38f;",
            TAIL,
        ),
    ),
    *rows(
        "store",
        (
            "rows counted by keys",
            ("v01",),
            "tid < BLOCK_M && query < seqlen)",
            "tid < BLOCK_M && query < seqlen_kv)",
            UNWRITTEN,
        ),
        on=_MORE_QUERIES,
    ),
    *rows(
        "store",
        (
            "more rows than queries",
            ("v02",),
            "if (query < seqlen) {",
            "if (query < seqlen_kv) {",
            (*END, *SHARED),
        ),
        on=_MORE_KEYS,
    ),
    *rows(
        "precision",
        (
            "l summed from weights cut to BF16",
            ("v03",),
            "l_rmem[i] += p;",
            "l_rmem[i] += __uint_as_float(__float_as_uint(p) & 0xffff0000u);",
            (*SUM, r"truncat", r"16 bits"),
        ),
    ),
    *rows(
        "barrier",
        (
            "a warp's barrier at the end of a tile",
            ("v01",),
            "        // The next tile overwrites K and V, which slower threads are still reading.\n"
            "        __syncthreads();",
            "        __syncwarp();",
            RACE,
        ),
        (
            "S over the last rows of V",
            ("v04",),
            "reinterpret_cast<float*>(v_smem + BLOCK_N * ROW_STRIDE);",
            "reinterpret_cast<float*>(v_smem + BLOCK_N * HEAD_DIM);",
            (*RACE, r"overlap"),
        ),
        (
            "every second row asks its lanes",
            ("v02",),
            "m_new = row_max(m_new);",
            "if (row % 2 == 0) m_new = row_max(m_new);",
            (r"shfl", r"diverg", r"lanes?", r"mask"),
        ),
        (
            "scores without a beginning",
            ("v04",),
            "s_rmem[ROWS_PER_THREAD][KEYS_PER_THREAD] = {};",
            "s_rmem[ROWS_PER_THREAD][KEYS_PER_THREAD];",
            (r"uninitial", r"indeterminate", r"not initial"),
        ),
        (
            "Q is loaded by the threads of a row's first lane",
            ("v06",),
            "    load_tile<BLOCK_M>(q_smem, q + q_head, m0, seqlen);",
            "    if (part == 0) load_tile<BLOCK_M>(q_smem, q + q_head, m0, seqlen);",
            (*UNWRITTEN, *OF_Q),
        ),
    ),
    *rows(
        "fusion",
        (
            "maxima of the splits beside each other",
            ("v05",),
            "m = fmaxf(m, m_partial[split * num_rows + row]);",
            "m = fmaxf(m, m_partial[row * NUM_SPLITS + split]);",
            (*FUSION, *MAXIMUM, *UNWRITTEN),
        ),
        (
            "the last two fuse",
            ("v06",),
            "arrive_at_counter(tile_arrivals) == NUM_SPLITS - 1;",
            "arrive_at_counter(tile_arrivals) >= NUM_SPLITS - 2;",
            (*FUSION, *UNWRITTEN, *SHARED, r"arriv", r"fuse"),
        ),
        (
            "O of a split is a mean",
            ("v05",),
            "= acc_rmem[j];",
            "= make_float2(acc_rmem[j].x / l, acc_rmem[j].y / l);",
            (*FUSION, *SUM),
        ),
        on=_TWO,
    ),
    *rows(
        "fusion",
        (
            "rows of one sequence",
            ("v05",),
            "const size_t num_rows = (size_t)gridDim.z * num_heads * seqlen;",
            "const size_t num_rows = (size_t)num_heads * seqlen;",
            (*SHARED, *UNWRITTEN, *BATCH),
        ),
        (
            "counters of tiles and heads run into each other",
            ("v06",),
            "arrivals + head_index * gridDim.x + tile_index;",
            "arrivals + head_index + tile_index * num_heads;",
            (r"counter", r"arriv", *UNWRITTEN, *SHARED),
        ),
        on=_TWO,
    ),
    *rows(
        "fusion",
        (
            "a split that sees no key",
            ("v05",),
            "const float m_finite = m_new == -INFINITY ? 0.0f : m_new;",
            "const float m_finite = m_new;",
            (r"NaN", r"no key", *MAXIMUM),
        ),
        shapes="causal",
        config={"block_n": 32, "num_splits": 8},
    ),
    *rows(
        "addressing",
        (
            "P read by the rows of K",
            ("v07",),
            "wmma::load_matrix_sync(left, p_smem + n, S_STRIDE);",
            "wmma::load_matrix_sync(left, p_smem + n, ROW_STRIDE);",
            (r"stride", *UNWRITTEN, *RACE, r"\bP\b"),
        ),
        on=_TWO,
    ),
    *rows(
        "addressing",
        (
            "sequences of K and V as far apart as of Q",
            ("v07",),
            "(size_t)blockIdx.z * num_heads_kv + blockIdx.y / (num_heads / num_heads_kv);",
            "(size_t)blockIdx.z * num_heads + blockIdx.y / (num_heads / num_heads_kv);",
            (*HEAD, *BATCH, *END),
        ),
        on=_GQA,
    ),
    *rows(
        "addressing",
        (
            "V of the tile before",
            ("v06",),
            "load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);",
            "load_tile<BLOCK_N>(v_smem, v + kv_head, max(0, n0 - BLOCK_N), seqlen_kv);",
            (*OF_V, *TILE),
        ),
    ),
    *rows(
        "overflow",
        (
            "index of a head in 32 bits",
            ("v01",),
            "const size_t head_index = (size_t)blockIdx.z * num_heads + blockIdx.y;",
            "const int head_index = blockIdx.z * num_heads + blockIdx.y;",
            (r"32 bits", r"2.?31", r"2³¹", r"wrap", r"overflow"),
        ),
        (
            "O begins at an int",
            ("v04",),
            "out + q_head + (size_t)query * HEAD_DIM",
            "out + (int)(q_head + query * HEAD_DIM)",
            (r"32 bits", r"2.?31", r"2³¹", r"wrap", r"overflow"),
        ),
    ),
    *rows(
        "key loop",
        (
            "the last half of a tile is left out",
            ("v02",),
            "for (int n0 = 0; n0 < kv_end; n0 += BLOCK_N) {",
            "for (int n0 = 0; n0 + 32 < kv_end; n0 += BLOCK_N) {",
            LEFT,
        ),
        on=(Problem(1, 2, 150, 64, seqlen_kv=150 + 128 + 10),),
    ),
)
