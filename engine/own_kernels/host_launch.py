"""The kernels of a `.cu` file by their declarations, and their launches. Nothing is compiled."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from engine.cuda_source.host_code import closing, split_commas, without_comments

_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(?P<threads>[\w\s*]{1,80})")
_ATTRIBUTE = re.compile(r"__(?:launch_bounds|cluster_dims|block_size)__\s*$")
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*$")
_TEMPLATE = re.compile(r"template\s*<(?P<parameters>[^{};]*)>\s*(?:extern\s*\"C\"\s*)?[^{};]*$")
_NAMESPACE = re.compile(r"\bnamespace\s+(?P<name>[\w:]+)\s*\{|[{}]")
_QUALIFIER = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__|struct)\b")
# Patterns have limited lengths, so that any file is parsed in linear time.
_ALIAS = re.compile(r"\busing\s+(?P<new>\w+)\s*=(?P<old>[\w:\s*]{1,300});")
_MACRO_TYPE = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<new>\w+)"
    r"[ \t]+(?P<old>(?:float|double|half|__half|__nv_bfloat16)(?:[ \t]*\*)?)[ \t]*$",
    re.MULTILINE,
)
_TYPEDEF = re.compile(r"\btypedef\s(?P<old>[\w:\s]{1,200}?[\s*]{1,20})(?P<new>\w+)\s*;")

_MAX_KERNELS = 64
_MAX_HEAD = 10_000  # characters of template parameters and attributes before a kernel


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel, of a template, or field of a structure."""

    written: str  # as in the source, on one line
    type: str  # without qualifiers and `*`, aliases resolved: `half`, `int64_t`, `typename`
    name: str
    is_pointer: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """One `__global__` function."""

    name: str  # qualified by its namespaces
    parameters: tuple[Parameter, ...]
    template: tuple[Parameter, ...]
    threads: str  # of __launch_bounds__; empty without it
    body: str  # without comments
    launched_with: tuple[str, ...]  # template arguments of a launch in the same file


@functools.lru_cache(maxsize=4)
def kernels_of(text: str) -> tuple[Signature, ...]:
    """Return the kernels with a body, in the file's order; at most the first 64."""
    code = without_comments(text)
    signatures: dict[str, Signature] = {}
    for start in itertools.islice(re.finditer(r"\b__global__\b", code), _MAX_KERNELS):
        if (signature := _signature(code, start.start())) is not None:
            signatures.setdefault(signature.name, signature)
    return tuple(signatures.values())


def fields_of(text: str, structure: str) -> tuple[Parameter, ...]:
    """Return the fields of a structure in order; empty if the file does not define it."""
    code = without_comments(text)
    start = re.search(rf"\b(?:struct|class)\s+{re.escape(structure)}\b[^;{{]*\{{", code)
    if start is None:
        return ()
    body = code[start.end() : closing(code, start.end() - 1) - 1]
    fields: list[Parameter] = []
    for statement in re.sub(r"\{[^{}]*\}", ";", body).split(";"):
        line = re.sub(r"^\s*(?:public|private|protected)\s*:", "", statement)
        if (
            not line.strip()
            or "(" in line
            or re.match(r"\s*(?:using|typedef|static|friend|template)\b", line)
        ):
            continue
        first, *others = split_list(line)
        if not (parameter := _parameter(first, code)).name:
            continue
        fields.append(parameter)
        shared = re.sub(r"[*\s]*\w+\s*(?:=.*)?$", "", first)
        fields += [_parameter(f"{shared} {other}", code) for other in others]
    return tuple(fields)


