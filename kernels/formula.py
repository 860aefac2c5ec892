"""Formulas in a kernel's description: arithmetic on the sizes of a problem and a config.

Numbers are whole. Only arguments with a floating-point type may use `softmax_scale`, decimals and
`/`.

A formula is a Python expression of `+ - * // %`, comparisons, `and or not`, `x if condition else y`
and the functions `ceil_div`, `round_up`, `min` and `max`. It is parsed with `ast`, each node is
checked to be one of these, and the result is compiled once to a Python function; other text is
never evaluated. The function also accepts a problem with NumPy arrays as sizes, unless the formula
branches on them.
"""

from __future__ import annotations

import ast
import difflib
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from string import Formatter
from typing import Any, Final, TypeAlias

from kernels.variant import round_up

# Names of the problem, and the attribute of `Problem` that each one reads.
PROBLEM_NAMES: Final[Mapping[str, str]] = {
    "batch": "batch",
    "num_heads": "num_heads",
    "num_heads_kv": "kv_heads",  # heads of K and V, with or without GQA
    "seqlen": "seqlen",
    "seqlen_kv": "num_keys",  # rows of K and V, also if it equals seqlen
    "head_dim": "head_dim",
    "head_dim_v": "value_dim",  # columns of V and O, also if it equals head_dim
    "causal": "causal",
}
ELEMENT_BYTES: Final = "element_bytes"  # of Q and O, and of K and V unless they are in FP8
KV_ELEMENT_BYTES: Final = "kv_element_bytes"
_ELEMENT_BYTES: Final = "4 if problem.dtype == 'float32' else 2"
_KV_ELEMENT_BYTES: Final = f"1 if 'kv_fp8' in problem.features else ({_ELEMENT_BYTES})"
FUNCTIONS: Final[Mapping[str, range]] = {  # with the allowed numbers of arguments
    "ceil_div": range(2, 3),
    "round_up": range(2, 3),
    "min": range(2, 9),
    "max": range(2, 9),
}
_SCALE: Final = "1 / sqrt(problem.head_dim)"
FRACTIONS: Final[Mapping[str, str]] = {  # with the Python expression of each
    "softmax_scale": _SCALE,
    "softmax_scale_log2": f"{_SCALE} * {math.log2(math.e)!r}",  # for exp2 instead of exp
}
# Only in C++ text: the type of Q, K, V and O.
ELEMENT_TYPE: Final = "element_type"
_ELEMENT_TYPES: Final = (
    "{'bfloat16': '__nv_bfloat16', 'float32': 'float'}.get(problem.dtype, '__half')"
)
RESERVED: Final = frozenset(
    {*PROBLEM_NAMES, *FUNCTIONS, *FRACTIONS, ELEMENT_BYTES, KV_ELEMENT_BYTES, ELEMENT_TYPE}
)

MAX_TEXT = 400  # characters of one formula
MAX_NODES = 300  # of its syntax tree, with derived names expanded
MAX_CONSTANT = 2**40

_GLOBALS: Final[dict[str, Any]] = {
    "__builtins__": {}, "min": min, "max": max, "round_up": round_up, "sqrt": math.sqrt,
}  # fmt: skip
_ARITHMETIC: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip
_COMPARISONS: Final = frozenset({ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE})

Function: TypeAlias = Callable[[Any, Any], Any]  # of (problem, config)


class FormulaError(ValueError):
    """An invalid formula. The message is a sentence without the place in the file."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression, the body of a function of `problem` and `config`."""

    node: ast.expr
    text: str = ""
    size: int = 1  # nodes of the tree
    is_positive: bool = False  # above 0 for every problem and config
    is_condition: bool = False  # true or false rather than a number


