"""Overlap of asynchronous work with a loop's arithmetic, and register budgets of `setmaxnreg`.

The analysis reads only the machine code. Work counts as in flight at an instruction if it is in
flight on every path to it. If the compiler moved a wait up, the overlap is lost, whatever the
source says.

Covered are wgmma (a group ends with `gsb0`, and `WARPGROUP.DEPBAR` waits for it) and the groups of
cp.async (`LDGDEPBAR`, `DEPBAR`). Work that completes on an mbarrier, such as TMA copies, is not
covered, because other warps may issue it and wait for it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.base.launch_arguments import WARPGROUP, PassLaunch
from engine.base.schema import Stored
from engine.cuda_source.ptxas import left_out_setmaxnreg
from engine.machine_code.analysis import outer_line
from engine.machine_code.disassembly import Instruction, Pipe, Program, SourceLine

# Check that the machine code stays within the register budgets of `setmaxnreg`.
#
# ptxas spills to keep the code after a `setmaxnreg` within its budget. If it cannot, or does not
# know how many registers a thread starts with, it drops every `setmaxnreg` of the kernel and only
# mentions it in its log. The kernel then runs with another register allocation than planned.

_REGISTER = re.compile(r"\bR(\d+)(\.64)?\b")
_SHAPE = re.compile(r"\d+x(\d+)x\d+")
_BYTES_OF = {"64": 2, "128": 4}  # registers moved by a load or store of that many bits
_ENDS = ("EXIT", "RET", "BPT")
_JUMPS = ("BRA", "JMP")


@dataclass(frozen=True, slots=True)
class RegisterBudget:
    """One `setmaxnreg` of an entry."""

    registers: int  # per thread, after it
    source: SourceLine | None
    used: int  # registers that the code up to the next `setmaxnreg` uses: its highest index + 1


def register_budgets(program: Program) -> tuple[RegisterBudget, ...]:
    """Every `setmaxnreg` of a program in address order, with the registers used after it."""
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
    """Indices of the instructions that may follow each instruction."""
    joins = defaultdict(list)  # reconvergence points of each convergence barrier
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
    """Highest register index that an instruction uses, implied registers included, plus one."""
    highest = 0
    for position, operand in enumerate(i.operands):
        for match in _REGISTER.finditer(operand):
            # An address is at most a pair of registers; data operands may be wider.
            wide = 1 if operand.startswith(("[", "desc")) else _width(i, position)
            highest = max(highest, int(match[1]) + max(wide, 2 if match[2] else 1))
    return highest


def _width(i: Instruction, position: int) -> int:
    """Number of registers of an operand; the listing names only the first."""
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
    """Why the code of a pass exceeds its register budgets; None if it does not.

    Args:
        program: the machine code of its entry; None if it cannot be read.
        registers: per thread, at the start of a CTA.
        log: the compiler's log.
        source: name of the kernel's file.
    """
    if (left_out := left_out_setmaxnreg(log)) is not None:
        where, why = left_out
        return (
            f"{where or source}: ptxas dropped setmaxnreg, so every thread of {launch.entry} "
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
            f"{source}: the warpgroups ask for {asked:,} registers, but a CTA starts with "
            f"{registers * launch.threads:,} ({registers} a thread), so one waits for ever: raise "
            "these by __launch_bounds__, or lower warpgroup_registers."
        )
    for budget in budgets:
        if budget.used > budget.registers:
            where = f"{budget.source.file}:{budget.source.line}" if budget.source else source
            return (
                f"{where}: the code after setmaxnreg {budget.registers} uses {budget.used} "
                "registers a thread: raise that budget, or keep fewer values alive."
            )
    return None


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


PRODUCTS_BESIDE_EXP2 = "products in flight while exp2 runs"
COPIES_BESIDE_PRODUCTS = "copies in flight while products run"
_MAX_IN_FLIGHT = 64  # groups; counts are capped at it, for loops that never wait


@dataclass(frozen=True, slots=True)
class Overlap(Stored):
    """How many of a loop's instructions of one kind overlap with asynchronous work."""

    what: str  # one of the two above
    file: str  # the loop's first line, in the kernel itself; "" if not known
    line: int  # 0: not known
    beside: int  # instructions of one iteration that overlap
    of: int

    def __str__(self) -> str:
        where = f" (loop at {self.file}:{self.line})" if self.line else ""
        return f"{self.what}: {self.beside} of {self.of}{where}"