def _signature(code: str, start: int) -> Signature | None:
    position = start
    while True:
        position = code.find("(", position)
        if position < 0 or ";" in code[start:position] or "}" in code[start:position]:
            return None
        if not _ATTRIBUTE.search(code[start:position]):
            break
        position = closing(code, position)
    named = _NAME.search(code[start:position])
    end = closing(code, position)
    opening = re.compile(r"\s*\{").match(code, end)
    if named is None or opening is None:
        return None
    head = code[max(0, start - _MAX_HEAD) : start]
    template = _TEMPLATE.search(head[max(head.rfind(";"), head.rfind("}"), -1) + 1 :])
    bounds = _LAUNCH_BOUNDS.search(code, start, position)
    name = named["name"]
    qualified = "::".join([*_namespaces(code, start), name])
    launched = re.search(rf"\b{name}\s*<(?P<arguments>[^;<>]{{0,500}})>\s*(?:<<<|[;,)])", code)
    return Signature(
        name=qualified,
        parameters=tuple(_parameter(p, code) for p in split_list(code[position + 1 : end - 1])),
        template=tuple(
            _parameter(p, code) for p in split_list(template["parameters"] if template else "")
        ),
        threads=bounds["threads"].strip() if bounds else "",
        body=code[opening.end() : closing(code, opening.end() - 1)],
        launched_with=tuple(split_list(launched["arguments"])) if launched else (),
    )


def _namespaces(code: str, position: int) -> Iterator[str]:
    opened: list[str] = []
    for match in _NAMESPACE.finditer(code, 0, position):
        if match[0] != "}":
            opened.append(match["name"] or "")
        elif opened:
            opened.pop()
    yield from filter(None, opened)


def split_list(text: str) -> list[str]:
    """Return the parts of a text between commas outside brackets, each on one line."""
    return [" ".join(part.split()) for part in split_commas(text)]


@functools.lru_cache(maxsize=4)
def _aliases(code: str) -> Mapping[str, str]:
    """Return the types that other names stand for."""
    return {
        m["new"]: _QUALIFIER.sub(" ", m["old"])
        for pattern in (_ALIAS, _TYPEDEF, _MACRO_TYPE)
        for m in pattern.finditer(code)
    }


def _parameter(written: str, code: str) -> Parameter:
    declared, equals, _ = written.partition("=")
    plain = _QUALIFIER.sub(" ", declared)
    stars = re.sub(r"[^*[]", "", plain)
    plain = re.sub(r"[*&]|\[[^\]]*\]", " ", plain)
    words = plain.split()
    name = words[-1] if len(words) > 1 else ""
    kind = " ".join(words[:-1]) if len(words) > 1 else plain.strip()
    aliases = _aliases(code)
    for _ in range(4):
        meant = aliases.get(kind, kind)
        stars += "*" * meant.count("*")
        kind = " ".join(meant.replace("*", " ").split())
    return Parameter(" ".join(written.split()), kind, name, bool(stars), bool(equals))


# The launch of a kernel in a file's host code, as formulas: `kernel<<<grid, block, bytes>>>`.
# Host code is parsed, not executed. Expressions may consist of numbers, of names that the file
# declares with a value, and of names that are known to mean a size; others are unknown.


