"""Bugs in own kernels in the style of public ones."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.unseen import Unseen, rows

_DECODE = (Problem(2, 2, 5, 64, seqlen_kv=71),)
_FLOAT = (Problem(2, 2, 70, 64, dtype="float32"),)
_FLOAT_CAUSAL = (Problem(1, 2, 70, 64, causal=True, dtype="float32"),)
_FLOAT_ROWS = (Problem(1, 1, 50, 64, dtype="float32"),)

_LEFT = (r"leav(es|ing) out", r"left out", r"never visited", r"only the first")
_END = (r"out of bounds", r"behind the (last|end)", r"past", r"padd", r"another (row|head)")
_FUSION = (r"fusion", r"weight")
_SUM = (r"row sum",)
_RESCALE = (r"rescale", r"correction")
_MAX = (r"maximum",)
_LSE = (r"LSE",)
_RACE = (r"__sync", r"barrier")
_OWN_KEY = (r"own key", r"off by one", r"causal", r"diagonal")
_COLUMN = (r"column", r"exchang", r"fragment", r"operand", r"neighbour")
_HEAD = (r"\bheads?\b",)
_BATCH = (r"batch", r"sequence")
_TWICE = (r"[Nn]ever written", r"several CTAs|two CTAs", r"race", *_END)

OWN: tuple[Unseen, ...] = (
    # ---- split_decode.cu ----
    *rows(
        "addressing",
        (
            "batch and head exchanged",
            ("split_decode.cu",),
            "blockIdx.y % heads, batch = blockIdx.y / heads;",
            "blockIdx.y / heads, batch = blockIdx.y % heads;",
            (*_HEAD, *_BATCH),
        ),
        (
            "a key of the next split's end",
            ("split_decode.cu",),
            "min(first + per_split, seqlen_kv);",
            "first + per_split;",
            _END,
        ),
        (
            "columns in pairs of the left one",
            ("split_decode.cu",),
            "const int d = i * 32 + threadIdx.x;",
            "const int d = i * 32 + threadIdx.x / 2 * 2;",
            _COLUMN,
        ),
        (
            "K's neighbouring columns exchanged",
            ("split_decode.cu",),
            "__half2float(k_row[d]);",
            "__half2float(k_row[d ^ 1]);",
            _COLUMN,
        ),
        (
            "a tensor that is not there is read",
            ("split_decode.cu",),
            "if (bias != nullptr)",
            "if (bias == nullptr)",
            (r"null", r"bias", r"address", r"out of bounds"),
        ),
        (
            "O's columns exchanged in the fusion",
            ("split_decode.cu",),
            "D + threadIdx.x] * w;",
            "D + (threadIdx.x ^ 1)] * w;",
            _COLUMN,
        ),
        on=_DECODE,
    ),
    *rows(
        "fusion",
        (
            "keys that do not divide",
            ("split_decode.cu",),
            "(seqlen_kv + gridDim.z - 1) / gridDim.z;",
            "seqlen_kv / gridDim.z;",
            (*_LEFT, r"split", r"last key"),
        ),
        (
            "l without its weight",
            ("split_decode.cu",),
            "l += part.y * w;",
            "l += part.y;",
            (*_FUSION, *_SUM),
        ),
        (
            "O without its weight",
            ("split_decode.cu",),
            "threadIdx.x] * w;",
            "threadIdx.x];",
            _FUSION,
        ),
        (
            "one row's m and l of four",
            ("split_decode.cu",),
            "if (threadIdx.x == 0) ml[at]",
            "if (threadIdx.x + threadIdx.y == 0) ml[at]",
            (r"uninitial", r"[Nn]ever written", r"not (yet )?written", *_FUSION),
        ),
        (
            "the first split alone",
            ("split_decode.cu",),
            "for (int s = 0; s < SPLITS; s++) {",
            "for (int s = 0; s < 1; s++) {",
            (*_LEFT, r"split", *_FUSION),
        ),
        on=_DECODE,
    ),
    *rows(
        "softmax",
        (
            "l is not rescaled",
            ("split_decode.cu",),
            "l = l * rescale + p;",
            "l = l + p;",
            (*_SUM, *_RESCALE),
        ),
        (
            "O is not rescaled",
            ("split_decode.cu",),
            "o[i] = o[i] * rescale + p",
            "o[i] = o[i] + p",
            _RESCALE,
        ),
        (
            "the last score for the maximum",
            ("split_decode.cu",),
            "        m = m_new;\n",
            "        m = s;\n",
            _MAX,
        ),
        (
            "the correction upside down",
            ("split_decode.cu",),
            "rescale = exp2f(m - m_new);",
            "rescale = exp2f(m_new - m);",
            (*_RESCALE, *_MAX),
        ),
        (
            "a scale of e",
            ("split_decode.cu",),
            "warp_sum(s) * (float)scale;",
            "warp_sum(s) * (float)scale * 0.6931472f;",
            (r"scale", r"log2", r"base", r"factor"),
        ),
        on=_DECODE,
    ),
    *rows(
        "LSE",
        ("to base e", ("split_decode.cu",), "m + log2f(l);", "m + logf(l);", _LSE),
        (
            "heads before rows",
            ("split_decode.cu",),
            "lse[((size_t)batch * gridDim.x + row) * gridDim.y + head]",
            "lse[q_row]",
            _LSE,
        ),
        ("without the maximum", ("split_decode.cu",), "= m + log2f(l);", "= log2f(l);", _LSE),
        on=_DECODE,
    ),
    # ---- warp_rows.cu ----
    *rows(
        "softmax",
        (
            "the maximum of the tile alone",
            ("warp_rows.cu",),
            "        highest = fmaxf(highest, m);\n",
            "",
            (*_MAX, *_RESCALE),
        ),
        (
            "l is rescaled with the tile",
            ("warp_rows.cu",),
            "l = l * c + sum;",
            "l = (l + sum) * c;",
            (*_SUM, *_RESCALE),
        ),
        ("O is not rescaled", ("warp_rows.cu",), "            acc[i] *= c;\n", "", _RESCALE),
        (
            "the sum of half of the lanes",
            ("warp_rows.cu",),
            "float sum = p;\n        for (int distance = 16;",
            "float sum = p;\n        for (int distance = 8;",
            (*_SUM, r"lanes", r"shuffle"),
        ),
        (
            "the maximum of half of the lanes",
            ("warp_rows.cu",),
            "float highest = s;\n        for (int distance = 16;",
            "float highest = s;\n        for (int distance = 8;",
            (*_MAX, r"lanes", r"shuffle"),
        ),
        (
            "a sum that is never 0",
            ("warp_rows.cu",),
            "= acc[i] / l;",
            "= acc[i] / (l + 1e-3f);",
            (*_SUM, r"factor", r"precision"),
        ),
        on=_FLOAT,
    ),
    *rows(
        "mask",
        (
            "one absent key",
            ("warp_rows.cu",),
            "if (j0 + lane < S) {",
            "if (j0 + lane <= S) {",
            (*_END, r"off by one", r"mask"),
        ),
        (
            "V behind the last key",
            ("warp_rows.cu",),
            "j < 32 && j0 + j < S; j++)",
            "j < 32; j++)",
            _END,
        ),
        on=_FLOAT,
    ),
    *rows(
        "barrier",
        (
            "weights read before they are there",
            ("warp_rows.cu",),
            "= p;\n        warp.sync();\n",
            "= p;\n",
            (*_RACE, r"race"),
        ),
        (
            "weights written while they are read",
            ("warp_rows.cu",),
            "        warp.sync();\n        m = highest;",
            "        m = highest;",
            (*_RACE, r"race"),
        ),
        (
            "weights of the first warp",
            ("warp_rows.cu",),
            "weights[threadIdx.y][j] * v",
            "weights[0][j] * v",
            (*_RACE, r"race", r"warp"),
        ),
        on=_FLOAT,
    ),
    *rows(
        "addressing",
        (
            "K of the first head",
            ("warp_rows.cu",),
            "*k = K + (size_t)(row / S) * S * D",
            "*k = K + (size_t)0 * S * D",
            (*_HEAD, *_BATCH),
        ),
        (
            "V of the next head",
            ("warp_rows.cu",),
            "*v = V + (size_t)(row / S) * S * D",
            "*v = V + (size_t)(row / S + 1) * S * D",
            (*_HEAD, *_END),
        ),
        on=_FLOAT,
    ),
    *rows(
        "store",
        (
            "a row too many",
            ("warp_rows.cu",),
            "if (row >= rows) return;",
            "if (row > rows) return;",
            _END,
        ),
        on=_FLOAT_ROWS,
    ),
    # ---- float_rows.cu ----
    *rows(
        "addressing",
        (
            "tiles and heads exchanged",
            ("float_rows.cu",),
            "blockIdx.x % tiles * 64",
            "blockIdx.x / tiles * 64",
            _TWICE,
        ),
        (
            "the batch is left out",
            ("float_rows.cu",),
            "(long)(blockIdx.x / tiles) * S",
            "(long)(blockIdx.x / tiles % H) * S",
            (*_TWICE, *_BATCH),
        ),
        ("rows behind the last", ("float_rows.cu",), "    if (row >= S) return;\n", "", _TWICE),
        (
            "a row of K is a column short",
            ("float_rows.cu",),
            "K[head + j * HEAD_DIM + d]",
            "K[head + j * (HEAD_DIM - 1) + d]",
            (r"stride", *_COLUMN),
        ),
        on=_FLOAT,
    ),
    *rows(
        "softmax",
        (
            "l is not rescaled",
            ("float_rows.cu",),
            "l = l * c + p;",
            "l = l + p;",
            (*_SUM, *_RESCALE),
        ),
        (
            "O is not rescaled",
            ("float_rows.cu",),
            "acc[d] * c + PRODUCT(p",
            "acc[d] + PRODUCT(p",
            _RESCALE,
        ),
        (
            "a scale of 1/D",
            ("float_rows.cu",),
            "rsqrtf((float)HEAD_DIM)",
            "(1.0f / HEAD_DIM)",
            (r"scale", r"factor"),
        ),
        (
            "the last score for the maximum",
            ("float_rows.cu",),
            "highest = fmaxf(m, s)",
            "highest = s",
            _MAX,
        ),
        on=_FLOAT,
    ),
    *rows(
        "key loop",
        (
            "the first key is left out",
            ("float_rows.cu",),
            "for (int j = 0; j < keys; j++)",
            "for (int j = 1; j < keys; j++)",
            (*_LEFT, r"first key"),
        ),
        (
            "every second key",
            ("float_rows.cu",),
            "j < keys; j++)",
            "j < keys; j += 2)",
            (*_LEFT, r"every second", r"odd"),
        ),
        on=_FLOAT,
    ),
    *rows(
        "mask",
        (
            "a query does not see its own key",
            ("float_rows.cu",),
            "CAUSAL ? row + 1 : S",
            "CAUSAL ? row : S",
            _OWN_KEY,
        ),
        (
            "a query sees the next key",
            ("float_rows.cu",),
            "CAUSAL ? row + 1 : S",
            "CAUSAL ? row + 2 : S",
            (*_OWN_KEY, *_END),
        ),
        (
            "keys to the end of the tile",
            ("float_rows.cu",),
            "CAUSAL ? row + 1 : S",
            "CAUSAL ? min(S, row / 64 * 64 + 64) : S",
            (*_OWN_KEY, r"mask"),
        ),
        on=_FLOAT_CAUSAL,
    ),
)
