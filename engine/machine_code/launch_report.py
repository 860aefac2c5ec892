"""Report on the machine code of one launch: busy units, stalls, hottest lines, the listing.

The report contains only plain data, so that it can be computed in another process and saved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import numpy as np

from engine.base.schema import Stored
from engine.base.table import Table, Tabular
from engine.machine_code.analysis import (
    Analysis,
    Figures,
    launch_figures,
    line_figures,
    loop_figures,
    notes,
    outer_line,
)
from engine.machine_code.disassembly import NO_BARRIER, Control
from engine.machine_code.emulation import (
    EXECUTED,
    IDEAL_SECTORS,
    IDEAL_WAVEFRONTS,
    SECTORS,
    WAVEFRONTS,
)
from engine.machine_code.overlap import Overlap, overlaps
from engine.machine_code.timing.constants import SmTiming, StallReason
from engine.machine_code.timing.simulate import BINDING_SHARE, SimulatedLaunch

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

_UNIT_NAMES = {
    "fma": "FMA",
    "alu": "ALU",
    "xu": "XU (MUFU, conversions)",
    "fp64": "FP64",
    "tensor": "Tensor",
    "uniform": "Uniform",
    "shared_port": "Shared memory",
    "l1_tags": "L1 tags",
    "l2_port": "Path to L2",
}


@dataclass(frozen=True, slots=True)
class Share(Stored):
    """A unit's busy time or a stall reason's warp cycles, 0 to 1."""

    name: str
    share: float
    binds: bool = False


@dataclass(frozen=True, slots=True)
class Count(Stored):
    """A count over the whole launch; `ideal` is the least that the same bytes need."""

    name: str
    count: int
    ideal: int | None = None


@dataclass(frozen=True, slots=True)
class HotLine(Stored):
    """Counts of one line of the kernel, code inlined there included."""

    file: str
    line: int
    executed: int  # warp instructions
    share: float  # of the warp instructions of the launch
    stall_share: float | None  # of all warp cycles, simulated
    wavefronts: int
    ideal_wavefronts: int
    sectors: int
    ideal_sectors: int


@dataclass(frozen=True, slots=True)
class FoldedLoop(Stored):
    first: int  # index of an instruction
    last: int  # inclusive
    depth: int
    iterations: int  # of all warps together


@dataclass(frozen=True, slots=True)
class Listing(Stored):
    """The program in columns, one entry per instruction."""

    address: tuple[int, ...]
    text: tuple[str, ...]
    pipe: tuple[str, ...]
    schedule: tuple[str, ...]  # stall count, scoreboards waited for, set
    line: tuple[int, ...]  # of the kernel's own file; 0: none
    inlined: tuple[str, ...]  # where the instruction was written, if not there
    live: tuple[int, ...]  # registers
    executed: tuple[int, ...]
    wavefronts: tuple[int, ...]
    ideal_wavefronts: tuple[int, ...]
    sectors: tuple[int, ...]
    ideal_sectors: tuple[int, ...]
    cycles: tuple[int, ...]  # warp cycles spent waiting to issue it or issuing it; simulated
    reason: tuple[str, ...]  # the most frequent stall reason
    loops: tuple[FoldedLoop, ...]


@dataclass(frozen=True, slots=True)
class Hint(Stored):
    """A piece of advice."""

    line: int  # of the kernel's own file; 0: none
    sentence: str
    gain: str = ""  # share of the launch's time, simulated; empty: not known
    kind: str = ""  # `engine.machine_code.advice.AdviceKind`
    low: float = 0.0  # ends of `gain`, 0 to 1; both 0: not known
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class Residency(Stored):
    """Simulated effect of a number of CTAs per SM on the launch's time."""

    ctas_per_sm: int
    ratio: float  # launch time with it, over the time with the current number
    is_now: bool

    def us(self, now_us: float) -> float:
        """Launch time with this number of CTAs per SM, if it is now `now_us`."""
        return self.ratio * now_us


