"""Global accesses that touch more sectors than their bytes fill, by what fills the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from engine.sass.advice.kinds import Advice
from engine.sass.advice.lines import Finding, LineInstructions, by_line, mask_of
from engine.sass.advice.rerun import dense_sectors, widened
from engine.sass.analysis import Analysis
from engine.sass.emulation import EXECUTED, IDEAL_SECTORS, SECTORS, Emulator
from engine.sass.trace import CtaTrace

# scattered: nothing fills the rest, or far too late. pieces: each thread reads or writes some bytes
# that adjoin, member by member. shared: other instructions of the line fill it, as fragments of
# rows do.
Waste: TypeAlias = Literal["scattered", "pieces", "shared"]

_LEAST_FACTOR = 1.5  # of sectors over the ideal
_SURELY_SCATTERED = 4.0  # from here on it costs L1 more than it brings, whoever uses the rest
_LEAST_SHARE = 0.02  # of all sectors
_LEAST_SHARED = 0.1  # the same of those that others fill: less is a kernel's beginning or its end
_SECTOR_BYTES = 32
_WIDEST_BYTES = 16  # that one thread moves by one instruction


@dataclass(frozen=True, slots=True)
class WastedSectors:
    """A line whose accesses touch more sectors than they need."""

    line: LineInstructions
    waste: Waste
    factor: float  # sectors touched over those that the bytes fill
    share: float  # of the launch's sectors


def wasted_sectors(analysis: Analysis) -> list[WastedSectors]:
    """Every line of the kernel that wastes some, without local memory."""
    outside = mask_of(analysis, lambda i: i.opcode not in ("LDL", "STL"))
    lines = by_line(analysis, outside & (analysis.counts.totals[:, SECTORS] > 0))
    everything = sum(line.total(SECTORS) for line in lines) or 1
    found = []
    for line in lines:
        sectors, ideal = line.total(SECTORS), line.total(IDEAL_SECTORS)
        extra = (sectors - ideal) / everything
        if ideal and sectors >= _LEAST_FACTOR * ideal and extra >= _LEAST_SHARE:
            waste = _waste(analysis, line, sectors / ideal)
            found.append(WastedSectors(line, waste, sectors / ideal, extra))
    return found


def _waste(analysis: Analysis, line: LineInstructions, factor: float) -> Waste:
    emulator = Emulator(analysis.program, analysis.entry, analysis.launch)
    trace, _ = emulator.trace(analysis.counts.longest_cta)
    chosen = line.mask[trace.instruction] & (trace.access >= 0)
    rows = np.unique(trace.access[chosen])
    touched = [_sectors_of(trace, row) for row in rows.tolist()]
    filled_bytes = _SECTOR_BYTES * len(set[int]().union(*touched))
    if filled_bytes >= _LEAST_FACTOR * int(trace.size_bytes[rows].sum()):
        return "scattered"
    # Of neighbouring lanes that are so many bytes apart, a warp touches as many sectors in a row.
    apart_bytes = line.total(SECTORS) / line.total(EXECUTED)
    in_a_row = all(max(s) - min(s) < len(s) for s in touched if s)
    if in_a_row and apart_bytes <= _WIDEST_BYTES and _moves_members(line):
        return "pieces"
    return "scattered" if factor >= _SURELY_SCATTERED else "shared"


def _sectors_of(trace: CtaTrace, row: int) -> set[int]:
    """Of one access, by their numbers in memory."""
    sectors: set[int] = set()
    for at in range(int(trace.line_start[row]), int(trace.line_start[row + 1])):
        first = int(trace.line[at]) // _SECTOR_BYTES
        mask = int(trace.line_sectors[at])
        sectors.update(first + s for s in range(4) if mask >> s & 1)
    return sectors


def _moves_members(line: LineInstructions) -> bool:
    return len(line.instructions) > 1 and all(
        i.opcode in ("LDG", "STG") and "128" not in i.modifiers for i in line.instructions
    )


def sector_findings(wasted: list[WastedSectors]) -> Iterator[Finding]:
    """Those that are waste on any GPU."""
    for w in wasted:
        if w.waste == "scattered":
            sentence = (
                f"Uncoalesced: {w.line.mnemonics} touches {w.factor:.1f} times the 32-byte "
                "sectors that its bytes fill. Let neighbouring threads take neighbouring addresses."
            )
            advice = Advice("sectors", w.line.source, w.share, sentence)
            yield Finding(advice, (dense_sectors(w.line.mask),))
        elif w.waste == "pieces":
            times = max(2, round(w.factor))
            sentence = (
                f"A struct in {times} pieces: {w.line.mnemonics} moves it member by member, as "
                "its type is aligned to one member only. Declare it alignas of its size, at most "
                "16 bytes, or copy it through uint4."
            )
            advice = Advice("narrow", w.line.source, w.share, sentence)
            yield Finding(advice, (widened(w.line.mask, 2), widened(w.line.mask, times)))


def shared_findings(wasted: list[WastedSectors]) -> Iterator[Finding]:
    """Those that cost time only where L1 is what the kernel waits for."""
    for w in wasted:
        if w.waste == "shared" and w.share >= _LEAST_SHARED:
            sentence = (
                f"Sectors filled in part: {w.line.mnemonics} fills {1 / w.factor:.0%} of the "
                "32-byte sectors that it touches, and other instructions the rest, so that L1 "
                "serves each of them again. Copy whole rows to shared memory, 16 bytes a thread, "
                "and read the fragments from there (ldmatrix)."
            )
            advice = Advice("sectors", w.line.source, w.share, sentence)
            yield Finding(advice, (dense_sectors(w.line.mask),))
