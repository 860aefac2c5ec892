"""A CTA's time from its machine code, for the latency equations: simulated once, kept on disk.

The main pass of a variant is emulated at ten lengths or a few more, and queues of its CTAs are
timed on one SM. Between and beyond those lengths time is a straight line over the K/V rows that a
CTA visits, and CTAs of several lengths share their SMs evenly, so that a new problem of a known
kernel takes milliseconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from engine.base.errors import AttuneError, InvalidProblem
from engine.base.files import read_entry, write_entry
from engine.cuda_source import CompiledKernel, cache_root
from engine.devices import DeviceSpec, limits_for
from engine.history.ctas import (
    ROWS,
    CurveTraffic,
    SimulatedCtas,
    cut_ctas,
    cut_query_tiles,
    has_even_splits,
    has_several_lengths,
    longest_ctas,
    plans_of,
    shorter_ctas,
)
from engine.history.persistent import PersistentCtas, simulate_persistent
from engine.machine_code.analysis import Analysis, analyse, code_digest, program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.disassembly import find_entry
from engine.machine_code.emulation import CtaTrace, Emulator
from engine.machine_code.footprint import (
    SharedBytes,
    persistent_touch,
    shared_bytes,
    takes_several_tiles,
    touched_bytes,
)
from engine.machine_code.timing.constants import (
    LAUNCH_FLOOR_US,
    kept_l2_bytes,
    kernel_class,
    spread,
)
from engine.machine_code.timing.cta_times import CtaTimes
from engine.machine_code.timing.native import Regime, allocated_smem, gpu_rates, sm_kernel
from engine.machine_code.timing.simulate import (
    CtaClass,
    SimulatedLaunch,
    SlotTimes,
    added_cycles,
    dram_cycles,
    measured_ctas,
    simulate_launch,
    slot_times,
)
from engine.machine_code.timing.traffic import Traffic, launch_traffic, persistent_traffic
from engine.model.equations import CtaCurve
from engine.model.kernel import Kernel, PassTime
from engine.model.launches import Launches, collect, traffic_by_order
from engine.model.occupancy import IntArray, occupancy
from engine.plan import LaunchPlan, cached_kernel, launch_of_pass, make_plan
from engine.problem import Problem
from kernels.variant import Config, Variant

# Where simulated CTAs are kept, and how they are read again.

KernelCtas: TypeAlias = SimulatedCtas | PersistentCtas
REGIMES: tuple[Regime, ...] = ("alone", "shared")
_MOST_KEPT = 256
_VERSION = 24


def path_of(
    variant: Variant,
    plan: LaunchPlan,
    compiled: CompiledKernel,
    device: DeviceSpec,
    resident: int,
    regime: Regime,
) -> Path:
    """Where the result is kept: by cubin, GPU, residency, and what lengths and regime depend on."""
    gpu = [device.num_sms, device.boost_clock_mhz, device.fp16_tensor_tflops]
    lengths = []
    if variant.work.schedule is None:
        plans = plans_of(variant, plan.problem, plan.config, (ROWS[0], ROWS[-1]))
        lengths = [(p.problem.seqlen, p.problem.num_keys) for p in plans]
    key = [_VERSION, code_digest(), compiled.key, plan.passes[0].entry, device.arch, gpu, resident]
    key += [plan.problem.causal, lengths, regime]  # the mask may be an argument
    text = json.dumps([*key, plan.passes[0].dynamic_smem_bytes])
    return cache_root() / "sass" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.entry"


_kept: dict[Path, KernelCtas] = {}  # what was read; what is not there may come any time


def find(path: Path) -> KernelCtas | None:
    """What `path_of` names, read once per process; None where it was not simulated."""
    if (kept := _kept.get(path)) is not None:
        return kept
    if (payload := read_entry(path)) is None or (read := _read(payload)) is None:
        return None
    while len(_kept) >= _MOST_KEPT:
        _kept.pop(next(iter(_kept)), None)
    _kept[path] = read
    return read


def _read(payload: bytes) -> KernelCtas | None:
    try:
        fields: dict[str, Any] = json.loads(payload)
        if "times" not in fields:
            return PersistentCtas(
                counts=tuple(int(n) for n in fields["counts"]),
                costs=tuple(_floats(row) for row in fields["costs"]),
                mixed=tuple(_floats(row) for row in fields["mixed"]),
                first_work=_floats(fields["first_work"]),
                resident=int(fields["resident"]),
                fetch_cycles=float(fields["fetch_cycles"]),
                cycles_per_us=float(fields["cycles_per_us"]),
                spread=float(fields["spread"]),
                dram_share=float(fields["dram_share"]),
            )
        times = fields["times"]
        return SimulatedCtas(
            times=CtaTimes(
                resident=int(times["resident"]),
                lengths=_floats(times["lengths"]),
                counts=tuple(int(n) for n in times["counts"]),
                cycles=tuple(_floats(row) for row in times["cycles"]),
                round_cycles=_floats(times["round_cycles"]),
                mixed_shares=_floats(times["mixed_shares"]),
                start_share=float(times["start_share"]),
                cta_spread=float(times["cta_spread"]),
                fetch_cycles=float(times["fetch_cycles"]),
            ),
            cycles_per_us=float(fields["cycles_per_us"]),
            spread=float(fields["spread"]),
            longest_first=bool(fields["longest_first"]),
            has_even_splits=bool(fields["has_even_splits"]),
            cut_keys=tuple(int(n) for n in fields["cut_keys"]),
            cut_cycles=tuple((float(one), float(full)) for one, full in fields["cut_cycles"]),
            dram_cycles=tuple((float(x), float(a), float(b)) for x, a, b in fields["dram_cycles"]),
            slots=_slot_times(fields["slots"]),
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return None  # it is simulated again


def _slot_times(fields: dict[str, Any] | None) -> SlotTimes | None:
    if fields is None:
        return None
    return SlotTimes(
        tile=int(fields["tile"]),
        rows=tuple(int(n) for n in fields["rows"]),
        offsets=tuple(_floats(row) for row in fields["offsets"]),
        shifts=tuple(tuple(_floats(row) for row in sample) for sample in fields["shifts"]),
    )


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(x) for x in values)


def regime_of(plan: LaunchPlan, device: DeviceSpec) -> Regime:
    """Whether few or all SMs ask L2 for data. (What does not fit there is DRAM's term.)"""
    return "alone" if 2 * plan.passes[0].ctas <= (device.num_sms or 1) else "shared"


def known_ctas(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> KernelCtas | None:
    """The main pass's CTAs, by K/V rows; None where they were not simulated."""
    regime = regime_of(plan, device)
    return find(path_of(variant, plan, compiled, device, resident, regime))


# Emulate a kernel's main pass at few lengths and time it on one SM, in both regimes.


def simulate(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> dict[Regime, KernelCtas]:
    """The main pass's CTAs in both regimes, as another problem of the kernel may be in the other.

    Raises:
        AttuneError: the machine code cannot be read, run or timed.
    """
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program = program_of(cubin, entry.name)
    if variant.work.schedule is not None:
        return dict(simulate_persistent(program, entry, variant, plan, device, resident, REGIMES))
    gpu = gpu_rates(device)
    even = has_even_splits(program, entry, variant, plan)
    traces = longest_ctas(program, entry, variant, plan, even)
    error = spread(gpu.constants.arch, kernel_class(program, traces[max(traces)]))
    longest_first = not any(any(trace.cta) for trace in traces.values())
    shorter = shorter_ctas(program, entry, variant, plan, tuple(traces)) if even else None
    cut = cut_ctas(program, entry, variant, plan, tuple(traces))
    cut_queries = cut_query_tiles(program, entry, variant, plan, tuple(traces), resident)
    smem_bytes = program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes

    def times(regime: Regime) -> SimulatedCtas:
        measured = measured_ctas(
            program,
            gpu,
            device,
            regime,
            smem_bytes,
            tuple(traces.values()),
            tuple(traces),
            resident,
            # Where few SMs work, one has one CTA at most.
            most=1 if regime == "alone" else None,
            mixed=has_several_lengths(plan.problem) or plan.config.get("num_splits", 1) > 1,
            slightly_shorter=shorter,
        )
        cut_cycles = tuple(
            added_cycles(program, gpu, device, regime, smem_bytes, measured, others, resident)
            for others in cut.values()
        )
        slots = None
        if regime != "alone" and cut_queries:
            taken = resident * allocated_smem(device, smem_bytes)
            kernel = sm_kernel(program, gpu, regime, taken, fetches_code=False)
            slots = slot_times(
                kernel, variant.work.query_rows(plan.problem, plan.config), cut_queries, resident
            )
        return SimulatedCtas(
            measured,
            gpu.cycles_per_us,
            error,
            longest_first,
            even,
            tuple(cut),
            cut_cycles,
            dram_cycles(program, gpu, device, smem_bytes, measured, traces, resident),
            slots,
        )

    return {regime: times(regime) for regime in REGIMES}


_MOST_BATCHES = 5  # at which the order of a curve's CTAs is looked at


def known_launch_curve(
    kernel: Kernel, plan: LaunchPlan, compiled: CompiledKernel, resident: int
) -> CtaCurve | None:
    """CTA times of one launch, as far as its kernel was simulated before; milliseconds.

    Args:
        compiled: `plan`'s kernel for the GPU.
        resident: CTAs of the main pass per SM.
    """
    ctas = known_ctas(kernel.variant, plan, compiled, kernel.device, resident)
    if ctas is None:
        return None
    moved = traffic_by_order(kernel.variant, plan, kernel.device, resident)
    launches = collect(kernel.variant, plan.config, [plan.problem])
    traffic = _in_unknown_order(launches, kernel.device)
    if moved is not None:
        traffic = CurveTraffic(np.array([moved.dram_bytes]), np.array([moved.miss_share]))
    return _curve(ctas, kernel.variant, plan.config, launches, kernel.device, traffic)


def launch_curve(
    kernel: Kernel, plan: LaunchPlan, compiled: CompiledKernel, resident: int
) -> CtaCurve | None:
    """`known_launch_curve`, of a kernel that is simulated first where it was not.

    Takes about a second the first time; without nvdisasm, a C++ compiler or figures of the GPU, and
    where the machine code cannot be run, there is none and the roofline stays.
    """
    known = known_launch_curve(kernel, plan, compiled, resident)
    if known is not None:
        return known
    try:
        simulated = simulate(kernel.variant, plan, compiled, kernel.device, resident)
    except AttuneError:
        return None
    for regime, ctas in simulated.items():
        path = path_of(kernel.variant, plan, compiled, kernel.device, resident, regime)
        write_entry(path, json.dumps(asdict(ctas)).encode())
    return known_launch_curve(kernel, plan, compiled, resident)


def _curve(
    ctas: KernelCtas,
    variant: Variant,
    config: Config,
    launches: Launches,
    device: DeviceSpec,
    traffic: CurveTraffic,
) -> CtaCurve:
    if isinstance(ctas, PersistentCtas):
        return ctas.curve(variant, config, launches, device, traffic)
    return ctas.curve(config, launches, device, traffic)


def known_batch_curve(
    kernel: Kernel, problem: Problem, launches: Launches, resident: IntArray
) -> CtaCurve | None:
    """The CTA times of `problem` at many batches, where its kernel was simulated before.

    Args:
        launches: the problem's, at each batch.
        resident: CTAs per SM of each pass, `[passes, n]`; the batch does not change them.
    """
    variant, config, device = kernel.variant, kernel.config, kernel.device
    plan = make_plan(variant, replace(problem, batch=1), config)
    compiled = cached_kernel(plan, device.arch)
    held = int(resident[0, 0])
    if compiled is None:
        return None
    is_alone = 2 * launches.ctas[0] <= (device.num_sms or 1)
    parts, spread = np.zeros((3, launches.size)), 0.0
    traffic = _traffic(kernel, problem, launches, held)
    for regime, there in zip(REGIMES, (is_alone, ~is_alone), strict=True):
        known = find(path_of(variant, plan, compiled, device, held, regime))
        if known is None:
            return None
        spread = known.spread
        if there.any():
            of_these = replace(traffic, dram_bytes=None, miss_share=traffic.miss_share[there])
            curve = _curve(known, variant, config, launches.take(there), device, of_these)
            parts[:, there] = curve.cta_us, curve.added_us, curve.sm_us
    return CtaCurve(
        cta_us=parts[0],
        added_us=parts[1],
        sm_us=parts[2],
        spread=spread,
        floor_us=LAUNCH_FLOOR_US,
        dram_bytes=traffic.dram_bytes,
    )


def _in_unknown_order(launches: Launches, device: DeviceSpec) -> CurveTraffic:
    """Traffic where the order of CTAs is not known: once L2 does not hold everything, all that
    several CTAs read comes from DRAM."""
    kept_bytes = kept_l2_bytes(device.arch, device.l2_bytes or 0)
    return CurveTraffic(None, (launches.device_bytes > kept_bytes).astype(np.float64))


def _traffic(kernel: Kernel, problem: Problem, launches: Launches, held: int) -> CurveTraffic:
    """Traffic by the order of CTAs, computed at a few of the batches that L2 does not hold and
    interpolated between them."""
    variant, config, device = kernel.variant, kernel.config, kernel.device
    kept_bytes = kept_l2_bytes(device.arch, device.l2_bytes or 0)
    beyond = np.flatnonzero(launches.device_bytes > kept_bytes)
    moved, missed = np.zeros((2, launches.size))
    if len(beyond) == 0:
        return CurveTraffic(moved, missed)
    last = len(beyond) - 1
    looked_at = beyond[np.unique(np.geomspace(1, last + 1, _MOST_BATCHES).astype(np.int64) - 1)]
    at = []
    for batch in launches.batch[looked_at].tolist():
        plan = make_plan(variant, replace(problem, batch=int(batch)), config)
        if (traffic := traffic_by_order(variant, plan, device, held)) is None:
            return _in_unknown_order(launches, device)
        at.append((traffic.dram_bytes, traffic.miss_share))
    batches, known = launches.batch[looked_at], np.array(at).T
    moved[beyond], missed[beyond] = (np.interp(launches.batch[beyond], batches, y) for y in known)
    return CurveTraffic(moved, missed)


# One counted launch, simulated by itself: what it touches, and how long it would take. The passes
# of a backward kernel are timed so, one by one; its time is their sum.

_LAUNCH_VERSION = 1
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
    tensor_bytes: float | None = None,
    quick: bool = False,
) -> TimedLaunch:
    """Simulate the launch with as many resident CTAs as the GPU holds.

    Args:
        moved_bytes: what reaches DRAM, where it is known better than by what is touched.
        tensor_bytes: size of all its tensors. Taken as what reaches DRAM of persistent CTAs that
            are too long to be run: in their order each finds in L2 what others have read.
        quick: simulate a single round of CTAs, for callers that take the time from a prediction.

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
            together = persistent_touch(emulator, analysis.counts.executed)
            if together is not None:
                touched = together.touched_bytes
                traffic = persistent_traffic(together, kept)
            elif tensor_bytes is not None and tensor_bytes < touched:
                traffic = Traffic(tensor_bytes, 1.0, tensor_bytes / touched)
                touched = round(tensor_bytes)
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
    payload = read_entry(_launch_path(plan, compiled, device))
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
                    spread=spread(device.arch, kernel_class(analysis.program, made.longest)),
                )
            )
    except AttuneError:
        return None
    write_entry(
        _launch_path(plan, compiled, device), json.dumps([asdict(t) for t in times]).encode()
    )
    return tuple(times)


def _launch_path(plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec) -> Path:
    rates = [device.num_sms, device.boost_clock_mhz, device.fp16_tensor_tflops, device.clock]
    launches = [(p.entry, p.grid, p.dynamic_smem_bytes) for p in plan.passes]
    key = [_LAUNCH_VERSION, code_digest(), compiled.key, device.name, device.arch, rates, launches]
    text = json.dumps([*key, plan.problem.label()])
    return cache_root() / "sass" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.entry"
