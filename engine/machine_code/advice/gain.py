"""Kinds of advice, and what following it would gain: the launch is simulated again with some work
removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.devices.spec import DeviceSpec
from engine.machine_code.analysis import Analysis
from engine.machine_code.disassembly import Loop, SourceLine
from engine.machine_code.emulation import EXECUTED, CtaTrace
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US, SmTiming
from engine.machine_code.timing.cta_times import (
    first_iterations,
    has_phases,
    iterations_of,
    keep,
    main_loop,
)
from engine.machine_code.timing.native import (
    Kernel,
    Regime,
    allocated_smem,
    gpu_rates,
    simulate_sm,
    sm_kernel,
)
from engine.machine_code.timing.simulate import SimulatedLaunch

AdviceKind: TypeAlias = Literal[
    "conflicts",
    "sectors",
    "narrow",
    "conversions",
    "packing",
    "denormals",
    "spills",
    "copy_ahead",
    "barrier",
    "tensor_idle",
    "few_ctas",
    "grid_order",
]

# What to do, in a few words; the text of the advice gives details.
NEXT_WORDS: Mapping[str, str] = {
    "conflicts": "resolve the bank conflicts",
    "sectors": "let neighbouring threads take neighbouring addresses",
    "narrow": "move 16 bytes a thread at once",
    "conversions": "convert between types less often",
    "packing": "copy structs of halves as uint4",
    "denormals": "use ex2.approx.ftz",
    "spills": "avoid spills to local memory",
    "copy_ahead": "start the copy of the next tile earlier",
    "barrier": "remove a barrier",
    "tensor_idle": "fewer instructions for each product",
    "few_ctas": "start more CTAs",
    "grid_order": "swap the axes of the grid",
}


@dataclass(frozen=True, slots=True)
class Gain:
    """Simulated gain: the share of the launch's time that is saved, 0 to 1, from `low` to `high`.

    The range covers what the model does not know: one CTA on an SM or as many as fit, data from L2
    or from DRAM, and, if code is removed, half of it or all.
    """

    low: float
    high: float

    def __str__(self) -> str:
        low, high = f"{100 * self.low:.0f}", f"{100 * self.high:.0f}"
        return f"{high}%" if low == high else f"{low} to {high}%"


@dataclass(frozen=True, slots=True)
class Advice:
    kind: AdviceKind
    source: SourceLine | None  # None: the launch as a whole
    share: float  # of the warp instructions, wavefronts, bytes or SMs affected, 0 to 1
    sentence: str
    gain: Gain | None = None  # None: no GPU is named, or the model cannot tell


Mask: TypeAlias = NDArray[np.bool_]
# Warp instructions in one wave of CTAs on an SM; longer CTAs are cut to their first iterations.
_MAX_INSTRUCTIONS = 40_000
_MIN_ITERATIONS = 4
_SECTOR_BYTES, _SECTORS_A_LINE = 32, 4
_WAVEFRONT_BYTES = 128


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Input of one simulation: code and machine, and the trace of one CTA."""

    kernel: Kernel
    trace: CtaTrace
    ctas: int = 1  # CTAs on an SM that replace each original one


Change: TypeAlias = Callable[[Parts], Parts]


