"""Host code in a `.cu` file or a header: left out, so that the rest compiles for a GPU alone.

Public kernels stand beside the code that launches them: `kernel<<<grid, block>>>(…)`, checks of
`cudaError_t`, `main`, bindings for PyTorch. NVRTC refuses host functions, and the CPU backend
launches kernels itself. As for nvcc, a function without `__device__` or `__global__` is the
host's, and device code cannot call it. Left out are, outside of classes and functions:

- definitions and declarations of functions without an execution space, `constexpr` ones excepted;
- declarations that speak of the host's libraries (`std::vector`, `torch::`, `cudaStream_t`);
- classes that use those and have nothing for the device, where nothing that stays names them.

A macro may hold the execution space (`CUTE_DEVICE`), so that a function whose head has a name in
capitals is the host's only where its text shows it: `<<<`, calls of CUDA's API, those libraries.
Lines keep their numbers and preprocessor lines stay. A text whose brackets do not match is left
as it is: the compiler says what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

# Comments and literals. One that is not closed takes the rest of the text, or of its line: else
# each of many would be read to the end.
COMMENT_OR_LITERAL = (
    r"//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)"
    r'|R"(?P<end>[^()\s\\]{0,16})\(.*?(?:\)(?P=end)"|\Z)'
    r'|"(?:\\.|[^"\\\n])*"?|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'?'  # no 1'000
)
NOT_CODE = re.compile(
    COMMENT_OR_LITERAL + r"|^[ \t]*#(?:\\\n|[^\n])*",  # preprocessor lines
    re.DOTALL | re.MULTILINE,
)
_ON_DEVICE = re.compile(r"\b(?:__device__|__global__|__constant__|__shared__|__managed__)\b")
_STAYS = re.compile(
    r"\b(?:constexpr|consteval|struct|class|union|enum|using|typedef|namespace|concept"
    r"|static_assert|asm|friend)\b"
)
# Names of PyTorch that device code uses.
_FOR_DEVICE = r"(?!\s*(?:Half|BFloat16|acc_type|opmath_type)\b)"
_HOST_LIBRARY = re.compile(
    r"<<<|\b(?:PYBIND11_MODULE|TORCH_\w+|TEST(?:_\w+)?|BENCHMARK\w*)\s*\("
    r"|\bcu(?:da|blas|dnn|rand)[A-Z]\w*\b(?!\s*::)|\bCU(?:result|stream|function|module)\b"
    rf"|\b(?:torch|at|c10|py|pybind11|thrust)\s*::{_FOR_DEVICE}"
    r"|\bstd\s*::\s*(?:vector|string|map|unordered_map|set|function|unique_ptr|shared_ptr|cout|cerr"
    r"|mt19937|chrono|ofstream|ifstream|runtime_error|thread|mutex|random_device)\b"
)
# What no class that compiles for a GPU holds: NVRTC has types such as cudaStream_t, but no calls.
_HOST_USE = re.compile(
    r"\bcuda[A-Z]\w*\s*\(|\bcu(?:blas|dnn|rand)[A-Z]\w*\b(?!\s*::)"
    rf"|\b(?:torch|at|c10|py|pybind11)\s*::{_FOR_DEVICE}"
    r"|\bstd\s*::\s*(?:vector|string|map|unordered_map|function"
    r"|unique_ptr|shared_ptr|mt19937|chrono|ofstream|ifstream|thread|mutex)\b"
)
_CLASS = re.compile(
    r"\s*(?:template\s*<[^{}();]*?>\s*)?(?:struct|class)\s+(?P<name>\w+)\s*(?:final\s*)?[:{]"
)
_MACRO = re.compile(r"\b[A-Z][A-Z0-9_]+\b")  # that may hold an execution space
_FUNCTION_NAME = re.compile(r"(?<![\w:~])[\d:]*(?P<name>[A-Za-z_~][\w:~]*|operator\s*\S{1,3})\s*\(")
_TEMPLATE = re.compile(r"template\s*<")
_TEMPLATE_END = re.compile(r">\s*(?=[\w\[])|[{}();]")
_STRUCT = re.compile(
    r"\s*(?:typedef\s+)?(?:struct|class|union|enum)\b(?![^{]*\)\s*+(?:const|noexcept)?\s*+$)"
)
_ENDS = re.compile(r"\s*;")
_NOT_BLANK = re.compile(r"\S")
_BRACKETS = re.compile(r"[()\[\]{}]")
_MARKS = re.compile(r"[()\[\]{};]")
_LINE_START = re.compile(r"^[A-Za-z_]", re.MULTILINE)
_BODY_OR_END = re.compile(r"[;{}]")
_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
_MOST_BODIES = 64  # `{…}` of one declaration
_OPENS = re.compile(r"^\s*(?:inline\s+)?(?:namespace\b[^(){};=]*|extern\s*\"\s*\"\s*)$")


@lru_cache(maxsize=64)  # the ladder and its headers are read again and again
def without_host_code(text: str) -> str:
    """The text with its host code blank, line by line."""
    code = NOT_CODE.sub(_blank, text)
    pieces: list[str] = []
    done = 0
    try:
        for begin, end in _without_used_classes(code, _host_parts(code)):
            pieces += [text[done:begin], _keep_directives(text[begin:end])]
            done = end
    except _Unbalanced:
        return text
    return "".join([*pieces, text[done:]])


def host_lines(text: str) -> set[int]:
    """The lines that seem to be host functions of a text whose brackets do not match, by how
    functions begin at a line's start; none of a text whose host code can be left out."""
    code = NOT_CODE.sub(_blank, text)
    try:
        _closed_brackets(code)
    except _Unbalanced:
        pass
    else:
        return set()
    found: set[int] = set()
    is_host, line, done = False, 1, 0
    for mark in _BODY_OR_END.finditer(code):
        begin = _next(_LINE_START, code, done, mark.start())
        first = line + code.count("\n", done, begin)
        if mark[0] == "{" and begin < mark.start():
            head = code[begin : mark.start()]
            is_function = "(" in head and "=" not in head and not _STAYS.search(head)
            is_host = is_function and not _ON_DEVICE.search(head)
        else:
            first = line
        line += code.count("\n", done, mark.end())
        done = mark.end()
        if is_host:
            found.update(range(first, line + 1))
    return found


