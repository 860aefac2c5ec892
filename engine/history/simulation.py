"""Simulate a kernel's CTAs from its machine code; done once per kernel.

The main pass of a variant is emulated at about ten lengths, and queues of its CTAs are timed on one
SM; `engine.history.ctas` caches them and computes launch times. A single launch can also be
simulated separately, as for the passes of a backward kernel.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from engine import machine_code
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidProblem
from engine.base.files import read_entry, write_entry
from engine.cuda_source import CompiledKernel, CompileReport, cache_root
from engine.devices.spec import DeviceSpec, limits_for
from engine.history.ctas import (
    REGIMES,
    ROWS,
    KernelCtas,
    SimulatedCtas,
    known_launch_curve,
    name_of,
    plans_of,
    store,
)
from engine.history.persistent import simulate_persistent
from engine.machine_code.analysis import Analysis, analyse, code_digest, program_of
from engine.machine_code.cubin import Entry, read_cubin
from engine.machine_code.disassembly import Program, find_entry
from engine.machine_code.emulation import EXECUTED, CtaTrace, Emulator
from engine.machine_code.timing.constants import (
    LAUNCH_FLOOR_US,
    kernel_class,
    spread,
)
from engine.machine_code.timing.cta_times import Shorter
from engine.machine_code.timing.native import Regime, allocated_smem, gpu_rates, sm_kernel
from engine.machine_code.timing.simulate import (
    TimedLaunch,
    added_cycles,
    dram_cycles,
    measured_ctas,
    slot_times,
)
from engine.machine_code.timing.traffic import Traffic
from engine.model.backward import PassTime
from engine.model.equations import CtaCurve
from engine.model.kernel import Kernel, launch_of_pass
from engine.model.occupancy import occupancy
from kernels.variant import Config

_MAX_INSTRUCTIONS = 120_000  # of the longest CTA, unless it is among the first three
# K/V rows of CTAs that show the cost of a partial last tile, which varies with length if CTAs share
# an SM. Longer ones are used only if they are quick to simulate.
_CUT_ROWS = (256, 512)
_MAX_CUT_INSTRUCTIONS = 25_000
# Instructions of all CTAs simulated for one sample of a partial query tile.
_MAX_SAMPLED = 700_000
_NEAR_ROWS = 1024  # of the longest CTAs that are simulated beside slightly shorter ones
# Turns of a CTA's warps; CTAs that end at a turn's first and last tile are simulated.
_MAX_TURNS = 4


def simulate(
    kernel: Kernel, plan: LaunchPlan, compiled: CompiledKernel, resident: int
) -> dict[Regime, KernelCtas]:
    """Simulate the main pass's CTAs in both regimes, because problems of the kernel may be in
    either.

    Raises:
        AttuneError: the machine code cannot be disassembled, executed or timed.
    """
    variant, device = kernel.variant, kernel.device
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program = program_of(cubin, entry.name)
    if variant.work.schedule is not None:
        return dict(simulate_persistent(program, entry, kernel, plan, resident, REGIMES))
    gpu = gpu_rates(device)
    even = has_even_splits(program, entry, kernel, plan.problem)
    traces = longest_ctas(program, entry, kernel, plan.problem, even)
    error = spread(gpu.constants.arch, kernel_class(program, traces[max(traces)]))
    longest_first = not any(any(trace.cta) for trace in traces.values())
    shorter = shorter_ctas(program, entry, kernel, plan.problem, tuple(traces)) if even else None
    cut = cut_ctas(program, entry, kernel, plan.problem, tuple(traces))
    cut_queries = cut_query_tiles(program, entry, kernel, plan.problem, tuple(traces), resident)
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
            # If few SMs are busy, each has at most one CTA.
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
            sm = sm_kernel(program, gpu, regime, taken, fetches_code=False)
            slots = slot_times(
                sm, variant.work.query_rows(plan.problem, plan.config), cut_queries, resident
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


def launch_curve(
    kernel: Kernel, plan: LaunchPlan, compiled: CompiledKernel, resident: int
) -> CtaCurve | None:
    """Simulate the kernel, which takes about a second, and return `known_launch_curve`.

    None without nvdisasm, a C++ compiler or figures of the GPU, or if the machine code cannot be
    executed; then the roofline is used.
    """
    try:
        simulated = simulate(kernel, plan, compiled, resident)
    except AttuneError:
        return None
    for regime, ctas in simulated.items():
        store(name_of(kernel, plan, compiled, resident, regime), ctas)
    return known_launch_curve(kernel, plan, compiled, resident)


def heaviest_cta(emulator: Emulator, has_middle: bool = False) -> CtaTrace:
    """Return the trace of the CTA that executes most, among the corners of the grid.

    Args:
        has_middle: also try CTAs halfway between the corners, which see most keys with a window on
            both sides.
    """
    trace, totals = emulator.trace()
    # CTAs along an axis that no branch depends on execute the same.
    steered = zip(emulator.launch.grid, totals.control_axes, strict=True)
    places = [
        sorted({0, n - 1, n // 2 if has_middle else 0}) if steers else [0] for n, steers in steered
    ]

    def executed(cta: tuple[int, int, int]) -> int:
        here = emulator.totals(cta) if any(cta) else totals
        return int(here.values[:, EXECUTED].sum())

    ctas = [(x, y, z) for x, y, z in product(*places)]
    heaviest = max(ctas, key=executed)
    return emulator.trace(heaviest)[0] if any(heaviest) else trace


def has_several_lengths(problem: Problem) -> bool:
    """True if a launch's CTAs visit different numbers of keys, apart from splits."""
    masked = problem.causal or problem.window is not None
    return masked or problem.seqlens is not None