class Rerun:
    """A simulated launch that can be simulated again with changes.

    Args:
        simulated: result of `simulate_launch` on this device.
    """

    def __init__(self, analysis: Analysis, device: DeviceSpec, simulated: SimulatedLaunch) -> None:
        self.analysis, self.device, self.simulated = analysis, device, simulated
        self.gpu = gpu_rates(device, analysis.program.arch)
        self.resident = min(simulated.resident_ctas, simulated.ctas_per_sm)

    @cached_property
    def loop(self) -> Loop | None:
        """The outermost loop that executes most instructions."""
        return main_loop(self.analysis.program, self.analysis.counts.totals[:, EXECUTED])

    @cached_property
    def trace(self) -> CtaTrace:
        """Trace of the longest CTA, cut to its first iterations if it is too long."""
        whole = self.simulated.longest
        limit = _MAX_INSTRUCTIONS // self.resident
        iterations = self.iterations
        length = len(whole.instruction)
        if length <= limit or iterations <= _MIN_ITERATIONS:
            return whole
        return self.cut(whole, max(_MIN_ITERATIONS, iterations * limit // length))

    @cached_property
    def has_phases(self) -> bool:
        """True if warps wait for mbarrier phases: a trace without some arrivals would deadlock."""
        return has_phases(self.simulated.longest)

    @property
    def iterations(self) -> int:
        """Iterations of the loop; 0 if it cannot be cut."""
        return 0 if self.loop is None or self.has_phases else self.iterations_of(self.loop)

    def iterations_of(self, loop: Loop) -> int:
        """Iterations of a loop in the longest CTA: those of the warp with most."""
        return iterations_of(self.simulated.longest, loop)

    def cut(self, trace: CtaTrace, iterations: int) -> CtaTrace:
        """The trace with only the first iterations of the loop."""
        assert self.loop is not None
        return first_iterations(trace, self.loop, iterations)

    @cached_property
    def parts(self) -> Parts:
        """The launch unchanged, with data from where the launch finds it."""
        return Parts(self._kernel(self._regime), self.trace)

    @property
    def _regime(self) -> Regime:
        alone = 2 * self.analysis.launch.ctas <= self.gpu.num_sms
        return "streaming" if self.simulated.dram_us > 0 else "alone" if alone else "shared"

    def _kernel(self, regime: Regime) -> Kernel:
        taken = self.simulated.resident_ctas * allocated_smem(self.device, self.analysis.smem_bytes)
        return sm_kernel(self.analysis.program, self.gpu, regime, taken, fetches_code=False)

    @cached_property
    def _conditions(self) -> tuple[tuple[Parts, int, float], ...]:
        """(parts, CTAs at a time, unchanged cycles) for each combination of conditions that the
        range covers."""
        other: Regime = "streaming" if self._regime != "streaming" else "shared"
        conditions = [
            (self.parts, self.resident),
            (replace(self.parts, kernel=self._kernel(other)), self.resident),
        ]
        if self.resident > 1:
            conditions.append((self.parts, 1))
        return tuple((p, n, _run(p, n).cycles) for p, n in conditions)

    @cached_property
    def full(self) -> SmTiming:
        """Timing of an SM with as many of these CTAs as fit."""
        return _run(self.parts, self.resident)

    def gain(self, *changes: Change) -> Gain:
        """Range of the launch's gains by these changes, each applied alone."""
        shares = [
            self._share(self._cycles(change(parts), ctas) / cycles)
            for change in changes
            for parts, ctas, cycles in self._conditions
        ]
        return Gain(max(0.0, min(shares)), max(0.0, *shares))

    def _cycles(self, changed: Parts, ctas: int) -> float:
        if changed.ctas == 1:
            return _run(changed, ctas).cycles
        queue = [0] * (ctas * changed.ctas)
        resident = min(len(queue), self.simulated.resident_ctas)
        return simulate_sm(changed.kernel, [changed.trace], queue, resident).cycles

    def gain_of_traffic(self, dram_us: float) -> Gain:
        """Gain of the launch if its DRAM traffic took `dram_us` µs; the upper end assumes that SMs
        read from L2."""
        (_, _, as_is), (_, _, other), *_ = self._conditions
        shares = self._share(1.0, dram_us), self._share(min(1.0, other / as_is), dram_us)
        return Gain(max(0.0, min(shares)), max(0.0, *shares))

    def _share(self, ratio: float, dram_us: float | None = None) -> float:
        """Share of the launch's time that is saved if its SMs take `ratio` of their cycles."""
        now = self.simulated.latency.median_us
        if dram_us is None:
            dram_us = self.simulated.dram_us
        busy_us = ratio * self.simulated.sm_cycles / self.gpu.cycles_per_us
        return 1 - (LAUNCH_FLOOR_US + max(busy_us, dram_us)) / now


def _run(parts: Parts, ctas: int) -> SmTiming:
    return simulate_sm(parts.kernel, [parts.trace], [0] * ctas, ctas)


# ---- changes ----


def without(instructions: Mask) -> Change:
    """Never execute these instructions of the program."""
    return lambda parts: replace(
        parts, trace=keep(parts.trace, ~instructions[parts.trace.instruction])
    )


def half_without(instructions: Mask) -> Change:
    """Execute these instructions only every second time that they are reached."""

    def change(parts: Parts) -> Parts:
        wanted = instructions[parts.trace.instruction]
        return replace(parts, trace=keep(parts.trace, ~wanted | (np.cumsum(wanted) % 2 == 0)))

    return change


def left_out(instructions: Mask) -> tuple[Change, Change]:
    """The changes that leave out half of these instructions, and all of them."""
    return half_without(instructions), without(instructions)


def ideal_wavefronts(instructions: Mask) -> Change:
    """Remove the bank conflicts of these instructions."""

    def change(parts: Parts) -> Parts:
        rows = _rows(parts.trace, instructions)
        wavefronts = parts.trace.wavefronts.copy()
        wavefronts[rows] = parts.trace.ideal_wavefronts[rows]
        return replace(parts, trace=replace(parts.trace, wavefronts=wavefronts))

    return change


def dense_sectors(instructions: Mask) -> Change:
    """Let the global accesses of these instructions touch only as many sectors as they need."""

    def change(parts: Parts) -> Parts:
        trace = parts.trace
        dense = np.zeros(len(trace.kind), np.bool_)
        dense[_rows(trace, instructions)] = True
        lines = _lines_of_rows(trace)
        for row in np.flatnonzero(dense).tolist():
            sectors = int(trace.ideal_sectors[row])
            lines[row] = [
                (line, (1 << min(_SECTORS_A_LINE, sectors - _SECTORS_A_LINE * n)) - 1)
                for n, (line, _) in enumerate(lines[row])
                if sectors > _SECTORS_A_LINE * n
            ]
        return replace(parts, trace=_with_lines(trace, lines))

    return change


def widened(instructions: Mask, times: int) -> Change:
    """Merge each `times` successive accesses of a warp into one."""

    def change(parts: Parts) -> Parts:
        trace = parts.trace
        wanted = np.flatnonzero(instructions[trace.instruction] & (trace.access >= 0))
        warps = np.searchsorted(trace.warp_start, wanted, side="right")
        kept = np.ones(len(trace.instruction), np.bool_)
        lines = _lines_of_rows(trace)
        access, wavefronts = trace.access.copy(), trace.wavefronts.tolist()
        kinds = trace.kind.tolist()
        source = list(range(len(kinds)))  # index of the old row that each new one copies
        for warp in np.unique(warps):
            entries = wanted[warps == warp]
            for at in range(0, len(entries), times):
                group = entries[at : at + times]
                rows = trace.access[group]
                kept[group[1:]] = False
                merged: dict[int, int] = {}
                for row in rows.tolist():
                    for line, sectors in lines[row]:
                        merged[line] = merged.get(line, 0) | sectors
                size = int(trace.size_bytes[rows].sum())
                access[group[0]] = len(lines)
                lines.append(list(merged.items()))
                shared = int(trace.wavefronts[rows].sum())
                wavefronts.append(min(shared, -(-size // _WAVEFRONT_BYTES)))
                source.append(int(rows[0]))
        longer = _rows_like(replace(trace, access=access), np.asarray(source))
        longer = replace(longer, wavefronts=np.asarray(wavefronts, np.uint16))
        return replace(parts, trace=keep(_with_lines(longer, lines), kept))

    return change


def without_latency(parts: Parts) -> Parts:
    """Remove the latency of global memory; its bandwidth stays."""
    machine = parts.kernel.machine
    copied = type(machine).from_buffer_copy(machine)
    copied.l1_cycles = copied.l2_cycles = 0
    ops = parts.kernel.ops.copy()
    return replace(parts, kernel=Kernel(ops, copied))


def _rows(trace: CtaTrace, instructions: Mask) -> NDArray[np.int32]:
    """Distinct access rows of these instructions."""
    rows = np.unique(trace.access[instructions[trace.instruction]])
    return np.asarray(rows[rows >= 0], np.int32)


_Lines: TypeAlias = list[list[tuple[int, int]]]  # for each row, its (line, sector mask) pairs


def _lines_of_rows(trace: CtaTrace) -> _Lines:
    pairs = list(zip(trace.line.tolist(), trace.line_sectors.tolist(), strict=True))
    starts = trace.line_start.tolist()
    return [pairs[a:b] for a, b in pairwise(starts)]


def _with_lines(trace: CtaTrace, lines: _Lines) -> CtaTrace:
    flat: Iterable[tuple[int, int]] = [pair for row in lines for pair in row]
    line, sectors = zip(*flat, strict=True) if flat else ((), ())
    return replace(
        trace,
        line_start=np.cumsum([0, *map(len, lines)], dtype=np.int64),
        line=np.asarray(line, np.uint64),
        line_sectors=np.asarray(sectors, np.uint8),
    )


def _rows_like(trace: CtaTrace, source: NDArray[np.int64]) -> CtaTrace:
    """A trace with copies of old rows; `_with_lines` then sets their lines."""
    return replace(
        trace,
        kind=trace.kind[source],
        ideal_wavefronts=trace.ideal_wavefronts[source],
        sectors=trace.sectors[source],
        ideal_sectors=trace.ideal_sectors[source],
        size_bytes=trace.size_bytes[source],
        address=trace.address[source],
        amount=trace.amount[source],
    )
