"""`.cu` source → C++ a host compiler takes. Only these change, and every line stays in place.

- `__shared__` declarations become the macros of `native/host_keywords.h`, because a static array of
  a CTA has no counterpart in C++. A declaration that is not understood is an error, never a guess.
- `#include` of a header of the project names its translated copy, and one of the host's libraries
  is left out: what device code needs of them stands before the source.

Inline PTX is no matter of this module: it is executed (`engine.backends.cpu.ptx`, after the
preprocessor), so that what runs here is what ships. `__CUDA_ON_HOST__` is defined in the CPU build
all the same. It is a way out for PTX that the CPU backend does not execute: a version for the CPU
under `#if defined(__CUDA_ON_HOST__)` (`native/cuda_on_host.h` shows one). What stands in its #else
is then checked by nobody, so the kernels of the ladder do without.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from engine.compile.sources import Sources
from engine.compile.standard_headers import is_known
from engine.errors import CompileError


@dataclass(frozen=True, slots=True)
class TranslatedFile:
    """One file of a build; `text` starts with a `#line` that names the original."""

    name: str
    text: str


def translate(sources: Sources) -> tuple[TranslatedFile, ...]:
    """The kernel and the headers of its project, the kernel first, for one folder.

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
        return "" if is_known(match["path"]) else match[0]  # what is missing, the compiler says

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
    pieces: list[str] = []
    done = 0
    for keyword in re.finditer(r"\b__shared__\b", code):
        begin = max(code.rfind(c, 0, keyword.start()) for c in ";{}") + 1
        end = code.find(";", keyword.end())
        declaration = _DECLARATION.fullmatch(code[begin:end]) if end >= 0 else None
        replacement = _macros(declaration) if declaration is not None else None
        if replacement is None or declaration is None:
            line = text.count("\n", 0, keyword.start()) + 1
            raise CompileError(
                f"{name}:{line}: this __shared__ declaration is not understood on the CPU: write "
                f"`[extern] __shared__ [__align__(n)] type name[size];`.",
                log=text.splitlines()[line - 1],
            )
        begin += len(declaration["space"])
        pieces += [text[done:begin], replacement, "\n" * text.count("\n", begin, end)]
        done = end
    return "".join([*pieces, text[done:]])


_ALIGN = r"(?:__align__|alignas)\s*\((?P<{}>[^()]*(?:\([^()]*\))?[^()]*)\)"
_INCLUDE = re.compile(
    r'^(?P<before>[ \t]*#[ \t]*include[ \t]*)[<"](?P<path>[^">\n]+)[">]', re.MULTILINE
)
_DECLARATION = re.compile(
    r"(?P<space>\s*)"
    r"(?P<extern>extern\s+)?(?:static\s+)?(?:" + _ALIGN.format("align_before") + r"\s*)?"
    r"__shared__\s+(?P<extern_after>extern\s+)?"
    r"(?:" + _ALIGN.format("align_after") + r"\s*)?"
    r"(?P<type>(?:(?:const|volatile|unsigned|signed|typename)\s+)*[A-Za-z_][\w:]*"
    r"(?:\s*<.*?>(?:::\w+)?)?(?:\s+(?:char|short|int|long))*)"
    r"(?P<declarators>[\s*].*)",
    re.DOTALL,
)
_DECLARATOR = re.compile(
    r"\s*(?P<pointer>\**)\s*(?:" + _ALIGN.format("align") + r"\s*)?"
    r"(?P<name>[A-Za-z_]\w*)\s*(?P<dimensions>(?:\[[^\[\]]*\]\s*)*)",
    re.DOTALL,
)


def _macros(declaration: re.Match[str]) -> str | None:
    """The macro calls for one declaration, on one line; None when a declarator is not plain."""
    dynamic = declaration["extern"] or declaration["extern_after"]
    alignment = declaration["align_before"] or declaration["align_after"] or "1"
    calls = []
    for declarator in _split_commas(declaration["declarators"]):
        match = _DECLARATOR.fullmatch(declarator)
        if match is None:
            return None
        element = f"{declaration['type']} {match['pointer']}".strip()
        if dynamic:
            calls.append(f"COH_DYNAMIC_SHARED({match['name']}, {element})")
            continue
        # Parentheses keep a comma inside a dimension from splitting the macro's arguments.
        dimensions = re.sub(r"\[(.*?)\]", r"[(\1)]", match["dimensions"], flags=re.DOTALL)
        own_alignment = match["align"] or alignment
        calls.append(f"COH_SHARED({own_alignment}, {match['name']}, {dimensions}, {element})")
    return " ".join("; ".join(calls).split())


def _split_commas(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts = [""]
    depth = 0
    for character in text:
        depth += (character in "[(<{") - (character in "])>}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


_NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/"  # comments
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''  # literals
    r"|^[ \t]*#(?:\\\n|[^\n])*",  # preprocessor lines, which end a statement
    re.DOTALL | re.MULTILINE,
)


def _blank_out(text: str) -> str:
    """The same text with everything that is not code blank, position by position."""

    def blank(match: re.Match[str]) -> str:
        blanked = re.sub(r"[^\n]", " ", match[0])
        return blanked[:-1] + ";" if match[0].lstrip().startswith("#") else blanked

    return _NOT_CODE.sub(blank, text)