def overlaps(program: Program, executed: NDArray[np.int64] | None = None) -> tuple[Overlap, ...]:
    """Overlaps in the innermost loops that use tensor cores, in code order.

    If no loop uses tensor cores, the whole code counts as one. Loops without asynchronous work are
    left out.

    Args:
        executed: [instructions] how often each ran; loops that never ran are left out. None: all.
    """
    instructions = program.instructions
    graph = _Graph(instructions)
    before = _in_flight(instructions, graph)
    found: list[Overlap] = []
    for first, body in _innermost(graph, instructions):
        if executed is None or executed[body].any():
            found += _overlaps_of_loop(instructions, first, body, before)
    return tuple(found)


# ---- what is in flight ----


@dataclass(frozen=True, slots=True)
class _InFlight:
    """Lower bounds, over all paths, of the work in flight at an instruction."""

    products: int = 0  # committed wgmma groups that were not waited for
    open_products: bool = False  # wgmma of a group that is not committed yet
    copies: int = 0  # groups of cp.async

    def meet(self, other: _InFlight) -> _InFlight:
        return _InFlight(
            min(self.products, other.products),
            self.open_products and other.open_products,
            min(self.copies, other.copies),
        )

    def behind(self, i: Instruction) -> _InFlight:
        """State after an instruction; a predicated one may not have been executed."""
        ran = self._behind(i)
        return self.meet(ran) if i.predicate else ran

    def _behind(self, i: Instruction) -> _InFlight:
        if i.opcode.endswith("GMMA"):
            if "gsb0" not in i.operands:
                return replace(self, open_products=True)
            return replace(
                self, products=min(_MAX_IN_FLIGHT, self.products + 1), open_products=False
            )
        if i.opcode == "WARPGROUP" and "DEPBAR" in i.modifiers:
            return replace(self, products=min(self.products, _allowed(i)))
        if i.opcode == "LDGDEPBAR":
            return replace(self, copies=min(_MAX_IN_FLIGHT, self.copies + 1))
        if i.opcode == "DEPBAR" and "LE" in i.modifiers:
            return replace(self, copies=min(self.copies, _allowed(i)))
        return self


def _allowed(i: Instruction) -> int:
    """Groups that may stay in flight: 1 in `gsb0, 0x1`."""
    try:
        return int(i.operands[1], 0)
    except (IndexError, ValueError):
        return 0


def _in_flight(instructions: Sequence[Instruction], graph: _Graph) -> list[_InFlight | None]:
    """[instructions] state before each instruction; None if it is unreachable."""
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
    """Control-flow graph. Basic block b is the instructions `first[b]` up to `first[b + 1]`."""

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
            if _falls_through(last) and behind < len(instructions):
                to.append(b + 1)
            self.successors.append(tuple(to))
        self.predecessors: list[list[int]] = [[] for _ in self.successors]
        for b, ways in enumerate(self.successors):
            for successor in ways:
                self.predecessors[successor].append(b)

    def instructions_of(self, blocks: set[int]) -> list[int]:
        return [n for b in sorted(blocks) for n in range(self.first[b], self.first[b + 1])]

    def dominators(self) -> list[int]:
        """[blocks] dominators of each block, as a bit mask."""
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
        """(header, blocks) of each natural loop."""
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


def _falls_through(last: Instruction) -> bool:
    """Whether execution can continue with the next instruction."""
    is_conditional = bool(last.predicate) or len(last.operands) > 1  # BRA.U UP0, target
    return last.opcode not in ("BRA", "EXIT", "RET", "BRX", "JMX", "JMP") or is_conditional


def _innermost(
    graph: _Graph, instructions: Sequence[Instruction]
) -> Iterator[tuple[int, list[int]]]:
    """(first instruction, all instructions) of each innermost loop that uses tensor cores."""
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


def _overlaps_of_loop(
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
