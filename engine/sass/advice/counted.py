"""Waste that the counts show, without a GPU's figures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.sass.advice.kinds import Advice
from engine.sass.advice.lines import Finding, LineInstructions, by_line, executed, hottest, mask_of
from engine.sass.advice.rerun import (
    Mask,
    ideal_wavefronts,
    left_out,
    widened,
    without,
)
from engine.sass.advice.sectors import WastedSectors, sector_findings, wasted_sectors
from engine.sass.analysis import Analysis
from engine.sass.emulation import (
    EXECUTED,
    IDEAL_WAVEFRONTS,
    WAVEFRONTS,
    Emulator,
)
from engine.sass.instruction import Instruction
from engine.sass.summary import is_conversion, launch_figures, outer_line

# What is less than this is not worth a sentence.
_LEAST_FACTOR = 1.5  # of wavefronts over the ideal
_LEAST_SHARE = 0.02  # of all wavefronts or instructions
_LEAST_CONVERSIONS, _LEAST_PACKING = 0.15, 0.05  # of all instructions
_LEAST_BARRIERS = 3  # that each warp reaches: a loop's
_DENORMAL_BOUND = "-126"  # exp2 of less is denormal: the code that scales around EX2 compares so
_NARROW = {"U8": 16, "S8": 16, "U16": 8, "S16": 8}  # of them in 16 bytes


def counted_findings(analysis: Analysis) -> Iterator[Finding]:
    """Everything that the counts alone show."""
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
        if ideal and wavefronts >= _LEAST_FACTOR * ideal and extra >= _LEAST_SHARE:
            sentence = (
                f"Bank conflicts, {wavefronts / ideal:.3g}-way: {line.mnemonics} takes that many "
                "times the wavefronts that its bytes need. Lanes of a warp meet in one bank: pad "
                f"the rows of the tile by {_widest_bytes(line)} bytes, or swizzle them."
            )
            advice = Advice("conflicts", line.source, extra, sentence)
            yield Finding(advice, (ideal_wavefronts(line.mask),))


def _widest_bytes(line: LineInstructions) -> int:
    """Of one lane's access, and a bank's 4 bytes at least: rows so much longer keep its alignment
    and begin in other banks."""
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
        if share >= _LEAST_SHARE and line.source not in in_pieces:
            times = max(_NARROW.get(m, 1) for i in line.instructions for m in i.modifiers)
            sentence = (
                f"{line.mnemonics} moves 1 or 2 bytes a thread, as an instruction that moves 16 "
                "would: copy through uint4."
            )
            advice = Advice("narrow", line.source, share, sentence)
            yield Finding(advice, (widened(line.mask, 2), widened(line.mask, times)))


def _conversions(analysis: Analysis) -> Iterator[Finding]:
    mask = mask_of(analysis, is_conversion)
    share = executed(analysis, mask) / analysis.counts.executed
    if share >= _LEAST_CONVERSIONS:
        sentence = (
            f"{share:.0%} of the instructions convert between types: convert once where the value "
            "is stored, or multiply pairs in FP16 (HFMA2)."
        )
        advice = Advice("conversions", hottest(analysis, mask), share, sentence)
        yield Finding(advice, left_out(mask))


def _packing(analysis: Analysis) -> Iterator[Finding]:
    mask = mask_of(analysis, lambda i: i.opcode == "PRMT")
    share = executed(analysis, mask) / analysis.counts.executed
    if share >= _LEAST_PACKING:
        sentence = (
            f"{share:.0%} of the instructions are PRMT, which picks bytes: structs of halves are "
            "taken apart and packed again. Copy them as uint4."
        )
        advice = Advice("packing", hottest(analysis, mask), share, sentence)
        yield Finding(advice, left_out(mask))


def _denormals(analysis: Analysis) -> Iterator[Finding]:
    guards = mask_of(analysis, _guards_denormals)
    lines = {outer_line(i) for i, on in _with(analysis, guards) if on}
    # The guard's predicate decides over the multiplications before and behind EX2.
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
            "EX2 stands between FSETP and FMUL that rescue denormal results: ex2.approx.ftz by "
            "inline PTX, or exp2f of a scaled argument with -ftz=true, needs neither."
        )
        advice = Advice("denormals", hottest(analysis, guards), share, sentence)
        yield Finding(advice, (without(guards), without(guards | scales)))


def _spills(analysis: Analysis) -> Iterator[Finding]:
    mask = mask_of(analysis, lambda i: i.opcode in ("LDL", "STL"))
    if mask.any():
        sectors = launch_figures(analysis.counts).local_sectors
        sentence = (
            f"{sectors:,} sectors of local memory: registers are spilled, or an array is indexed "
            "by a variable. Unroll, or let the kernel have more registers."
        )
        share = executed(analysis, mask) / analysis.counts.executed
        advice = Advice("spills", hottest(analysis, mask), share, sentence)
        yield Finding(advice, left_out(mask))


def _barriers(analysis: Analysis) -> Iterator[Finding]:
    totals = analysis.counts.totals[:, EXECUTED]
    warps = -(-analysis.launch.threads // 32) * analysis.launch.ctas
    often = mask_of(analysis, lambda i: i.opcode == "BAR") & (totals >= _LEAST_BARRIERS * warps)
    if analysis.launch.threads <= 32 or not often.any():
        return
    emulator = Emulator(analysis.program, analysis.entry, analysis.launch)
    idle = emulator.idle_barriers(often, analysis.counts.longest_cta)
    barriers = mask_of(analysis, lambda i: i.opcode == "BAR")
    for line in by_line(analysis, idle):
        sentence = (
            "One barrier too many: between the barrier before this one and the one behind it no "
            "warp touches shared memory that another one writes. Leave it out (where it orders "
            "lanes of one warp, __syncwarp() does)."
        )
        share = line.total(EXECUTED) / executed(analysis, barriers)
        yield Finding(Advice("barrier", line.source, share, sentence), (without(line.mask),))


def _guards_denormals(instruction: Instruction) -> bool:
    return instruction.opcode == "FSETP" and _DENORMAL_BOUND in instruction.operands


def _with(analysis: Analysis, mask: Mask) -> Iterator[tuple[Instruction, bool]]:
    return zip(analysis.program.instructions, np.asarray(mask).tolist(), strict=True)