class _Unbalanced(Exception):
    """Brackets that do not match."""


def _blank(match: re.Match[str]) -> str:
    """Blanks of the same length; of a literal the quotes stay, as `extern "C"` has them."""
    text = match[0]
    if len(text) > 1 and text[0] == text[-1] == '"':
        return f'"{" " * (len(text) - 2)}"'
    return re.sub(r"[^\n]", " ", text)


def _keep_directives(text: str) -> str:
    """Blank but for line breaks and preprocessor lines, which may begin or end an `#if`."""
    lines = []
    continued = False
    for line in text.split("\n"):
        keep = continued or line.lstrip().startswith("#")
        lines.append(line if keep else "")
        continued = keep and line.endswith("\\")
    return "\n".join(lines)


def _without_used_classes(code: str, parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts but for classes that what stays names: the compiler says what those lack."""
    found = list(parts)
    stays, done = [], 0
    for begin, end in found:
        stays.append(code[done:begin])
        done = end
    names = set(re.findall(r"\w+", " ".join([*stays, code[done:]])))
    classes = ((part, _CLASS.match(code, *part)) for part in found)
    return [part for part, named in classes if named is None or named["name"] not in names]


def _host_parts(code: str) -> Iterator[tuple[int, int]]:
    """(begin, end) of the declarations that are the host's, those of namespaces too."""
    closes = _closed_brackets(code)
    inside = [(0, len(code))]  # what is left of the file and of the namespaces around
    while inside:
        position, end = inside.pop()
        if position >= end:
            continue
        start = _next(_NOT_BLANK, code, position, end)
        stop, bodies = _declaration(code, start, end, closes)
        inside.append((max(stop, position + 1), end))
        head = code[start : bodies[0][0] if bodies else stop]
        if bodies and _OPENS.match(head):
            inside.append((bodies[0][0] + 1, bodies[0][1] - 1))
        elif _is_host(head, code[start:stop]):
            yield start, stop


def _next(pattern: re.Pattern[str], code: str, begin: int, end: int) -> int:
    match = pattern.search(code, begin, end)
    return match.start() if match else end


def _closed_brackets(code: str) -> dict[int, int]:
    """Behind which place each bracket is closed, by where it opens."""
    closes: dict[int, int] = {}
    opened: list[int] = []
    for bracket in _BRACKETS.finditer(code):
        if bracket[0] in _CLOSED_BY:
            opened.append(bracket.start())
        elif not opened or _CLOSED_BY[code[opened[-1]]] != bracket[0]:
            raise _Unbalanced
        else:
            closes[opened.pop()] = bracket.end()
    if opened:
        raise _Unbalanced
    return closes


def _declaration(
    code: str, begin: int, end: int, closes: Mapping[int, int]
) -> tuple[int, list[tuple[int, int]]]:
    """Where the declaration at `begin` ends, and its `{…}` at the outermost level."""
    bodies: list[tuple[int, int]] = []
    position = begin
    while (position := _next(_MARKS, code, position, end)) < end:
        if code[position] == ";":
            return position + 1, bodies
        closed = closes[position]
        if code[position] == "{":
            bodies.append((position, closed))
            if _ends_with_body(code[begin:position]):
                after = _ENDS.match(code, closed, end)
                return (after.end() if after else closed), bodies
            if len(bodies) > _MOST_BODIES:
                raise _Unbalanced
        position = closed
    return end, bodies


def _ends_with_body(head: str) -> bool:
    """Whether what follows a `}` is another declaration: of functions and namespaces it is."""
    if _OPENS.match(head):
        return True
    plain = re.sub(r"^\s*template\s*<.*?>\s*(?=[\w\[])", "", head, flags=re.DOTALL)
    return "(" in plain and not _STRUCT.match(plain) and not plain.rstrip().endswith("=")


def _without_templates(head: str) -> str:
    """A declaration without `template <…>` before it."""
    pieces, done = [], 0
    mark: re.Match[str] | None = None
    for begin in _TEMPLATE.finditer(head):
        if mark is None or mark.start() < begin.end():
            mark = _TEMPLATE_END.search(head, begin.end())
        if mark is None:
            break
        if mark[0][0] == ">" and begin.start() >= done:
            pieces.append(head[done : begin.start()])
            done = mark.end()
    return "".join([*pieces, head[done:]])


def _is_host(head: str, whole: str) -> bool:
    if _ON_DEVICE.search(head):
        return False
    if _CLASS.match(whole) and not _ON_DEVICE.search(whole) and _HOST_USE.search(whole):
        return True
    if _STAYS.search(_without_templates(head)):
        # A class may hold the host's functions and still be what device code uses.
        return bool(re.match(r"\s*(?:using|typedef)\b", head) and _HOST_LIBRARY.search(whole))
    named = _FUNCTION_NAME.search(head)
    if named is None or "=" in head[: named.start("name")]:
        return bool(_HOST_LIBRARY.search(whole))
    if re.search(r"\b(?:__asm__|asm|template\s+__global__)\b", head):
        return False
    if re.match(r"\s*template\s+(?!<)", head):  # an explicit instantiation, of a kernel too
        return bool(_HOST_LIBRARY.search(whole))
    if _MACRO.search(head[: named.end()]):
        return bool(_HOST_LIBRARY.search(whole))
    return True