def rows_in_turn(config: Config) -> tuple[int, ...]:
    """Return the K/V rows of CTAs whose warps take tiles in turn, where a turn's first tile
    takes about as long as the turn."""
    step = config.get("block_n", 1)
    turn = step * config.get("num_warps", 1)
    ends = [n * turn for n in range(1, _MAX_TURNS + 1)]
    rows = {step, 2 * step, *ends, *(end + step for end in ends)}
    return tuple(sorted(rows | {x for x in ROWS if x > max(rows)}))


def longest_ctas(
    program: Program, entry: Entry, kernel: Kernel, problem: Problem, has_even_splits: bool
) -> dict[float, CtaTrace]:
    """Return {visited K/V rows, ascending: trace} of CTAs in the corner of the grid that
    executes most (a causal kernel's last tile)."""
    variant, config = kernel.variant, kernel.config
    traces: dict[float, CtaTrace] = {}
    plans = plans_of(kernel, problem, rows_in_turn(config) if has_even_splits else ROWS)
    if has_even_splits:  # with fewer tiles than splits, the first splits are empty
        one_tile = make_plan(variant, problem.with_keys(config.get("block_n", 1)), config)
        traces[0.0] = Emulator(program, entry, launch_of_pass(one_tile, 0)).trace()[0]
    for short in plans:
        rows = float(variant.work.kv_rows(short.problem, config))
        if len(traces) > 2:
            before, trace = list(traces.items())[-1]
            if len(trace.instruction) * rows > _MAX_INSTRUCTIONS * before:
                break
        emulator = Emulator(program, entry, launch_of_pass(short, 0))
        traces[rows] = heaviest_cta(emulator, problem.window is not None and not problem.causal)
    return traces


def cut_ctas(
    program: Program, entry: Entry, kernel: Kernel, problem: Problem, lengths: Sequence[float]
) -> dict[int, dict[float, CtaTrace]]:
    """Return {absent keys of the last tile, ascending: {K/V rows: trace}} for CTAs of some lengths.

    Their query tiles are whole. Either one key is absent or all but one; absent rows are not
    loaded. Empty if tiles are never partial or CTAs have several lengths (causal, split keys).
    """
    variant, config = kernel.variant, kernel.config
    if has_several_lengths(problem) or config.get("num_splits", 1) > 1 or len(lengths) == 1:
        return {}
    step = config.get("block_n", 1)
    of_some = [int(x) for x in lengths if x in _CUT_ROWS] or [int(lengths[1])]
    found: dict[int, dict[float, CtaTrace]] = {}
    for absent, rows in product(sorted({1, step - 1} - {0}), of_some):
        keys = rows - absent
        cut = problem.with_keys(keys)
        if keys <= 0 or variant.work.kv_rows(cut, config) != rows:
            continue
        with suppress(InvalidProblem):  # it takes whole tiles only
            launch = launch_of_pass(make_plan(variant, cut, config), 0)
            trace = Emulator(program, entry, launch).trace()[0]
            of_rows = found.setdefault(absent, {})
            if not of_rows or len(trace.instruction) <= _MAX_CUT_INSTRUCTIONS:
                of_rows[float(rows)] = trace
    return found


