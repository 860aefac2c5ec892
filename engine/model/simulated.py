"""A CTA's time from its machine code, for the latency equations: simulated once, kept on disk.

The main pass of a variant is emulated at two or three lengths and timed on one SM; between and
beyond them a CTA's time is a straight line over the K/V rows it visits, so that a new problem of a
known kernel costs a few multiplications.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.compile import CompiledKernel, cache_root, cached_kernel, compile_plan
from engine.compile.cache import read_entry, write_entry
from engine.devices.spec import DeviceSpec
from engine.errors import AttuneError, InvalidProblem
from engine.model.equations import CtaCurve, visited_share
from engine.model.estimate import SimulatedOf
from engine.model.launches import Launches, collect
from engine.model.occupancy import IntArray
from engine.model.traffic import traffic_by_order
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from engine.sass.analysis import code_digest, program_of
from engine.sass.cubin import Entry, read_cubin
from engine.sass.disassembly import find_entry
from engine.sass.emulation import EXECUTED, Emulator
from engine.sass.instruction import Program
from engine.sass.launch import launch_of_pass
from engine.sass.timing.constants import LAUNCH_FLOOR_US
from engine.sass.timing.cta_times import CtaTimes
from engine.sass.timing.grid import grid_cycles
from engine.sass.timing.native import simulate_sm
from engine.sass.timing.residuals import family, spread
from engine.sass.timing.simulate import measured_ctas
from engine.sass.timing.sm import Regime, allocated_smem, gpu_rates, sm_kernel
from engine.sass.timing.traffic import stays_in_l2
from engine.sass.trace import CtaTrace
from kernels.variant import Config, Variant

FloatArray: TypeAlias = npt.NDArray[np.float64]
# K/V rows of the CTAs. How many of them overlap on an SM settles after some tiles, and varies from
# tile to tile: long CTAs tell it better, as far as they are quick to simulate.
_ROWS = (128, 512, 2048)
_MOST_INSTRUCTIONS = 120_000  # of the longest CTA; where even 512 rows take more, 256 do
_FEWEST_ROWS = 256
_LONGEST_SEQLEN = 1 << 15
_SEQLEN_OF_PERSISTENT = 1 << 10  # of the heads whose query tiles a CTA takes in turn
# Heads that a causal CTA takes query tiles of, at least: of few, one CTA has long ones by chance.
_CAUSAL_HEADS = 4
_REGIMES: tuple[Regime, ...] = ("alone", "shared")
_MOST_KEPT = 256
_MOST_MIXED = 8  # points of a causal curve whose CTAs are followed one by one
_MOST_FOLLOWED = 20_000
_MOST_BATCHES = 5  # at which the order of a curve's CTAs is looked at
_VERSION = 9


@dataclass(frozen=True, slots=True)
class SimulatedCtas:
    """The main pass of one kernel on one GPU."""

    times: CtaTimes  # lengths are K/V rows
    cycles_per_us: float
    spread: float  # standard deviation of the logarithm of its error, from the validation
    longest_first: bool  # of a causal launch's query tiles
    # K/V rows that beginning a query tile is worth, in heads of fewer keys than `tile_rows` and in
    # longer ones, and the keys of the heads that were simulated: of CTAs that stay for several.
    begin_rows: tuple[float, float] | None = None
    tile_rows: float = 1.0

    def curve(
        self,
        config: Config,
        launches: Launches,
        device: DeviceSpec,
        dram_bytes: FloatArray | None = None,
    ) -> CtaCurve:
        """For launches of the same kernel."""
        us, num_sms = 1 / self.cycles_per_us, device.num_sms or 1
        rows = launches.kv_rows * visited_share(launches)
        slices = _slices(config, launches)
        longest = np.where(slices > 0, launches.kv_rows, rows)
        if self.begin_rows is not None:
            pieces = launches.kv_rows * (1 / launches.num_keys - 1 / self.tile_rows)
            longest = rows + np.where(pieces > 0, *self.begin_rows) * pieces
        lines = self.times.table(longest)
        cycles = self.times.launch(launches.useful_ctas, longest, num_sms)
        mixed = np.flatnonzero(launches.causal & (slices > 0))
        if len(mixed) and self.begin_rows is None:
            # Straight between some batches of a curve, as shares of what equal CTAs would take.
            last = len(mixed) - 1
            some = mixed[np.unique(np.geomspace(1, last + 1, _MOST_MIXED).astype(np.int64) - 1)]
            exact = [self._causal_cycles(config, launches, int(i), num_sms) for i in some]
            shares = np.array(exact) / cycles[some]
            cycles[mixed] *= np.interp(launches.batch[mixed], launches.batch[some], shares)
        return CtaCurve(
            cta_us=us * lines[:, 1],
            added_us=us * (lines[:, -1] - lines[:, 1]),
            sm_us=us * cycles,
            spread=self.spread,
            floor_us=LAUNCH_FLOOR_US,
            dram_bytes=dram_bytes,
        )

    def _causal_cycles(self, config: Config, launches: Launches, i: int, num_sms: int) -> float:
        """Query tiles see the keys up to their own rows: CTAs of several lengths beside each
        other, in the order in which they start."""
        query_rows, chunk = int(launches.query_rows[i]), int(launches.kv_rows[i])
        step, splits = config.get("block_n", 1), config.get("num_splits", 1)
        ends = np.arange(1, -(-int(launches.seqlen[i]) // query_rows) + 1) * query_rows
        ends = -(-ends // step) * step
        visited = np.clip(ends - chunk * np.arange(splits)[:, np.newaxis], 0, chunk)
        if self.longest_first:
            visited = visited[:, ::-1]
        one = visited[visited > 0].astype(np.float64)
        slices = int(_slices(config, launches)[i])
        followed = min(slices, max(1, _MOST_FOLLOWED // len(one)))
        cycles = grid_cycles(self.times, np.tile(one, followed).tolist(), 1, num_sms)
        return cycles * slices / followed


def _slices(config: Config, launches: Launches) -> IntArray:
    """Heads of all batches, where each has a CTA for each split of each query tile; 0 elsewhere."""
    heads = launches.batch * launches.num_heads
    tiles = -(-launches.seqlen // launches.query_rows)
    has_each = heads * tiles * config.get("num_splits", 1) == launches.ctas[0]
    return np.where(has_each, heads, 0)


def simulated_of(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec
) -> SimulatedOf:
    """CTA times of a kernel: simulated now, or found simulated before.

    Takes about a second the first time; without nvdisasm, a C++ compiler or figures of the GPU, and
    where the machine code cannot be run, there are none and the roofline stays.

    Args:
        compiled: `plan`'s kernel for `device`.
    """

    known = known_simulated_of(variant, plan, compiled, device)

    def curve(resident: int, launches: Launches) -> CtaCurve | None:
        if (curve := known(resident, launches)) is not None:
            return curve
        try:
            simulated = _simulate(variant, plan, compiled, device, resident)
        except AttuneError:
            return None
        for regime, ctas in simulated.items():
            path = _path(variant, plan, compiled, device, resident, regime)
            write_entry(path, json.dumps(asdict(ctas)).encode())
        return known(resident, launches)

    return curve


def known_simulated_of(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec
) -> SimulatedOf:
    """`simulated_of` of what was simulated before, for a page that follows a slider."""

    def curve(resident: int, launches: Launches) -> CtaCurve | None:
        ctas = known_ctas(variant, plan, compiled, device, resident)
        if ctas is None:
            return None
        moved = traffic_by_order(variant, plan, device, resident)
        dram_bytes = None if moved is None else np.array([moved.dram_bytes])
        return ctas.curve(plan.config, launches, device, dram_bytes)

    return curve


def known_batch_curve(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    problem: Problem,
    launches: Launches,
    resident: IntArray,
) -> CtaCurve | None:
    """The CTA times of `problem` at many batches, where its kernel was simulated before.

    Args:
        launches: the problem's, at each batch.
        resident: CTAs per SM of each pass, `[passes, n]`; the batch does not change them.
    """
    plan = make_plan(variant, replace(problem, batch=1), config)
    compiled = cached_kernel(plan, device.arch)
    held = int(resident[0, 0])
    if compiled is None:
        return None
    by_regime: list[SimulatedCtas] = []
    for regime in _REGIMES:
        known = _find(_path(variant, plan, compiled, device, held, regime))
        if known is None:
            return None
        by_regime.append(known)
    alone, shared = (known.curve(config, launches, device) for known in by_regime)
    is_alone = 2 * launches.ctas[0] <= (device.num_sms or 1)
    return replace(
        shared,
        cta_us=np.where(is_alone, alone.cta_us, shared.cta_us),
        added_us=np.where(is_alone, alone.added_us, shared.added_us),
        sm_us=np.where(is_alone, alone.sm_us, shared.sm_us),
        dram_bytes=_dram_bytes(variant, config, device, problem, launches, held),
    )


def simulated_batch_curve(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    problem: Problem,
    launches: Launches,
    resident: IntArray,
) -> CtaCurve | None:
    """`known_batch_curve`, of a kernel that is compiled and simulated first where it was not."""
    plan = make_plan(variant, replace(problem, batch=1), config)
    with suppress(AttuneError):  # the roofline needs no more than what it compiles itself
        compiled = compile_plan(plan, device.arch)
        first = collect(variant, config, [plan.problem])
        simulated_of(variant, plan, compiled, device)(int(resident[0, 0]), first)
    return known_batch_curve(variant, config, device, problem, launches, resident)


def _dram_bytes(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    problem: Problem,
    launches: Launches,
    held: int,
) -> FloatArray | None:
    """By the order of CTAs, at some of the batches that L2 does not hold; straight in between."""
    l2_bytes = device.l2_bytes or 0
    beyond = np.flatnonzero([not stays_in_l2(b, l2_bytes) for b in launches.device_bytes.tolist()])
    moved = np.zeros(launches.size)
    if len(beyond) == 0:
        return moved
    last = len(beyond) - 1
    looked_at = beyond[np.unique(np.geomspace(1, last + 1, _MOST_BATCHES).astype(np.int64) - 1)]
    at = []
    for batch in launches.batch[looked_at].tolist():
        plan = make_plan(variant, replace(problem, batch=int(batch)), config)
        if (traffic := traffic_by_order(variant, plan, device, held)) is None:
            return None
        at.append(traffic.dram_bytes)
    batches = launches.batch[looked_at]
    moved[beyond] = np.interp(launches.batch[beyond], batches, np.array(at))
    return moved


def known_ctas(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> SimulatedCtas | None:
    """The main pass's CTAs, by K/V rows; None where they were not simulated."""
    regime = _regime(plan, device)
    return _find(_path(variant, plan, compiled, device, resident, regime))


