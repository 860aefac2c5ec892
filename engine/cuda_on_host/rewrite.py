"""Translate `.cu` source to C++ for the host compiler, keeping line numbers.

- `__shared__` declarations become macros of `native/host_keywords.h`, because C++ has no equivalent
  of a CTA's static array. A declaration that is not understood is an error.
- `#include` of a project header names its translated copy, and includes of host libraries are
  removed: the parts of them that device code needs come before the source.

Inline PTX is executed (`engine.cuda_on_host.ptx`, after the preprocessor), so that the executed
code is the shipped code. For PTX that the CPU backend does not execute, a kernel may have a version
for the CPU under `#if defined(__CUDA_ON_HOST__)` (see `native/cuda_on_host.h`). Its #else is then
not checked, so the ladder's kernels do not use it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from engine.base.errors import CompileError
from engine.cuda_source.host_code import NOT_CODE, closing, split_commas
from engine.cuda_source.sources import Sources, is_left_out


@dataclass(frozen=True, slots=True)
class TranslatedFile:
    """One file of a build; `text` starts with a `#line` that names the original."""

    name: str
    text: str


def translate(sources: Sources) -> tuple[TranslatedFile, ...]:
    """Return the translated kernel and headers of its project, the kernel first, for one folder.

    Raises:
        CompileError: a `__shared__` declaration is not understood.
    """
    names: dict[str, str] = {}
    for file in sources.files:
        name = PurePosixPath(file.name).name
        names[file.name] = name if name not in names.values() else f"{len(names)}_{name}"

    def include(match: re.Match[str]) -> str:
        if match["path"] in names:
            return f'{match["before"]}"{names[match["path"]]}"'
        return "" if is_left_out(match["path"], sources) else match[0]  # others: the compiler

    return tuple(
        TranslatedFile(
            names[file.name],
            f'#line 1 "{names[file.name]}"\n'
            + _INCLUDE.sub(include, rewrite_shared(file.code, names[file.name])),
        )
        for file in sources.files
    )


def rewrite_shared(text: str, name: str) -> str:
    """Replace the `__shared__` declarations of one file.

    Raises:
        CompileError: names the line of a declaration that is not understood.
    """
    code = _blank_out(text)
    in_function = _function_bodies(code)
    pieces: list[str] = []
    done = 0
    for keyword in re.finditer(r"\b__shared__\b", code):
        begin = max(code.rfind(c, done, keyword.start()) for c in ";{}") + 1
        end = _end_of_statement(code, keyword.end())
        body = _Body.find(code, text, keyword.end(), end)
        head = body.without(code, begin, end) if body else code[begin:end]
        declaration = _DECLARATION.fullmatch(head)
        at_file_scope = not any(first < keyword.start() < last for first, last in in_function)
        calls = _macros(declaration) if declaration is not None else None
        if calls is None or declaration is None:
            line = text.count("\n", 0, keyword.start()) + 1
            raise CompileError(
                f"{name}:{line}: this __shared__ declaration is not understood on the CPU: write "
                f"`[extern] __shared__ [__align__(n)] type name[size];`.",
                log=text.splitlines()[line - 1],
                code="shared_declaration",
            )
        begin += len(declaration["space"])
        before = f"{body.definition()} " if body else ""
        replacement = before + "; ".join(str(call) for call in calls)
        replacement += "\n" * (text.count("\n", begin, end) - replacement.count("\n"))
        if at_file_scope:
            replacement = before + _for_file_scope(calls, code, text.count("\n", 0, end) + 1, name)
        pieces += [text[done:begin], replacement]
        done = end
    return "".join([*pieces, text[done:]])


def _function_bodies(code: str) -> list[tuple[int, int]]:
    """Return where braces open and close, except those of namespaces."""
    bodies: list[tuple[int, int]] = []
    is_scope: list[bool] = []
    for brace in re.compile(r"[{}]").finditer(code):
        at = brace.start()
        if brace[0] == "{":
            begin = max(code.rfind(c, 0, at) for c in ";{}") + 1
            is_scope.append(_SCOPE.match(code, begin, at) is not None)
            if all(is_scope[:-1]) and not is_scope[-1]:
                bodies.append((at, len(code)))
        elif is_scope and not is_scope.pop() and all(is_scope):
            bodies[-1] = (bodies[-1][0], at)
    return bodies


def _end_of_statement(code: str, at: int) -> int:
    """Return the next `;` outside braces from `at` on; the end of the text without one."""
    depth = 0
    for match in re.compile(r"[;{}]").finditer(code, at):
        depth += (match[0] == "{") - (match[0] == "}")
        if match[0] == ";" and depth == 0:
            return match.start()
    return len(code)


@dataclass(frozen=True, slots=True)
class _Body:
    """The members of a struct or union that a `__shared__` declaration defines."""

    keyword: str  # "struct", with its attributes
    begin: int  # of the keyword
    end: int  # after the closing brace
    members: str  # with braces
    name: str

    @classmethod
    def find(cls, code: str, text: str, begin: int, end: int) -> _Body | None:
        match = _STRUCT.search(code, begin, end)
        if match is None:
            return None
        close = code.rindex("}", match.end(), end) + 1
        members = text[match.end() - 1 : close]
        return cls(
            match["keyword"], match.start(), close, members, match["name"] or f"coh_type_{close}"
        )

    def without(self, code: str, begin: int, end: int) -> str:
        """Return the declaration with the type's name instead of its definition."""
        return f"{code[begin : self.begin]}{self.name}{code[self.end : end]}"

    def definition(self) -> str:
        return f"{self.keyword} {self.name} {self.members};"


