"""The table: every form of a PTX instruction that the CPU backend executes."""

from __future__ import annotations

from engine.backends.cpu.ptx.forms import Form
from engine.backends.cpu.ptx.instructions import (
    arithmetic,
    conversion,
    copies,
    matrices,
    memory,
    threads,
)


def _by_opcode() -> dict[str, list[Form]]:
    table: dict[str, list[Form]] = {}
    for module in (arithmetic, conversion, memory, copies, matrices, threads):
        for form in module.FORMS:
            for opcode in form.opcodes:
                table.setdefault(opcode, []).append(form)
    return table


FORMS = _by_opcode()
