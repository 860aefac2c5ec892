"""The simulated time of one launch, from what its machine code executes and touches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.devices.spec import DeviceSpec
from engine.machine_code.analysis import Analysis
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
from engine.machine_code.timing.constants import kept_l2_bytes
from engine.machine_code.timing.simulate import CtaClass, SimulatedLaunch, simulate_launch
from engine.machine_code.timing.traffic import Traffic, launch_traffic, persistent_traffic

_MOST_KINDS = 6  # kinds of CTAs by executed instructions; others get the time of the nearest kind


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