def known_curve(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    problems: Sequence[Problem],
    resident: IntArray,
) -> CtaCurve | None:
    """The CTA times of several problems, as far as they were simulated before; None unless all.

    Args:
        resident: CTAs per SM of each problem's main pass, `[n]`.
    """
    curves = []
    for problem, ctas in zip(problems, resident.tolist(), strict=True):
        plan = make_plan(variant, problem, config)
        compiled = cached_kernel(plan, device.arch)
        if compiled is None:
            return None
        known = known_simulated_of(variant, plan, compiled, device)
        curve = known(ctas, collect(variant, config, [problem]))
        if curve is None:
            return None
        curves.append(curve)
    return CtaCurve.joined(curves) if curves else None


def _path(
    variant: Variant,
    plan: LaunchPlan,
    compiled: CompiledKernel,
    device: DeviceSpec,
    resident: int,
    regime: Regime,
) -> Path:
    """Where the result is kept: by cubin, GPU, residency, and what lengths and regime depend on."""
    gpu = [device.num_sms, device.boost_clock_mhz, device.fp16_tensor_tflops]
    lengths = [
        (p.problem.seqlen, p.problem.num_keys)
        for p in _lengths(variant, plan.problem, plan.config, (_ROWS[0], _ROWS[-1]))
    ]
    key = [_VERSION, code_digest(), compiled.key, plan.passes[0].entry, device.arch, gpu, resident]
    text = json.dumps([*key, lengths, regime, plan.passes[0].dynamic_smem_bytes])
    return cache_root() / "sass" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.entry"


