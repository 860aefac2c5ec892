"""Bugs in own kernels of kinds that earlier sets lack: a row's scores in shared memory, square
thread blocks, statistics in a first pass.
"""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.sixth.words import (
    AGAIN,
    BASE,
    BATCH,
    CAUSAL,
    COLUMN,
    END,
    HEAD,
    LEFT,
    LSE,
    MAXIMUM,
    OF_K,
    RACE,
    RESCALE,
    SHARED,
    SUM,
    TAIL,
    UNWRITTEN,
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
            (*HEAD, *SHARED),
        ),
        (
            "K/V heads in turn",
            _R,
            "const int hk = h / (NH / NHK);",
            "const int hk = h % NHK;",
            HEAD,
        ),
        (
            "K laid out by heads",
            _R,
            "const half* key = k + ((size_t)(b * TK + t2) * NHK + hk) * HS;",
            "const half* key = k + ((size_t)(b * NHK + hk) * TK + t2) * HS;",
            (r"stride", r"layout", *HEAD, *OF_K),
        ),
        (
            "V of the query's own head",
            _R,
            "v[((size_t)(b * TK + t2) * NHK + hk) * HS + i]",
            "v[((size_t)(b * TK + t2) * NHK + h) * HS + i]",
            (*HEAD, *END),
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
            (*BATCH, *OF_K),
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
            (*MAXIMUM, r"warps?"),
        ),
        (
            "half of a warp in the sum",
            _R,
            "for (int step = 16; step > 0; step >>= 1) {",
            "for (int step = 8; step > 0; step >>= 1) {",
            (*SUM, *MAXIMUM, r"lanes?", r"shuffle"),
        ),
        (
            "the maximum counts twice",
            _R,
            "expf(att[t2] - highest);",
            "expf(att[t2] - 2.0f * highest);",
            (*MAXIMUM, *SUM, *LSE),
        ),
        (
            "scores are scaled by D",
            _R,
            "        dot *= scale;\n",
            "        dot *= scale * scale;\n",
            (r"scale", r"factor"),
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
            RACE,
        ),
        (
            "the next sum over the maxima that are still read",
            _R,
            "    __syncthreads();  // the next call writes here again\n",
            "",
            RACE,
        ),
        (
            "halves of a column meet without a barrier",
            _R,
            "halves[threadIdx.x] = total;\n        __syncthreads();",
            "halves[threadIdx.x] = total;\n        __syncwarp();",
            RACE,
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
            RACE,
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
            LEFT,
        ),
        (
            "even keys for both halves",
            _R,
            "for (int t2 = threadIdx.x / (BLOCK / 2); t2",
            "for (int t2 = 0; t2",
            (*AGAIN, r"even", r"odd", *LEFT),
        ),
        (
            "keys behind a block's threads are not scored",
            _R,
            "t2 < keys; t2 += BLOCK) {\n        const half* key",
            "t2 < min(keys, BLOCK); t2 += BLOCK) {\n        const half* key",
            (*UNWRITTEN, *LEFT),
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
            CAUSAL,
        ),
        (
            "the maximum looks ahead",
            _R,
            "t2 < keys; t2 += BLOCK) {\n        const half* key",
            "t2 < TK; t2 += BLOCK) {\n        const half* key",
            (*MAXIMUM, *CAUSAL, *TAIL, r"LSE"),
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
            LSE,
        ),
        ("the sum alone", _R, "= highest + logf(sum);", "= logf(sum);", LSE),
        ("a logarithm to base 2", _R, "highest + logf(sum)", "highest + log2f(sum)", LSE),
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
            COLUMN,
        ),
        (
            "columns of V in the order of threads",
            _S,
            "v_tile[j][i * TILE + x];",
            "v_tile[j][x * (DIM / TILE) + i];",
            COLUMN,
        ),
        (
            "scores of the row for those of the column",
            _S,
            "o += p_tile[y][j] * ",
            "o += p_tile[j][y] * ",
            (r"transpos", r"weight", r"\bP\b"),
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
            (*SUM, *RESCALE),
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
            (*BASE, r"scale", r"factor"),
        ),
        (
            "O is divided in every tile",
            _S,
            "            acc[i] = o;",
            "            acc[i] = o / row_l[y];",
            (*SUM, *RESCALE, r"divi"),
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
            RACE,
        ),
        (
            "fifteen threads do not wait",
            _S,
            "        __syncthreads();\n\n        const float shrink",
            "        const float shrink",
            RACE,
        ),
        (
            "a barrier for one column of threads",
            _S,
            "row_scale[y] = shrink;\n        }\n        __syncthreads();",
            "row_scale[y] = shrink;\n            __syncthreads();\n        }",
            (r"diverg", *RACE),
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
            (*CAUSAL, r"mask"),
        ),
        (
            "the tile of the diagonal is left out",
            _S,
            "min(N, (int)(blockIdx.y + 1) * TILE)",
            "min(N, max(1, (int)blockIdx.y) * TILE)",
            (*CAUSAL, *LEFT),
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
            (*END, *SHARED),
        ),
        (
            "rows that end before the barrier",
            _S,
            "    float acc[DIM / TILE];\n",
            "    if (row >= M) return;\n    float acc[DIM / TILE];\n",
            (r"barrier", r"diverg", r"exit", r"return", *UNWRITTEN),
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
            (*SUM, *MAXIMUM, *RESCALE),
        ),
        (
            "sixteen lanes' statistics",
            _T,
            "for (int step = 1; step < 32; step *= 2) {",
            "for (int step = 1; step < 16; step *= 2) {",
            (*SUM, *MAXIMUM, r"lanes?"),
        ),
        (
            "a maximum that is not the new one",
            _T,
            "        m = m_new;\n    }\n    if (threadIdx.x == 0)",
            "        m = m_other;\n    }\n    if (threadIdx.x == 0)",
            (*MAXIMUM, *SUM, r"lanes?"),
        ),
        (
            "statistics of rows in the order of heads",
            _T,
            "const float2 own = stats[at.row];",
            "const float2 own = stats[((size_t)blockIdx.z * seqlen + at.query) * gridDim.y + "
            "blockIdx.y];",
            (r"stats", *HEAD, *MAXIMUM, *SUM),
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
            HEAD,
        ),
        (
            "rows that no warp's number tells apart",
            _T,
            "blockIdx.x * blockDim.y + threadIdx.y;",
            "blockIdx.x * blockDim.y + (threadIdx.y & ~1);",
            SHARED,
        ),
        (
            "the third of four products is of the fourth",
            _T,
            "a.z * b.z",
            "a.z * b.w",
            COLUMN,
        ),
        (
            "V by a stride of its pairs",
            _T,
            "v + (at.kv_first + first + j) * HEAD_DIM;",
            "v + at.kv_first * HEAD_DIM + (first + j) * (HEAD_DIM - 2);",
            (r"stride", *COLUMN),
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
            RACE,
        ),
        (
            "two warps share their weights",
            _T,
            "weights[threadIdx.y][threadIdx.x] = ",
            "weights[threadIdx.y / 2 * 2][threadIdx.x] = ",
            (*RACE, *UNWRITTEN),
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
            (*CAUSAL, *SUM, r"mask"),
        ),
        on=_STATS_CAUSAL,
    ),
)