class Scope:
    """The names that the formulas of one kernel may use, and the compiler of these formulas."""

    def __init__(self, file: str, tunables: Mapping[str, Iterable[int]]) -> None:
        """Create a scope.

        Args:
            file: file name in tracebacks.
            tunables: values of each tunable.
        """
        self._file = file
        self._fractions = False  # True while fractions are allowed
        self.used: set[str] = set()  # names in the formulas parsed so far
        self._names = {name: _of_problem(name) for name in PROBLEM_NAMES}
        for name, text in (
            (ELEMENT_BYTES, _ELEMENT_BYTES),
            (KV_ELEMENT_BYTES, _KV_ELEMENT_BYTES),
        ):
            self._names[name] = Expression(ast.parse(text, mode="eval").body, is_positive=True)
        self._names |= {name: _of_config(name, values) for name, values in tunables.items()}

    def define(self, name: str, expression: Expression) -> None:
        """Define `name` as an expression, for all formulas parsed afterwards."""
        self._names[name] = expression

    def expression(self, formula: object) -> Expression:
        """Parse a formula that is a number or a condition.

        Args:
            formula: an int, or a formula as text.

        Raises:
            FormulaError: it is not a formula; the message says why.
        """
        if type(formula) is int and abs(formula) <= MAX_CONSTANT:
            formula = str(formula)
        if not isinstance(formula, str):
            raise FormulaError(
                "it is neither a whole number of usual size nor a formula in quotes",
                code="formula_kind",
            )
        if len(formula) > MAX_TEXT:
            raise FormulaError(
                f"a formula has at most {MAX_TEXT} characters", code="formula_too_long"
            )
        text = " ".join(formula.split())
        shown = text if len(text) <= 60 else f"{text[:60]}…"
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise FormulaError(
                f"`{shown}` is not an expression", code="formula_no_expression"
            ) from None
        try:
            return replace(self._check(tree), text=text)
        except RecursionError:
            raise FormulaError(
                f"`{shown}` nests too deeply", code="formula_nests_too_deeply"
            ) from None

    def number(self, formula: object) -> Expression:
        """Parse a formula whose value is a whole number. Raises FormulaError as `expression`."""
        expression = self.expression(formula)
        if expression.is_condition:
            raise FormulaError(
                f"`{formula}` is a condition, and a number is needed", code="formula_is_condition"
            )
        return expression

    def real(self, formula: object) -> Expression:
        """Parse a formula whose value may be a fraction, as text or a TOML number. Raises
        FormulaError."""
        if type(formula) is float and math.isfinite(formula):
            formula = repr(formula)
        self._fractions = True
        try:
            return self.number(formula)
        finally:
            self._fractions = False

    def condition(self, formula: object) -> Expression:
        """Parse a formula whose value is true or false. Raises FormulaError as `expression`."""
        expression = self.expression(formula)
        if not expression.is_condition:
            raise FormulaError(
                f"`{formula}` is a number, and a condition such as a <= b is needed",
                code="formula_is_number",
            )
        return expression

    def at_most(self, number: Expression, limit: int) -> Expression:
        """Return the condition that a number does not exceed a limit."""
        node = ast.Compare(number.node, [ast.LtE()], [ast.Constant(limit)])
        return Expression(node, is_condition=True)

    def product(self, factors: Iterable[Expression]) -> Expression:
        """Return the product of all factors."""
        first, *others = factors
        for factor in others:
            if isinstance(factor.node, ast.Constant) and factor.node.value == 1:
                continue
            positive = first.is_positive and factor.is_positive
            tree = ast.BinOp(first.node, ast.Mult(), factor.node)
            first = Expression(tree, size=first.size + factor.size + 1, is_positive=positive)
        return first

    def share(self, whole: str, parts: Expression) -> Expression:
        """Return ⌈whole / parts⌉, at least 1."""
        one = Expression(ast.Constant(1), is_positive=True)
        divisor = ast.Call(ast.Name("max", ast.Load()), [one.node, parts.node], [])
        least = ast.Call(
            ast.Name("max", ast.Load()),
            [one.node, _ceil_div(self.number(whole), Expression(divisor, is_positive=True)).node],
            [],
        )
        return Expression(least, is_positive=True)

    def sentence(self, text: str) -> Expression:
        """Parse a text with `{expression}` in it, or `{expression:,}` to group digits by thousands.

        Raises:
            FormulaError: as `expression`.
        """
        values: list[ast.expr] = []
        for literal, formula, format_spec, conversion in _pieces(text):
            values.append(ast.Constant(literal))
            if formula is None:
                continue
            if conversion is not None or format_spec not in ("", ","):
                raise FormulaError(
                    f"`{{{formula}…}}` may end in `:,` and in no other format",
                    code="formula_format",
                )
            spec = ast.JoinedStr([ast.Constant(format_spec)]) if format_spec else None
            values.append(ast.FormattedValue(self.number(formula).node, -1, spec))
        return Expression(ast.JoinedStr(values), text)

    def cpp(self, text: str) -> Expression:
        """Parse C++ text with `{expression}` in it: numbers, `true`, `false` or the element type.

        Raises:
            FormulaError: as `expression`.
        """
        values: list[ast.expr] = []
        for literal, formula, format_spec, conversion in _pieces(text):
            values.append(ast.Constant(literal))
            if formula is None:
                continue
            if conversion is not None or format_spec:
                raise FormulaError(f"`{{{formula}…}}` has no format", code="formula_no_format")
            values.append(ast.FormattedValue(self._cpp_value(formula), -1, None))
        return Expression(ast.JoinedStr(values), text)

    def _cpp_value(self, formula: str) -> ast.expr:
        if formula.strip() == ELEMENT_TYPE:
            self.used.add(ELEMENT_TYPE)
            return ast.parse(_ELEMENT_TYPES, mode="eval").body
        value = self.expression(formula)
        if not value.is_condition:
            return value.node
        return ast.IfExp(value.node, ast.Constant("true"), ast.Constant("false"))

    def function(self, expression: Expression) -> Function:
        """Compile an expression to a function of (problem, config)."""
        return self._compile(expression.node)

    def tuple_function(self, expressions: Iterable[Expression]) -> Function:
        """Compile expressions to one function of (problem, config) that returns a tuple of their
        values."""
        return self._compile(ast.Tuple([e.node for e in expressions], ast.Load()))

    def _compile(self, body: ast.expr) -> Function:
        names = [ast.arg("problem"), ast.arg("config")]
        arguments = ast.arguments([], names, None, [], [], None, [])
        tree = ast.Expression(ast.Lambda(arguments, body))
        _place(tree)
        constants = compile(tree, self._file, "eval").co_consts
        code = next(c for c in constants if isinstance(c, types.CodeType))
        return types.FunctionType(code, _GLOBALS)

    def _check(self, node: ast.expr) -> Expression:
        """Return the expression of a node, after checking that it and all nodes below it are
        allowed."""
        match node:
            case ast.Constant(value) if type(value) is int:
                if value > MAX_CONSTANT:
                    raise FormulaError(
                        "it holds a number larger than any size here",
                        code="formula_number_too_large",
                    )
                return Expression(node, is_positive=value > 0)
            case ast.Constant(float(fraction)) if self._fractions:
                return Expression(node, is_positive=fraction > 0)
            case ast.Name(name) if self._fractions and name in FRACTIONS:
                return Expression(ast.parse(FRACTIONS[name], mode="eval").body, is_positive=True)
            case ast.Name(name):
                return self._named(name)
            case ast.UnaryOp(ast.USub() | ast.Not() as op, operand):
                inner = self._check(operand)
                return _joined(ast.UnaryOp(op, inner.node), inner, condition=type(op) is ast.Not)
            case ast.BinOp(left, op, right):
                return self._binary(left, op, right)
            case ast.BoolOp(op, values):
                parts = [self._check(value) for value in values]
                return _joined(ast.BoolOp(op, [p.node for p in parts]), *parts, condition=True)
            case ast.Compare(left, ops, comparators) if _COMPARISONS.issuperset(map(type, ops)):
                parts = [self._check(part) for part in (left, *comparators)]
                tree = ast.Compare(parts[0].node, ops, [p.node for p in parts[1:]])
                return _joined(tree, *parts, condition=True)
            case ast.IfExp(test, body, orelse):
                parts = [self._check(part) for part in (test, body, orelse)]
                return _joined(
                    ast.IfExp(*(p.node for p in parts)),
                    *parts,
                    positive=all(p.is_positive for p in parts[1:]),
                    condition=all(p.is_condition for p in parts[1:]),
                )
            case ast.Call(ast.Name(name), arguments, []):
                return self._call(name, arguments)
        raise FormulaError(
            f"`{ast.unparse(node)}` is not allowed in a formula", code="formula_not_allowed"
        )

    def _binary(self, left: ast.expr, op: ast.operator, right: ast.expr) -> Expression:
        if isinstance(op, ast.Div) and not self._fractions:
            raise FormulaError(
                "`/` yields fractions: write `//` or ceil_div(a, b)", code="formula_true_division"
            )
        if type(op) not in _ARITHMETIC and not isinstance(op, ast.Div):
            raise FormulaError(
                f"only {' '.join(_ARITHMETIC.values())} are known as operators",
                code="formula_operator",
            )
        a, b = self._check(left), self._check(right)
        if isinstance(op, ast.FloorDiv | ast.Mod | ast.Div):
            _require_divisor(b, right)
        grows = isinstance(op, ast.Add | ast.Mult | ast.Div)
        positive = a.is_positive and b.is_positive and grows
        return _joined(ast.BinOp(a.node, op, b.node), a, b, positive=positive)

    def _named(self, name: str) -> Expression:
        if name in self._names:
            self.used.add(name)
            return self._names[name]
        near = difflib.get_close_matches(name, self._names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(self._names)}"
        raise FormulaError(f"there is no {name}: {hint}", code="formula_name")

    def _call(self, name: str, arguments: list[ast.expr]) -> Expression:
        if name not in FUNCTIONS:
            raise FormulaError(
                f"there is no function {name}: known are {', '.join(FUNCTIONS)}",
                code="formula_function",
            )
        if len(arguments) not in FUNCTIONS[name]:
            raise FormulaError(
                f"{name} takes {FUNCTIONS[name][0]} arguments, not {len(arguments)}",
                code="formula_arguments",
            )
        parts = [self._check(argument) for argument in arguments]
        signs = [p.is_positive for p in parts]
        if name in ("ceil_div", "round_up"):
            _require_divisor(parts[1], arguments[1])
        if name == "ceil_div":
            return _ceil_div(*parts)
        tree = ast.Call(ast.Name(name, ast.Load()), [p.node for p in parts], [])
        return _joined(tree, *parts, positive=any(signs) if name == "max" else all(signs))


