"""What a file's host code launches a kernel with, as formulas: `kernel<<<grid, block, bytes>>>`.

Host code is not executed. Its expressions are read as far as they consist of numbers, of names that
the file declares with a value, and of names that are known to mean a size; what else there is stays
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.own_kernels.signature import split_list, without_comments

_INTEGER = r"(?:unsigned\s+int|unsigned|int|size_t|auto|long|u?int(?:32|64)_t)"
_SCALARS = re.compile(
    rf"\b(?:constexpr|const|static|{_INTEGER})\s+(?:(?:const|{_INTEGER})\s+)*(\w+\s*=[^;{{}}]*);"
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+)$", re.MULTILINE)
_DIM3 = re.compile(r"\bdim3\s+(\w+\s*(?:=\s*dim3\s*)?[({][^;]*);")
_DIM3_VALUE = re.compile(r"(?P<name>\w+)\s*(?:=\s*dim3\s*)?[({](?P<items>.*)[)}]\s*$", re.DOTALL)
_CAST = re.compile(rf"\(\s*{_INTEGER}\s*\)|\bstatic_cast\s*<[^<>]*>")
_SIZEOF = re.compile(r"\bsizeof\s*\(\s*(?P<type>[\w:]+)\s*\)")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)[uUlL]*|(?P<name>(?:\w+(?:\.|->|::))*[A-Za-z_]\w*)|(?P<sign>[-+*/(),]))"
)
_CEIL_DIV = frozenset(
    "ceildiv cdiv divup divceil ceildivide updiv divroundup ceilingdivide".split()
)
_BYTES: Mapping[str, str] = {
    "float": "4", "int": "4", "int32_t": "4", "uint32_t": "4", "unsigned": "4", "double": "8",
    "int64_t": "8", "size_t": "8", "float2": "8", "float4": "16", "int4": "16", "uint4": "16",
}  # fmt: skip
_ELEMENTS = frozenset("half __half __nv_bfloat16 nv_bfloat16 t element elementtype dtype".split())
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """Formulas of one launch; empty where the file does not tell."""

    grid: tuple[str, ...] = ()  # three
    threads: tuple[str, ...] = ()  # one for each axis that is used
    smem_bytes: str = ""


def host_launch_of(text: str, kernel: str, size_of: Callable[[str], str]) -> HostLaunch:
    """The first launch of a kernel in a file.

    Args:
        kernel: its name, without namespaces.
        size_of: the formula that a name stands for, as `seqlen` for `q_len`; empty if unknown.
    """
    code = without_comments(text)
    names = [
        kernel,
        *re.findall(rf"\b(\w+)\s*=\s*&?\s*(?:\w+::)*{kernel}\s*(?:<[^;]*>)?\s*;", code),
    ]
    launch = re.search(rf"\b(?:{'|'.join(names)})\s*(?:<[^;<>]*>)?\s*<<<(?P<how>[^;]*?)>>>", code)
    items = split_list(launch["how"]) if launch else []
    if len(items) < 2:
        return HostLaunch()
    reader = _Reader(code, size_of)
    grid, threads = reader.dimensions(items[0]), reader.dimensions(items[1])
    used = len(threads) - next((i for i, n in enumerate(reversed(threads)) if n != "1"), 2)
    return HostLaunch(
        grid=grid,
        threads=threads[: max(used, 1)],
        smem_bytes=reader.formula(items[2]) if len(items) > 2 else "0",
    )


@dataclass
class _Reader:
    code: str
    size_of: Callable[[str], str]
    scalars: dict[str, str] = field(default_factory=dict)
    dim3s: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in _MACRO.findall(self.code):
            self.scalars.setdefault(name, value)
        for declared in _SCALARS.findall(self.code):
            for one in split_list(declared):
                name, equals, value = one.partition("=")
                if equals:
                    self.scalars.setdefault(name.strip(), value.strip())
        for declared in _DIM3.findall(self.code):
            for one in split_list(declared):
                if value_of := _DIM3_VALUE.match(one):
                    self.dim3s.setdefault(value_of["name"], split_list(value_of["items"]))

    def dimensions(self, text: str) -> tuple[str, ...]:
        """Three formulas of a `dim3` or a number; none where one of them is unknown."""
        written = re.match(r"dim3\s*[({](.*)[)}]$", text, re.DOTALL)
        items = split_list(written[1]) if written else self.dim3s.get(text, [text])
        formulas = tuple(map(self.formula, items))
        return (*formulas, *["1"] * (3 - len(formulas))) if all(formulas) else ()

    def formula(self, text: str, depth: int = 0) -> str:
        """The text as a formula; empty where it holds what is unknown."""
        if depth > _MAX_DEPTH:
            return ""
        if text in self.scalars:  # all of it, so without parentheses
            return self.formula(self.scalars[text], depth + 1) or self.size_of(text)
        text = _SIZEOF.sub(lambda m: _bytes_of(m["type"]), _CAST.sub("", text)).strip()
        parts: list[str] = []
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                return ""
            position = token.end()
            called = re.match(r"\s*\(", text[position:]) is not None
            part = token["number"] or self._name(token["name"], called, depth)
            if token["sign"]:
                part = {"/": "//"}.get(token["sign"], token["sign"])
            if not part:
                return ""
            parts.append(part)
        return _spaced(parts)

    def _name(self, name: str | None, called: bool, depth: int) -> str:
        if name is None:
            return ""
        last = re.split(r"\.|->|::", name)[-1]
        if called:
            key = last.replace("_", "").lower()
            return "ceil_div" if key in _CEIL_DIV else last if last in ("min", "max") else ""
        if name == "element_bytes":
            return name
        if name in self.scalars:
            value = self.formula(self.scalars[name], depth + 1)
            if value:
                return value if re.fullmatch(r"\w+(?:\([^()]*\))?", value) else f"({value})"
        return self.size_of(last)


def _bytes_of(kind: str) -> str:
    if kind in _BYTES:
        return _BYTES[kind]
    return "element_bytes" if kind.rpartition("::")[2].lower() in _ELEMENTS else "?"


def _spaced(parts: list[str]) -> str:
    text = "".join(f" {p} " if p in ("+", "-", "*", "//") else p for p in parts)
    return text.replace(",", ", ")
