"""Simulated time of a launch: its CTAs on all SMs, DRAM traffic, and the launch floor.

`simulate` takes a launch as `analyse` counted it, `simulate_launch` its CTAs and bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.devices.spec import ClockKind, DeviceSpec
from engine.machine_code.analysis import Analysis
from engine.machine_code.disassembly import Program
from engine.machine_code.emulation import CtaTrace, Emulator
from engine.machine_code.footprint import (
    SharedBytes,
    num_stores,
    persistent_touch,
    shared_bytes,
    takes_several_tiles,
    touched_bytes,
    written_bytes,
)
from engine.machine_code.launch import Launch
from engine.machine_code.native_library import load_library
from engine.machine_code.timing.constants import (
    LAUNCH_FLOOR_US,
    MEMORY_SHARE,
    SmTiming,
    interval,
    kept_l2_bytes,
    kernel_class,
)
from engine.machine_code.timing.cta_times import (
    CtaTimes,
    Shorter,
    first_iterations,
    grid_cycles,
    has_phases,
    iterations_of,
    main_loop,
    measure,
    start_spread,
    steady_state,
)
from engine.machine_code.timing.native import (
    GpuRates,
    Kernel,
    Regime,
    allocated_smem,
    gpu_rates,
    in_parallel,
    simulate_counts,
    simulate_slot_releases,
    sm_kernel,
)
from engine.machine_code.timing.traffic import Traffic, launch_traffic, persistent_traffic

# Distribution of CTAs over SMs for launches with a partial last query tile.
#
# A CTA with a partial tile takes nearly as long as the others, but ends at another time, so that
# its SM may get several of the last CTAs while others get none. By how much depends on the exact
# numbers of rows and keys and on the neighbouring CTAs. So samples of the offsets are simulated,
# and the launch is followed with some of them.


_SOURCE = Path(__file__).resolve().parent / "native" / "dispatch.cpp"
_MAX_KINDS = 6  # kinds of CTAs by executed instructions; others get the time of the nearest kind
_Row: TypeAlias = tuple[float, ...]
_MAX_RUNS, _MIN_RUNS = 15, 3
_MAX_FOLLOWED = 30_000  # CTAs of all runs
_MAX_PLACES = 4  # simulated positions of a partial CTA among its neighbours


@dataclass(frozen=True)
class SlotTimes:
    """Cycles at which the slots of an SM fall free after CTAs that started together, by sample."""

    tile: int  # query rows of a CTA
    rows: tuple[int, ...]  # query rows of the partial tile of each sample, ascending
    # [samples, resident] for equal CTAs, ascending, relative to the last of them, so at most 0
    offsets: tuple[_Row, ...]
    # [samples, resident, resident] shift of these if the CTA in each slot has a partial tile
    shifts: tuple[tuple[_Row, ...], ...]

    def launch(self, rows: int, is_cut: ArrayLike, ends: ArrayLike, num_sms: int) -> float:
        """Cycles until the last CTA of a launch ends, the median of some runs.

        Args:
            rows: query rows of the partial tiles.
            is_cut: whether each CTA has a partial tile, in order of starting, `[ctas]`.
            ends: cycles of 0, 1, … equal CTAs on one SM, up to the most that one SM gets.

        Raises as `load_library`.
        """
        distances = [abs(rows - x) for x in self.rows]
        nearest = min(range(len(distances)), key=distances.__getitem__)
        flags = np.array(is_cut, dtype=np.uint8)
        if abs(rows - self.tile) <= distances[nearest]:
            flags[:] = 0  # closer to a full tile than to any sample
        known = np.ascontiguousarray(ends, dtype=np.float64)
        offsets, shifts = np.array(self.offsets), np.array(self.shifts[nearest])
        samples, resident = offsets.shape
        cycles = np.zeros(max(_MIN_RUNS, min(_MAX_RUNS, _MAX_FOLLOWED // len(flags))))
        _library().attune_dispatch(
            *(flags.ctypes.data, len(flags), known.ctypes.data, len(known) - 1),
            *(offsets.ctypes.data, samples, shifts.ctypes.data, resident, num_sms),
            *(cycles.ctypes.data, len(cycles)),
        )
        return float(np.median(cycles))


def slot_times(
    kernel: Kernel, tile: int, samples: dict[int, tuple[CtaTrace, CtaTrace]], resident: int
) -> SlotTimes:
    """Simulate the samples of a `SlotTimes`.

    Args:
        tile: query rows of a CTA.
        samples: {rows of the partial tile: traces with a full and a partial tile}, ascending.

    Raises as `simulate_sm`.
    """
    spread = np.linspace(0, resident - 1, min(resident, _MAX_PLACES)).round()
    places = sorted({int(place) for place in spread})

    def freed(pair: tuple[CtaTrace, CtaTrace], cut: int | None) -> NDArray[np.float64]:
        queue = [int(i == cut) for i in range(resident)] + [0] * resident
        return simulate_slot_releases(kernel, pair, queue, resident)

    def offsets_and_shifts(pair: tuple[CtaTrace, CtaTrace]) -> tuple[_Row, tuple[_Row, ...]]:
        equal = freed(pair, None)
        by_place = {i: freed(pair, i) - equal for i in places}
        nearest = (min(by_place, key=lambda x: abs(x - slot)) for slot in range(resident))
        shifts = tuple(tuple(by_place[place].tolist()) for place in nearest)
        return tuple((equal - equal[-1]).tolist()), shifts

    offsets, shifts = zip(*in_parallel(offsets_and_shifts, list(samples.values())), strict=True)
    return SlotTimes(tile, tuple(samples), offsets, shifts)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = load_library(_SOURCE)
    library.attune_dispatch.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32),
        *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32),
        *(ctypes.c_void_p, ctypes.c_int32),
    ]
    library.attune_dispatch.restype = None
    return library


BINDING_SHARE = 0.8  # of the time: a unit that is busy for more is the bottleneck
# Warp instructions of an SM's resident CTAs. If they have more than the first figure, their
# loop is cut so that about the second remains.
_MAX_ROUND_INSTRUCTIONS, _CUT_ROUND_INSTRUCTIONS = 1_000_000, 400_000
_MIN_ITERATIONS, _LONG_TO_SHORT = 32, 4


@dataclass(frozen=True, slots=True)
class CtaClass:
    """CTAs of a launch that execute the same trace."""

    trace: CtaTrace
    count: int


@dataclass(frozen=True, slots=True)
class SimulatedLatency:
    median_us: float
    low_us: float  # 90 % interval, from the residuals against measured kernels
    high_us: float
    clock_mhz: float
    clock: ClockKind
    origin: Literal["simulated"] = "simulated"


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedLaunch:
    """Simulated time of one launch, and what it consists of."""

    resident_ctas: int  # per SM
    ctas_per_sm: int  # executed by the busiest SM
    cta_cycles: float  # one CTA alone on an SM
    sm_cycles: float  # the busiest SM, start to end
    dram_us: float
    dram_bytes: float  # read and written
    round: SmTiming  # the resident CTAs together: busy pipes and stalls
    longest: CtaTrace  # of a CTA that executes most, as far as it was simulated
    latency: SimulatedLatency
    # Loop iterations of that CTA (simulated, executed); the rest is extrapolated. None: none is.
    iterations: tuple[int, int] | None
    start_spread: float  # relative spread of the time over start offsets of CTAs; in the interval

    def us_at(self, clock_mhz: float) -> float:
        """Time of the launch at another clock."""
        now = max(self.sm_cycles / self.latency.clock_mhz, self.dram_us)
        then = max(self.sm_cycles / clock_mhz, self.dram_us)
        return self.latency.median_us - now + then

    @property
    def bound(self) -> str:
        """The bottleneck: `launch floor`, `DRAM`, a busy unit, or else `latency`."""
        in_sms = self.sm_cycles / self.latency.clock_mhz
        if max(in_sms, self.dram_us) < LAUNCH_FLOOR_US:
            return "launch floor"
        if self.dram_us >= in_sms:
            return "DRAM"
        unit, share = max(self.busy().items(), key=lambda item: item[1])
        return unit if share >= BINDING_SHARE else "latency"

    def busy(self) -> dict[str, float]:
        """Share of a wave of CTAs in which each pipe and port is busy."""
        return self.round.busy()


def regime_of(ctas: int, gpu: GpuRates, traffic: Traffic | None) -> Regime:
    """Regime of global loads in a launch of that many CTAs."""
    if traffic is not None and traffic.streams:
        return "streaming"
    return "alone" if 2 * ctas <= gpu.num_sms else "shared"


def measured_ctas(
    program: Program,
    gpu: GpuRates,
    device: DeviceSpec,
    regime: Regime,
    smem_bytes: int,
    traces: Sequence[CtaTrace],
    lengths: Sequence[float],
    resident: int,
    most: int | None = None,
    quick: bool = False,
    mixed: bool = False,
    miss_share: float = 1.0,
    slightly_shorter: Mapping[float, Shorter] | None = None,
) -> CtaTimes:
    """`CtaTimes` of a program; `smem_bytes` is static and dynamic shared memory of one CTA."""
    taken = resident * allocated_smem(device, smem_bytes)
    kernel, fetching = (
        sm_kernel(program, gpu, regime, taken, fetches, miss_share) for fetches in (False, True)
    )
    return measure(
        kernel, fetching, traces, lengths, resident, most, quick, mixed, slightly_shorter
    )


def added_cycles(
    program: Program,
    gpu: GpuRates,
    device: DeviceSpec,
    regime: Regime,
    smem_bytes: int,
    times: CtaTimes,
    others: dict[float, CtaTrace],
    resident: int,
) -> tuple[float, float]:
    """Extra cycles of other CTAs over those of the same lengths in `times`, averaged over lengths:
    (one alone on an SM, as many as `times` has resident)."""
    taken = resident * allocated_smem(device, smem_bytes)
    kernel = sm_kernel(program, gpu, regime, taken, fetches_code=False)
    full = times.resident
    counts = (1, full) if full > 1 else (1,)
    added = []
    for length, trace in others.items():
        ends = simulate_counts(kernel, trace, counts, resident)
        equal = times.table([length])[0]
        added.append((ends[0] - equal[1], ends[-1] - equal[-1]))
    one, together = np.mean(added, axis=0)
    return float(one), float(together)


def dram_cycles(
    program: Program,
    gpu: GpuRates,
    device: DeviceSpec,
    smem_bytes: int,
    times: CtaTimes,
    traces: Mapping[float, CtaTrace],
    resident: int,
) -> tuple[tuple[float, float, float], ...]:
    """Extra cycles if all loads come from DRAM, at two lengths, ascending: (length, for one CTA,
    for as many as `times` has resident)."""
    taken = resident * allocated_smem(device, smem_bytes)
    kernel = sm_kernel(program, gpu, "streaming", taken, fetches_code=False)
    counts = tuple(sorted({1, times.resident}))
    longest = max(traces)
    # A line through the longest length and a quarter of it: start, and each further tile.
    lengths = sorted({min(x for x in traces if 4 * x >= longest), longest})

    def added(length: float) -> tuple[float, float, float]:
        ends = simulate_counts(kernel, traces[length], counts, resident)
        of_l2 = times.table([length])[0]
        return length, float(ends[0] - of_l2[1]), float(ends[-1] - of_l2[-1])

    return tuple(in_parallel(added, lengths))


def simulate_launch(
    program: Program,
    classes: Sequence[CtaClass],
    launch: Launch,
    device: DeviceSpec,
    resident: int,
    traffic: Traffic | None = None,
    *,
    quick: bool = False,
) -> SimulatedLaunch:
    """Simulated time of one launch.

    Args:
        classes: the launch's CTAs in order of starting, equal neighbours grouped.
        resident: CTAs per SM, at least 1 (`engine.model.occupancy`).
        traffic: DRAM traffic; None if L2 holds all data.
        quick: skip the start offsets of CTAs, if the time is predicted in another way.

    Raises:
        InvalidProblem: the table of GPUs lacks a figure.
        UnknownName: the timing model does not support the arch.
        CompileError: the CTAs deadlock.
        ToolMissing: there is no C++ compiler.
    """
    gpu = gpu_rates(device, program.arch)
    smem_bytes = program.static_smem_bytes + launch.dynamic_smem_bytes
    regime = regime_of(launch.ctas, gpu, traffic)
    miss_share = traffic.miss_share if traffic is not None else 0.0
    by_length = sorted((c.trace for c in classes), key=lambda t: len(t.instruction))
    ends, iterations = _short_ends(program, by_length[0], by_length[-1], resident)
    per_sm = -(-launch.ctas // gpu.num_sms)
    times = measured_ctas(
        program,
        gpu,
        device,
        regime,
        smem_bytes,
        ends,
        (float(len(ends[0].instruction)), float(len(ends[1].instruction))),
        resident,
        per_sm,
        quick,
        len(classes) > 1,
        miss_share,
    )
    longest = float(len(by_length[-1].instruction))
    if len(classes) == 1:
        cycles = float(times.launch([launch.ctas], [longest], gpu.num_sms)[0])
    else:
        executed = [float(len(each.trace.instruction)) for each in classes]
        cycles = grid_cycles(times, np.repeat(executed, [c.count for c in classes]), gpu.num_sms)
    taken = resident * allocated_smem(device, smem_bytes)
    kernel = sm_kernel(program, gpu, regime, taken, fetches_code=False, miss_share=miss_share)
    dram_us = 0.0
    if traffic is not None:
        dram_us = gpu.dram.us(traffic.dram_bytes, traffic.written_bytes)
    in_sms = cycles / gpu.cycles_per_us
    median = LAUNCH_FLOOR_US + max(in_sms, dram_us)
    is_memory_bound = dram_us >= MEMORY_SHARE * in_sms
    kind = "memory" if is_memory_bound else kernel_class(program, by_length[-1])
    is_followed = not (quick or is_memory_bound)
    beside = start_spread(kernel, ends[1], min(resident, per_sm)) if is_followed else 0.0
    low, high = interval(median, gpu.constants.arch, kind, device.clock, beside)
    return SimulatedLaunch(
        resident_ctas=resident,
        ctas_per_sm=per_sm,
        cta_cycles=times.of(1, longest),
        sm_cycles=cycles,
        dram_us=dram_us,
        dram_bytes=traffic.dram_bytes if traffic is not None else 0.0,
        round=steady_state(kernel, ends[1], min(resident, per_sm)),
        longest=ends[1],
        latency=SimulatedLatency(median, low, high, gpu.cycles_per_us, device.clock),
        iterations=iterations,
        start_spread=beside,
    )


def _short_ends(
    program: Program, shortest: CtaTrace, longest: CtaTrace, resident: int
) -> tuple[tuple[CtaTrace, CtaTrace], tuple[int, int] | None]:
    """(traces of two lengths, ascending, to extrapolate from; `SimulatedLaunch.iterations`)."""
    length = len(longest.instruction)
    executed = np.bincount(longest.instruction, minlength=len(program.instructions))
    loop = main_loop(program, executed)
    if resident * length <= _MAX_ROUND_INSTRUCTIONS or loop is None or has_phases(longest):
        return (shortest, longest), None
    iterations = iterations_of(longest, loop)
    some = max(_MIN_ITERATIONS, iterations * _CUT_ROUND_INSTRUCTIONS // (resident * length))
    if 2 * some > iterations:
        return (shortest, longest), None
    few, many = (first_iterations(longest, loop, n) for n in (some // _LONG_TO_SHORT, some))
    if len(shortest.instruction) < len(few.instruction):
        few = shortest
    return (few, many), (some, iterations)


# Effect of another number of CTAs per SM on a launch's time.


def residency_ratios(
    program: Program,
    launch: Launch,
    device: DeviceSpec,
    simulated: SimulatedLaunch,
    numbers: Iterable[int],
) -> dict[int, float]:
    """{CTAs per SM: launch time over the current one}.

    The SMs execute as many CTAs as now, all as long as the longest; DRAM time does not change.
    """
    gpu = gpu_rates(device, program.arch)
    smem_bytes = program.static_smem_bytes + launch.dynamic_smem_bytes
    regime: Regime = "alone" if 2 * launch.ctas <= gpu.num_sms else "shared"
    trace, length = simulated.longest, float(len(simulated.longest.instruction))

    def cycles(resident: int) -> float:
        times = measured_ctas(
            program,
            gpu,
            device,
            regime,
            smem_bytes,
            (trace, trace),
            (length, length),
            resident,
            simulated.ctas_per_sm,
            quick=True,
        )
        return times.of(simulated.ctas_per_sm, length)

    now = simulated.resident_ctas
    here, in_sms = cycles(now), simulated.sm_cycles / gpu.cycles_per_us

    def us(resident: int) -> float:
        in_those = in_sms if resident == now else in_sms * cycles(resident) / here
        return LAUNCH_FLOOR_US + max(in_those, simulated.dram_us)

    return {n: us(n) / us(now) for n in sorted({*numbers, now})}


@dataclass(frozen=True, slots=True, eq=False)
class TimedLaunch:
    """A simulated launch: the bytes that it touches, and its time."""

    simulated: SimulatedLaunch
    touched_bytes: int  # of global memory, each sector once
    shared: tuple[SharedBytes, ...]  # the same bytes, grouped by the CTAs that share them


def simulate(
    analysis: Analysis,
    device: DeviceSpec,
    ctas_per_sm: int,
    moved: Traffic | None = None,
    *,
    tensor_bytes: float | None = None,
    quick: bool = False,
    is_cold: bool = False,
) -> TimedLaunch:
    """Simulate one launch of any kernel.

    Args:
        analysis: of `analyse`.
        ctas_per_sm: resident CTAs of an SM, at least 1.
        moved: bytes that reach DRAM, if known better than from the touched bytes.
        tensor_bytes: size of all tensors, used as the bytes that reach DRAM for persistent CTAs
            that are too long to emulate: in their order, each finds in L2 what others have read.
        quick: simulate a single round of CTAs, for callers that have the time from a prediction.
        is_cold: L2 has none of its data at the start.

    Raises:
        InvalidProblem: the GPU's row in the table lacks a figure.
        UnknownName, CompileError, ToolMissing: as `simulate_launch`.
    """
    program, launch = analysis.program, analysis.launch
    emulator = Emulator(program, analysis.entry, launch)
    classes = _classes(analysis, emulator)
    longest = max((c.trace for c in classes), key=_length)
    groups = shared_bytes(emulator, longest)
    touched = touched_bytes(groups, launch.grid)
    traffic = None
    if device.l2_bytes is not None and device.num_sms is not None:
        running = ctas_per_sm * device.num_sms
        kept = kept_l2_bytes(device.arch, device.l2_bytes)
        traffic = launch_traffic(groups, launch.grid, running, kept, is_cold=is_cold)
        is_alone = moved is None and launch.ctas <= running
        # If only some CTAs take a further tile, `touched` may be far too small.
        may_exceed = launch.ctas * sum(group.unit_bytes for group in groups) > kept
        may_exceed = may_exceed and len({num_stores(c.trace) for c in classes}) > 1
        if (traffic.dram_bytes or may_exceed) and is_alone and takes_several_tiles(longest):
            # Only emulation shows which tiles persistent CTAs share with others.
            together = persistent_touch(emulator, analysis.counts.executed)
            if together is not None:
                touched = together.touched_bytes
                traffic = persistent_traffic(together, kept, is_cold)
            elif traffic.dram_bytes and tensor_bytes is not None and tensor_bytes < touched:
                written = float(min(written_bytes(groups, launch.grid), tensor_bytes))
                traffic = Traffic(tensor_bytes, 1.0, tensor_bytes / touched, written)
                touched = round(tensor_bytes)
        if traffic.dram_bytes and moved is not None:
            known = moved.dram_bytes, moved.written_bytes
            traffic = replace(traffic, dram_bytes=known[0], written_bytes=known[1])
    simulated = simulate_launch(program, classes, launch, device, ctas_per_sm, traffic, quick=quick)
    return TimedLaunch(simulated, touched, groups)


def _classes(analysis: Analysis, emulator: Emulator) -> Sequence[CtaClass]:
    """Return the CTAs in starting order, blockIdx.x first, with equal neighbours grouped."""
    x, y, z = analysis.launch.grid
    work = analysis.counts.work
    lengths = np.unique(work)
    if len(lengths) > _MAX_KINDS:
        lengths = lengths[np.linspace(0, len(lengths) - 1, _MAX_KINDS).round().astype(int)]
    traces = []
    for length in lengths:
        where = np.unravel_index(int(np.abs(work - length).argmin()), work.shape)
        cta = (int(where[2]), int(where[1]), int(where[0]))
        traces.append(emulator.trace(cta)[0])
    if len(traces) == 1:
        return [CtaClass(traces[0], analysis.launch.ctas)]
    nearest = np.abs(work[..., None] - lengths).argmin(axis=-1)
    order = np.broadcast_to(nearest, (z, y, x)).reshape(-1)
    starts = np.flatnonzero(np.diff(order, prepend=-1))
    counts = np.diff(starts, append=len(order))
    return [CtaClass(traces[int(order[s])], int(n)) for s, n in zip(starts, counts, strict=True)]


def _length(trace: CtaTrace) -> int:
    return len(trace.instruction)
