"""A counted launch's simulated time on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.base.errors import InvalidProblem
from engine.devices import DeviceSpec, limits_for
from engine.machine_code.advice import Advice, Rerun, advise
from engine.machine_code.analysis import Analysis
from engine.machine_code.emulation import Emulator
from engine.machine_code.footprint import (
    SharedBytes,
    shared_bytes,
    staying_touch,
    takes_several_tiles,
    touched_bytes,
)
from engine.machine_code.timing.constants import kept_l2_bytes
from engine.machine_code.timing.simulate import (
    CtaClass,
    SimulatedLaunch,
    simulate_launch,
)
from engine.machine_code.timing.traffic import launch_traffic, staying_traffic
from engine.machine_code.trace import CtaTrace
from engine.model.estimate import Estimate
from engine.model.launches import traffic_by_order
from engine.model.occupancy import occupancy
from engine.plan import LaunchPlan
from kernels.variant import Variant

_MOST_KINDS = 6  # of CTAs, by how much they execute; others take the nearest one's time


@dataclass(frozen=True, slots=True, eq=False)
class TimedLaunch:
    """One launch: what it touches, and how long it would take."""

    simulated: SimulatedLaunch
    touched_bytes: int  # of global memory, each sector once
    shared: tuple[SharedBytes, ...]  # the same, by which CTAs touch it


def time_launch(
    analysis: Analysis,
    device: DeviceSpec,
    moved_bytes: float | None = None,
    *,
    quick: bool = False,
) -> TimedLaunch:
    """Simulate the launch with as many resident CTAs as the GPU holds.

    Args:
        moved_bytes: what reaches DRAM, where it is known better than by what is touched.
        quick: where a prediction says how long it takes: a round of CTAs alone is simulated.

    Raises:
        InvalidProblem: the GPU cannot hold a CTA, or its row in the table lacks a figure.
        UnknownName, CompileError, ToolMissing: as `simulate_launch`.
    """
    program, launch = analysis.program, analysis.launch
    emulator = Emulator(program, analysis.entry, launch)
    classes = _classes(analysis, emulator)
    longest = max((c.trace for c in classes), key=_length)
    groups = shared_bytes(emulator, longest)
    resident = _resident(analysis, device)
    touched = touched_bytes(groups, launch.grid)
    traffic = None
    if device.l2_bytes is not None and device.num_sms is not None:
        running = resident * device.num_sms
        kept = kept_l2_bytes(device.arch, device.l2_bytes)
        traffic = launch_traffic(groups, launch.grid, running, kept)
        is_alone = moved_bytes is None and launch.ctas <= running
        if traffic.dram_bytes and is_alone and takes_several_tiles(longest):
            # Persistent CTAs take tiles that others took before: nothing but a run shows it.
            together = staying_touch(emulator, analysis.counts.executed)
            if together is not None:
                touched = together.touched_bytes
                traffic = staying_traffic(together, kept)
        if traffic.dram_bytes and moved_bytes is not None:
            traffic = replace(traffic, dram_bytes=moved_bytes)
    simulated = simulate_launch(program, classes, launch, device, resident, traffic, quick=quick)
    return TimedLaunch(simulated, touched, groups)


def time_passes(
    variant: Variant,
    plan: LaunchPlan,
    analyses: Sequence[Analysis],
    device: DeviceSpec,
    predicted: Estimate | None,
) -> tuple[TimedLaunch, ...]:
    """A variant's passes, with the times of its prediction, which all pages show.

    Args:
        predicted: by machine code; where it is not, or None, each launch is simulated by itself.

    Raises:
        InvalidProblem, UnknownName, CompileError, ToolMissing: as `time_launch`.
    """
    moved = main_pass_dram_bytes(variant, plan, device, analyses[0])
    is_known = predicted is not None and predicted.by_machine_code
    timed = [
        time_launch(analysis, device, None if number else moved, quick=is_known)
        for number, analysis in enumerate(analyses)
    ]
    return _with_prediction(timed, predicted, device) if predicted is not None else tuple(timed)


def _with_prediction(
    timed: Sequence[TimedLaunch], predicted: Estimate, device: DeviceSpec
) -> tuple[TimedLaunch, ...]:
    """Its times; units' shares, stalls and bytes stay as they were simulated."""
    latency, terms = predicted.latency, predicted.terms
    if latency is None or terms is None:
        return tuple(timed)
    cycles_per_us = float(device.boost_clock_mhz or 0.0)
    floor_us, later_us = terms.floor_us[0] / len(timed), terms.fuse_us[0]
    main_us = latency.median_us - later_us - (len(timed) - 1) * floor_us
    result = []
    for number, each in enumerate(timed):
        us = floor_us + later_us / (len(timed) - 1) if number else main_us
        share = us / latency.median_us
        simulated = replace(
            each.simulated,
            latency=replace(
                each.simulated.latency,
                median_us=us,
                low_us=share * latency.low_us,
                high_us=share * latency.high_us,
            ),
        )
        if number == 0:
            simulated = replace(
                simulated,
                cta_cycles=float(terms.cta_us[0]) * cycles_per_us,
                sm_cycles=float(terms.compute_us[0]) * cycles_per_us,
                dram_us=float(terms.dram_us[0]),
            )
        result.append(replace(each, simulated=simulated))
    return tuple(result)


def advise_launch(
    analysis: Analysis, device: DeviceSpec | None = None, timed: TimedLaunch | None = None
) -> tuple[Advice, ...]:
    """What the launch wastes; with what mending it would gain where it was timed on `device`."""
    if device is None or timed is None:
        return advise(analysis)
    return advise(analysis, Rerun(analysis, device, timed.simulated), timed.shared)


def main_pass_dram_bytes(
    variant: Variant, plan: LaunchPlan, device: DeviceSpec, analysis: Analysis
) -> float | None:
    """What a plan's main pass moves from DRAM by the order of its CTAs; None where unclear."""
    moved = traffic_by_order(variant, plan, device, _resident(analysis, device))
    return None if moved is None else moved.dram_bytes


def _resident(analysis: Analysis, device: DeviceSpec) -> int:
    """CTAs that an SM holds. Raises InvalidProblem where it cannot hold one."""
    program, launch = analysis.program, analysis.launch
    if device.num_sms is None:
        raise InvalidProblem(f"The table of GPUs gives no number of SMs for {device.name}.")
    held = occupancy(
        limits_for(device.compute_capability),
        device.num_sms,
        launch.ctas,
        launch.threads,
        program.registers,
        analysis.smem_bytes,
    )
    if held.ctas_per_sm < 1:
        raise InvalidProblem(f"{device.name} cannot hold a CTA of {program.entry}: {held.reason}")
    return held.ctas_per_sm


def _classes(analysis: Analysis, emulator: Emulator) -> Sequence[CtaClass]:
    """The CTAs in order of starting, blockIdx.x first, equal neighbours together."""
    x, y, z = analysis.launch.grid
    work = analysis.counts.work
    lengths = np.unique(work)
    if len(lengths) > _MOST_KINDS:
        lengths = lengths[np.linspace(0, len(lengths) - 1, _MOST_KINDS).round().astype(int)]
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