_kept: dict[Path, SimulatedCtas] = {}  # what was read; what is not there may come any time


def _find(path: Path) -> SimulatedCtas | None:
    if (kept := _kept.get(path)) is not None:
        return kept
    if (payload := read_entry(path)) is None or (read := _read(payload)) is None:
        return None
    while len(_kept) >= _MOST_KEPT:
        _kept.pop(next(iter(_kept)), None)
    _kept[path] = read
    return read


def _read(payload: bytes) -> SimulatedCtas | None:
    try:
        fields: dict[str, Any] = json.loads(payload)
        times, begin = fields.pop("times"), fields["begin_rows"]
        return SimulatedCtas(
            times=CtaTimes(
                resident=int(times["resident"]),
                lengths=_floats(times["lengths"]),
                counts=tuple(int(n) for n in times["counts"]),
                together=tuple(_floats(row) for row in times["together"]),
                round_cycles=_floats(times["round_cycles"]),
                more_cycles=_floats(times["more_cycles"]),
                fetch_cycles=float(times["fetch_cycles"]),
            ),
            cycles_per_us=float(fields["cycles_per_us"]),
            spread=float(fields["spread"]),
            longest_first=bool(fields["longest_first"]),
            begin_rows=None if begin is None else (float(begin[0]), float(begin[1])),
            tile_rows=float(fields["tile_rows"]),
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return None  # it is simulated again


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(x) for x in values)


