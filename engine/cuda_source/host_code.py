"""Leave out host code of a `.cu` file or header, so that the rest compiles for a GPU.

Public kernels are in one file with host code: launches `kernel<<<grid, block>>>(…)`, checks of
`cudaError_t`, `main`, bindings for PyTorch. NVRTC rejects host functions, and the CPU backend
launches kernels itself. As for nvcc, a function without `__device__` or `__global__` is a host
function, which device code cannot call. Outside classes and functions, these are left out:

- definitions and declarations of functions without an execution space, `constexpr` ones excepted;
- declarations that use host libraries (`std::vector`, `torch::`, `cudaStream_t`);
- classes that use those, have no device code, and are not named by the remaining code.

A macro may contain the execution space (`CUTE_DEVICE`), so a function whose head has a name in
capitals is a host function only if its text shows it: `<<<`, calls of CUDA's API, host libraries.
Line numbers and preprocessor lines are kept. A text with unbalanced brackets is not changed, so
that the compiler reports the error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

# Comments and literals. An unclosed one extends to the end of the text or line, so that the search
# takes linear time.
COMMENT_OR_LITERAL = (
    r"//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)"
    r'|R"(?P<end>[^()\s\\]{0,16})\(.*?(?:\)(?P=end)"|\Z)'
    r'|"(?:\\.|[^"\\\n])*"?|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'?'  # no 1'000
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
NOT_CODE = re.compile(
    COMMENT_OR_LITERAL + r"|^[ \t]*#(?:\\\n|[^\n])*",  # preprocessor lines
    re.DOTALL | re.MULTILINE,
)
_ON_DEVICE = re.compile(r"\b(?:__device__|__global__|__constant__|__shared__|__managed__)\b")
_NEVER_HOST = re.compile(
    r"\b(?:constexpr|consteval|struct|class|union|enum|using|typedef|namespace|concept"
    r"|static_assert|asm|friend)\b"
)
# PyTorch names that device code uses.
_FOR_DEVICE = r"(?!\s*(?:Half|BFloat16|acc_type|opmath_type)\b)"
_HOST_LIBRARY = re.compile(
    r"<<<|\b(?:PYBIND11_MODULE|TORCH_\w+|TEST(?:_\w+)?|BENCHMARK\w*)\s*\("
    r"|\bcu(?:da|blas|dnn|rand)[A-Z]\w*\b(?!\s*::)|\bCU(?:result|stream|function|module)\b"
    rf"|\b(?:torch|at|c10|py|pybind11|thrust)\s*::{_FOR_DEVICE}"
    r"|\bstd\s*::\s*(?:vector|string|map|unordered_map|set|function|unique_ptr|shared_ptr|cout|cerr"
    r"|mt19937|chrono|ofstream|ifstream|runtime_error|thread|mutex|random_device)\b"
)
# Never in a class that compiles for a GPU: NVRTC has types such as cudaStream_t, but no functions.
_HOST_USE = re.compile(
    r"\bcuda[A-Z]\w*\s*\(|\bcu(?:blas|dnn|rand)[A-Z]\w*\b(?!\s*::)"
    rf"|\b(?:torch|at|c10|py|pybind11)\s*::{_FOR_DEVICE}"
    r"|\bstd\s*::\s*(?:vector|string|map|unordered_map|function"
    r"|unique_ptr|shared_ptr|mt19937|chrono|ofstream|ifstream|thread|mutex)\b"
)
_CLASS = re.compile(
    r"\s*(?:template\s*<[^{}();]*?>\s*)?(?:struct|class)\s+(?P<name>\w+)\s*(?:final\s*)?[:{]"
)
_MACRO = re.compile(r"\b[A-Z][A-Z0-9_]+\b")  # a macro that may contain an execution space
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
_MAX_BODIES = 64  # `{…}` of one declaration
_OPENS = re.compile(r"^\s*(?:inline\s+)?(?:namespace\b[^(){};=]*|extern\s*\"\s*\"\s*)$")


@lru_cache(maxsize=64)  # the ladder and its headers are read often
def without_host_code(text: str) -> str:
    """Return the text with host code blanked, with the same lines."""
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


def without_comments(text: str) -> str:
    """Return the text with its comments replaced by blanks, so that positions stay the same."""
    return _COMMENT.sub(_blank, text)


def host_lines(text: str) -> set[int]:
    """Return lines that probably belong to host functions, if brackets are unbalanced.

    Empty if the brackets match, because host code is then removed.
    """
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
            is_function = "(" in head and "=" not in head and not _NEVER_HOST.search(head)
            is_host = is_function and not _ON_DEVICE.search(head)
        else:
            first = line
        line += code.count("\n", done, mark.end())
        done = mark.end()
        if is_host:
            found.update(range(first, line + 1))
    return found


class _Unbalanced(Exception):
    """Unbalanced brackets."""


def _blank(match: re.Match[str]) -> str:
    """Return blanks of the same length; the quotes of a literal stay, for `extern "C"`."""
    text = match[0]
    if len(text) > 1 and text[0] == text[-1] == '"':
        return f'"{" " * (len(text) - 2)}"'
    return re.sub(r"[^\n]", " ", text)


def _keep_directives(text: str) -> str:
    """Blank all but line breaks and preprocessor lines, which may begin or end an `#if`."""
    lines = []
    continued = False
    for line in text.split("\n"):
        keep = continued or line.lstrip().startswith("#")
        lines.append(line if keep else "")
        continued = keep and line.endswith("\\")
    return "\n".join(lines)


def _without_used_classes(code: str, parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts without classes that the remaining code names; the compiler reports
    errors."""
    found = list(parts)
    stays, done = [], 0
    for begin, end in found:
        stays.append(code[done:begin])
        done = end
    names = set(re.findall(r"\w+", " ".join([*stays, code[done:]])))
    classes = ((part, _CLASS.match(code, *part)) for part in found)
    return [part for part, named in classes if named is None or named["name"] not in names]


def _host_parts(code: str) -> Iterator[tuple[int, int]]:
    """Return (begin, end) of the host declarations, also in namespaces."""
    closes = _closed_brackets(code)
    inside = [(0, len(code))]  # remaining ranges of the file and its namespaces
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
    """Return the position after each closing bracket, by the position of the opening one."""
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
    """Return the end of the declaration at `begin`, and its outermost `{…}`."""
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
            if len(bodies) > _MAX_BODIES:
                raise _Unbalanced
        position = closed
    return end, bodies


def _ends_with_body(head: str) -> bool:
    """True if a declaration ends with its `}`, as of functions and namespaces."""
    if _OPENS.match(head):
        return True
    plain = re.sub(r"^\s*template\s*<.*?>\s*(?=[\w\[])", "", head, flags=re.DOTALL)
    return "(" in plain and not _STRUCT.match(plain) and not plain.rstrip().endswith("=")


def _without_templates(head: str) -> str:
    """Return a declaration without its `template <…>`."""
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
    if _NEVER_HOST.search(_without_templates(head)):
        # A class may have host functions and still be used by device code.
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


# Lists and brackets, for all that reads C++ text.


def split_commas(text: str) -> list[str]:
    """Return the parts of a text between commas outside brackets; empty for a blank text."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts] if text.strip() else []


def closing(code: str, opening: int) -> int:
    """Return the position after the bracket that closes the one at `opening`, else the text's
    end."""
    bracket, depth = code[opening], 0
    pair = re.compile(f"[{re.escape(bracket + _CLOSED_BY[bracket])}]")
    for match in pair.finditer(code, opening):
        depth += 1 if match[0] == bracket else -1
        if depth == 0:
            return match.end()
    return len(code)