def cut_query_tiles(
    program: Program,
    entry: Entry,
    kernel: Kernel,
    problem: Problem,
    lengths: Sequence[float],
    resident: int,
) -> dict[int, tuple[CtaTrace, CtaTrace]]:
    """Return {rows of the partial query tile: CTAs with a whole and with the partial tile of one
    launch}.

    The partial tiles have one row, half and seven eighths of the rows. Empty if an SM holds only
    one CTA, or CTAs have several lengths (causal, split keys).
    """
    variant, config = kernel.variant, kernel.config
    tile = variant.work.query_rows(problem, config)
    few = has_several_lengths(problem) or config.get("num_splits", 1) > 1 or len(lengths) == 1
    if few or resident == 1 or tile == 1:
        return {}
    found: dict[int, tuple[CtaTrace, CtaTrace]] = {}
    wanted = sorted({1, tile // 2, tile - tile // 8} - {tile})
    for rows in sorted((int(x) for x in lengths if x <= _CUT_ROWS[-1]), reverse=True):
        left = wanted[len(found)]
        if problem.seqlen_kv is None:
            short = replace(problem, batch=1, seqlen=max(rows, 2 * tile) - tile + left)
        else:
            short = replace(problem, batch=1, seqlen=tile + left, seqlen_kv=rows)
        with suppress(InvalidProblem):  # it takes whole tiles only
            launch = launch_of_pass(make_plan(variant, short, config), 0)
            emulator = Emulator(program, entry, launch)
            whole = emulator.trace()[0]
            queues = 2 * resident * (1 + min(4, resident))
            if len(whole.instruction) * queues > _MAX_SAMPLED:
                continue
            found[left] = whole, emulator.trace((launch.grid[0] - 1, 0, 0))[0]
        if len(found) == len(wanted):
            break
    return found


def shorter_ctas(
    program: Program, entry: Entry, kernel: Kernel, problem: Problem, lengths: Sequence[float]
) -> dict[float, Shorter]:
    """Return the CTA of even splits that is one K/V tile shorter than the launch's others.

    Returns:
        {K/V rows of the others: (its K/V rows, its trace)}, for some of `lengths`.
    """
    variant, config = kernel.variant, kernel.config
    step = config.get("block_n", 1)
    traces: dict[float, Shorter] = {}
    for rows in lengths:
        if not 0 < rows <= _NEAR_ROWS:
            continue
        short = problem.with_keys(int(rows) * config["num_splits"] - step)
        with suppress(InvalidProblem):  # it takes whole tiles only
            launch = launch_of_pass(make_plan(variant, short, config), 0)
            _, y, z = launch.grid  # the last query tile, which sees all keys under a causal mask
            last = z - 1 if problem.seqlens is None else 0  # the first sequence is the longest
            trace = Emulator(program, entry, launch).trace((0, y - 1, last))[0]
            traces[rows] = (rows - step, trace)
    return traces


def has_even_splits(program: Program, entry: Entry, kernel: Kernel, problem: Problem) -> bool:
    """True if splits of K/V differ by at most one tile; otherwise all but the last are equally
    long.

    Tested with one K/V tile more than splits: if the first splits take two tiles each, the last is
    empty.
    """
    variant, config = kernel.variant, kernel.config
    splits = config.get("num_splits", 1)
    if splits == 1:
        return False
    keys = (splits + 1) * config.get("block_n", 1)
    short = replace(problem.with_keys(keys), causal=False)
    emulator = Emulator(program, entry, launch_of_pass(make_plan(variant, short, config), 0))
    x, y, z = emulator.launch.grid
    executed = [
        int(emulator.totals(cta).values[:, EXECUTED].sum())
        for cta in ((0, 0, 0), (x - 1, y - 1, z - 1))
    ]
    return 2 * executed[1] > executed[0]


_LAUNCH_VERSION = 2


def time_launch(
    analysis: Analysis,
    device: DeviceSpec,
    moved: Traffic | None = None,
    *,
    tensor_bytes: float | None = None,
    quick: bool = False,
    is_cold: bool = False,
) -> TimedLaunch:
    """Simulate a launch with as many resident CTAs as the GPU holds.

    Raises:
        InvalidProblem: the GPU cannot hold a CTA, or its row in the table lacks a figure.
        UnknownName, CompileError, ToolMissing: as `machine_code.simulate`.
    """
    resident = resident_of(analysis, device)
    return machine_code.simulate(
        analysis,
        device,
        resident,
        moved,
        tensor_bytes=tensor_bytes,
        quick=quick,
        is_cold=is_cold,
    )


def resident_of(analysis: Analysis, device: DeviceSpec) -> int:
    """Return the CTAs that an SM holds. Raises InvalidProblem if it cannot hold one."""
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


def known_passes(
    plan: LaunchPlan, compiled: CompileReport, device: DeviceSpec
) -> tuple[PassTime, ...] | None:
    """Return the times of a backward plan's passes if they were simulated before."""
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
    """Return `known_passes`, simulated if they are not cached; None if that is not possible.

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


def _launch_path(plan: LaunchPlan, compiled: CompileReport, device: DeviceSpec) -> Path:
    rates = [device.num_sms, device.boost_clock_mhz, device.fp16_tensor_tflops, device.clock]
    launches = [(p.entry, p.grid, p.dynamic_smem_bytes) for p in plan.passes]
    key = [_LAUNCH_VERSION, code_digest(), compiled.key, device.name, device.arch, rates, launches]
    text = json.dumps([*key, plan.problem.label()])
    return cache_root() / "sass" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.entry"
