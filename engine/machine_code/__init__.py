"""Machine code (SASS): read the instructions of a cubin, count and simulate their execution.

`analyse` counts what one `Launch` of a cubin's entry executes, `simulate` predicts its time on a
GPU, and `advise` finds inefficiencies. They are imported on first access.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from engine.machine_code.advice import advise
    from engine.machine_code.analysis import Analysis, analyse
    from engine.machine_code.launch import Launch
    from engine.machine_code.timing.simulate import TimedLaunch, simulate

_PLACES = {
    "Analysis": "analysis",
    "Launch": "launch",
    "TimedLaunch": "timing.simulate",
    "advise": "advice",
    "analyse": "analysis",
    "simulate": "timing.simulate",
}

__all__ = [
    "AccessKind",
    "Analysis",
    "Control",
    "CtaTrace",
    "Cubin",
    "Disassembly",
    "Entry",
    "Instruction",
    "Launch",
    "Loop",
    "Pipe",
    "Program",
    "SourceLine",
    "TimedLaunch",
    "advise",
    "analyse",
    "disassemble",
    "find_loops",
    "read_cubin",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
