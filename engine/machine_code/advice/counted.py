"""Advice from counts alone, and the selection of instructions by kind and by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from engine.machine_code.advice.gain import (
    Advice,
    Change,
    Mask,
    dense_sectors,
    ideal_wavefronts,
    left_out,
    widened,
    without,
)
from engine.machine_code.analysis import Analysis, is_conversion, launch_figures, outer_line
from engine.machine_code.counts import Counts
from engine.machine_code.disassembly import Instruction, SourceLine
from engine.machine_code.emulation import (
    EXECUTED,
    IDEAL_SECTORS,
    IDEAL_WAVEFRONTS,
    SECTORS,
    WAVEFRONTS,
    CtaTrace,
    Emulator,
)

Test: TypeAlias = Callable[[Instruction], bool]
_ACCESSES = {"LDS", "STS", "LDSM", "STSM", "ATOMS", "LDG", "STG", "LDGSTS", "ATOMG", "RED"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Advice, and the changes that a fix could make; `Rerun.gain` simulates each of them."""

    advice: Advice
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class LineInstructions:
    """Selected instructions of one line that were executed."""

    source: SourceLine | None
    mask: Mask  # [instructions of the program]
    totals: Counts  # [chosen, columns of `engine.machine_code.emulation`]
    instructions: tuple[Instruction, ...]

    def total(self, column: int) -> int:
        return int(self.totals[:, column].sum())

    @property
    def mnemonics(self) -> str:
        """Mnemonics of those that access memory, as `LDS.U.128, STS`."""
        used = dict.fromkeys(i.mnemonic for i in self.instructions if i.opcode in _ACCESSES)
        return ", ".join(used) or "the access"


def mask_of(analysis: Analysis, wanted: Test) -> Mask:
    """Mask of the instructions that were executed and pass a test."""
    chosen = np.array([wanted(i) for i in analysis.program.instructions], np.bool_)
    return np.asarray(chosen & (analysis.counts.totals[:, EXECUTED] > 0), np.bool_)


def by_line(analysis: Analysis, wanted: Test | Mask) -> list[LineInstructions]:
    """Executed instructions that pass a test, grouped by line of the kernel."""
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
    """Warp instructions executed by the masked instructions."""
    return int(analysis.counts.totals[mask, EXECUTED].sum())


def hottest(analysis: Analysis, wanted: Test | Mask) -> SourceLine | None:
    """The line that executes most of the wanted instructions."""
    lines = by_line(analysis, wanted)
    return max(lines, key=lambda line: line.total(EXECUTED)).source if lines else None


# Kinds of global accesses that touch more sectors than their bytes need:
# scattered: the rest of the sectors is not used, or only much later;
# pieces: each thread accesses adjacent bytes, one struct member at a time;
# shared: other instructions of the same line use the rest, as when fragments of rows are loaded.
Waste: TypeAlias = Literal["scattered", "pieces", "shared"]

_MIN_SECTOR_FACTOR = 1.5  # sectors touched over the ideal
_SURELY_SCATTERED = 4.0  # from this factor on it is waste even if others use the rest from L1
_MIN_SECTOR_SHARE = 0.02  # of all sectors
_MIN_SHARED = 0.1  # of all sectors, for kind `shared`: less is the begin or end of a kernel
_SECTOR_BYTES = 32
_WIDEST_BYTES = 16  # that one thread moves by one instruction


@dataclass(frozen=True, slots=True)
class WastedSectors:
    """A line whose accesses touch more sectors than their bytes need."""

    line: LineInstructions
    waste: Waste
    factor: float  # sectors touched over those that the bytes fill
    share: float  # of the launch's sectors


def wasted_sectors(analysis: Analysis) -> list[WastedSectors]:
    """Lines of the kernel that waste sectors of global memory."""
    outside = mask_of(analysis, lambda i: i.opcode not in ("LDL", "STL"))
    lines = by_line(analysis, outside & (analysis.counts.totals[:, SECTORS] > 0))
    everything = sum(line.total(SECTORS) for line in lines) or 1
    found = []
    for line in lines:
        sectors, ideal = line.total(SECTORS), line.total(IDEAL_SECTORS)
        extra = (sectors - ideal) / everything
        if ideal and sectors >= _MIN_SECTOR_FACTOR * ideal and extra >= _MIN_SECTOR_SHARE:
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
    if filled_bytes >= _MIN_SECTOR_FACTOR * int(trace.size_bytes[rows].sum()):
        return "scattered"
    # Neighbouring lanes that are this many bytes apart touch that many adjacent sectors per warp.
    apart_bytes = line.total(SECTORS) / line.total(EXECUTED)
    in_a_row = all(max(s) - min(s) < len(s) for s in touched if s)
    if in_a_row and apart_bytes <= _WIDEST_BYTES and _moves_members(line):
        return "pieces"
    return "scattered" if factor >= _SURELY_SCATTERED else "shared"


