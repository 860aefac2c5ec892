"""Guess the grid of a kernel from its use of `blockIdx`. Nothing is compiled.

For a source without its launch, such as that of a CuPy `RawKernel`. Expressions of `blockIdx.x` in
the body are read as sums of products. Its factors tell whether an axis counts rows (a tile's size,
or none), heads (the sequence length) or batches (sequence length and heads); so do its divisors,
the value that it is compared with, and the names of variables.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from engine.own_kernels.host_launch import split_list
from engine.own_kernels.parameters import (
    has_word,
    is_head_dim,
    joined_words,
    size_named,
    stride_named,
    usual_number,
    words_of,
)

_Term: TypeAlias = "tuple[str, ...]"  # factors of a product

_CAST = re.compile(
    r"\(\s*(?:(?:const|unsigned|signed|long|short|int|size_t|ptrdiff_t|u?int(?:32|64)_t)\s*)+\)"
    r"|\bstatic_cast\s*<[^<>]{0,60}>"
)
_BUILT_IN = re.compile(r"\b(blockIdx|blockDim|threadIdx|gridDim)\s*\.\s*([xyz])\b")
_MEMBER = re.compile(r"\b[A-Za-z_]\w*\s*(?:\.|->)\s*(?=[A-Za-z_])")
_SUFFIX = re.compile(r"\b(\d+)[uUlL]+\b")
_DEFINITION = re.compile(
    r"(?:for\s*\(\s*)?(?P<type>(?:[A-Za-z_][\w:<>]*[\s*&]+)+)(?P<all>\w+\s*=(?!=).*)$", re.DOTALL
)
_MOVED = re.compile(r"\w+\s*\+=(?P<by>.*)$", re.DOTALL)
_SUBSCRIPT = re.compile(r"\[([^\[\]]{1,300})\]")
_COMPARED = re.compile(
    r"(?<![\w.])(?P<left>[\w.]{1,80})\s*(?:<|>=|==)\s*(?P<right>[\w.*>\s-]{1,120}?)\s*(?=[)?;&|])"
)
_SHARED = re.compile(
    r"__shared__\s+[\w:]+\s+(?P<name>\w+)\s*\[(?P<first>[^\[\]]*)\]"
    r"(?:\s*\[(?P<second>[^\[\]]*)\])?\s*[;,=]"
)
_LOOP = re.compile(r"\bfor\s*\([^;]{0,80}?(\w{1,60})\s*=[^;]{0,200};\s*\1\s*<\s*([\w*\s]{1,100});")
# `for (int j = 0; j <= row; …)`, `for (int j = 0; j < row + 1; …)`
_UP_TO = re.compile(
    r"\bfor\s*\([^;]{0,80}?\b(\w{1,60})\s*=[^;]{0,200};"
    r"\s*\1\s*(?:<=\s*(\w{1,60})|<\s*(\w{1,60})\s*\+\s*1)\s*;"
)
# `if (j > row) break;`, `if (row < j) continue;`, `if (j > row) s = -INFINITY;`, `j > row ? -1e9f`
_LEAVES: Final = r"\s*\)?\s*(?:\?\s*-|\{?\s*(?:break|continue|\w{1,60}(?:\[\w{1,60}\])*\s*=\s*-))"
_BEYOND = re.compile(
    rf"(?<![\w.])\w{{1,60}}\s*>\s*(\w{{1,60}}){_LEAVES}"
    rf"|(?<![\w.])(\w{{1,60}})\s*<\s*[A-Za-z_]\w{{0,59}}{_LEAVES}"
)
_ROW_WORDS: Final = frozenset(["row", "q", "query", "qi", "qrow", "qidx", "token", "position"])
# `for (int i = threadIdx.x; …; i += 128)`
_STRIDED = re.compile(
    r"\bfor\s*\(\s*[\w\s]{1,40}?(?P<name>\b\w+)\s*=\s*threadIdx_x\s*;[^;]{1,200};"
    r"\s*(?P=name)\s*\+=\s*(\w+)\s*\)"
)
_MAX_STATEMENTS = 400
_MAX_TERMS = 64
_MAX_FACTORS = 16
_MAX_DEPTH = 8
_WHOLE: Final = "batch * num_heads * seqlen"


@dataclass
class _Axis:
    """How a kernel's body uses one axis of `blockIdx`."""

    names: list[list[str]] = field(default_factory=list)  # words of the variables that hold it
    scalars: list[_Term] = field(default_factory=list)  # its factors in numbers
    addresses: list[_Term] = field(default_factory=list)  # its factors in addresses and indices
    # its divisors as sizes; an empty text for others
    divided_by: set[str] = field(default_factory=set)
    bound: str = ""  # the formula that it is compared with


