"""More bugs in own kernels: packed tensors, a loop over tiles, a parameter structure."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.unseen import Unseen, rows

_FLOAT = (Problem(2, 2, 70, 64, dtype="float32"),)
_HALF = (Problem(2, 2, 77, 64),)
_HALF_CAUSAL = (Problem(1, 2, 77, 64, causal=True),)

_LEFT = (r"leav(es|ing) out", r"left out", r"never visited", r"only the first")
_END = (r"out of bounds", r"behind the (last|end)", r"past", r"padd", r"another (row|head)")
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

OWN_MORE: tuple[Unseen, ...] = (
    # ---- packed_running.cu ----
    *rows(
        "addressing",
        (
            "K for V",
            ("packed_running.cu",),
            "q + 2 * H * HEAD_DIM",
            "q + H * HEAD_DIM",
            (r"\bV\b", r"K .*V"),
        ),
        (
            "K of the first head",
            ("packed_running.cu",),
            "K + b * S * stride + h * HEAD_DIM",
            "K + b * S * stride + 0 * h",
            _HEAD,
        ),
        (
            "K of the first sequence",
            ("packed_running.cu",),
            "K + b * S * stride +",
            "K + 0 * b +",
            (*_BATCH, *_HEAD),
        ),
        (
            "O as [B, H, S, D]",
            ("packed_running.cu",),
            "((long long)(b * S + row) * H + h)",
            "((long long)(b * H + h) * S + row)",
            (r"layout", r"order", r"\brows?\b.*head", r"stride"),
        ),
        (
            "K's neighbouring columns exchanged",
            ("packed_running.cu",),
            "k[j * stride + d]",
            "k[j * stride + (d ^ 1)]",
            _COLUMN,
        ),
        (
            "sums of all heads in one place",
            ("packed_running.cu",),
            "(long long)(b * H + h) * S + row",
            "(long long)b * S + row",
            (r"race", r"several CTAs|two CTAs|other CTAs?|CTA"),
        ),
        on=_FLOAT,
    ),
    *rows(
        "store",
        (
            "the last row",
            ("packed_running.cu",),
            "row < S; row +=",
            "row < S - 1; row +=",
            (r"last", r"[Nn]ever written", r"zero"),
        ),
        (
            "rows behind a CTA's threads",
            ("packed_running.cu",),
            "row += blockDim.x) {",
            "row += S) {",
            (r"[Nn]ever written", r"\brows?\b"),
        ),
        on=_FLOAT,
    ),
    *rows(
        "softmax",
        (
            "the maximum is not kept",
            ("packed_running.cu",),
            "            M[at] = highest;\n",
            "",
            (*_MAX, r"last key"),
        ),
        (
            "l is not rescaled",
            ("packed_running.cu",),
            "L[at] * c + p;",
            "L[at] + p;",
            (*_SUM, *_RESCALE),
        ),
        (
            "a sum that is never 0",
            ("packed_running.cu",),
            "(float)L[at];",
            "(float)(L[at] + 0.01);",
            (*_SUM, r"factor", r"precision"),
        ),
        (
            "O is not divided",
            ("packed_running.cu",),
            "o[d] /= (float)L[at];",
            "o[d] /= 1.0f;",
            (*_SUM, r"divi", r"normalis"),
        ),
        on=_FLOAT,
    ),
    *rows(
        "key loop",
        (
            "the last key",
            ("packed_running.cu",),
            "row + 1 : S)",
            "row + 1 : S - 1)",
            (*_LEFT, r"last key"),
        ),
        on=_FLOAT,
    ),
    # ---- naive_flash.cu ----
    *rows(
        "barrier",
        (
            "a tile read before it is there",
            ("naive_flash.cu",),
            "        __syncthreads();\n        for (int y",
            "        for (int y",
            _RACE,
        ),
        (
            "a tile overwritten while it is read",
            ("naive_flash.cu",),
            "        __syncthreads();\n    }\n",
            "    }\n",
            _RACE,
        ),
        on=_HALF,
    ),
    *rows(
        "mask",
        (
            "absent keys score 0",
            ("naive_flash.cu",),
            "key >= N || (causal && key > row)",
            "causal && key > row",
            (*_END, r"mask", r"zero"),
        ),
        (
            "absent V is half of the tile",
            ("naive_flash.cu",),
            "Vj[i] = key < N ?",
            "Vj[i] = key < N - 1 ?",
            (*_LEFT, r"\bV\b", r"last key", r"zero"),
        ),
        on=_HALF,
    ),
    *rows(
        "mask",
        (
            "a query does not see its own key",
            ("naive_flash.cu",),
            "key > row",
            "key >= row",
            _OWN_KEY,
        ),
        ("a query sees the next key", ("naive_flash.cu",), "key > row", "key > row + 1", _OWN_KEY),
        on=_HALF_CAUSAL,
    ),
    *rows(
        "LSE",
        ("l in place of its logarithm", ("naive_flash.cu",), "m + logf(l);", "m + l;", _LSE),
        (
            "rows one further apart",
            ("naive_flash.cu",),
            "L[(size_t)bh * N + row]",
            "L[(size_t)bh * (N + 1) + row]",
            (*_LSE, *_END),
        ),
        on=_HALF,
    ),
    *rows(
        "key loop",
        (
            "the last part of a tile",
            ("naive_flash.cu",),
            "j < cdiv(N, Bc); j++)",
            "j < N / Bc; j++)",
            _LEFT,
        ),
        (
            "half of a tile's keys",
            ("naive_flash.cu",),
            "for (int y = 0; y < Bc; y++) {",
            "for (int y = 0; y < Bc / 2; y++) {",
            _LEFT,
        ),
        on=_HALF,
    ),
    *rows(
        "addressing",
        (
            "Q behind the last row",
            ("naive_flash.cu",),
            "row < N ? __half2float(Q",
            "true ? __half2float(Q",
            _END,
        ),
        (
            "a row too many is stored",
            ("naive_flash.cu",),
            "    if (row < N) {\n",
            "    if (row <= N) {\n",
            _TWICE,
        ),
        (
            "K's columns turned by one",
            ("naive_flash.cu",),
            "Kj[y * d + x];",
            "Kj[y * d + (x + 1) % d];",
            (*_COLUMN, r"stride"),
        ),
        on=_HALF,
    ),
    *rows(
        "softmax",
        (
            "no scale",
            ("naive_flash.cu",),
            "            s *= softmax_scale;\n",
            "",
            (r"scale", r"factor"),
        ),
        (
            "the first maximum stays",
            ("naive_flash.cu",),
            "            m = m_new;\n",
            "            if (key == 0) m = m_new;\n",
            (*_MAX, *_RESCALE),
        ),
        on=_HALF,
    ),
    # ---- fa2_params.cu ----
    *rows(
        "fragments",
        (
            "K read without its swizzle",
            ("fa2_params.cu",),
            "swizzle<kHeadDim>(key, k * 2 + lane / 8 % 2)",
            "key * kHeadDim + (k * 2 + lane / 8 % 2) * 8",
            (r"swizzle", r"operand", r"fragment"),
        ),
        (
            "weights of neighbouring keys exchanged",
            ("fa2_params.cu",),
            "pack<Element>(rS[2 * k][0], rS[2 * k][1]),",
            "pack<Element>(rS[2 * k][1], rS[2 * k][0]),",
            (*_COLUMN, r"order", r"keys"),
        ),
        (
            "V eight rows on",
            ("fa2_params.cu",),
            "(k * 16 + lane % 16, d * 2",
            "(k * 16 + (lane + 8) % 16, d * 2",
            (r"operand", r"fragment", r"8 . 8"),
        ),
        on=_HALF,
    ),
    *rows(
        "copy",
        (
            "K is not waited for",
            ("fa2_params.cu",),
            "        cp_async_wait<1>();\n",
            "",
            (r"copy not complete", r"cp.async"),
        ),
        (
            "V is not waited for",
            ("fa2_params.cu",),
            "        cp_async_wait<0>();\n        __syncthreads();\n#pragma",
            "        __syncthreads();\n#pragma",
            (r"copy not complete", r"cp.async"),
        ),
        on=_HALF,
    ),
    *rows(
        "barrier",
        (
            "V's copy overwrites Q",
            ("fa2_params.cu",),
            "    __syncthreads();\n\n    float rO",
            "\n    float rO",
            (*_RACE, r"race"),
        ),
        (
            "a tile overwritten while it is read",
            ("fa2_params.cu",),
            "        __syncthreads();\n    }\n\n    Element",
            "    }\n\n    Element",
            (*_RACE, r"race"),
        ),
        on=_HALF,
    ),
    *rows(
        "mask",
        (
            "the second column masked as the first",
            ("fa2_params.cu",),
            "lane % 4 * 2 + j;\n",
            "lane % 4 * 2;\n",
            (*_END, r"mask", r"off by one"),
        ),
        on=_HALF,
    ),
    *rows(
        "mask",
        (
            "lower rows masked as the upper ones",
            ("fa2_params.cu",),
            "first_row + half * 8;\n            float highest",
            "first_row;\n            float highest",
            (*_OWN_KEY, r"mask"),
        ),
        (
            "keys end before the diagonal",
            ("fa2_params.cu",),
            "((m_block + 1) * kBlockM + kBlockN - 1)",
            "(m_block * kBlockM + kBlockN - 1)",
            (*_LEFT, *_OWN_KEY, r"no key", r"divi"),
        ),
        on=_HALF_CAUSAL,
    ),
    *rows(
        "softmax",
        (
            "l is not rescaled",
            ("fa2_params.cu",),
            "            row_sum[half] *= rescale;\n",
            "",
            (*_SUM, *_RESCALE),
        ),
        (
            "the correction upside down",
            ("fa2_params.cu",),
            "exp2f(row_max[half] - safe);",
            "exp2f(safe - row_max[half]);",
            (*_RESCALE, *_MAX),
        ),
        on=_HALF,
    ),
    *rows(
        "LSE",
        ("to base 2", ("fa2_params.cu",), "log2f(sum)) * float(M_LN2);", "log2f(sum));", _LSE),
        ("of one lane's sum", ("fa2_params.cu",), "log2f(sum))", "log2f(row_sum[half]))", _LSE),
        on=_HALF,
    ),
    *rows(
        "addressing",
        (
            "rows behind the last are stored",
            ("fa2_params.cu",),
            "        if (row >= params.seqlen_q) continue;\n",
            "",
            _TWICE,
        ),
        (
            "V's heads a row apart",
            ("fa2_params.cu",),
            "bidh_k * params.v_head_stride",
            "bidh_k * params.v_row_stride",
            (r"\bV\b", *_HEAD, r"stride", r"\brows?\b"),
        ),
        (
            "K of the first sequence",
            ("fa2_params.cu",),
            "bidb * params.k_batch_stride",
            "0 * bidb * params.k_batch_stride",
            (*_BATCH, *_HEAD),
        ),
        on=_HALF,
    ),
)