def _sectors_of(trace: CtaTrace, row: int) -> set[int]:
    """Sector numbers of one access."""
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
    """Findings for accesses that waste sectors on any GPU."""
    for w in wasted:
        if w.waste == "scattered":
            sentence = (
                f"Uncoalesced: {w.line.mnemonics} touches {w.factor:.1f} times the 32-byte "
                "sectors that its bytes need. Let neighbouring threads access neighbouring "
                "addresses."
            )
            advice = Advice("sectors", w.line.source, w.share, sentence)
            yield Finding(advice, (dense_sectors(w.line.mask),))
        elif w.waste == "pieces":
            times = max(2, round(w.factor))
            sentence = (
                f"A struct in {times} pieces: {w.line.mnemonics} moves it member by member, as its "
                "type has only the alignment of one member. Declare it alignas its size, at most "
                "16 bytes, or copy it through uint4."
            )
            advice = Advice("narrow", w.line.source, w.share, sentence)
            yield Finding(advice, (widened(w.line.mask, 2), widened(w.line.mask, times)))


def shared_findings(wasted: list[WastedSectors]) -> Iterator[Finding]:
    """Findings for accesses that cost time only if L1 is the bottleneck."""
    for w in wasted:
        if w.waste == "shared" and w.share >= _MIN_SHARED:
            sentence = (
                f"Partly used sectors: {w.line.mnemonics} uses {1 / w.factor:.0%} of the 32-byte "
                "sectors that it touches, and other instructions use the rest, so L1 serves each "
                "sector several times. Copy whole rows to shared memory, 16 bytes a thread, and "
                "load the fragments from there (ldmatrix)."
            )
            advice = Advice("sectors", w.line.source, w.share, sentence)
            yield Finding(advice, (dense_sectors(w.line.mask),))


# Waste that counts show without simulating a GPU.


# What is less than this is not worth a sentence.
_MIN_FACTOR = 1.5  # wavefronts over the ideal
_MIN_SHARE = 0.02  # of all wavefronts or instructions
_MIN_CONVERSIONS, _MIN_PACKING = 0.15, 0.05  # of all instructions
_MIN_BARRIERS = 3  # executions by each warp: fewer are not in a loop
_DENORMAL_BOUND = "-126"  # exp2 of less is denormal; the code that rescales for EX2 tests for it
_NARROW = {"U8": 16, "S8": 16, "U16": 8, "S16": 8}  # values in 16 bytes


def counted_findings(analysis: Analysis) -> Iterator[Finding]:
    """All findings that need only counts."""
    yield from _conflicts(analysis)
    wasted = wasted_sectors(analysis)
    yield from sector_findings(wasted)
    yield from _narrow(analysis, wasted)
    yield from _conversions(analysis)
    yield from _packing(analysis)
    yield from _denormals(analysis)
    yield from _spills(analysis)
    yield from _barriers(analysis)


def _conflicts(analysis: Analysis) -> Iterator[Finding]:
    shared = mask_of(analysis, lambda i: i.opcode not in ("SHFL", "MOVM"))
    lines = by_line(analysis, shared & (analysis.counts.totals[:, WAVEFRONTS] > 0))
    everything = sum(line.total(WAVEFRONTS) for line in lines) or 1
    for line in lines:
        wavefronts, ideal = line.total(WAVEFRONTS), line.total(IDEAL_WAVEFRONTS)
        extra = (wavefronts - ideal) / everything
        if ideal and wavefronts >= _MIN_FACTOR * ideal and extra >= _MIN_SHARE:
            sentence = (
                f"Bank conflicts, {wavefronts / ideal:.3g}-way: {line.mnemonics} takes that many "
                "times the wavefronts that its bytes need, because lanes of a warp access the same "
                f"bank. Pad the tile's rows by {_widest_bytes(line)} bytes, or swizzle them."
            )
            advice = Advice("conflicts", line.source, extra, sentence)
            yield Finding(advice, (ideal_wavefronts(line.mask),))


def _widest_bytes(line: LineInstructions) -> int:
    """Bytes of one lane's widest access, at least the 4 of a bank: padding by these keeps the
    alignment and starts each row in another bank."""
    return max(
        16
        if i.opcode in ("LDSM", "STSM") or "128" in i.modifiers
        else 8
        if "64" in i.modifiers
        else 4
        for i in line.instructions
    )