@dataclass(frozen=True, slots=True)
class PassReport(Stored):
    """Report on one pass. The launch's time is not part of it: see `engine.pipeline.request`."""

    entry: str
    registers: int  # per thread, allocated
    counts: tuple[Count, ...]
    lines: tuple[HotLine, ...]  # most instructions first
    listing: Listing
    notes: tuple[str, ...]
    hints: tuple[Hint, ...] = ()
    overlaps: tuple[Overlap, ...] = ()  # in the loops that were executed
    # Simulated; empty if the timing model does not support the GPU, and `no_time` says why.
    no_time: str = ""
    cta_cycles: float | None = None
    verdict: str = ""
    units: tuple[Share, ...] = ()
    stalls: tuple[Share, ...] = ()
    residencies: tuple[Residency, ...] = ()

    def tables(self) -> tuple[Table, ...]:
        """Tables of stall reasons, hottest lines and advice."""
        waits = ({"waits for": s.name, "share": f"{s.share:.0%}"} for s in self.stalls)
        lines = (
            {
                "line": f"{x.file}:{x.line}",
                "warp instructions": x.executed,
                "share": f"{x.share:.0%}",
                "cycles": None if x.stall_share is None else f"{x.stall_share:.0%}",
            }
            for x in self.lines[:_HOTTEST]
        )
        hints = ({"line": h.line or None, "advice": h.sentence, "gain": h.gain} for h in self.hints)
        return (
            Table.of(f"{self.entry}, simulated", waits, self.verdict or self.no_time),
            Table.of(f"{self.entry}, hottest lines", lines),
            Table.of(f"{self.entry}, advice", hints),
        )


_HOTTEST = 10


@dataclass(frozen=True, slots=True, repr=False)
class MachineCode(Stored, Tabular):
    """All passes of one variant, config, problem and GPU."""

    variant: str
    config: str  # "block_m=64 num_warps=4"
    device: str
    arch: str
    source_name: str
    source: str  # text that was compiled
    passes: tuple[PassReport, ...]

    def tables(self) -> tuple[Table, ...]:
        """Tables of stall reasons, hottest lines and advice for each pass."""
        return tuple(table for each in self.passes for table in each.tables() if table.rows)

    def to_frame(self) -> pd.DataFrame:
        """One row for each source line of each pass, with counts over the whole launch."""
        import pandas as pd

        return pd.DataFrame([{"entry": p.entry, **asdict(x)} for p in self.passes for x in p.lines])

    def plot(self) -> Figure:
        """Plotly figure of the simulated stall reasons of each pass."""
        from plotly.graph_objects import Figure

        figure = Figure()
        for each in self.passes:
            figure.add_bar(
                x=[100 * s.share for s in each.stalls],
                y=[s.name for s in each.stalls],
                name=each.entry,
                orientation="h",
            )
        figure.update_xaxes(title="warp cycles, simulated (%)")
        figure.update_yaxes(autorange="reversed")
        return figure.update_layout(title=f"{self.variant} on {self.device}")


def report(
    analysis: Analysis,
    simulated: SimulatedLaunch | None,
    residencies: dict[int, float],
    no_time: str = "",
    hints: Sequence[Hint] = (),
    source_name: str = "",
) -> PassReport:
    """Build the report on one pass.

    Args:
        simulated: None if there is no simulated time; `no_time` then says why.
        residencies: {CTAs per SM: launch time over the current one}.
        source_name: the kernel's own file; empty: the one that the machine code names.
    """
    timing = simulated.round if simulated is not None else None
    units, stalls = _units(timing), _stalls(timing)
    return PassReport(
        entry=analysis.program.entry,
        registers=analysis.program.registers,
        counts=_counts(analysis),
        lines=_lines(analysis, timing),
        listing=_listing(analysis, timing, source_name),
        notes=tuple(
            notes(analysis, *((simulated.iterations, simulated.start_spread) if simulated else ()))
        ),
        hints=tuple(hints),
        overlaps=overlaps(analysis.program, analysis.counts.totals[:, EXECUTED]),
        no_time=no_time,
        cta_cycles=simulated.cta_cycles if simulated else None,
        verdict=_verdict(units, stalls),
        units=units,
        stalls=stalls,
        residencies=tuple(
            Residency(n, ratio, simulated is not None and n == simulated.resident_ctas)
            for n, ratio in residencies.items()
        ),
    )


def own_line(file: str, source_name: str, line: int) -> int:
    """`line` if `file` is the kernel's own file, else 0."""
    return line if file == source_name else 0


