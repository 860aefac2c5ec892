"""Register budgets of `setmaxnreg`: whether the machine code keeps to them.

ptxas spills to keep the code behind a `setmaxnreg` within its budget. Where it cannot, or does not
know how many registers threads begin with, it leaves every one of them out and says so in its log
alone: the kernel then runs with registers that nobody planned.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from engine.base.launch import WARPGROUP, PassLaunch
from engine.cuda_source.ptxas import left_out_setmaxnreg
from engine.machine_code.instruction import Instruction, Program, SourceLine
from engine.machine_code.summary import outer_line

_REGISTER = re.compile(r"\bR(\d+)(\.64)?\b")
_SHAPE = re.compile(r"\d+x(\d+)x\d+")
_BYTES_OF = {"64": 2, "128": 4}  # registers that a load or a store of so many bits moves
_ENDS = ("EXIT", "RET", "BPT")
_JUMPS = ("BRA", "JMP")


@dataclass(frozen=True, slots=True)
class RegisterBudget:
    """One `setmaxnreg` of an entry."""

    registers: int  # that a thread holds behind it
    source: SourceLine | None
    used: int  # of the code up to the next one: its highest register, and one


def register_budgets(program: Program) -> tuple[RegisterBudget, ...]:
    """Every `setmaxnreg` of a program in order of addresses, with what the code behind it uses."""
    number_of = {i.address: n for n, i in enumerate(program.instructions)}
    next_of = _successors(program, number_of)
    budgets = []
    for start, instruction in enumerate(program.instructions):
        if instruction.opcode != "USETMAXREG":
            continue
        seen, waiting, used = {start}, list(next_of[start]), 0
        while waiting:
            at = waiting.pop()
            if at in seen or program.instructions[at].opcode == "USETMAXREG":
                continue
            seen.add(at)
            used = max(used, _registers_of(program.instructions[at]))
            waiting += next_of[at]
        registers = int(instruction.operands[-1], 0)
        budgets.append(RegisterBudget(registers, outer_line(instruction), used))
    return tuple(budgets)


def _successors(program: Program, number_of: dict[int, int]) -> list[list[int]]:
    """Of each instruction, those that may run next."""
    joins = defaultdict(list)  # where the threads that wait in a convergence barrier meet
    for i in program.instructions:
        if i.opcode == "BSSY" and i.target is not None:
            joins[i.operands[0]].append(number_of[i.target])
    following: list[list[int]] = []
    for n, i in enumerate(program.instructions):
        found = []
        always = i.predicate in ("", "PT", "UPT")
        if not (i.opcode in (*_ENDS, *_JUMPS) and always) and n + 1 < len(program.instructions):
            found.append(n + 1)
        if i.target in number_of and i.opcode != "BSSY":
            found.append(number_of[i.target])
        if i.opcode == "BSYNC":
            found += joins[i.operands[0]]
        following.append(found)
    return following


def _registers_of(i: Instruction) -> int:
    """The highest register that an instruction names or that belongs to one it names, and one."""
    highest = 0
    for position, operand in enumerate(i.operands):
        for match in _REGISTER.finditer(operand):
            # An address may be a pair; what is moved, multiplied or summed up may be wider.
            wide = 1 if operand.startswith(("[", "desc")) else _width(i, position)
            highest = max(highest, int(match[1]) + max(wide, 2 if match[2] else 1))
    return highest


def _width(i: Instruction, position: int) -> int:
    """Registers of an operand of which the listing names the first."""
    if i.opcode == "HGMMA":
        shape = next((m for name in i.modifiers if (m := _SHAPE.fullmatch(name))), None)
        return 4 if position else int(shape[1]) // 2 if shape else 1
    if i.opcode == "HMMA":
        return 2 if position == 2 else 4
    if i.opcode == "LDSM":
        return int(i.modifiers[-1]) if i.modifiers[-1].isdigit() else 1
    if "WIDE" in i.modifiers:
        return 2 if position in (0, len(i.operands) - 1) else 1
    return max((_BYTES_OF.get(name, 1) for name in i.modifiers), default=1)


def budget_mistake(
    launch: PassLaunch, program: Program | None, registers: int, log: str, source: str
) -> str | None:
    """Why the code of a pass does not keep to its register budgets; None where it does.

    Args:
        program: the machine code of its entry; None where it cannot be read.
        registers: per thread, that a CTA begins with.
        log: the compiler's.
        source: the kernel's file.
    """
    if (left_out := left_out_setmaxnreg(log)) is not None:
        where, why = left_out
        return (
            f"{where or source}: ptxas left setmaxnreg out, so every thread of {launch.entry} "
            f"keeps {registers} registers: {why}."
        )
    if program is None:
        return None
    planned, budgets = launch.warpgroup_registers, register_budgets(program)
    if (moved := {b.registers for b in budgets}) != set(planned):
        return (
            f"{source}: warpgroup_registers are {_listed(planned)} a thread, and setmaxnreg asks "
            f"for {_listed(sorted(moved)) or 'none'}: make the two agree."
        )
    if (asked := WARPGROUP * sum(planned)) > registers * launch.threads:
        return (
            f"{source}: the warpgroups ask for {asked:,} registers, and a CTA begins with "
            f"{registers * launch.threads:,} ({registers} a thread), so that one waits for ever: "
            "raise these by __launch_bounds__, or lower warpgroup_registers."
        )
    for budget in budgets:
        if budget.used > budget.registers:
            where = f"{budget.source.file}:{budget.source.line}" if budget.source else source
            return (
                f"{where}: the code behind setmaxnreg {budget.registers} uses {budget.used} "
                "registers a thread: raise that budget, or let it hold fewer values."
            )
    return None


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
