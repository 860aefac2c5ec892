"""One counted launch, simulated by itself: what it touches, and how long it would take.

A backward kernel's passes are timed so, one by one; its time is their sum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from engine.base.errors import AttuneError, InvalidProblem
from engine.base.files import read_entry, write_entry
from engine.cuda_source import CompiledKernel, cache_root
from engine.devices import DeviceSpec, limits_for
from engine.machine_code.analysis import Analysis, analyse, code_digest
from engine.machine_code.emulation import CtaTrace, Emulator
from engine.machine_code.footprint import (
    SharedBytes,
    shared_bytes,
    staying_touch,
    takes_several_tiles,
    touched_bytes,
)
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US, family, kept_l2_bytes, spread
from engine.machine_code.timing.native import gpu_rates
from engine.machine_code.timing.simulate import CtaClass, SimulatedLaunch, simulate_launch
from engine.machine_code.timing.traffic import launch_traffic, staying_traffic
from engine.model.estimate import PassTime
from engine.model.occupancy import occupancy
from engine.plan import LaunchPlan, launch_of_pass

_VERSION = 1
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
    resident = resident_of(analysis, device)
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


def resident_of(analysis: Analysis, device: DeviceSpec) -> int:
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


def known_passes(
    plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec
) -> tuple[PassTime, ...] | None:
    """The times of a backward plan's passes, where they were simulated before."""
    payload = read_entry(_path(plan, compiled, device))
    if payload is None:
        return None
    try:
        return tuple(PassTime(**fields) for fields in json.loads(payload))
    except (ValueError, TypeError):
        return None  # it is simulated again


def simulated_passes(
    plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec
) -> tuple[PassTime, ...] | None:
    """`known_passes`, simulated where they are not known; None where they cannot be.

    Takes seconds for a long problem, the first time.
    """
    if (known := known_passes(plan, compiled, device)) is not None:
        return known
    times = []
    try:
        for number, launch in enumerate(plan.passes):
            entry = compiled.symbols.get(launch.entry, launch.entry)
            analysis = analyse(compiled.cubin, entry, launch_of_pass(plan, number))
            made = time_launch(analysis, device).simulated
            us = 1 / gpu_rates(device, analysis.program.arch).cycles_per_us
            times.append(
                PassTime(
                    us=made.latency.median_us - LAUNCH_FLOOR_US,
                    sm_us=us * made.sm_cycles,
                    cta_us=us * made.cta_cycles,
                    dram_us=made.dram_us,
                    spread=spread(device.arch, family(analysis.program)),
                )
            )
    except AttuneError:
        return None
    write_entry(_path(plan, compiled, device), json.dumps([asdict(t) for t in times]).encode())
    return tuple(times)


def _path(plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec) -> Path:
    rates = [device.num_sms, device.boost_clock_mhz, device.fp16_tensor_tflops, device.clock]
    launches = [(p.entry, p.grid, p.dynamic_smem_bytes) for p in plan.passes]
    key = [_VERSION, code_digest(), compiled.key, device.name, device.arch, rates, launches]
    text = json.dumps([*key, plan.problem.label()])
    return cache_root() / "sass" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.entry"
