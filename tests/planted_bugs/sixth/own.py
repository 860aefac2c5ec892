"""Bugs in own kernels of kinds that earlier sets lack: a row's scores in shared memory, square
thread blocks, statistics in a first pass.
"""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.causes import (
    BASE,
    BEYOND,
    DIAGONAL,
    DIVERGENCE,
    DIVISION,
    FACTOR,
    LANES,
    LAST_KEY,
    LAYOUT,
    LEFT_OUT,
    MASK,
    MAXIMUM,
    PADDING,
    PAST_THE_END,
    RESCALE,
    RETURN,
    ROW_SUM,
    SAME_PLACE,
    SEQUENCE,
    TAIL,
    TWICE,
    UNORDERED,
    UNWRITTEN,
    WEIGHT,
)
from planted_bugs.unseen import Unseen, rows

_ROW = (Problem(2, 4, 70, 64, num_heads_kv=2),)
_ROW_CAUSAL = (Problem(1, 2, 70, 64, causal=True),)
_LONG_ROW = (Problem(1, 2, 40, 64, seqlen_kv=300),)
_OTHER_KEYS = (Problem(2, 4, 70, 64, num_heads_kv=2, seqlen_kv=90),)
_WIDE_ROW = (Problem(1, 2, 60, 128),)
_SQUARE = (Problem(2, 2, 70, 64, dtype="bfloat16"),)
_SQUARE_CAUSAL = (Problem(1, 2, 70, 64, causal=True, dtype="bfloat16"),)
_STATS = (Problem(2, 4, 70, 64, num_heads_kv=2, dtype="float32"),)
_STATS_CAUSAL = (Problem(1, 2, 70, 64, causal=True, dtype="float32"),)

_R = ("row_in_smem.cu",)
_S = ("square_tiles.cu",)
_T = ("stats_first.cu",)