@dataclass(frozen=True, slots=True)
class _Call:
    """A macro of `native/host_keywords.h` with its arguments."""

    macro: str
    name: str
    arguments: str

    def __str__(self) -> str:
        return f"{self.macro}({self.arguments})"


def _for_file_scope(calls: list[_Call], code: str, line: int, file: str) -> str:
    """Outside functions there is no CTA yet, so the name becomes a macro that finds the
    variable."""
    lines = []
    for call in calls:
        if re.search(_DECLARED_AGAIN.format(call.name), code):
            raise CompileError(
                f"{file}:{line}: on the CPU a __shared__ variable outside of functions needs a "
                f"name of its own, and {call.name} is declared again: move it into the kernel.",
                code="shared_declared_twice",
            )
        lines += [f"{call.macro}_AT_FILE_SCOPE({call.arguments})"]
        lines += [f"#define {call.name} (coh_shared_{call.name}())"]
    return "\n".join(["", *lines, f'#line {line} "{file}"', ""])


_SCOPE = re.compile(r"\s*(?:(?:inline\s+)?namespace\b|extern\s*$)")
_STRUCT = re.compile(
    r"\b(?P<keyword>(?:struct|union|class)(?:\s+(?:__align__|alignas)\s*\([^()]*\))?)"
    r"\s*(?P<name>[A-Za-z_]\w*)?\s*\{"
)
# A parameter or another variable with the same name.
_DECLARED_AGAIN = (
    r"\b(?:(?:float|int|char|uint|half|bfloat16|double|void|unsigned|auto|element|T|short)"
    r"\w*\s*[*&]|\*\s*__restrict__)\s*{}\b"
)
_ALIGN = r"(?:__align__|alignas)\s*\((?P<{}>[^()]*(?:\([^()]*\))?[^()]*)\)"
_INCLUDE = re.compile(
    r'^(?P<before>[ \t]*#[ \t]*include[ \t]*)[<"](?P<path>[^">\n]+)[">]', re.MULTILINE
)
_DECLARATION = re.compile(
    r"(?P<space>\s*)"
    r"(?P<extern>extern\s+)?(?:static\s+)?(?:" + _ALIGN.format("align_before") + r"\s*)?"
    r"__shared__\s+(?P<extern_after>extern\s+)?"
    r"(?:" + _ALIGN.format("align_after") + r"\s*)?"
    r"(?P<type>decltype\s*\([^()]*\)|(?:(?:const|volatile|unsigned|signed|typename)\s+)*[A-Za-z_][\w:]*"
    r"(?:\s*<.*?>(?:::\w+)?)?(?:\s+(?:char|short|int|long))*)"
    r"(?P<declarators>[\s*].*)",
    re.DOTALL,
)
_DECLARATOR = re.compile(
    r"\s*(?P<pointer>\**)\s*(?:" + _ALIGN.format("align") + r"\s*)?"
    r"(?P<name>[A-Za-z_]\w*)\s*(?P<dimensions>(?:\[[^\[\]]*\]\s*)*)",
    re.DOTALL,
)