def _narrow(analysis: Analysis, wasted: list[WastedSectors]) -> Iterator[Finding]:
    in_pieces = {w.line.source for w in wasted if w.waste == "pieces"}

    def is_narrow(i: Instruction) -> bool:
        return i.opcode in ("LDG", "STG", "LDS", "STS") and not _NARROW.keys().isdisjoint(
            i.modifiers
        )

    for line in by_line(analysis, is_narrow):
        share = line.total(EXECUTED) / analysis.counts.executed
        if share >= _MIN_SHARE and line.source not in in_pieces:
            times = max(_NARROW.get(m, 1) for i in line.instructions for m in i.modifiers)
            sentence = (
                f"{line.mnemonics} moves 1 or 2 bytes a thread, and one instruction could move 16: "
                "copy through uint4."
            )
            advice = Advice("narrow", line.source, share, sentence)
            yield Finding(advice, (widened(line.mask, 2), widened(line.mask, times)))


def _conversions(analysis: Analysis) -> Iterator[Finding]:
    mask = mask_of(analysis, is_conversion)
    share = executed(analysis, mask) / analysis.counts.executed
    if share >= _MIN_CONVERSIONS:
        sentence = (
            f"{share:.0%} of the instructions convert between types: convert once where the value "
            "is stored, or multiply pairs in FP16 (HFMA2)."
        )
        advice = Advice("conversions", hottest(analysis, mask), share, sentence)
        yield Finding(advice, left_out(mask))


def _packing(analysis: Analysis) -> Iterator[Finding]:
    mask = mask_of(analysis, lambda i: i.opcode == "PRMT")
    share = executed(analysis, mask) / analysis.counts.executed
    if share >= _MIN_PACKING:
        sentence = (
            f"{share:.0%} of the instructions are PRMT, which permutes bytes: structs of halves "
            "are unpacked and packed again. Copy them as uint4."
        )
        advice = Advice("packing", hottest(analysis, mask), share, sentence)
        yield Finding(advice, left_out(mask))


def _denormals(analysis: Analysis) -> Iterator[Finding]:
    guards = mask_of(analysis, _guards_denormals)
    lines = {outer_line(i) for i, on in _with_mask(analysis, guards) if on}
    # The FSETP sets the predicate of the multiplications before and after EX2.
    scales = mask_of(
        analysis,
        lambda i: i.opcode == "FMUL" and bool(i.predicate) and outer_line(i) in lines,
    )
    exponentials = executed(
        analysis, mask_of(analysis, lambda i: i.mnemonic.startswith("MUFU.EX2"))
    )
    if exponentials and executed(analysis, guards) >= exponentials / 2:
        share = executed(analysis, guards | scales) / analysis.counts.executed
        sentence = (
            "FSETP and FMUL around EX2 keep denormal results exact: ex2.approx.ftz in inline PTX, "
            "or exp2f of a scaled argument with -ftz=true, needs neither."
        )
        advice = Advice("denormals", hottest(analysis, guards), share, sentence)
        yield Finding(advice, (without(guards), without(guards | scales)))


def _spills(analysis: Analysis) -> Iterator[Finding]:
    mask = mask_of(analysis, lambda i: i.opcode in ("LDL", "STL"))
    if mask.any():
        sectors = launch_figures(analysis.counts).local_sectors
        sentence = (
            f"{sectors:,} sectors of local memory: registers are spilled, or an array is indexed "
            "by a variable. Unroll the loop, or allow the kernel more registers."
        )
        share = executed(analysis, mask) / analysis.counts.executed
        advice = Advice("spills", hottest(analysis, mask), share, sentence)
        yield Finding(advice, left_out(mask))


def _barriers(analysis: Analysis) -> Iterator[Finding]:
    totals = analysis.counts.totals[:, EXECUTED]
    warps = -(-analysis.launch.threads // 32) * analysis.launch.ctas
    often = mask_of(analysis, lambda i: i.opcode == "BAR") & (totals >= _MIN_BARRIERS * warps)
    if analysis.launch.threads <= 32 or not often.any():
        return
    emulator = Emulator(analysis.program, analysis.entry, analysis.launch)
    idle = emulator.idle_barriers(often, analysis.counts.longest_cta)
    barriers = mask_of(analysis, lambda i: i.opcode == "BAR")
    for line in by_line(analysis, idle):
        sentence = (
            "Unneeded barrier: between the barriers before and after this one, no warp accesses "
            "shared memory that another warp writes. Remove it, or use __syncwarp() if it orders "
            "lanes of one warp."
        )
        share = line.total(EXECUTED) / executed(analysis, barriers)
        yield Finding(Advice("barrier", line.source, share, sentence), (without(line.mask),))


def _guards_denormals(instruction: Instruction) -> bool:
    return instruction.opcode == "FSETP" and _DENORMAL_BOUND in instruction.operands


def _with_mask(analysis: Analysis, mask: Mask) -> Iterator[tuple[Instruction, bool]]:
    return zip(analysis.program.instructions, np.asarray(mask).tolist(), strict=True)