def _units(timing: SmTiming | None) -> tuple[Share, ...]:
    if timing is None:
        return ()
    busy = {unit: share for unit, share in timing.busy().items() if unit in _UNIT_NAMES}
    most = max(busy.values(), default=0.0)
    return tuple(
        Share(_UNIT_NAMES[unit], min(1.0, share), share == most and share >= BINDING_SHARE)
        for unit, share in sorted(busy.items(), key=lambda item: -item[1])
        if share > 0
    )


def _stalls(timing: SmTiming | None) -> tuple[Share, ...]:
    """Stall reasons by Nsight Compute's names, most cycles first."""
    if timing is None:
        return ()
    cycles = {reason: c for reason, c in timing.stall_cycles().items() if c > 0}
    total = sum(cycles.values()) or 1.0
    return tuple(
        Share(reason.label, c / total)
        for reason, c in sorted(cycles.items(), key=lambda item: -item[1])
    )


def _verdict(units: Sequence[Share], stalls: Sequence[Share]) -> str:
    if not units:
        return ""
    busiest = units[0]
    if busiest.binds:
        return f"{busiest.name} is the limit: it is busy {busiest.share:.0%} of the time."
    waits = [s for s in stalls if s.name != StallReason.SELECTED.label]
    most = f"; warps spend most cycles on {waits[0].name.lower()} ({waits[0].share:.0%})"
    return (
        f"No unit is the limit: the busiest, {busiest.name}, is busy {busiest.share:.0%} of the "
        f"time{most if waits else ''}."
    )


def _counts(analysis: Analysis) -> tuple[Count, ...]:
    f: Figures = launch_figures(analysis.counts)
    live = analysis.most_live
    by_pipe = sorted(f.instructions.items(), key=lambda item: -item[1])
    return (
        Count("warp instructions", f.executed),
        *(Count(f"on {pipe}", count) for pipe, count in by_pipe),
        Count("FFMA and the like", f.scalar_math),
        Count("HMMA and the like", f.tensor_math),
        Count("MUFU", f.mufu),
        Count("conversions", f.conversions),
        Count("barriers", f.barriers),
        Count("shared wavefronts", f.shared_wavefronts, f.ideal_shared_wavefronts),
        Count("global sectors", f.global_sectors, f.ideal_global_sectors),
        Count("global bytes requested", f.global_bytes),
        Count("local sectors (spills, stack)", f.local_sectors),
        Count("registers per thread", analysis.program.registers),
        *([] if live is None else [Count("registers alive at most", live)]),
        Count("shared memory per CTA, bytes", analysis.smem_bytes),
        Count("code, bytes", analysis.program.code_bytes),
    )


def _lines(analysis: Analysis, timing: SmTiming | None) -> tuple[HotLine, ...]:
    executed = max(1, analysis.counts.executed)
    stalled: dict[tuple[str, int], float] = {}
    total = 1.0
    if timing is not None:
        cycles = timing.stalls.sum(axis=1)
        total = float(cycles.sum()) or 1.0
        for instruction, own in zip(analysis.program.instructions, cycles.tolist(), strict=True):
            if (source := outer_line(instruction)) is not None:
                key = (source.file, source.line)
                stalled[key] = stalled.get(key, 0.0) + own
    return tuple(
        HotLine(
            file=each.source.file,
            line=each.source.line,
            executed=each.figures.executed,
            share=each.figures.executed / executed,
            stall_share=None
            if timing is None
            else stalled.get((each.source.file, each.source.line), 0.0) / total,
            wavefronts=each.figures.shared_wavefronts,
            ideal_wavefronts=each.figures.ideal_shared_wavefronts,
            sectors=each.figures.global_sectors,
            ideal_sectors=each.figures.ideal_global_sectors,
        )
        for each in line_figures(analysis.counts)
    )


