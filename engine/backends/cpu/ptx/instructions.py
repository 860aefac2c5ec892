"""The table: every form of a PTX instruction that the CPU backend executes, read from `table/`.

A form is its syntax and, indented below it, its operands and the C++ behind `->`; a deeper indent
goes on with the line before. Several syntaxes may stand above one C++. `NAME = text` is what stands
for {NAME} in the rest of the file, and `#` begins a remark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from engine.backends.cpu.ptx.forms import Form

TABLE = Path(__file__).with_name("table")


def _read(text: str) -> Iterator[Form]:
    names: dict[str, str] = {}
    syntaxes: list[str] = []
    for line in re.sub(r"\n {8,}", " ", text).splitlines():
        filled = re.sub(r"\{([A-Z_]+)\}", lambda match: names[match[1]], line)
        if named := re.fullmatch(r"([A-Z_]+) = (.*)", filled):
            names[named[1]] = named[2]
        elif filled.startswith(" "):
            operands, _, code = filled.strip().partition("-> ")
            yield from (Form(syntax, operands.strip(), code) for syntax in syntaxes)
            syntaxes = []
        elif filled and not filled.startswith("#"):
            syntaxes.append(filled)


def _by_opcode() -> dict[str, list[Form]]:
    table: dict[str, list[Form]] = {}
    for file in sorted(TABLE.glob("*.forms")):
        for form in _read(file.read_text(encoding="utf-8")):
            for opcode in form.opcodes:
                table.setdefault(opcode, []).append(form)
    return table


FORMS = _by_opcode()
