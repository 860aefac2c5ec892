"""What the machine code wastes, in words: counted, with the line to look at, worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from engine.sass.analysis import Analysis
from engine.sass.emulation import EXECUTED, IDEAL_SECTORS, IDEAL_WAVEFRONTS, SECTORS, WAVEFRONTS
from engine.sass.instruction import Instruction, SourceLine
from engine.sass.summary import launch_figures, outer_line

Waste: TypeAlias = Literal[
    "conflicts", "sectors", "narrow", "conversions", "packing", "denormals", "spills", "few_ctas"
]
# What is less than this is not worth a sentence.
_LEAST_FACTOR = 1.5  # of wavefronts or sectors over the ideal
_LEAST_SHARE = 0.02  # of all wavefronts, sectors or instructions
_LEAST_CONVERSIONS, _LEAST_PACKING = 0.15, 0.05  # of all instructions
_DENORMAL_BOUND = "-126"  # exp2 of less is denormal: the code that scales around EX2 compares so


@dataclass(frozen=True, slots=True)
class Advice:
    waste: Waste
    source: SourceLine | None  # where; None: the launch as a whole
    share: float  # of the warp instructions, wavefronts or sectors that it concerns, 0 to 1
    sentence: str


def advise(analysis: Analysis, num_sms: int | None = None) -> tuple[Advice, ...]:
    """What to look at, the largest share first.

    Args:
        num_sms: of the GPU, to tell whether the launch fills it.
    """
    found = [
        *_conflicts(analysis),
        *_sectors(analysis),
        *_narrow(analysis),
        *_instructions(analysis),
        *_launch(analysis, num_sms),
    ]
    return tuple(sorted(found, key=lambda advice: -advice.share))


def _conflicts(analysis: Analysis) -> Iterator[Advice]:
    shared = _by_line(analysis, lambda i: i.opcode not in ("SHFL", "MOVM"))
    everything = sum(int(t[:, WAVEFRONTS].sum()) for _, t in shared.values()) or 1
    for source, (instructions, totals) in shared.items():
        wavefronts, ideal = int(totals[:, WAVEFRONTS].sum()), int(totals[:, IDEAL_WAVEFRONTS].sum())
        extra = (wavefronts - ideal) / everything
        if ideal and wavefronts >= _LEAST_FACTOR * ideal and extra >= _LEAST_SHARE:
            names = _mnemonics(instructions)
            yield Advice(
                "conflicts",
                source,
                extra,
                f"Bank conflicts: {names} takes {wavefronts / ideal:.1f} times the wavefronts that "
                "its bytes need. Lanes of a warp meet in one bank: pad the rows of the tile by 16 "
                "bytes, or swizzle them.",
            )


def _sectors(analysis: Analysis) -> Iterator[Advice]:
    outside = _by_line(analysis, lambda i: i.opcode not in ("LDL", "STL"))
    everything = sum(int(t[:, SECTORS].sum()) for _, t in outside.values()) or 1
    for source, (instructions, totals) in outside.items():
        sectors, ideal = int(totals[:, SECTORS].sum()), int(totals[:, IDEAL_SECTORS].sum())
        extra = (sectors - ideal) / everything
        if ideal and sectors >= _LEAST_FACTOR * ideal and extra >= _LEAST_SHARE:
            yield Advice(
                "sectors",
                source,
                extra,
                f"Uncoalesced: {_mnemonics(instructions)} touches {sectors / ideal:.1f} times the "
                "32-byte sectors that its bytes fill. Let neighbouring threads take neighbouring "
                "addresses.",
            )


def _narrow(analysis: Analysis) -> Iterator[Advice]:
    executed = analysis.counts.executed
    narrow = _by_line(
        analysis,
        lambda i: (
            i.opcode in ("LDG", "STG", "LDS", "STS")
            and bool({"U8", "S8", "U16", "S16"} & set(i.modifiers))
        ),
    )
    for source, (instructions, totals) in narrow.items():
        share = int(totals[:, EXECUTED].sum()) / executed
        if share >= _LEAST_SHARE:
            yield Advice(
                "narrow",
                source,
                share,
                f"{_mnemonics(instructions)} moves 1 or 2 bytes a thread, as an instruction that "
                "moves 16 would: copy through uint4.",
            )


def _instructions(analysis: Analysis) -> Iterator[Advice]:
    figures = launch_figures(analysis.counts)
    executed = figures.executed
    if figures.conversions >= _LEAST_CONVERSIONS * executed:
        yield Advice(
            "conversions",
            _hottest(analysis, lambda i: i.opcode in ("HADD2", "F2F", "F2FP", "I2F", "F2I")),
            figures.conversions / executed,
            f"{figures.conversions / executed:.0%} of the instructions convert between types: "
            "convert once where the value is stored, or multiply pairs in FP16 (HFMA2).",
        )
    packing = _executed(analysis, lambda i: i.opcode == "PRMT")
    if packing >= _LEAST_PACKING * executed:
        yield Advice(
            "packing",
            _hottest(analysis, lambda i: i.opcode == "PRMT"),
            packing / executed,
            f"{packing / executed:.0%} of the instructions are PRMT, which picks bytes: structs of "
            "halves are taken apart and packed again. Copy them as uint4.",
        )
    guards = _executed(analysis, _guards_denormals)
    exponentials = _executed(analysis, lambda i: i.mnemonic.startswith("MUFU.EX2"))
    if exponentials and guards >= exponentials / 2:
        yield Advice(
            "denormals",
            _hottest(analysis, _guards_denormals),
            3 * guards / executed,  # the comparison and two multiplications
            "EX2 stands between FSETP and FMUL that rescue denormal results: ex2.approx.ftz by "
            "inline PTX, or exp2f of a scaled argument with -ftz=true, needs neither.",
        )
    spilled = _executed(analysis, lambda i: i.opcode in ("LDL", "STL"))
    if spilled:
        yield Advice(
            "spills",
            _hottest(analysis, lambda i: i.opcode in ("LDL", "STL")),
            spilled / executed,
            f"{figures.local_sectors:,} sectors of local memory: registers are spilled, or an "
            "array is indexed by a variable. Unroll, or let the kernel have more registers.",
        )


def _launch(analysis: Analysis, num_sms: int | None) -> Iterator[Advice]:
    if num_sms is not None and analysis.launch.ctas < num_sms:
        idle = num_sms - analysis.launch.ctas
        yield Advice(
            "few_ctas",
            None,
            idle / num_sms,
            f"Too few CTAs: {analysis.launch.ctas} for {num_sms} SMs leave {idle} without work. "
            "Take smaller tiles, or split the keys.",
        )


# ---- choosing instructions ----

_Lines: TypeAlias = dict[SourceLine | None, tuple[list[Instruction], np.ndarray]]


def _by_line(analysis: Analysis, wanted: Callable[[Instruction], bool]) -> _Lines:
    """The instructions that ran and are wanted, with their totals, by line of the kernel."""
    indices: dict[SourceLine | None, list[int]] = {}
    for n, instruction in enumerate(analysis.program.instructions):
        if analysis.counts.totals[n, EXECUTED] and wanted(instruction):
            indices.setdefault(outer_line(instruction), []).append(n)
    instructions = analysis.program.instructions
    return {
        source: ([instructions[n] for n in chosen], analysis.counts.totals[chosen])
        for source, chosen in indices.items()
    }


def _executed(analysis: Analysis, wanted: Callable[[Instruction], bool]) -> int:
    return sum(int(t[:, EXECUTED].sum()) for _, t in _by_line(analysis, wanted).values())


def _hottest(analysis: Analysis, wanted: Callable[[Instruction], bool]) -> SourceLine | None:
    lines = _by_line(analysis, wanted)
    return max(lines, key=lambda source: int(lines[source][1][:, EXECUTED].sum()))


def _guards_denormals(instruction: Instruction) -> bool:
    return instruction.opcode == "FSETP" and _DENORMAL_BOUND in instruction.operands


def _mnemonics(instructions: list[Instruction]) -> str:
    names = {"LDS", "STS", "LDSM", "STSM", "ATOMS", "LDG", "STG", "LDGSTS", "ATOMG", "RED"}
    used = dict.fromkeys(i.mnemonic for i in instructions if i.opcode in names)
    return ", ".join(used) or "the access"
