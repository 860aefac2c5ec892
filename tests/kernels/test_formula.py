"""Formulas of description blocks: values, errors, and that no other code is executed."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from words import raises

from engine.attention.problem import Problem
from engine.model.launches import BatchedShape
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
def test_each_case_gives_the_defined_value(formula: object, expected: object) -> None:
    assert value(formula) == expected


@pytest.mark.parametrize(
    ("formula", "code", "fact"),
    [
        ("num_warp", "name", "num_warps?"),
        ("zzz", "name", "batch, num_heads"),
        ("seqlen / 2", "true_division", "ceil_div"),
        ("2 ** 9999", "operator", "+ - * // %"),
        ("1 << 9999", "operator", "+ - * // %"),
        ("seqlen // num_warps", "divides_by_0", "max(1, num_warps"),
        ("seqlen % (num_warps - 1)", "divides_by_0", "`num_warps - 1`"),
        ("ceil_div(seqlen, 0)", "divides_by_0", "`0`"),
        ("round_up(seqlen, block_n - 32)", "divides_by_0", "`block_n - 32`"),
        ("open('x')", "function", "open: known are ceil_div"),
        ("ceil_div(seqlen)", "arguments", "ceil_div takes 2 arguments, not 1"),
        ("min(*[1], 2)", "not_allowed", "`*[1]`"),
        ("max(1, 2, key=3)", "not_allowed", ""),
        ("batch.real", "not_allowed", "`batch.real`"),
        ("().__class__", "not_allowed", ""),
        ("[1][0]", "not_allowed", ""),
        ("lambda: 1", "not_allowed", ""),
        ("[x for x in batch]", "not_allowed", ""),
        ("(x := 1)", "not_allowed", ""),
        ("'text'", "not_allowed", ""),
        ("1.5", "not_allowed", "`1.5`"),
        ("True", "not_allowed", "`True`"),
        ("batch is 1", "not_allowed", ""),
        ("batch; seqlen", "no_expression", ""),
        ("", "no_expression", ""),
        ("\0", "no_expression", ""),
        ("9" * 40, "number_too_large", ""),
        ("-" * MAX_TEXT + "1", "too_long", f"{MAX_TEXT}"),
        ("1" + "+1" * (MAX_TEXT // 2 - 1), "too_many_terms", f"{MAX_NODES}"),
        (1.5, "kind", ""),
        (2**60, "kind", ""),
    ],
)
def test_refused_with_a_reason(formula: object, code: str, fact: str) -> None:
    with raises(FormulaError, f"formula_{code}", fact):
        scope().expression(formula)


def test_a_formula_as_deep_as_a_text_can_be_is_refused() -> None:
    with pytest.raises(FormulaError) as caught:
        scope().expression("~" * (MAX_TEXT - 1) + "1")
    assert caught.value.code in ("formula_not_allowed", "formula_nests_too_deeply")


def test_names_cannot_grow_a_formula_without_bound() -> None:
    names = scope()
    names.define("x0", names.number("seqlen + 1"))
    for i in range(5):
        names.define(f"x{i + 1}", names.number(f"x{i} * x{i}"))
    with raises(FormulaError, "formula_too_many_terms"):
        names.number("x5 * x5")


def test_numbers_and_conditions_are_distinguished() -> None:
    with raises(FormulaError, "formula_is_condition"):
        scope().number("seqlen > 1")
    with raises(FormulaError, "formula_is_number"):
        scope().condition("seqlen")


def test_sentence_templates_are_filled_in() -> None:
    names = scope()
    text = "Here {rows}, there {1000 * seqlen:,}, {{braces}}."
    assert names.function(names.sentence(text))(PROBLEM, CONFIG) == (
        "Here 64, there 203,000, {braces}."
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a {", "braces"),
        ("{seqlen:>9}", "format"),
        ("{seqlen!r}", "format"),
        ("{batch.real}", "not_allowed"),
        ("{}", "no_expression"),
    ],
)
def test_invalid_sentence_templates_are_refused(text: str, code: str) -> None:
    with raises(FormulaError, f"formula_{code}"):
        scope().sentence(text)


@pytest.mark.parametrize(
    "formula", ["ceil_div(batch * seqlen, block_n)", "round_up(batch, 7) % 5", "batch <= 100"]
)
def test_a_formula_accepts_an_array_of_batches(formula: str) -> None:
    shape = BatchedShape(PROBLEM)
    shape.batch = np.arange(1, 300)
    alone = [value(formula, Problem(int(b), 5, 203, 64, seqlen_kv=100)) for b in shape.batch]
    np.testing.assert_array_equal(value(formula, shape), alone)


@pytest.mark.parametrize("formula", ["min(batch, 58)", "1 if batch > 2 else 3", "1 < batch < 9"])
def test_a_formula_that_branches_refuses_an_array(formula: str) -> None:
    """`collect_batches` then evaluates each batch separately."""
    shape = BatchedShape(PROBLEM)
    shape.batch = np.arange(1, 300)
    with pytest.raises(ValueError, match="ambiguous"):
        value(formula, shape)


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    """Any text is an error of this kind, or yields a number or a truth value."""
    with contextlib.suppress(FormulaError):
        assert isinstance(value(text), int)
