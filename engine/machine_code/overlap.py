"""What is under way while a loop computes, and register budgets of `setmaxnreg`.

Read from the machine code alone, along every path: work counts as in flight at an instruction only
where it is on each way there. Whose wait the compiler moved up has lost its overlap, whatever the
source says.

Seen are wgmma (its groups close with `gsb0`, and `WARPGROUP.DEPBAR` waits for them) and the groups
of cp.async (`LDGDEPBAR`, `DEPBAR`). What an mbarrier counts, TMA's copies among it, other warps may
issue and wait for: nothing is said of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.base.launch import WARPGROUP, PassLaunch
from engine.cuda_source.ptxas import left_out_setmaxnreg
from engine.machine_code.analysis import outer_line
from engine.machine_code.disassembly import Instruction, Pipe, Program, SourceLine
from engine.schema import Stored

# Register budgets of `setmaxnreg`: whether the machine code keeps to them.
#
# ptxas spills to keep the code behind a `setmaxnreg` within its budget. Where it cannot, or does
# not know how many registers threads begin with, it leaves every one of them out and says so in its
# log alone: the kernel then runs with registers that nobody planned.

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
    if i.opcode.endswith("GMMA"):
        shape = next((m for name in i.modifiers if (m := _SHAPE.fullmatch(name))), None)
        return 4 if position else int(shape[1]) // 2 if shape else 1
    if i.opcode in ("HMMA", "QMMA"):
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


PRODUCTS_BESIDE_EXP2 = "products in flight while exp2 runs"
COPIES_BESIDE_PRODUCTS = "copies in flight while products run"
_MOST = 64  # groups: a loop that never waits has no more than this


@dataclass(frozen=True, slots=True)
class Overlap(Stored):
    """Of one loop's instructions of a kind, those that run beside something."""

    what: str  # one of the two above
    file: str  # where the loop begins, in the kernel itself; "" where that is not known
    line: int  # 0: not known
    beside: int  # instructions, of one iteration
    of: int

    def __str__(self) -> str:
        where = f" (loop at {self.file}:{self.line})" if self.line else ""
        return f"{self.what}: {self.beside} of {self.of}{where}"


def overlaps(program: Program, executed: NDArray[np.int64] | None = None) -> tuple[Overlap, ...]:
    """The loops that multiply on tensor cores, innermost ones, in the code's order.

    Code that multiplies in no loop is taken as a whole. Loops without asynchronous work have none.

    Args:
        executed: [instructions] how often each ran; what never did is left out. None: all.
    """
    instructions = program.instructions
    graph = _Graph(instructions)
    before = _in_flight(instructions, graph)
    found: list[Overlap] = []
    for first, body in _innermost(graph, instructions):
        if executed is None or executed[body].any():
            found += _of_loop(instructions, first, body, before)
    return tuple(found)


# ---- what is in flight ----


@dataclass(frozen=True, slots=True)
class _InFlight:
    """At least, whichever way was taken."""

    products: int = 0  # groups that are closed and not waited for
    open_products: bool = False  # wgmma of a group that is not closed yet
    copies: int = 0  # groups of cp.async

    def meet(self, other: _InFlight) -> _InFlight:
        return _InFlight(
            min(self.products, other.products),
            self.open_products and other.open_products,
            min(self.copies, other.copies),
        )

    def behind(self, i: Instruction) -> _InFlight:
        """After an instruction; one that a predicate guards may not have run."""
        ran = self._behind(i)
        return self.meet(ran) if i.predicate else ran

    def _behind(self, i: Instruction) -> _InFlight:
        if i.opcode.endswith("GMMA"):
            if "gsb0" not in i.operands:
                return replace(self, open_products=True)
            return replace(self, products=min(_MOST, self.products + 1), open_products=False)
        if i.opcode == "WARPGROUP" and "DEPBAR" in i.modifiers:
            return replace(self, products=min(self.products, _allowed(i)))
        if i.opcode == "LDGDEPBAR":
            return replace(self, copies=min(_MOST, self.copies + 1))
        if i.opcode == "DEPBAR" and "LE" in i.modifiers:
            return replace(self, copies=min(self.copies, _allowed(i)))
        return self


def _allowed(i: Instruction) -> int:
    """Groups that may stay under way: `gsb0, 0x1`."""
    try:
        return int(i.operands[1], 0)
    except (IndexError, ValueError):
        return 0