_INTEGER = r"(?:unsigned\s+int|unsigned|int|size_t|auto|long|u?int(?:32|64)_t)"
_SCALARS = re.compile(
    rf"\b(?:constexpr|const|static|{_INTEGER})\s+(?:(?:const|{_INTEGER})\s+)*(\w+\s*=[^;{{}}]*);"
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+)$", re.MULTILINE)
_DIM3 = re.compile(r"\bdim3\s+(\w+\s*(?:=\s*dim3\s*)?[({][^;]*);")
_DIM3_VALUE = re.compile(r"(?P<name>\w+)\s*(?:=\s*dim3\s*)?[({](?P<items>.*)[)}]\s*$", re.DOTALL)
_CAST = re.compile(rf"\(\s*{_INTEGER}\s*\)|\bstatic_cast\s*<[^<>]*>")
# `ceil((float)N / Bc)`
_CEIL = re.compile(
    r"\b(?:std::)?ceilf?\s*\(\s*(?:\(\s*(?:float|double)\s*\))?\s*(?P<a>[\w.]+)\s*/"
    r"\s*(?:\(\s*(?:float|double)\s*\))?\s*(?P<b>[\w.]+)\s*\)"
)
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
_POINTER_OF = re.compile(
    r"(?:\([\w\s:*]+\)|(?:reinterpret|static)_cast<[^<>]*>\()?\s*(?P<name>[A-Za-z_]\w*)"
    r"(?:\.(?:data_ptr|data|get|mutable_data_ptr|packed_accessor(?:32|64)?)"
    r"\s*(?:<[^<>]*>)?\(\))?\)?$"
)
_MALLOC = re.compile(r"\bcudaMalloc\w*\s*(?=\()")
_ADDRESS = re.compile(r"(?:\([\w\s*]+\))?\s*&\s*(?P<name>\w+)$")
_TENSOR = re.compile(
    r"\b(?P<name>\w+)\s*=\s*(?:torch|at)::(?:empty|zeros|full)\s*\(\s*\{(?P<sizes>[^{}]*)\}"
)
_STRIDE = re.compile(r"\(?(?P<name>\w+)\.stride\(\s*(?P<axis>-?\d)\s*\)\)?")
_ELEMENTS = frozenset("half __half __nv_bfloat16 nv_bfloat16 t element elementtype dtype".split())
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """Formulas of one launch; empty if the file does not determine them."""

    grid: tuple[str, ...] = ()  # x, y, z
    threads: tuple[str, ...] = ()  # of the used axes
    smem_bytes: str = ""
    position: int = -1  # in the text, which gives the order of launches; -1: no launch
    args: tuple[str, ...] = ()  # each argument as a plain name; empty for other expressions
    values: tuple[str, ...] = ()  # each argument as a formula; empty if unknown
    # each argument as (tensor, axis), for `q.stride(0)`
    strides: tuple[tuple[str, int] | None, ...] = ()
    # formula of a buffer's elements, by its name
    allocated: Mapping[str, str] = field(default_factory=dict)


def host_launch_of(
    text: str, kernel: str, size_of: Callable[[str], str], usual: Callable[[str], str]
) -> HostLaunch:
    """Return the first launch of a kernel in a file.

    Args:
        kernel: its name, without namespaces.
        size_of: returns the formula that a name stands for, such as `seqlen` for `q_len`; empty if
            unknown.
        usual: returns the number that a name such as `block_size` usually has; empty if unknown.
    """
    code = without_comments(text)
    names = [
        kernel,
        *re.findall(rf"\b(\w+)\s*=\s*(?:&\s*)?(?:\w+::)*{kernel}\s*(?:<[^;]{{0,500}}>)?\s*;", code),
    ]
    launch = re.search(
        rf"\b(?:{'|'.join(names)})\s*(?:<[^;<>]{{0,500}}>)?\s*<<<(?P<how>[^;]{{0,500}}?)>>>", code
    )
    items = split_list(launch["how"]) if launch else []
    if launch is None or len(items) < 2:
        return HostLaunch()
    reader = _Reader(code, size_of, usual, launch.start())
    given = _arguments(code, launch.end())
    grid, threads = reader.dimensions(items[0]), reader.dimensions(items[1])
    used = len(threads) - next((i for i, n in enumerate(reversed(threads)) if n != "1"), 2)
    return HostLaunch(
        grid=grid,
        threads=threads[: max(used, 1)],
        smem_bytes=reader.formula(items[2]) if len(items) > 2 else "0",
        position=launch.start(),
        args=tuple(map(_plain_name, given)),
        values=tuple(map(reader.formula, given)),
        strides=tuple(map(reader.stride, given)),
        allocated=dict(reader.allocated()),
    )


def _arguments(code: str, position: int) -> list[str]:
    """Return the arguments of a call whose opening parenthesis is next."""
    opening = re.compile(r"\s*\(").match(code, position)
    if opening is None:
        return []
    return split_list(code[opening.end() : closing(code, opening.end() - 1) - 1])


