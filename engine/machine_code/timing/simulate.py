"""A launch's simulated time: its CTAs on all SMs, DRAM, and the floor below every launch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.devices.spec import ClockKind, DeviceSpec
from engine.machine_code.disassembly import Program
from engine.machine_code.emulation import CtaTrace
from engine.machine_code.launch import Launch
from engine.machine_code.native_library import load_library
from engine.machine_code.timing.constants import (
    LAUNCH_FLOOR_US,
    MEMORY_SHARE,
    SmTiming,
    interval,
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
    simulate_freed,
    sm_kernel,
)
from engine.machine_code.timing.traffic import Traffic

# A grid of CTAs on all SMs: when the last one is done.


# Which SM takes the next CTA where a launch's last query tiles are cut.
#
# CTAs of such a tile do nearly what the others do, yet put their SM out of step, so that it may
# take several of the last CTAs while others take none. How far out of step hangs on the very rows,
# keys and neighbours: samples of it are simulated, and the launch is followed with some of them.


_SOURCE = Path(__file__).resolve().parent / "native" / "dispatch.cpp"
_Row: TypeAlias = tuple[float, ...]
_MOST_RUNS, _FEWEST_RUNS = 15, 3
_MOST_FOLLOWED = 30_000  # CTAs of all runs together
_MOST_PLACES = 4  # of a cut CTA among its neighbours that are simulated


@dataclass(frozen=True)
class SlotTimes:
    """When the slots of an SM fall free whose CTAs started at once, sample by sample, cycles."""

    tile: int  # query rows of a CTA
    rows: tuple[int, ...]  # those that the cut query tile of each sample has, ascending
    # [samples, resident] of equal CTAs, ascending, to the last of them: 0 at most
    offsets: tuple[_Row, ...]
    # [samples, resident, resident] how much later where one in each slot is cut
    shifts: tuple[tuple[_Row, ...], ...]

    def launch(self, rows: int, is_cut: ArrayLike, ends: ArrayLike, num_sms: int) -> float:
        """Cycles until the last CTA of a launch is done, in the median of some runs.

        Args:
            rows: of the cut query tiles.
            is_cut: whether a CTA has one, of each in order of starting, `[ctas]`.
            ends: cycles of 0, 1, … equal CTAs on one SM; none takes more.

        Raises as `load_library`.
        """
        distances = [abs(rows - x) for x in self.rows]
        nearest = min(range(len(distances)), key=distances.__getitem__)
        flags = np.array(is_cut, dtype=np.uint8)
        if abs(rows - self.tile) <= distances[nearest]:
            flags[:] = 0  # it does what a whole one does
        known = np.ascontiguousarray(ends, dtype=np.float64)
        offsets, shifts = np.array(self.offsets), np.array(self.shifts[nearest])
        samples, resident = offsets.shape
        cycles = np.zeros(max(_FEWEST_RUNS, min(_MOST_RUNS, _MOST_FOLLOWED // len(flags))))
        _library().attune_dispatch(
            *(flags.ctypes.data, len(flags), known.ctypes.data, len(known) - 1),
            *(offsets.ctypes.data, samples, shifts.ctypes.data, resident, num_sms),
            *(cycles.ctypes.data, len(cycles)),
        )
        return float(np.median(cycles))


def slot_times(
    kernel: Kernel, tile: int, samples: dict[int, tuple[CtaTrace, CtaTrace]], resident: int
) -> SlotTimes:
    """Simulate what `SlotTimes` holds.

    Args:
        tile: query rows of a CTA.
        samples: {rows of the cut query tile: a CTA of a whole one and of the cut one}, ascending.

    Raises as `simulate_sm`.
    """
    spread = np.linspace(0, resident - 1, min(resident, _MOST_PLACES)).round()
    places = sorted({int(place) for place in spread})

    def freed(pair: tuple[CtaTrace, CtaTrace], cut: int | None) -> NDArray[np.float64]:
        queue = [int(i == cut) for i in range(resident)] + [0] * resident
        return simulate_freed(kernel, pair, queue, resident)

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


BINDING_SHARE = 0.8  # of the time that a unit is busy: beyond, it is what binds
# Warp instructions of as many CTAs as an SM holds: of more than the first figure the loop is cut,
# to about the second.
_MOST_OF_A_ROUND, _LONG_ROUND = 1_000_000, 400_000
_LEAST_ITERATIONS, _LONG_TO_SHORT = 32, 4


@dataclass(frozen=True, slots=True)
class CtaClass:
    """CTAs of a launch that execute the same."""

    trace: CtaTrace
    count: int


@dataclass(frozen=True, slots=True)
class SimulatedLatency:
    median_us: float
    low_us: float  # the 90 % interval, from the residuals of the validation
    high_us: float
    clock_mhz: float
    clock: ClockKind
    origin: Literal["simulated"] = "simulated"


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedLaunch:
    """What one launch of one kernel takes."""

    resident_ctas: int  # that an SM holds at a time
    ctas_per_sm: int  # that the busiest SM works through
    cta_cycles: float  # one CTA alone on an SM
    sm_cycles: float  # the busiest SM, start to end
    dram_us: float
    dram_bytes: float  # from and to DRAM
    round: SmTiming  # the resident CTAs together: busy pipes and stalls
    longest: CtaTrace  # of a CTA that executes most, as far as it was simulated
    latency: SimulatedLatency
    # Of that CTA's loop (simulated, executed): beyond, time is a straight line. None: all of it.
    iterations: tuple[int, int] | None
    start_spread: float  # of its time, over when CTAs start beside each other: in the interval too

    def us_at(self, clock_mhz: float) -> float:
        """Its time at another clock."""
        now = max(self.sm_cycles / self.latency.clock_mhz, self.dram_us)
        then = max(self.sm_cycles / clock_mhz, self.dram_us)
        return self.latency.median_us - now + then

    @property
    def bound(self) -> str:
        """What the time is mostly: `launch floor`, `DRAM`, a unit that is busy, else `latency`."""
        in_sms = self.sm_cycles / self.latency.clock_mhz
        if max(in_sms, self.dram_us) < LAUNCH_FLOOR_US:
            return "launch floor"
        if self.dram_us >= in_sms:
            return "DRAM"
        unit, share = max(self.busy().items(), key=lambda item: item[1])
        return unit if share >= BINDING_SHARE else "latency"

    def busy(self) -> dict[str, float]:
        """Share of a round in which each pipe and port is busy."""
        return self.round.busy()


def regime_of(ctas: int, gpu: GpuRates, traffic: Traffic | None) -> Regime:
    """What a launch of that many CTAs finds beyond L1."""
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
    """`CtaTimes` of a program; `smem_bytes` is one CTA's, static and dynamic."""
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
    """Cycles that other CTAs take more than those of their lengths in `times`, on average over
    lengths: one alone, and as many as `times` tells of."""
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
    """(length, cycles that one CTA and that as many as `times` tells of take more where all that
    they load comes from DRAM), at two of the lengths, ascending."""
    taken = resident * allocated_smem(device, smem_bytes)
    kernel = sm_kernel(program, gpu, "streaming", taken, fetches_code=False)
    counts = tuple(sorted({1, times.resident}))
    longest = max(traces)
    # A line through a quarter of the longest and the longest: beginning, and each further tile.
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
        classes: the launch's CTAs in order of starting, equal neighbours together.
        resident: CTAs that an SM holds at a time, at least 1 (`engine.model.occupancy`).
        traffic: what reaches DRAM; None where L2 holds everything.
        quick: where its time is predicted otherwise: no CTAs that drift apart are simulated.

    Raises:
        InvalidProblem: the device's row lacks a figure.
        UnknownName: the timing model does not know the arch.
        CompileError: the CTAs wait for each other for ever.
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
    """(CTAs of two lengths, ascending, whose line holds all; `SimulatedLaunch.iterations`)."""
    length = len(longest.instruction)
    executed = np.bincount(longest.instruction, minlength=len(program.instructions))
    loop = main_loop(program, executed)
    if resident * length <= _MOST_OF_A_ROUND or loop is None or has_phases(longest):
        return (shortest, longest), None
    iterations = iterations_of(longest, loop)
    some = max(_LEAST_ITERATIONS, iterations * _LONG_ROUND // (resident * length))
    if 2 * some > iterations:
        return (shortest, longest), None
    few, many = (first_iterations(longest, loop, n) for n in (some // _LONG_TO_SHORT, some))
    if len(shortest.instruction) < len(few.instruction):
        few = shortest
    return (few, many), (some, iterations)


# What another number of CTAs per SM would do to a launch's time.


def residency_ratios(
    program: Program,
    launch: Launch,
    device: DeviceSpec,
    simulated: SimulatedLaunch,
    numbers: Iterable[int],
) -> dict[int, float]:
    """{CTAs per SM: the launch's time to the one that it takes today}.

    As SMs that work through as many of the longest CTAs; memory's own time stays what it is.
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
