"""Choosing instructions of a launch, by what they are and by the kernel's lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from engine.sass.advice.kinds import Advice
from engine.sass.advice.rerun import Change, Mask
from engine.sass.analysis import Analysis
from engine.sass.counts import Counts
from engine.sass.emulation import EXECUTED
from engine.sass.instruction import Instruction, SourceLine
from engine.sass.summary import outer_line

Test: TypeAlias = Callable[[Instruction], bool]
_ACCESSES = {"LDS", "STS", "LDSM", "STSM", "ATOMS", "LDG", "STG", "LDGSTS", "ATOMG", "RED"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Advice, and the changes that mending it may make: `Rerun.gain` simulates each."""

    advice: Advice
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class LineInstructions:
    """Instructions of one line that ran."""

    source: SourceLine | None
    mask: Mask  # [instructions of the program]
    totals: Counts  # [chosen, columns of `engine.sass.emulation`]
    instructions: tuple[Instruction, ...]

    def total(self, column: int) -> int:
        return int(self.totals[:, column].sum())

    @property
    def mnemonics(self) -> str:
        """`LDS.U.128, STS`: those that access memory."""
        used = dict.fromkeys(i.mnemonic for i in self.instructions if i.opcode in _ACCESSES)
        return ", ".join(used) or "the access"


def mask_of(analysis: Analysis, wanted: Test) -> Mask:
    """Which instructions of the program ran and are wanted."""
    chosen = np.array([wanted(i) for i in analysis.program.instructions], np.bool_)
    return np.asarray(chosen & (analysis.counts.totals[:, EXECUTED] > 0), np.bool_)


def by_line(analysis: Analysis, wanted: Test | Mask) -> list[LineInstructions]:
    """The wanted instructions that ran, by line of the kernel."""
    mask = mask_of(analysis, wanted) if callable(wanted) else wanted
    indices: dict[SourceLine | None, list[int]] = {}
    instructions = analysis.program.instructions
    for n in np.flatnonzero(mask).tolist():
        indices.setdefault(outer_line(instructions[n]), []).append(n)
    result = []
    for source, chosen in indices.items():
        own = np.zeros(len(mask), np.bool_)
        own[chosen] = True
        totals = analysis.counts.totals[chosen]
        result.append(LineInstructions(source, own, totals, tuple(instructions[n] for n in chosen)))
    return result


def executed(analysis: Analysis, mask: Mask) -> int:
    """Warp instructions among these."""
    return int(analysis.counts.totals[mask, EXECUTED].sum())


def hottest(analysis: Analysis, wanted: Test | Mask) -> SourceLine | None:
    """The line that executes most of them."""
    lines = by_line(analysis, wanted)
    return max(lines, key=lambda line: line.total(EXECUTED)).source if lines else None
