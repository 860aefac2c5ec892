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
from collections.abc import Iterable, Iterator
from functools import lru_cache

_NOT_CODE = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)"  # comments
    r'|R"(?P<end>[^()\s\\]{0,16})\(.*?(?:\)(?P=end)"|\Z)'
    r'|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\''  # literals, no 1'000
    r"|^[ \t]*#(?:\\\n|[^\n])*",  # preprocessor lines
    re.DOTALL | re.MULTILINE,
)
_ON_DEVICE = re.compile(r"\b(?:__device__|__global__|__constant__|__shared__|__managed__)\b")
_STAYS = re.compile(
    r"\b(?:constexpr|consteval|struct|class|union|enum|using|typedef|namespace|concept"
    r"|static_assert|asm|friend)\b"
)
_HOST_LIBRARY = re.compile(
    r"<<<|\b(?:PYBIND11_MODULE|TORCH_\w+|TEST(?:_\w+)?|BENCHMARK\w*)\s*\("
    r"|\bcu(?:da|blas|dnn|rand)[A-Z]\w*\b(?!\s*::)|\bCU(?:result|stream|function|module)\b"
    r"|\b(?:torch|at|c10|py|pybind11|thrust)\s*::"
    r"|\bstd\s*::\s*(?:vector|string|map|unordered_map|set|function|unique_ptr|shared_ptr|cout|cerr"
    r"|mt19937|chrono|ofstream|ifstream|runtime_error|thread|mutex|random_device)\b"
)
# What no class that compiles for a GPU holds: NVRTC has types such as cudaStream_t, but no calls.
_HOST_USE = re.compile(
    r"\bcuda[A-Z]\w*\s*\(|\bcu(?:blas|dnn|rand)[A-Z]\w*\b(?!\s*::)"
    r"|\b(?:torch|at|c10|py|pybind11)\s*::|\bstd\s*::\s*(?:vector|string|map|unordered_map|function"
    r"|unique_ptr|shared_ptr|mt19937|chrono|ofstream|ifstream|thread|mutex)\b"
)
_CLASS = re.compile(
    r"\s*(?:template\s*<[^{}();]*?>\s*)?(?:struct|class)\s+(?P<name>\w+)\s*(?:final\s*)?[:{]"
)
_MACRO = re.compile(r"\b[A-Z][A-Z0-9_]+\b")  # that may hold an execution space
_FUNCTION_NAME = re.compile(r"(?P<name>[A-Za-z_~][\w:~]*|operator\s*\S{1,3})\s*\(")
_OPENS = re.compile(r"^\s*(?:inline\s+)?(?:namespace\b[^(){};=]*|extern\s*\"\s*\"\s*)$")


@lru_cache(maxsize=64)  # the ladder and its headers are read again and again
def without_host_code(text: str) -> str:
    """The text with its host code blank, line by line."""
    code = _NOT_CODE.sub(_blank, text)
    pieces: list[str] = []
    done = 0
    try:
        for begin, end in _without_used_classes(code, _host_parts(code, 0, len(code))):
            pieces += [text[done:begin], _keep_directives(text[begin:end])]
            done = end
    except _Unbalanced:
        return text
    return "".join([*pieces, text[done:]])


class _Unbalanced(Exception):
    """Brackets that do not match."""


def _blank(match: re.Match[str]) -> str:
    """Blanks of the same length; of a literal the quotes stay, as `extern "C"` has them."""
    text = match[0]
    if text[0] == '"':
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


def _host_parts(code: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of the declarations of a namespace that are the host's."""
    position = begin
    while position < end:
        start = position + len(code[position:end]) - len(code[position:end].lstrip())
        stop, bodies = _declaration(code, start, end)
        head = code[start : bodies[0][0] if bodies else stop]
        if bodies and _OPENS.match(head):
            yield from _host_parts(code, bodies[0][0] + 1, bodies[0][1] - 1)
        elif _is_host(head, code[start:stop]):
            yield start, stop
        position = max(stop, position + 1)


def _declaration(code: str, begin: int, end: int) -> tuple[int, list[tuple[int, int]]]:
    """Where the declaration at `begin` ends, and its `{…}` at the outermost level."""
    bodies: list[tuple[int, int]] = []
    position = begin
    while position < end:
        character = code[position]
        if character in "([{":
            closed = _closing(code, position, end)
            if character == "{":
                bodies.append((position, closed))
                if _ends_with_body(code[begin:position]):
                    after = re.compile(r"\s*;").match(code, closed, end)
                    return (after.end() if after else closed), bodies
            position = closed
        elif character in ")]}":
            raise _Unbalanced
        elif character == ";":
            return position + 1, bodies
        else:
            position += 1
    return end, bodies


def _ends_with_body(head: str) -> bool:
    """Whether what follows a `}` is another declaration: of functions and namespaces it is."""
    if _OPENS.match(head):
        return True
    plain = re.sub(r"^\s*template\s*<.*?>\s*(?=[\w\[])", "", head, flags=re.DOTALL)
    return (
        "(" in plain
        and not re.match(
            r"\s*(?:typedef\s+)?(?:struct|class|union|enum)\b(?![^{]*\)\s*(?:const|noexcept)?\s*$)",
            plain,
        )
        and not re.search(r"=\s*$", plain)
    )


def _closing(code: str, position: int, end: int) -> int:
    """Behind the bracket that closes the one at `position`."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    expected: list[str] = []
    for index in range(position, end):
        character = code[index]
        if character in pairs:
            expected.append(pairs[character])
        elif character in ")]}":
            if not expected or expected.pop() != character:
                raise _Unbalanced
            if not expected:
                return index + 1
    raise _Unbalanced


def _is_host(head: str, whole: str) -> bool:
    if _ON_DEVICE.search(head):
        return False
    if _CLASS.match(whole) and not _ON_DEVICE.search(whole) and _HOST_USE.search(whole):
        return True
    if _STAYS.search(re.sub(r"template\s*<[^{}();]*?>\s*(?=[\w\[])", "", head)):
        # A class may hold the host's functions and still be what device code uses.
        return bool(re.match(r"\s*(?:using|typedef)\b", head) and _HOST_LIBRARY.search(whole))
    named = _FUNCTION_NAME.search(head)
    if named is None or "=" in head[: named.start()]:
        return bool(_HOST_LIBRARY.search(whole))
    if re.search(r"\b(?:__asm__|asm|template\s+__global__)\b", head):
        return False
    if re.match(r"\s*template\s+(?!<)", head):  # an explicit instantiation, of a kernel too
        return bool(_HOST_LIBRARY.search(whole))
    if _MACRO.search(head[: named.end()]):
        return bool(_HOST_LIBRARY.search(whole))
    return True
