"""Machine code: what the compiler really made, read, counted and run."""

from engine.sass.cubin import Cubin, Entry, read_cubin
from engine.sass.disassembly import Disassembly, disassemble, find_loops
from engine.sass.instruction import Control, Instruction, Loop, Pipe, Program, SourceLine
from engine.sass.trace import AccessKind, CtaTrace

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