def _place(node: ast.AST) -> None:
    """Set the line number that compiling needs. Nodes below one that has a line number have one,
    too."""
    for child in ast.iter_child_nodes(node):
        if not hasattr(child, "lineno"):
            _place(child)
    if "lineno" in node._attributes:
        ast.copy_location(node, _FIRST_LINE)


_FIRST_LINE: Final = ast.parse("0", mode="eval").body
_Piece: TypeAlias = tuple[str, str | None, str | None, str | None]


def _pieces(text: str) -> list[_Piece]:
    """Return literal text, formula, format and conversion of each part. Raises FormulaError."""
    try:
        return list(Formatter().parse(text))
    except ValueError as error:
        raise FormulaError(f"its braces do not match ({error})", code="formula_braces") from None


def _of_problem(name: str) -> Expression:
    node = ast.Attribute(ast.Name("problem", ast.Load()), PROBLEM_NAMES[name], ast.Load())
    condition = name == "causal"
    return Expression(node, name, 2, is_positive=not condition, is_condition=condition)


def _of_config(name: str, values: Iterable[int]) -> Expression:
    node = ast.Subscript(ast.Name("config", ast.Load()), ast.Constant(name), ast.Load())
    return Expression(node, name, 3, is_positive=min(values) > 0)


def _joined(
    node: ast.expr, *parts: Expression, positive: bool = False, condition: bool = False
) -> Expression:
    size = 1 + sum(part.size for part in parts)
    if size > MAX_NODES:
        raise FormulaError(
            f"it has more than {MAX_NODES} terms once its names are written out",
            code="formula_too_many_terms",
        )
    return Expression(node, "", size, positive, condition)


def _ceil_div(a: Expression, b: Expression) -> Expression:
    """Return `-(-a // b)` without a function call, which costs as much as a short formula."""
    negative = ast.UnaryOp(ast.USub(), a.node)
    tree = ast.UnaryOp(ast.USub(), ast.BinOp(negative, ast.FloorDiv(), b.node))
    return _joined(tree, a, b, positive=a.is_positive)


def _require_divisor(divisor: Expression, written: ast.expr) -> None:
    """Raise FormulaError if a divisor may be 0, so that no formula fails for a problem."""
    if not divisor.is_positive:
        shown = ast.unparse(written)
        raise FormulaError(
            f"it divides by `{shown}`, which may be 0: write max(1, {shown})",
            code="formula_divides_by_0",
        )