def _simulate(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> dict[Regime, SimulatedCtas]:
    """In both regimes: another problem of the kernel may be in the other one."""
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program = program_of(cubin, entry.name)
    gpu = gpu_rates(device)
    traces = _longest_ctas(program, entry, variant, plan)
    error = spread(gpu.constants.arch, family(program))
    longest_first = all(trace.cta[0] == 0 for trace in traces.values())
    tile_rows = float(_seqlen_of_persistent(plan.problem))
    begins = _other_tiles(program, entry, variant, plan)

    taken = resident * allocated_smem(
        device, program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes
    )

    def times(regime: Regime) -> SimulatedCtas:
        measured = measured_ctas(
            program,
            gpu,
            device,
            regime,
            program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes,
            tuple(traces.values()),
            tuple(traces),
            resident,
            # Where few SMs work, one has one CTA at most.
            most=1 if regime == "alone" else None,
        )
        begin_rows = []
        kernel = sm_kernel(program, gpu, regime, taken, fetches_code=False)
        for pieces, visited, trace in begins:
            # What beginning more query tiles adds to the same rows, in rows.
            lines = measured.table([visited, 2 * visited])[:, 1]
            more = simulate_sm(kernel, [trace], [0], resident).cycles - lines[0]
            begin_rows.append(max(0.0, visited * float(more / (lines[1] - lines[0])) / pieces))
        return SimulatedCtas(
            measured,
            gpu.cycles_per_us,
            error,
            longest_first,
            (begin_rows[0], begin_rows[1]) if begin_rows else None,
            tile_rows,
        )

    return {regime: times(regime) for regime in _REGIMES}


def _regime(plan: LaunchPlan, device: DeviceSpec) -> Regime:
    """Whether few or all SMs ask L2 for data. (What does not fit there is DRAM's term.)"""
    return "alone" if 2 * plan.passes[0].ctas <= (device.num_sms or 1) else "shared"


def _lengths(
    variant: Variant, problem: Problem, config: Config, rows: Sequence[int]
) -> tuple[LaunchPlan, ...]:
    """Plans whose CTAs visit about so many K/V rows; the problem's own where that is fixed."""
    plans = tuple(_plans(variant, problem, config, rows))
    if len({variant.work.kv_rows(p.problem, config) for p in plans}) > 1:
        return plans
    return (make_plan(variant, problem, config),)


def _plans(
    variant: Variant, problem: Problem, config: Config, rows: Sequence[int]
) -> Iterator[LaunchPlan]:
    if problem.seqlen_kv is None and _is_persistent(variant, problem, config):
        yield from _more_heads(variant, problem, config, rows)
        return
    seqlen = 128
    for least in rows:
        while seqlen <= _LONGEST_SEQLEN:
            # Decoding keeps its few queries; otherwise queries and keys are of one length.
            if problem.seqlen_kv is None:
                short = replace(problem, batch=1, seqlen=seqlen)
            else:
                short = replace(problem, batch=1, seqlen_kv=seqlen)
            try:
                plan = make_plan(variant, short, config)
            except InvalidProblem:
                return
            if variant.work.kv_rows(short, config) >= least:
                yield plan
                break
            seqlen *= 2


def _is_persistent(variant: Variant, problem: Problem, config: Config) -> bool:
    """Whether CTAs stay for several query tiles, so that more heads are more rows for each."""
    few, many = (replace(problem, batch=batch) for batch in (1, 4096))
    return variant.work.kv_rows(few, config) != variant.work.kv_rows(many, config)


def _visited_rows(variant: Variant, problem: Problem, config: Config) -> float:
    """K/V rows of a CTA that stays, without those that the mask spares it."""
    launches = collect(variant, config, [problem])
    return float((launches.kv_rows * visited_share(launches))[0])


def _seqlen_of_persistent(problem: Problem) -> int:
    return _SEQLEN_OF_PERSISTENT // 2 if problem.causal else _SEQLEN_OF_PERSISTENT


def _more_heads(
    variant: Variant, problem: Problem, config: Config, rows: Sequence[int]
) -> Iterator[LaunchPlan]:
    """Each at least twice as many rows as the one before, so that a line through them is steady."""
    heads, before = 1, 0
    fewest = _CAUSAL_HEADS * _seqlen_of_persistent(problem) if problem.causal else 0
    for least in rows:
        while True:
            short = _heads_of(problem, heads, _seqlen_of_persistent(problem))
            if (visited := variant.work.kv_rows(short, config)) >= max(least, 2 * before, fewest):
                before = visited
                yield make_plan(variant, short, config)
                break
            heads *= 2


def _heads_of(problem: Problem, heads: int, seqlen: int) -> Problem:
    return replace(problem, batch=heads, num_heads=1, num_heads_kv=None, seqlen=seqlen)


def _other_tiles(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan
) -> list[tuple[float, float, CtaTrace]]:
    """Of CTAs that stay, in shorter heads and in longer ones: (how many query tiles more they begin
    than in those of `_more_heads` for as many rows, the rows, a trace)."""
    problem, config = plan.problem, plan.config
    if problem.seqlen_kv is not None or not _is_persistent(variant, problem, config):
        return []
    usual = _seqlen_of_persistent(problem)
    others = []
    for seqlen in (usual // 4, usual * 4):
        heads = 1
        while True:
            short = _heads_of(problem, heads, seqlen)
            rows = variant.work.kv_rows(short, config)
            if rows >= _CAUSAL_HEADS * max(seqlen if problem.causal else 0, usual // 4):
                break
            heads *= 2
        emulator = Emulator(program, entry, launch_of_pass(make_plan(variant, short, config), 0))
        visited = _visited_rows(variant, short, config)
        others.append((rows / seqlen - rows / usual, visited, _heaviest_cta(emulator)))
    return others


def _longest_ctas(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan
) -> dict[float, CtaTrace]:
    """{K/V rows that it visits, ascending: a CTA's trace}, of that corner of the grid that executes
    most (a causal kernel's last tile)."""
    problem, config = plan.problem, plan.config
    stays = _is_persistent(variant, problem, config)
    traces: dict[float, CtaTrace] = {}

    def add(rows: int) -> int:
        """Instructions of its longest CTA."""
        at = (_ROWS[0], rows) if traces else (rows, _ROWS[-1])
        short = _lengths(variant, problem, config, at)[-1 if traces else 0]
        emulator = Emulator(program, entry, launch_of_pass(short, 0))
        trace = _heaviest_cta(emulator)
        if stays:
            traces[_visited_rows(variant, short.problem, config)] = trace
        else:
            traces[float(variant.work.kv_rows(short.problem, config))] = trace
        return len(trace.instruction)

    executed = add(_ROWS[0])
    for before, rows in pairwise(_ROWS):
        if executed * rows > _MOST_INSTRUCTIONS * before:
            break
        executed = add(rows)
    if len(traces) == 1:
        add(_FEWEST_ROWS)
    return traces


def _heaviest_cta(emulator: Emulator) -> CtaTrace:
    grid = emulator.launch.grid
    trace, totals = emulator.trace()
    # Along an axis that steers nothing every CTA executes the same.
    steered = zip(grid, totals.control_axes, strict=True)
    ends = [(False, True) if n > 1 and steers else (False,) for n, steers in steered]

    def executed(last: tuple[bool, ...]) -> int:
        here = emulator.totals(_corner(grid, last)) if any(last) else totals
        return int(here.values[:, EXECUTED].sum())

    is_last = max(product(*ends), key=executed)
    return emulator.trace(_corner(grid, is_last))[0] if any(is_last) else trace


def _corner(grid: tuple[int, int, int], is_last: Sequence[bool]) -> tuple[int, int, int]:
    x, y, z = (n - 1 if last else 0 for n, last in zip(grid, is_last, strict=True))
    return x, y, z