OWN: tuple[Unseen, ...] = (
    # ---- row_in_smem.cu ----
    *rows(
        "addressing",
        (
            "a row of one head",
            _R,
            "blockIdx.x, h = blockIdx.y,",
            "blockIdx.x, h = 0,",
            (*SAME_PLACE, "head"),
        ),
        (
            "K/V heads in turn",
            _R,
            "const int hk = h / (NH / NHK);",
            "const int hk = h % NHK;",
            ("head",),
        ),
        (
            "K laid out by heads",
            _R,
            "const half* key = k + ((size_t)(b * TK + t2) * NHK + hk) * HS;",
            "const half* key = k + ((size_t)(b * NHK + hk) * TK + t2) * HS;",
            (*LAYOUT, "stride", "head", "K"),
        ),
        (
            "V of the query's own head",
            _R,
            "v[((size_t)(b * TK + t2) * NHK + hk) * HS + i]",
            "v[((size_t)(b * TK + t2) * NHK + h) * HS + i]",
            (*BEYOND, "head"),
        ),
        on=_ROW,
    ),
    *rows(
        "addressing",
        (
            "sequences of K counted in queries",
            _R,
            "k + ((size_t)(b * TK + t2) * NHK + hk)",
            "k + ((size_t)(b * T + t2) * NHK + hk)",
            (*SEQUENCE, "K"),
        ),
        on=_OTHER_KEYS,
    ),
    *rows(
        "softmax",
        (
            "the first warp's maximum",
            _R,
            "result = largest ? fmaxf(result, per_warp[w]) : result + per_warp[w];",
            "result = largest ? result : result + per_warp[w];",
            (*MAXIMUM, "warp"),
        ),
        (
            "half of a warp in the sum",
            _R,
            "for (int step = 16; step > 0; step >>= 1) {",
            "for (int step = 8; step > 0; step >>= 1) {",
            (*ROW_SUM, *MAXIMUM, "lane", "shuffle"),
        ),
        (
            "the maximum counts twice",
            _R,
            "expf(att[t2] - highest);",
            "expf(att[t2] - 2.0f * highest);",
            (*MAXIMUM, *ROW_SUM, "LSE"),
        ),
        (
            "scores are scaled by D",
            _R,
            "        dot *= scale;\n",
            "        dot *= scale * scale;\n",
            (*FACTOR, "scale"),
        ),
        on=_LONG_ROW,
    ),
    *rows(
        "barrier",
        (
            "warps' values read before they are there",
            _R,
            "value;\n    __syncthreads();\n    float result",
            "value;\n    float result",
            UNORDERED,
        ),
        (
            "the next sum over the maxima that are still read",
            _R,
            "    __syncthreads();  // the next call writes here again\n",
            "",
            UNORDERED,
        ),
        (
            "halves of a column meet without a barrier",
            _R,
            "halves[threadIdx.x] = total;\n        __syncthreads();",
            "halves[threadIdx.x] = total;\n        __syncwarp();",
            UNORDERED,
        ),
        on=_LONG_ROW,
    ),
    *rows(
        "barrier",
        (
            "the next columns' halves come too early",
            _R,
            "        }\n        __syncthreads();\n    }\n}",
            "        }\n    }\n}",
            UNORDERED,
        ),
        on=_WIDE_ROW,
    ),
    *rows(
        "key loop",
        (
            "one of the last two keys",
            _R,
            "t2 < keys; t2 += 2) {",
            "t2 < keys - 1; t2 += 2) {",
            LEFT_OUT,
        ),
        (
            "even keys for both halves",
            _R,
            "for (int t2 = threadIdx.x / (BLOCK / 2); t2",
            "for (int t2 = 0; t2",
            (*TWICE, *LEFT_OUT),
        ),
        (
            "keys behind a block's threads are not scored",
            _R,
            "t2 < keys; t2 += BLOCK) {\n        const half* key",
            "t2 < min(keys, BLOCK); t2 += BLOCK) {\n        const half* key",
            (*UNWRITTEN, *LEFT_OUT),
        ),
        on=_LONG_ROW,
    ),
    *rows(
        "mask",
        (
            "a query does not see its own key",
            _R,
            "min(TK, t + 1)",
            "max(1, min(TK, t))",
            DIAGONAL,
        ),
        (
            "the maximum looks ahead",
            _R,
            "t2 < keys; t2 += BLOCK) {\n        const half* key",
            "t2 < TK; t2 += BLOCK) {\n        const half* key",
            (*DIAGONAL, *MAXIMUM, *MASK, *PADDING, *LAST_KEY, *PAST_THE_END, "LSE"),
        ),
        on=_ROW_CAUSAL,
    ),
    *rows(
        "LSE",
        (
            "rows before heads",
            _R,
            "lse[((size_t)b * NH + h) * T + t]",
            "lse[((size_t)b * T + t) * NH + h]",
            ("LSE",),
        ),
        ("the sum alone", _R, "= highest + logf(sum);", "= logf(sum);", ("LSE",)),
        ("a logarithm to base 2", _R, "highest + logf(sum)", "highest + log2f(sum)", ("LSE",)),
        on=_ROW,
    ),
    # ---- square_tiles.cu ----
    *rows(
        "fragments",
        (
            "neighbouring keys of K exchanged",
            _S,
            "s += q_tile[y][d] * kt_tile[d][x];",
            "s += q_tile[y][d] * kt_tile[d][x ^ 1];",
            LANES,
        ),
        (
            "columns of V in the order of threads",
            _S,
            "v_tile[j][i * TILE + x];",
            "v_tile[j][x * (DIM / TILE) + i];",
            LANES,
        ),
        (
            "scores of the row for those of the column",
            _S,
            "o += p_tile[y][j] * ",
            "o += p_tile[j][y] * ",
            (*WEIGHT, "transpose", "P"),
        ),
        on=_SQUARE,
    ),
    *rows(
        "softmax",
        (
            "O shrinks by the new maximum",
            _S,
            "row_scale[y] = shrink;",
            "row_scale[y] = __expf(-m);",
            (*RESCALE, *MAXIMUM),
        ),
        (
            "the sum shrinks twice",
            _S,
            "float l = row_l[y] * shrink;",
            "float l = row_l[y] * shrink * shrink;",
            (*ROW_SUM, *RESCALE),
        ),
        (
            "the last key of a tile is not in the maximum",
            _S,
            "for (int j = 0; j < TILE; j++) m = fmaxf(m, p_tile[y][j]);",
            "for (int j = 0; j < TILE - 1; j++) m = fmaxf(m, p_tile[y][j]);",
            MAXIMUM,
        ),
        (
            "weights are powers of 2",
            _S,
            "const float p = __expf(p_tile[y][j] - m);",
            "const float p = exp2f(p_tile[y][j] - m);",
            (*BASE, *FACTOR, "scale"),
        ),
        (
            "O is divided in every tile",
            _S,
            "            acc[i] = o;",
            "            acc[i] = o / row_l[y];",
            (*ROW_SUM, *RESCALE, *DIVISION),
        ),
        on=_SQUARE,
    ),
    *rows(
        "barrier",
        (
            "one thread reads scores that are not there yet",
            _S,
            "p_tile[y][x] = s;\n        __syncthreads();",
            "p_tile[y][x] = s;\n        __syncwarp();",
            UNORDERED,
        ),
        (
            "fifteen threads do not wait",
            _S,
            "        __syncthreads();\n\n        const float shrink",
            "        const float shrink",
            UNORDERED,
        ),
        (
            "a barrier for one column of threads",
            _S,
            "row_scale[y] = shrink;\n        }\n        __syncthreads();",
            "row_scale[y] = shrink;\n            __syncthreads();\n        }",
            (*UNORDERED, *DIVERGENCE),
        ),
        on=_SQUARE,
    ),
    *rows(
        "mask",
        (
            "absent keys score as a zero vector does",
            _S,
            "if (column >= N || (IS_CAUSAL",
            "if (column >= N + TILE || (IS_CAUSAL",
            TAIL,
        ),
        on=_SQUARE,
    ),
    *rows(
        "mask",
        (
            "threads of the tile for rows of the head",
            _S,
            "IS_CAUSAL && column > row)",
            "IS_CAUSAL && x > y)",
            (*DIAGONAL, *MASK),
        ),
        (
            "the tile of the diagonal is left out",
            _S,
            "min(N, (int)(blockIdx.y + 1) * TILE)",
            "min(N, max(1, (int)blockIdx.y) * TILE)",
            (*DIAGONAL, *LEFT_OUT),
        ),
        on=_SQUARE_CAUSAL,
    ),
    *rows(
        "store",
        (
            "a row too many",
            _S,
            "if (row >= M) return;",
            "if (row > M) return;",
            (*SAME_PLACE, *BEYOND),
        ),
        (
            "rows that end before the barrier",
            _S,
            "    float acc[DIM / TILE];\n",
            "    if (row >= M) return;\n    float acc[DIM / TILE];\n",
            (*UNWRITTEN, *DIVERGENCE, *RETURN, "barrier", "exit"),
        ),
        on=_SQUARE,
    ),
    # ---- stats_first.cu ----
    *rows(
        "fusion",
        (
            "lanes' sums without their maxima",
            _T,
            "l * expf(m - m_new) + l_other * expf(m_other - m_new);",
            "l + l_other;",
            (*ROW_SUM, *MAXIMUM, *RESCALE),
        ),
        (
            "sixteen lanes' statistics",
            _T,
            "for (int step = 1; step < 32; step *= 2) {",
            "for (int step = 1; step < 16; step *= 2) {",
            (*ROW_SUM, *MAXIMUM, "lane"),
        ),
        (
            "a maximum that is not the new one",
            _T,
            "        m = m_new;\n    }\n    if (threadIdx.x == 0)",
            "        m = m_other;\n    }\n    if (threadIdx.x == 0)",
            (*MAXIMUM, *ROW_SUM, "lane"),
        ),
        (
            "statistics of rows in the order of heads",
            _T,
            "const float2 own = stats[at.row];",
            "const float2 own = stats[((size_t)blockIdx.z * seqlen + at.query) * gridDim.y + "
            "blockIdx.y];",
            (*MAXIMUM, *ROW_SUM, "stats", "head"),
        ),
        on=_STATS,
    ),
    *rows(
        "addressing",
        (
            "a group's heads the other way round",
            _T,
            "blockIdx.y * kv_heads / gridDim.y;",
            "(gridDim.y - 1 - blockIdx.y) * kv_heads / gridDim.y;",
            ("head",),
        ),
        (
            "rows that no warp's number tells apart",
            _T,
            "blockIdx.x * blockDim.y + threadIdx.y;",
            "blockIdx.x * blockDim.y + (threadIdx.y & ~1);",
            SAME_PLACE,
        ),
        (
            "the third of four products is of the fourth",
            _T,
            "a.z * b.z",
            "a.z * b.w",
            LANES,
        ),
        (
            "V by a stride of its pairs",
            _T,
            "v + (at.kv_first + first + j) * HEAD_DIM;",
            "v + at.kv_first * HEAD_DIM + (first + j) * (HEAD_DIM - 2);",
            (*LANES, "stride"),
        ),
        on=_STATS,
    ),
    *rows(
        "barrier",
        (
            "weights of other lanes come too late",
            _T,
            "w * own.y;\n        __syncwarp();",
            "w * own.y;",
            UNORDERED,
        ),
        (
            "two warps share their weights",
            _T,
            "weights[threadIdx.y][threadIdx.x] = ",
            "weights[threadIdx.y / 2 * 2][threadIdx.x] = ",
            (*UNWRITTEN, *UNORDERED),
        ),
        on=_STATS,
    ),
    *rows(
        "mask",
        (
            "statistics of all keys",
            _T,
            "const int visible = IS_CAUSAL ? min(seqlen_kv, at.query + 1) : seqlen_kv;\n"
            "    float m",
            "const int visible = seqlen_kv;\n    float m",
            (*DIAGONAL, *ROW_SUM, *MASK),
        ),
        on=_STATS_CAUSAL,
    ),
)