class BlockIndices:
    """What a kernel's body implies about its launch."""

    def __init__(self, body: str, constants: Mapping[str, int]) -> None:
        """Take the kernel's body, without comments, and the values of the constants that its file
        defines."""
        self._constants = constants
        self._texts: dict[str, str] = {}  # the first definition of each local variable
        self._known: dict[str, list[_Term]] = {}
        self._depth = 0  # nesting depth while variables are resolved
        self._axes = {axis: _Axis() for axis in "xyz" if re.search(rf"blockIdx\.{axis}\b", body)}
        self._body = _MEMBER.sub("", _BUILT_IN.sub(r"\1_\2", _CAST.sub("", body)))
        self._read()

    @property
    def used(self) -> str:
        """Return the axes of `blockIdx` that the body reads, such as `xy`."""
        return "".join(self._axes)

    def threads(self) -> tuple[int, ...] | None:
        """Return the threads of a CTA in x, and in y if that is used; None if the body does not
        determine them.

        Their number is the step of a loop that starts at `threadIdx.x`, or the length of a shared
        array with one element per thread, or the rows of a tile with one row per thread.
        """
        alone = "threadIdx_y" not in self._body
        if (
            alone
            and (strided := _STRIDED.search(self._body))
            and (step := self._number(strided[2], ()))
        ):
            return (step,) if 32 <= step <= 1024 else None
        x, y = self._names_of("threadIdx_x"), self._names_of("threadIdx_y")
        if "threadIdx_y" in self._body:
            for match in _SHARED.finditer(self._body):
                if re.search(
                    rf"\b{match['name']}\s*\[\s*(?:{y})\s*\]\s*\[\s*(?:{x})\s*\]", self._body
                ):
                    sizes = [self._number(match[of] or "", ()) for of in ("second", "first")]
                    if all(sizes):
                        return tuple(size or 1 for size in sizes)
            return None
        tiles = re.finditer(
            rf"\b(?:{self._names_of('blockIdx_[xyz]')})\s*\*\s*(\w+)\s*\+\s*(?:{x})\b", self._body
        )
        texts = [match[1] for match in tiles] + [
            match["first"]
            for match in _SHARED.finditer(self._body)
            if not match["second"]
            and re.search(rf"\b{match['name']}\s*\[\s*(?:{x})\s*\]", self._body)
        ]
        numbers = [self._number(text, ()) for text in texts]
        known = [number for number in numbers if number is not None and 32 <= number <= 1024]
        return (max(known),) if known else None

    def number(self, text: str) -> int | None:
        """Return the value of an expression of numbers and the file's constants; None if it has
        none."""
        return self._number(text, ())

    def shared(self) -> str:
        """Return the formula of the bytes of dynamic shared memory; empty if the body does not
        determine it.

        It does if each index into it is the variable of a loop up to a size of the problem.
        """
        declared = re.search(r"\bextern\s+__shared__\s+(float|int)\s+(\w+)\s*\[\s*\]", self._body)
        if declared is None:
            return ""
        indices = set(
            re.findall(rf"\b{declared[2]}\s*\[([^\[\]]*)\]", self._body[declared.end() :])
        )
        if re.search(rf"\b{declared[2]}\b\s*(?!\s*\[)", self._body[declared.end() :]):
            return ""
        ends = {
            _formula_of(match[2]) for match in _LOOP.finditer(self._body) if match[1] in indices
        }
        named = {index for index in indices if re.fullmatch(r"[A-Za-z_]\w*", index)}
        if len(ends) != 1 or not all(ends) or any(not i.isdigit() for i in indices - named):
            return ""
        return f"{ends.pop()} * 4"

    def ends_at_own_row(self) -> bool:
        """Return True if a loop over keys ends at the CTA's or thread's own row, `j <= row`, or
        skips or masks keys after it, `if (j > row) break`: a causal mask.

        A row is a variable that is computed from `blockIdx`, and is named like one or compared with
        a sequence's length.
        """
        ends = {match[2] or match[3] for match in _UP_TO.finditer(self._body)}
        ends |= {match[1] or match[2] for match in _BEYOND.finditer(self._body)}
        if not ends:
            return False
        definitions = re.findall(r"\b(\w{1,60})\s*=(?!=)(?=([^;=]{1,300}))", self._body)
        of_cta: set[str] = set()
        for name, text in definitions[:_MAX_STATEMENTS]:
            if "blockIdx_" in text or not of_cta.isdisjoint(re.findall(r"\w+", text)):
                of_cta.add(name)
        compared = {
            match["left"]
            for match in _COMPARED.finditer(self._body)
            if size_named(match["right"].strip()) in ("seqlen", "seqlen_kv")
        }
        return any(
            end in compared or not _ROW_WORDS.isdisjoint(words_of(end)) for end in ends & of_cta
        )

    def grid(self, threads: Sequence[str]) -> tuple[str, str, str] | None:
        """Return the formulas of the grid; None if the body does not determine it.

        Args:
            threads: of a CTA in x, y and z, as far as used; a text that is not a number is unknown.
        """
        if not self._axes:
            return None
        roles = {axis: self._role(of) for axis, of in self._axes.items()}
        if None in roles.values() or len(set(roles.values())) < len(roles):
            return None
        if "sequences" in roles.values():
            other = "head" if "batch" in roles.values() else "batch_head"
            roles = {a: other if role == "sequences" else role for a, role in roles.items()}
        counts = {"batch": "batch", "head": "num_heads", "batch_head": "batch * num_heads"}
        formulas = {"x": "1", "y": "1", "z": "1"}
        for axis, role in roles.items():
            formula = counts.get(str(role)) or self._rows(self._axes[axis], threads)
            if formula is None:
                return None
            formulas[axis] = formula
        return formulas["x"], formulas["y"], formulas["z"]

    # ---- what an axis counts ----

    def _role(self, axis: _Axis) -> str | None:
        """Return what an axis counts: "batch", "batch_head", "row", or "sequences" (heads; of all
        batches if no axis counts batches). None if unclear."""
        for words in axis.names:
            if {"bh", "hb"} & set(words) or (has_word(words, "batch") and has_word(words, "head")):
                return "batch_head"
            if has_word(words, "batch") or words in (["b"], ["bidb"]):
                return "batch"
            if has_word(words, "head") or words in (["h"], ["bidh"]):
                return "sequences"
            if has_word(words, "split") or has_word(words, "chunk"):
                return None
        terms = axis.scalars + axis.addresses
        strides = {
            stride_named(words_of(f)).rpartition("_")[2] for t in terms for f in t if "stride" in f
        }
        if strides & {"batch", "head", "row"}:
            return "batch" if "batch" in strides else "sequences" if "head" in strides else "row"
        sizes = [{size_named(factor) for factor in term} for term in terms]
        if any({"seqlen", "num_heads"} <= of_term for of_term in sizes):
            return "batch"
        if any(of_term & {"seqlen", "seqlen_kv"} for of_term in sizes):
            return "sequences"
        if axis.divided_by == {"num_heads"}:
            return "batch_head"
        if any(of_term == {"num_heads"} for of_term in sizes):
            return "batch"
        return "row" if terms or axis.names or axis.bound else None

    def _rows(self, axis: _Axis, threads: Sequence[str]) -> str | None:
        """Return the formula of the CTAs along an axis that counts rows."""
        tile = self._tile(axis, threads)
        if tile is None:
            return None
        count = axis.bound or ("seqlen" if len(self._axes) > 1 else "")
        if "seqlen" in axis.divided_by:
            count = _WHOLE
        if not count:  # the axis also counts heads in an unknown way
            return None
        if tile == 1:
            return count
        return f"ceil_div({count}, {tile})"

    def _tile(self, axis: _Axis, threads: Sequence[str]) -> int | None:
        """Return the rows of a CTA: the factors that all products have in common, without row
        lengths."""
        common: Counter[str] | None = None
        for terms, is_address in ((axis.scalars, False), (axis.addresses, True)):
            for term in terms:
                factors = [f for f in term if not size_named(f) and "stride" not in f]
                if is_address and len(factors) == len(term):  # one factor is a row's length
                    plain = [f for f in factors if f.isdigit()]
                    known = [f for f in plain if f in self._lengths()]
                    for length in (known or plain)[:1]:
                        factors.remove(length)
                found = Counter(factors)
                common = found if common is None else common & found
        product = divisor = 1
        for factor in (common or Counter[str]()).elements():
            number = self._number(factor.removeprefix("/"), threads)
            if number is None:
                return None
            if factor.startswith("/"):
                divisor *= number
            else:
                product *= number
        return product // divisor or None

    def _lengths(self) -> set[str]:
        """Return the row lengths: numbers that multiply rows of a sequence in addresses."""
        terms = [term for axis in self._axes.values() for term in axis.addresses]
        return {f for t in terms if "seqlen" in map(size_named, t) for f in t if f.isdigit()}

    # ---- reading the body ----

    def _read(self) -> None:
        statements = re.split(r"[;{}]", self._body)[:_MAX_STATEMENTS]
        found: list[tuple[str, str, bool]] = []  # name, text, whether an address
        for statement in statements:
            plain = statement.strip()
            if declared := _DEFINITION.match(plain):
                for one in split_list(declared["all"]):
                    name, _, text = one.partition("=")
                    name = name.strip(" *&")
                    found.append((name, text, "*" in declared["type"]))
                    self._texts.setdefault(name, text)
            elif moved := _MOVED.match(plain):
                found.append(("", moved["by"], True))
        for name, text, is_address in found:
            self._record(text, is_address=is_address, name=name)
        for match in _SUBSCRIPT.finditer(self._body):
            self._record(match[1], is_address=True)
        for match in _COMPARED.finditer(self._body):
            if bound := _formula_of(match["right"]):
                for axis in self._axes_of(self._terms_of(match["left"])):
                    self._axes[axis].bound = self._axes[axis].bound or bound

    def _record(self, text: str, *, is_address: bool, name: str = "") -> None:
        """Record the factors and names of the indices in one expression."""
        terms = self._terms_of(text)
        for axis in self._axes_of(terms):
            if name and terms == [(f"blockIdx_{axis}",)]:
                self._axes[axis].names.append(words_of(name))
                continue
            for term in terms:
                if term.count(f"blockIdx_{axis}") == 1:
                    rest = tuple(f for f in term if f != f"blockIdx_{axis}")
                    into = self._axes[axis].addresses if is_address else self._axes[axis].scalars
                    into.append(rest)

    def _axes_of(self, terms: Sequence[_Term]) -> Iterator[str]:
        for axis in self._axes:
            if any(f"blockIdx_{axis}" in term for term in terms):
                yield axis

    def _names_of(self, built_in: str) -> str:
        """Return a pattern for an index and the variables that are equal to it."""
        holds = re.compile(rf"\s*{built_in}\s*")
        return "|".join(
            [built_in, *(n for n, text in self._texts.items() if holds.fullmatch(text))]
        )

    def _terms_of(self, text: str) -> list[_Term]:
        """Return the terms of a sum of products, with variables that depend on an index replaced;
        empty for other text."""
        node = _parsed(text)
        return self._terms(node) if node is not None else []

    def _terms(self, node: ast.expr) -> list[_Term]:
        if isinstance(node, ast.BinOp):
            left, right = self._terms(node.left), self._terms(node.right)
            if isinstance(node.op, ast.Add | ast.Sub):
                return (left + right)[:_MAX_TERMS]
            if isinstance(node.op, ast.Mult):
                products = [(*a, *b) for a in left for b in right]
                return [p for p in products if len(p) <= _MAX_FACTORS][:_MAX_TERMS]
            axes = list(self._axes_of(left))
            divisor = self._value(node.right, (), 0)
            if axes and divisor and isinstance(node.op, ast.Div | ast.RShift):
                by = divisor if isinstance(node.op, ast.Div) else 1 << min(divisor, 20)
                return [(*term, f"/{by}") for term in left]
            if isinstance(node.op, ast.Div | ast.Mod):
                for axis in axes:
                    self._axes[axis].divided_by.add(_formula_of(ast.unparse(node.right)))
        elif isinstance(node, ast.Name):
            return self._terms_of_name(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            return [(str(node.value),)]
        return [(ast.unparse(node),)]

    def _terms_of_name(self, name: str) -> list[_Term]:
        """Return the terms of a variable's first value if it depends on an index, else the
        variable."""
        if name not in self._known:
            if self._depth == _MAX_DEPTH:
                return [(name,)]
            self._known[name] = [(name,)]  # ends recursion
            self._depth += 1
            terms = self._terms_of(self._texts.get(name, ""))
            if any(self._axes_of(terms)):
                self._known[name] = terms
            self._depth -= 1
        return self._known[name]

    def _number(self, text: str, threads: Sequence[str], depth: int = 0) -> int | None:
        """Return the value of an expression; None if it has none."""
        node = _parsed(text)
        return self._value(node, threads, depth) if node is not None else None

    def _value(self, node: ast.expr, threads: Sequence[str], depth: int) -> int | None:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, int) else None
        if isinstance(node, ast.BinOp):
            left, right = (self._value(n, threads, depth) for n in (node.left, node.right))
            operation = _OPERATIONS.get(type(node.op))
            if operation is None or left is None or right is None or right <= 0:
                return None
            return operation(left, right)
        if not isinstance(node, ast.Name) or depth > _MAX_DEPTH:
            return None
        if built_in := re.fullmatch(r"blockDim_([xyz])", node.id):
            index = "xyz".index(built_in[1])
            given = threads[index] if index < len(threads) else ""
            return int(given) if given.isdigit() else None
        if node.id in self._constants:
            return self._constants[node.id]
        if node.id in self._texts:
            return self._number(self._texts[node.id], threads, depth + 1)
        usual = usual_number(node.id)
        return int(usual) if usual else None


_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a // b,
    ast.RShift: lambda a, b: a >> min(b, 64),
    ast.LShift: lambda a, b: a << min(b, 20),
}


@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> ast.expr | None:
    """Parse an expression that C and Python write alike; None for others."""
    plain = _SUFFIX.sub(r"\1", " ".join(text.split()))
    if not plain or len(plain) > 500:
        return None
    try:
        return ast.parse(f"({plain})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _formula_of(text: str) -> str:
    """Return a product of sizes as a formula; empty if a factor is not a size."""
    factors = [factor.strip(" ()") for factor in text.split("*")]
    sizes = [size_named(factor) for factor in factors]
    if not all(sizes) or any(is_head_dim(joined_words(factor)) for factor in factors):
        return ""
    return " * ".join(sizes)