def _macros(declaration: re.Match[str]) -> list[_Call] | None:
    """Return the macro calls for one declaration; None if a declarator is not plain."""
    dynamic = declaration["extern"] or declaration["extern_after"]
    alignment = declaration["align_before"] or declaration["align_after"] or "1"
    calls = []
    for declarator in split_commas(declaration["declarators"]):
        match = _DECLARATOR.fullmatch(declarator)
        if match is None:
            return None
        element = f"{declaration['type']} {match['pointer']}".strip()
        if dynamic:
            arguments = f"{match['name']}, {element}"
            calls.append(_Call("COH_DYNAMIC_SHARED", match["name"], _on_one_line(arguments)))
            continue
        # Parentheses, because a comma in a dimension would split the macro's arguments.
        dimensions = re.sub(r"\[(.*?)\]", r"[(\1)]", match["dimensions"], flags=re.DOTALL)
        own_alignment = match["align"] or alignment
        arguments = f"{own_alignment}, {match['name']}, {dimensions}, {element}"
        calls.append(_Call("COH_SHARED", match["name"], _on_one_line(arguments)))
    return calls


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _blank_out(text: str) -> str:
    """Return the text with everything but code blanked, at the same positions."""

    def blank(match: re.Match[str]) -> str:
        blanked = re.sub(r"[^\n]", " ", match[0])
        return blanked[:-1] + ";" if match[0].lstrip().startswith("#") else blanked

    return NOT_CODE.sub(blank, text)


# `__cluster_dims__(x, y, z)` of a preprocessed kernel, which sets a launch's cluster size.
#
# The dimensions may be any constant expression, also of template parameters. They become the
# kernel's first statement, which writes them and returns if a launch asks for them
# (`asked_for_cluster` of `native/host_keywords.h`); each such kernel gets a function that asks.

ATTRIBUTE = "__cluster_dims__"
_KEPT = re.compile(r"\bCOH_CLUSTER_DIMS\s*\(")  # the expanded macro
_KERNEL_NAME = re.compile(r"(\w+)\s*$")


@dataclass(frozen=True, slots=True)
class ClusterKernels:
    """The kernels of a source with `__cluster_dims__`, and functions that return these
    dimensions."""

    text: str
    kernels: frozenset[str]  # their names

    def of(self, entry: str) -> bool:
        """True if an entry (`fwd<64, true>`) is one of them."""
        return entry.partition("<")[0].rpartition("::")[2].strip() in self.kernels

    def exports(self, entries: Sequence[str]) -> str:
        """Return C++ to append to the source: a function `coh_cluster_N` for each entry with
        clusters."""
        return "".join(
            f'\nextern "C" __attribute__((visibility("default"))) void coh_cluster_{number}'
            "(uint32_t *dims, void **values) { coh_module.asks_for_cluster = dims; "
            f"coh_call_{number}(values); coh_module.asks_for_cluster = nullptr; }}\n"
            for number, entry in enumerate(entries)
            if self.of(entry)
        )


def place_cluster_dims(text: str) -> ClusterKernels:
    """Move the dimensions into the kernels' bodies; line numbers are kept.

    Args:
        text: the output of `-E`.
    """
    kernels = set()
    edits: list[tuple[int, int, str]] = []  # from, to, replacement
    for attribute in _KEPT.finditer(text):
        end = closing(text, attribute.end() - 1)
        body, parameters = _body(text, end)
        edits.append((attribute.start(), end, "\n" * text.count("\n", attribute.start(), end)))
        name = _KERNEL_NAME.search(text, end, parameters)
        if body is None or name is None:
            continue  # a declaration: the definition repeats it
        kernels.add(name[1])
        dims = " ".join(text[attribute.end() : end - 1].split())
        edits.append((body + 1, body + 1, f" if (coh::asked_for_cluster({dims})) return;"))
    for begin, end, replacement in sorted(edits, reverse=True):
        text = text[:begin] + replacement + text[end:]
    return ClusterKernels(text, frozenset(kernels))


def _body(text: str, at: int) -> tuple[int | None, int]:
    """Return (opening brace, opening parenthesis) of the function declared at `at`."""
    parameters = at
    while match := re.compile(r"[(;{]").search(text, at):
        if match[0] != "(":
            return (match.start() if match[0] == "{" else None), parameters
        parameters = match.start()
        at = closing(text, match.start())
    return None, parameters
