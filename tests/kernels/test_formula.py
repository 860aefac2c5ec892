"""Formulas of description blocks: what they yield, what is refused, and that nothing else runs."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.launches import BatchedShape
from engine.problem import Problem
from kernels.formula import MAX_NODES, MAX_TEXT, FormulaError, Scope

PROBLEM = Problem(3, 5, 203, 64, seqlen_kv=100)
CONFIG = {"block_n": 64, "num_warps": 4}


def scope() -> Scope:
    names = Scope("v30_test.cu", {"block_n": (32, 64), "num_warps": (0, 2, 4)})
    names.define("rows", names.number("16 * num_warps"))
    return names


def value(formula: object, problem: object = PROBLEM) -> object:
    names = scope()
    return names.function(names.expression(formula))(problem, CONFIG)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (7, 7),
        ("batch * num_heads + seqlen - seqlen_kv", 3 * 5 + 203 - 100),
        ("-(head_dim + 8) * element_bytes % 7", -(64 + 8) * 2 % 7),
        ("ceil_div(seqlen, block_n)", 4),
        ("ceil_div(seqlen, 203)", 1),
        ("round_up(seqlen_kv, block_n)", 128),
        ("min(seqlen, 9, 8) + max(1, num_warps - 4)", 9),
        ("seqlen // max(1, num_warps - 4)", 203),
        ("rows", 64),
        ("rows if causal else 2 * rows", 128),
        ("1 < num_warps <= 4 and not (seqlen == seqlen_kv or causal)", True),
        ("seqlen\n  + 1", 204),
    ],
)
def test_value(formula: object, expected: object) -> None:
    assert value(formula) == expected


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("num_warp", "there is no num_warp: did you mean num_warps?"),
        ("zzz", "there is no zzz: known are batch, num_heads"),
        ("seqlen / 2", "`/` yields fractions: write `//` or ceil_div"),
        ("2 ** 9999", r"only \+ - \* // % are known"),
        ("1 << 9999", r"only \+ - \* // % are known"),
        ("seqlen // num_warps", r"divides by `num_warps`, which may be 0: write max\(1, num_warps"),
        ("seqlen % (num_warps - 1)", "divides by `num_warps - 1`"),
        ("ceil_div(seqlen, 0)", "divides by `0`"),
        ("round_up(seqlen, block_n - 32)", "divides by `block_n - 32`"),
        ("open('x')", "there is no function open: known are ceil_div"),
        ("ceil_div(seqlen)", "ceil_div takes 2 arguments, not 1"),
        ("min(*[1], 2)", r"`\*\[1\]` is not allowed"),
        ("max(1, 2, key=3)", "is not allowed"),
        ("batch.real", "`batch.real` is not allowed"),
        ("().__class__", "is not allowed"),
        ("[1][0]", "is not allowed"),
        ("lambda: 1", "is not allowed"),
        ("[x for x in batch]", "is not allowed"),
        ("(x := 1)", "is not allowed"),
        ("'text'", "is not allowed"),
        ("1.5", "`1.5` is not allowed"),
        ("True", "`True` is not allowed"),
        ("batch is 1", "is not allowed"),
        ("batch; seqlen", "is not an expression"),
        ("", "is not an expression"),
        ("\0", "is not an expression"),
        ("9" * 40, "a number larger than any size here"),
        ("-" * MAX_TEXT + "1", f"at most {MAX_TEXT} characters"),
        ("~" * (MAX_TEXT - 1) + "1", "is not allowed|nests too deeply"),
        ("1" + "+1" * (MAX_TEXT // 2 - 1), f"more than {MAX_NODES} terms"),
        (1.5, "neither a whole number of usual size nor a formula"),
        (2**60, "neither a whole number"),
    ],
)
def test_refused_with_a_reason(formula: object, words: str) -> None:
    with pytest.raises(FormulaError, match=words):
        scope().expression(formula)


def test_names_cannot_grow_a_formula_without_bound() -> None:
    names = scope()
    names.define("x0", names.number("seqlen + 1"))
    for i in range(5):
        names.define(f"x{i + 1}", names.number(f"x{i} * x{i}"))
    with pytest.raises(FormulaError, match="once its names are written out"):
        names.number("x5 * x5")


def test_numbers_and_conditions_are_told_apart() -> None:
    with pytest.raises(FormulaError, match="is a condition, and a number is needed"):
        scope().number("seqlen > 1")
    with pytest.raises(FormulaError, match="is a number, and a condition such as"):
        scope().condition("seqlen")


def test_sentences() -> None:
    names = scope()
    text = "Here {rows}, there {1000 * seqlen:,}, {{braces}}."
    assert names.function(names.sentence(text))(PROBLEM, CONFIG) == (
        "Here 64, there 203,000, {braces}."
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a {", "braces do not match"),
        ("{seqlen:>9}", "in no other format"),
        ("{seqlen!r}", "in no other format"),
        ("{batch.real}", "is not allowed"),
        ("{}", "is not an expression"),
    ],
)
def test_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(FormulaError, match=words):
        scope().sentence(text)


@pytest.mark.parametrize(
    "formula", ["ceil_div(batch * seqlen, block_n)", "round_up(batch, 7) % 5", "batch <= 100"]
)
def test_an_array_of_batches_goes_through_at_once(formula: str) -> None:
    shape = BatchedShape(PROBLEM)
    shape.batch = np.arange(1, 300)
    alone = [value(formula, Problem(int(b), 5, 203, 64, seqlen_kv=100)) for b in shape.batch]
    np.testing.assert_array_equal(value(formula, shape), alone)


@pytest.mark.parametrize("formula", ["min(batch, 58)", "1 if batch > 2 else 3", "1 < batch < 9"])
def test_a_formula_that_branches_refuses_an_array(formula: str) -> None:
    """`collect_batches` then takes each batch by itself."""
    shape = BatchedShape(PROBLEM)
    shape.batch = np.arange(1, 300)
    with pytest.raises(ValueError, match="ambiguous"):
        value(formula, shape)


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    """No text raises anything else, and what is accepted yields a number or a truth value."""
    with contextlib.suppress(FormulaError):
        assert isinstance(value(text), int)