def _listing(analysis: Analysis, timing: SmTiming | None, source_name: str) -> Listing:
    instructions, totals = analysis.program.instructions, analysis.counts.totals
    cycles = np.zeros(len(instructions)) if timing is None else timing.stalls.sum(axis=1)
    reasons = [""] * len(instructions)
    if timing is not None:
        largest = timing.stalls.argmax(axis=1).tolist()
        reasons = [StallReason(r).label if c else "" for r, c in zip(largest, cycles, strict=True)]

    def column(number: int) -> tuple[int, ...]:
        return tuple(int(v) for v in totals[:, number])

    lines = [outer_line(i) for i in instructions]
    # Source lines in a cubin refer to the file that its own compiler read.
    outer = [o if o is None or o.file == (source_name or o.file) else None for o in lines]
    inner = [i.source[0] if i.source else None for i in instructions]
    return Listing(
        address=tuple(i.address for i in instructions),
        text=tuple(str(i) for i in instructions),
        pipe=tuple(i.pipe.value for i in instructions),
        schedule=tuple(schedule(i.control) for i in instructions),
        line=tuple(o.line if o is not None else 0 for o in outer),
        inlined=tuple(
            "" if i is None or i == o else f"{i.file}:{i.line}"
            for i, o in zip(inner, outer, strict=True)
        ),
        live=tuple(analysis.live_registers.get(i.address, 0) for i in instructions),
        executed=column(EXECUTED),
        wavefronts=column(WAVEFRONTS),
        ideal_wavefronts=column(IDEAL_WAVEFRONTS),
        sectors=column(SECTORS),
        ideal_sectors=column(IDEAL_SECTORS),
        cycles=tuple(round(float(c)) for c in cycles),
        reason=tuple(reasons),
        loops=tuple(
            FoldedLoop(x.loop.first, x.loop.last, x.loop.depth, x.iterations)
            for x in loop_figures(analysis.counts)
        ),
    )


def schedule(control: Control) -> str:
    """Control bits as `4 ..2... w1`: stall cycles, scoreboards waited for, scoreboards set."""
    waits = "".join(str(b) if control.wait_mask >> b & 1 else "." for b in range(6))
    sets = [
        f"{letter}{barrier}"
        for letter, barrier in (("w", control.write_barrier), ("r", control.read_barrier))
        if barrier != NO_BARRIER
    ]
    return " ".join([str(control.stall), waits, *sets])


# Comparison of the machine code of two launches: counts, and aligned listings.


# Registers and addresses change with every edit, so listings are aligned by the rest of the text.
_NAMES = re.compile(r"\b(U?[RP])\d+\b|0x[0-9a-f]{3,}|`\([^)]*\)")


@dataclass(frozen=True, slots=True)
class CountPair:
    """A count of both launches; None if a launch does not have it."""

    name: str
    first: int | None
    second: int | None


def compare_counts(first: PassReport, second: PassReport) -> tuple[CountPair, ...]:
    """Counts of both launches, in the order of the first; counts of 0 in both are left out."""
    a, b = ({c.name: c.count for c in report.counts} for report in (first, second))
    names = dict.fromkeys([*a, *b])
    pairs = (CountPair(name, a.get(name), b.get(name)) for name in names)
    return tuple(pair for pair in pairs if pair.first or pair.second)


def align(
    first: Listing, second: Listing, sources: tuple[str, str]
) -> tuple[tuple[int, int, bool], ...]:
    """Align two listings: (index in the first, index in the second, whether they match).

    An index is -1 if an instruction has no counterpart. Instructions match if they differ only in
    registers and addresses.

    Args:
        sources: the text of each kernel's file, so that a line that moved counts as the same line.
    """
    plain = [[_NAMES.sub(r"\1", text) for text in x.text] for x in (first, second)]
    keys = [
        list(zip(_code_lines(x, source), texts, strict=True))
        for x, source, texts in zip((first, second), sources, plain, strict=True)
    ]
    pairs: list[tuple[int, int, bool]] = []
    matcher = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        common = min(a_end - a, b_end - b)
        alike = kind == "equal"
        pairs += [
            (a + n, b + n, alike or plain[0][a + n] == plain[1][b + n]) for n in range(common)
        ]
        pairs += [(n, -1, False) for n in range(a + common, a_end)]
        pairs += [(-1, n, False) for n in range(b + common, b_end)]
    return tuple(pairs)


def _code_lines(listing: Listing, source: str) -> Sequence[str]:
    lines = ["", *(line.strip() for line in source.splitlines())]
    return [lines[n] if n < len(lines) else "" for n in listing.line]