def _plain_name(argument: str) -> str:
    """Return the name of a buffer: `d_q`, or `lse` for `lse.data_ptr<float>()`; empty for other
    expressions."""
    match = _POINTER_OF.match(argument)
    return match["name"] if match else ""


@dataclass
class _Reader:
    code: str
    size_of: Callable[[str], str]
    usual: Callable[[str], str]
    position: int  # of the launch; the last declaration before it counts
    scalars: dict[str, str] = field(default_factory=dict)
    dim3s: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in _MACRO.findall(self.code):
            self.scalars.setdefault(name, value)
        for declared in self._nearest(_SCALARS):
            for one in split_list(declared):
                name, equals, value = one.partition("=")
                if equals:
                    self.scalars.setdefault(name.strip(), value.strip())
        for declared in self._nearest(_DIM3):
            for one in split_list(declared):
                if value_of := _DIM3_VALUE.match(one):
                    self.dim3s.setdefault(value_of["name"], split_list(value_of["items"]))

    def _nearest(self, pattern: re.Pattern[str]) -> list[str]:
        found = list(pattern.finditer(self.code))
        before = sum(match.start() < self.position for match in found)
        return [match[1] for match in [*reversed(found[:before]), *found[before:]]]

    def allocated(self) -> Iterator[tuple[str, str]]:
        """Yield (name, formula of its elements) of each buffer whose size is known."""
        for match in _MALLOC.finditer(self.code):
            address, *size = _arguments(self.code, match.end()) or [""]
            named = _ADDRESS.match(address)
            if named is None or len(size) != 1:
                continue
            sized = _SIZEOF.search(size[0])
            elements = _SIZEOF.sub("1", size[0])
            formula = self.formula(re.sub(r"\*\s*1\b|\b1\s*\*", "", elements).strip())
            if not sized:  # a variable with the number of bytes, usually of floats
                formula = f"({formula}) // 4" if formula else ""
            if formula:
                yield named["name"], formula
        for match in _TENSOR.finditer(self.code):
            sizes = [self.formula(size) for size in split_list(match["sizes"])]
            if sizes and all(sizes):
                yield match["name"], " * ".join(s if s.isidentifier() else f"({s})" for s in sizes)

    def stride(self, text: str) -> tuple[str, int] | None:
        """Return tensor and axis of a stride; None for other text."""
        match = _STRIDE.fullmatch(_CAST.sub("", self.scalars.get(text, text)).strip())
        return (match["name"], int(match["axis"])) if match else None

    def dimensions(self, text: str) -> tuple[str, ...]:
        """Return the three formulas of a `dim3` or a number; empty if one of them is unknown."""
        written = re.match(r"dim3\s*[({](.*)[)}]$", text, re.DOTALL)
        items = split_list(written[1]) if written else self.dim3s.get(text, [text])
        formulas = tuple(map(self.formula, items))
        return (*formulas, *["1"] * (3 - len(formulas))) if all(formulas) else ()

    def formula(self, text: str, depth: int = 0) -> str:
        """Return the text as a formula; empty if a part is unknown."""
        if depth > _MAX_DEPTH:
            return ""
        if text in self.scalars:  # the whole text, so no parentheses are needed
            value = self.formula(self.scalars[text], depth + 1)
            # If the name means a size, a number is only the value in the file's own test.
            return self.size_of(text) or value if value.isdigit() or not value else value
        text = _CEIL.sub(r"ceil_div(\g<a>, \g<b>)", text)
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
            if value.isdigit() and self.size_of(last):
                return self.size_of(last)
            if value:
                return value if re.fullmatch(r"\w+(?:\([^()]*\))?", value) else f"({value})"
        return self.size_of(last) or self.usual(last)


def _bytes_of(kind: str) -> str:
    if kind in _BYTES:
        return _BYTES[kind]
    return "element_bytes" if kind.rpartition("::")[2].lower() in _ELEMENTS else "?"


def _spaced(parts: list[str]) -> str:
    text = "".join(f" {p} " if p in ("+", "-", "*", "//") else p for p in parts)
    return text.replace(",", ", ")