def _in_flight(instructions: Sequence[Instruction], graph: _Graph) -> list[_InFlight | None]:
    """[instructions] in front of each; None where no way leads."""
    before: list[_InFlight | None] = [None] * len(instructions)
    before[0] = _InFlight()
    waiting = [0]
    while waiting:
        block = waiting.pop()
        state = before[graph.first[block]]
        assert state is not None
        for n in range(graph.first[block], graph.first[block + 1]):
            before[n] = state
            state = state.behind(instructions[n])
        for successor in graph.successors[block]:
            at = graph.first[successor]
            known = before[at]
            met = state if known is None else known.meet(state)
            if met != known:
                before[at] = met
                waiting.append(successor)
    return before


# ---- loops ----


class _Graph:
    """Basic blocks. Block b has the instructions `first[b]` to `first[b + 1]`."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        index_of = {i.address: n for n, i in enumerate(instructions)}
        starts = {0, len(instructions)}
        for n, i in enumerate(instructions):
            if i.target in index_of:
                starts.add(index_of[i.target])
            if i.pipe is Pipe.BRANCH:
                starts.add(n + 1)
        self.first = sorted(starts)
        block_of = {n: b for b, n in enumerate(self.first)}
        self.successors: list[tuple[int, ...]] = []
        for b, behind in enumerate(self.first[1:]):
            last = instructions[behind - 1]
            to = [block_of[index_of[last.target]]] if last.target in index_of else []
            if _goes_on(last) and behind < len(instructions):
                to.append(b + 1)
            self.successors.append(tuple(to))
        self.predecessors: list[list[int]] = [[] for _ in self.successors]
        for b, ways in enumerate(self.successors):
            for successor in ways:
                self.predecessors[successor].append(b)

    def instructions_of(self, blocks: set[int]) -> list[int]:
        return [n for b in sorted(blocks) for n in range(self.first[b], self.first[b + 1])]

    def dominators(self) -> list[int]:
        """[blocks] a bit for each block that every way there goes through."""
        everything = (1 << len(self.successors)) - 1
        dominators = [1] + [everything] * (len(self.successors) - 1)
        changed = True
        while changed:
            changed = False
            for b in range(1, len(self.successors)):
                common = everything
                for p in self.predecessors[b]:
                    common &= dominators[p]
                if (own := common | 1 << b) != dominators[b]:
                    dominators[b], changed = own, True
        return dominators

    def loops(self) -> Iterator[tuple[int, set[int]]]:
        """(first block, blocks) of each natural loop."""
        dominators = self.dominators()
        loops: dict[int, set[int]] = {}
        for b, ways in enumerate(self.successors):
            for head in ways:
                if dominators[b] >> head & 1:
                    body = loops.setdefault(head, {head})
                    waiting = [b]
                    while waiting:
                        if (block := waiting.pop()) not in body:
                            body.add(block)
                            waiting += self.predecessors[block]
        yield from sorted(loops.items())


def _goes_on(last: Instruction) -> bool:
    """Whether the instruction behind may be next."""
    is_conditional = bool(last.predicate) or len(last.operands) > 1  # BRA.U UP0, target
    return last.opcode not in ("BRA", "EXIT", "RET", "BRX", "JMX", "JMP") or is_conditional


def _innermost(
    graph: _Graph, instructions: Sequence[Instruction]
) -> Iterator[tuple[int, list[int]]]:
    """(first, all) of the instructions of each loop that multiplies and has none that does."""
    products = {n for n, i in enumerate(instructions) if i.pipe is Pipe.TENSOR}
    loops = []
    for head, blocks in graph.loops():
        body = graph.instructions_of(blocks)
        if not products.isdisjoint(body):
            loops.append((graph.first[head], set(body)))
    for first, own in loops:
        if not any(other < own for _, other in loops):
            yield first, sorted(own)
    if not loops and products:
        yield 0, list(range(len(instructions)))


def _of_loop(
    instructions: Sequence[Instruction],
    first: int,
    body: Sequence[int],
    before: Sequence[_InFlight | None],
) -> Iterator[Overlap]:
    states = [(instructions[n], state) for n in body if (state := before[n]) is not None]
    source = outer_line(instructions[first]) if first else None
    file, line = (source.file, source.line) if source is not None else ("", 0)
    exponentials = [s for i, s in states if i.opcode == "MUFU" and "EX2" in i.modifiers]
    if exponentials and any(i.opcode.endswith("GMMA") for i, _ in states):
        beside = sum(s.products > 0 or s.open_products for s in exponentials)
        yield Overlap(PRODUCTS_BESIDE_EXP2, file, line, beside, len(exponentials))
    if any(i.opcode == "LDGSTS" for i, _ in states):
        products = [s for i, s in states if i.pipe is Pipe.TENSOR]
        beside = sum(s.copies > 0 for s in products)
        yield Overlap(COPIES_BESIDE_PRODUCTS, file, line, beside, len(products))
