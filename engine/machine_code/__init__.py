"""Machine code (SASS): read the instructions of a cubin, count and simulate what they execute."""

from engine.machine_code.cubin import Cubin, Entry, read_cubin
from engine.machine_code.disassembly import (
    Control,
    Disassembly,
    Instruction,
    Loop,
    Pipe,
    Program,
    SourceLine,
    disassemble,
    find_loops,
)
from engine.machine_code.emulation import AccessKind, CtaTrace

__all__ = [
    "AccessKind",
    "Control",
    "CtaTrace",
    "Cubin",
    "Disassembly",
    "Entry",
    "Instruction",
    "Loop",
    "Pipe",
    "Program",
    "SourceLine",
    "disassemble",
    "find_loops",
    "read_cubin",
]
