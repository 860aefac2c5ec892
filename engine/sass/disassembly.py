"""A cubin → its programs: instructions, loops, live registers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import UnknownName
from engine.sass.cubin import Cubin, Entry
from engine.sass.instruction import Instruction, Loop, Program
from engine.sass.listing import LISTING_OPTIONS, LIVE_OPTIONS, parse_listing, parse_live
from engine.sass.nvdisasm import run_nvdisasm


@dataclass(frozen=True, slots=True)
class Disassembly:
    """What nvdisasm printed for one cubin, parsed when asked for."""

    cubin: Cubin
    sha256: str
    listing: str

    def program(self, entry: str) -> Program:
        """One entry's machine code. Raises UnknownName."""
        described = find_entry(self.cubin, entry)
        instructions = parse_listing(self.listing, described.name)[described.name]
        return Program(
            entry=described.name,
            arch=self.cubin.arch,
            instructions=instructions,
            registers=described.registers,
            static_smem_bytes=described.static_smem_bytes,
            cubin_sha256=self.sha256,
        )


def disassemble(cubin: Cubin) -> Disassembly:
    """Run nvdisasm for the listing.

    Raises:
        ToolMissing: there is no nvdisasm.
        CompileError: it refuses the file.
    """
    listing = run_nvdisasm(cubin.data, *LISTING_OPTIONS)
    return Disassembly(cubin, hashlib.sha256(cubin.data).hexdigest(), listing)


def list_live_registers(cubin: Cubin) -> dict[str, dict[int, int]]:
    """{entry: {address: general registers alive there}}; a run of its own. Raises as above."""
    return parse_live(run_nvdisasm(cubin.data, *LIVE_OPTIONS))


def find_entry(cubin: Cubin, name: str | None) -> Entry:
    """The entry called `name`, its symbol or the plain name that was mangled; the only one if None.

    Raises:
        UnknownName: there is none, or several fit; names them.
    """
    entries = cubin.entries
    if name is None and len(entries) == 1:
        return next(iter(entries.values()))
    known = ", ".join(sorted(entries))
    if name is None:
        raise UnknownName(f"There are {len(entries)} entries: choose one of {known} by --entry.")
    if name in entries:
        return entries[name]
    fitting = [e for symbol, e in entries.items() if plain_name(symbol) == name]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        which = ", ".join(sorted(e.name for e in fitting))
        raise UnknownName(f"Several entries are called {name!r}: choose one of {which}.")
    raise UnknownName(f"There is no entry {name!r}: the code has {known}.")


def plain_name(symbol: str) -> str:
    """The name in a symbol: "sgemm" of "_Z5sgemmiiPf" and of "_ZN4mine5sgemmEv".

    The grammar is the Itanium C++ ABI's: a nested name is N, then <length><identifier> each.
    """
    if not symbol.startswith("_Z"):
        return symbol
    position, nested, name = 2, False, symbol
    if symbol[position : position + 1] == "N":
        position, nested = position + 1, True
    while position < len(symbol) and symbol[position].isdigit():
        end = position
        while end < len(symbol) and symbol[end].isdigit():
            end += 1
        length = int(symbol[position:end])
        name = symbol[end : end + length]
        position = end + length
        if not nested:
            break
    return name


def find_loops(instructions: Sequence[Instruction]) -> tuple[Loop, ...]:
    """Loops by their first instruction: a branch backwards closes one.

    The branch to itself behind the last EXIT is padding and no loop.
    """
    index_of = {i.address: n for n, i in enumerate(instructions)}
    last: dict[int, int] = {}
    for n, i in enumerate(instructions):
        if i.opcode == "BRA" and i.target is not None and i.target < i.address:
            first = index_of[i.target]
            last[first] = max(last.get(first, 0), n)
    loops: list[Loop] = []
    for first, end in sorted(last.items()):
        depth = sum(1 for outer in loops if outer.first <= first and end <= outer.last)
        loops.append(Loop(first, end, depth))
    return tuple(loops)
