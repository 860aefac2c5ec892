"""Preprocessed C++ with `asm` statements → C++ that executes them. Every line stays in place."""

from __future__ import annotations

import re
from collections.abc import Collection

from engine.backends.cpu.ptx.call_site import find_call_site
from engine.backends.cpu.ptx.emit import emit_statement
from engine.backends.cpu.ptx.statements import ASM_KEYWORDS, parse_statement, read_tokens
from engine.errors import CompileError

_ASM = re.compile(rf"\b(?:{'|'.join(ASM_KEYWORDS)})\b")


def has_asm(text: str) -> bool:
    """Whether C++ source may hold `asm` statements."""
    return _ASM.search(text) is not None


def translate_asm(text: str, files: Collection[str]) -> str:
    """Replace the `asm` statements of `files` in the output of `-E` with line markers.

    Raises:
        CompileError: `file.cu:line`, the PTX that cannot be executed, and what to do.
    """
    tokens = read_tokens(text, files)
    edits: list[tuple[int, int, str]] = []  # from, to, replacement
    parameters: set[tuple[int, str]] = set()
    open_braces: list[int] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.text == "{":
            open_braces.append(at)
        elif token.text == "}" and open_braces:
            open_braces.pop()
        elif token.kind == "word" and token.text in ASM_KEYWORDS:
            statement, behind = parse_statement(tokens, at)
            if not open_braces:
                raise CompileError(
                    f"{statement.where}: the CPU backend executes asm statements inside of "
                    "functions alone: move this one into a __device__ function."
                )
            site = find_call_site(tokens, open_braces)
            if site.parameter is not None:
                parameters.add(site.parameter)
            code = emit_statement(statement, site.expression)
            # Markers on both sides, because a statement of several lines becomes one.
            before = f'\n# {statement.line} "{statement.file}"\n'
            after = f'\n# {statement.last_line} "{statement.file}"\n'
            edits.append((statement.start, statement.end, f"{before}{code}{after}"))
            at = behind
            continue
        at += 1
    edits += [(position, position, parameter) for position, parameter in parameters]
    pieces = []
    done = 0
    for begin, end, replacement in sorted(edits):
        pieces += [text[done:begin], replacement]
        done = end
    return "".join([*pieces, text[done:]])
