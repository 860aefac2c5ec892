"""Bugs in windows, softcaps, ALiBi, sinks, lengths and positions."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.unseen import Unseen, rows

_CAUSAL_WINDOW = (Problem(1, 2, 200, 64, causal=True, window=30),)
_WINDOW = (Problem(1, 2, 200, 64, window=30),)
_SOFTCAP = (Problem(1, 2, 100, 64, softcap=5.0),)
_ALIBI = (Problem(1, 4, 100, 64, alibi=True),)
_ALIBI_GQA = (Problem(1, 4, 20, 64, num_heads_kv=2, alibi=True),)
_SINKS = (Problem(1, 4, 100, 64, sinks=True),)
_LENGTHS = (Problem(2, 2, 100, 64, seqlens=(37, 100)),)
_OFFSET = (Problem(1, 2, 40, 64, causal=True, seqlen_kv=100),)

_W = (r"window",)
_CAP = (r"softcap", r"tanh")
_SLOPE = (r"ALiBi", r"slope")
_SINK = (r"\bsinks?\b",)
_LENGTH = (r"lengths?\b", r"sequence")
_POSITION = (
    r"position",
    r"offset",
    r"KV . S",
    r"stands? at",
    r"diagonal",
    r"own key",
    r"off by one",
)
_LEFT = (r"leav(es|ing) out", r"left out", r"never visited", r"only the first")

FEATURES: tuple[Unseen, ...] = (
    *rows(
        "features",
        (
            "one key too many behind",
            ("v01",),
            "(key) > (position) - WINDOW",
            "(key) >= (position) - WINDOW",
            _W,
        ),
        (
            "one key too few behind",
            ("v10",),
            "(key) > (position) - WINDOW",
            "(key) > (position) - WINDOW + 1",
            _W,
        ),
        (
            "the first tile of a window is its queries' own",
            ("v01",),
            "max(0, (begin) - WINDOW + 1)",
            "max(0, (begin))",
            (*_W, *_LEFT),
        ),
        (
            "a tile before a window is not masked",
            ("v10",),
            "((n) < FIRST_KEY((end) - 1))",
            "false",
            _W,
        ),
        (
            "a row that sees no key of a tile",
            ("v01",),
            "((m) == -INFINITY ? 0.0f : (m) * (scale))",
            "((m) * (scale))",
            (*_W, r"sees? no", r"maximum", r"masked"),
        ),
        (
            "half of the window",
            ("v11",),
            "(key) > (position) - WINDOW",
            "(key) > (position) - WINDOW / 2",
            _W,
        ),
        header="features.cuh",
        on=_CAUSAL_WINDOW,
    ),
    *rows(
        "features",
        (
            "the window is open ahead",
            ("v01",),
            "(IS_CAUSAL || (key) < (position) + WINDOW)",
            "true",
            _W,
        ),
        (
            "one key too many ahead",
            ("v10",),
            "(key) < (position) + WINDOW",
            "(key) <= (position) + WINDOW",
            _W,
        ),
        (
            "keys end with the queries' own tile",
            ("v01",),
            "min(NUM_KEYS, (end) - 1 + WINDOW)",
            "min(NUM_KEYS, (end))",
            (*_W, *_LEFT),
        ),
        (
            "behind counts as ahead",
            ("v01",),
            "(key) > (position) - WINDOW",
            "(key) > (position)",
            (*_W, *_LEFT, r"causal"),
        ),
        header="features.cuh",
        on=_WINDOW,
    ),
    *rows(
        "features",
        (
            "tanh of scores that are not scaled",
            ("v01",),
            "score * (softmax_scale * (2.0f",
            "score * ((2.0f",
            (*_CAP, r"scale"),
        ),
        (
            "capped scores are scaled once more",
            ("v01",),
            "fast_reciprocal(1.0f + power)) / softmax_scale;",
            "fast_reciprocal(1.0f + power));",
            (*_CAP, r"scale"),
        ),
        ("tanh of half", ("v10",), "(2.0f * LOG2_E / SOFTCAP)", "(LOG2_E / SOFTCAP)", _CAP),
        (
            "no softcap",
            ("v01",),
            "if constexpr (SOFTCAP > 0.0f) {",
            "if constexpr (SOFTCAP < 0.0f) {",
            _CAP,
        ),
        (
            "a sigmoid",
            ("v10",),
            "(SOFTCAP - 2.0f * SOFTCAP * fast",
            "(SOFTCAP - SOFTCAP * fast",
            _CAP,
        ),
        ("e in place of 2", ("v01",), "2.0f * LOG2_E / SOFTCAP", "2.0f / SOFTCAP", _CAP),
        header="features.cuh",
        on=_SOFTCAP,
    ),
    *rows(
        "features",
        (
            "the first head's slope for all",
            ("v01",),
            "given.alibi_slopes[head]",
            "given.alibi_slopes[0]",
            _SLOPE,
        ),
        (
            "the next head's slope",
            ("v10",),
            "given.alibi_slopes[head]",
            "given.alibi_slopes[head + 1]",
            (*_SLOPE, r"out of bounds"),
        ),
        ("far keys gain", ("v01",), "score -= slope", "score += slope", _SLOPE),
        (
            "the slope is scaled",
            ("v10",),
            "given.alibi_slopes[head] / softmax_scale",
            "given.alibi_slopes[head]",
            _SLOPE,
        ),
        ("keys ahead gain", ("v01",), "(float)abs(distance)", "(float)distance", _SLOPE),
        (
            "half of the distance",
            ("v01",),
            "slope * (float)abs(distance)",
            "slope * (float)(abs(distance) / 2)",
            _SLOPE,
        ),
        header="features.cuh",
        on=_ALIBI,
    ),
    *rows(
        "features",
        (
            "lower rows stand where the upper ones do",
            ("v10",),
            "const int position = POSITION_OF(query0 + i / 2 * 8);",
            "const int position = POSITION_OF(query0);",
            (*_SLOPE, r"row", r"position"),
        ),
        (
            "two keys are as far",
            ("v10",),
            "pair + i % 2;\n                    const int position",
            "pair;\n                    const int position",
            (*_SLOPE, r"column", r"every second", r"odd"),
        ),
        (
            "the slope of the next head",
            ("v01",),
            "score_mod_of(given, blockIdx.y,",
            "score_mod_of(given, (blockIdx.y + 1) % num_heads,",
            _SLOPE,
        ),
        (
            "the distance of the tile's first query",
            ("v01",),
            "score_mod(score, POSITION_OF(query) - key)",
            "score_mod(score, POSITION_OF(m0) - key)",
            (*_SLOPE, r"position", r"first"),
        ),
        on=_ALIBI,
    ),
    *rows(
        "features",
        (
            "slopes by K/V head",
            ("v14",),
            "score_mod_of(given, head_of(row), softmax_scale)",
            "score_mod_of(given, kv_head_index, softmax_scale)",
            (*_SLOPE, r"head"),
        ),
        on=_ALIBI_GQA,
    ),
    *rows(
        "features",
        (
            "the sink is left out",
            ("v01",),
            "if constexpr (HAS_SINKS) l +=",
            "if constexpr (!HAS_SINKS) l +=",
            _SINK,
        ),
        ("the first head's sink for all", ("v10",), "given.sinks[head]", "given.sinks[0]", _SINK),
        (
            "a sink to base 2",
            ("v01",),
            "given.sinks[head] * LOG2_E - m_scaled",
            "given.sinks[head] - m_scaled",
            _SINK,
        ),
        (
            "a sink without the maximum",
            ("v10",),
            "given.sinks[head] * LOG2_E - m_scaled",
            "given.sinks[head] * LOG2_E",
            (*_SINK, r"maximum"),
        ),
        (
            "the sink counts twice",
            ("v01",),
            "l += fast_exp2(given",
            "l += 2.0f * fast_exp2(given",
            _SINK,
        ),
        header="features.cuh",
        on=_SINKS,
    ),
    *rows(
        "features",
        (
            "a sink against a maximum that is not scaled",
            ("v01",),
            "given, blockIdx.y, m * scale_log2)",
            "given, blockIdx.y, m)",
            (*_SINK, r"maximum"),
        ),
        (
            "the sink of the next head",
            ("v01",),
            "with_sink(l, given, blockIdx.y,",
            "with_sink(l, given, (blockIdx.y + 1) % num_heads,",
            _SINK,
        ),
        on=_SINKS,
    ),
    *rows(
        "features",
        (
            "keys of the first sequence for all",
            ("v01",),
            "(given).seqlens[batch]}",
            "(given).seqlens[0]}",
            (*_LENGTH, *_LEFT),
        ),
        (
            "the batch's keys for all",
            ("v10",),
            "#define NUM_KEYS own.keys",
            "#define NUM_KEYS seqlen_kv",
            _LENGTH,
        ),
        (
            "a key less of every sequence",
            ("v01",),
            "(given).seqlens[batch]}",
            "(given).seqlens[batch] - 1}",
            (*_LENGTH, *_LEFT, r"last key"),
        ),
        header="features.cuh",
        on=_LENGTHS,
    ),
    *rows(
        "features",
        (
            "the first query stands at the first key",
            ("v01",),
            "((query) + NUM_KEYS - NUM_QUERIES)",
            "(query)",
            (*_POSITION, r"top.left"),
        ),
        (
            "a position early",
            ("v10",),
            "((query) + NUM_KEYS - NUM_QUERIES)",
            "((query) + NUM_KEYS - NUM_QUERIES - 1)",
            _POSITION,
        ),
        (
            "a position late",
            ("v01",),
            "((query) + NUM_KEYS - NUM_QUERIES)",
            "((query) + NUM_KEYS - NUM_QUERIES + 1)",
            _POSITION,
        ),
        (
            "half of the offset",
            ("v10",),
            "((query) + NUM_KEYS - NUM_QUERIES)",
            "((query) + (NUM_KEYS - NUM_QUERIES) / 2)",
            _POSITION,
        ),
        header="features.cuh",
        on=_OFFSET,
    ),
    *rows(
        "features",
        (
            "keys end with the queries' numbers",
            ("v01",),
            "END_OF_KEYS(POSITION_OF(m0 + BLOCK_M))",
            "END_OF_KEYS(m0 + BLOCK_M)",
            (*_LEFT, *_POSITION),
        ),
        (
            "keys end with the last query's number",
            ("v14",),
            "POSITION_OF(last_query / group + 1);",
            "last_query / group + 1;",
            (*_LEFT, *_POSITION),
        ),
        on=_OFFSET,
    ),
)
