"""Simulated CTA times of a kernel, cached on disk, and the launch times that follow from them.

The main pass of a variant is simulated at about ten lengths (`engine.history.simulation`). Times
are interpolated linearly over the K/V rows that a CTA visits, and CTAs of several lengths share
their SMs evenly, so a new problem of a known kernel takes milliseconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.files import read_entry, write_entry
from engine.base.memory import Newest
from engine.cuda_source import CompileReport, cache_root
from engine.devices.spec import DeviceSpec
from engine.history.persistent import FIRST_ROWS, LATER_ROWS, PersistentCtas
from engine.history.shipped import shipped_figures, simulator_digest
from engine.machine_code.timing.constants import (
    LAUNCH_FLOOR_US,
    kept_l2_bytes,
)
from engine.machine_code.timing.cta_times import CtaTimes, grid_cycles
from engine.machine_code.timing.native import Regime
from engine.machine_code.timing.simulate import (
    SlotTimes,
)
from engine.model.equations import CtaCurve, visited_share
from engine.model.kernel import Kernel, cached_kernel
from engine.model.launches import CurveTraffic, Launches, collect, traffic_by_order
from engine.model.occupancy import IntArray
from kernels.variant import Config

FloatArray: TypeAlias = npt.NDArray[np.float64]
# Points of a curve at which CTAs are scheduled one by one: the first, where one CTA more on an SM
# changes a time by up to a quarter, and some beyond.
_FIRST_MIXED, _MAX_MIXED = 64, 8
# With more CTAs in a launch, the assignment of the last ones matters little.
_MAX_DISPATCHED = 4_000


@dataclass(frozen=True, slots=True)
class SimulatedCtas:
    """The main pass of one kernel on one GPU."""

    times: CtaTimes  # lengths are K/V rows
    cycles_per_us: float
    spread: float  # standard deviation of the logarithm of its error, from the validation
    longest_first: bool  # a causal launch starts with its longest query tiles
    has_even_splits: bool = False  # K/V splits differ by at most one tile
    # Absent keys of a partial last K/V tile, ascending, and the cycles that this adds to one CTA
    # and to as many CTAs as an SM holds.
    cut_keys: tuple[int, ...] = ()
    cut_cycles: tuple[tuple[float, float], ...] = ()
    # (K/V rows, extra cycles of one CTA, extra cycles of as many as an SM holds) if all data come
    # from DRAM.
    dram_cycles: tuple[tuple[float, float, float], ...] = ()
    slots: SlotTimes | None = None  # with and without a CTA that has a partial query tile

    @property
    def fetch_cycles(self) -> float:
        """Return the cycles that instruction fetch adds to an SM's first CTAs."""
        return self.times.fetch_cycles

    def curve(self, kernel: Kernel, launches: Launches, traffic: CurveTraffic) -> CtaCurve:
        """Return the CTA times of launches."""
        us, num_sms, config = 1 / self.cycles_per_us, kernel.device.num_sms or 1, kernel.config
        rows = launches.kv_rows * visited_share(launches)
        slices = _slices(config, launches)
        own = launches.has_own_lengths
        longest = np.where(own | (slices > 0), launches.kv_rows, rows)
        lines = self.times.table(longest)
        cycles = self.times.launch(launches.useful_ctas, longest, num_sms)
        slices = np.where(own, 0, slices)
        several = own | launches.causal | (launches.window > 0) | (config.get("num_splits", 1) > 1)
        absent = np.where(several, 0, launches.kv_rows - launches.num_keys)
        lines = lines + self.cut(np.arange(self.times.resident + 1), absent[:, np.newaxis])
        cycles += self.cut(-(-launches.useful_ctas // num_sms), absent)
        if self.slots is not None:
            ctas, is_cut = launches.useful_ctas, launches.seqlen % launches.query_rows > 0
            few = (ctas > self.times.resident * num_sms) & (ctas <= _MAX_DISPATCHED)
            of_some = np.flatnonzero(~several & is_cut & few & (slices > 0))
            self._follow(
                cycles, launches, of_some, lambda i: self._dispatched(launches, i, num_sms)
            )
        self._follow(
            cycles,
            launches,
            np.flatnonzero(several & (slices > 0)),
            lambda i: _cached_grid_cycles(
                self.times, tuple(self._slice(config, launches, i)), num_sms, int(slices[i])
            ),
        )
        for i in np.flatnonzero(own).tolist():
            cycles[i] = self._sequences(config, launches.of_each[i], num_sms)
        if self.dram_cycles and traffic.miss_share.any():
            alone, together = self._from_dram(longest)
            more = np.linspace(alone, together, self.times.resident, axis=1)
            of_round = self._from_dram(rows)[1] / self.times.table(rows)[:, -1]
            lines[:, 1:] += traffic.miss_share[:, np.newaxis] * more
            cycles = cycles * (1 + traffic.miss_share * of_round)
        return CtaCurve(
            cta_us=us * lines[:, 1],
            added_us=us * (lines[:, -1] - lines[:, 1]),
            sm_us=us * cycles,
            spread=self.spread,
            floor_us=LAUNCH_FLOOR_US,
            dram_bytes=traffic.dram_bytes,
        )

    def _from_dram(self, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the cycles that reading from DRAM adds to one CTA of `rows` K/V rows, and to as
        many as an SM holds: `[n]` each."""
        lengths, *added = (np.array(column) for column in zip(*self.dram_cycles, strict=True))
        share = (rows - lengths[0]) / max(1.0, lengths[-1] - lengths[0])
        one, full = (np.maximum(0.0, a[0] + share * (a[-1] - a[0])) for a in added)
        return one, full

    @staticmethod
    def _follow(
        cycles: FloatArray, launches: Launches, which: IntArray, exact: Callable[[int], float]
    ) -> None:
        """Replace cycles by `exact` ones at some batches of a curve, and interpolate their ratio
        to the cycles of equal CTAs between these."""
        if len(which) == 0:
            return
        beyond = np.geomspace(1, len(which), _MAX_MIXED).astype(np.int64) - 1
        some = which[np.union1d(np.arange(min(len(which), _FIRST_MIXED)), beyond)]
        shares = np.array([exact(i) for i in some.tolist()]) / cycles[some]
        cycles[which] *= np.interp(launches.batch[which], launches.batch[some], shares)

    def _dispatched(self, launches: Launches, i: int, num_sms: int) -> float:
        """Return the cycles of a launch with partial last query tiles."""
        assert self.slots is not None
        ctas, rows = int(launches.useful_ctas[i]), float(launches.kv_rows[i])
        tiles = -(-int(launches.seqlen[i]) // int(launches.query_rows[i]))
        queued = np.arange(1, ctas // num_sms + 3 * self.times.resident + 1)
        ends = self.times.launch(queued, np.full(len(queued), rows), 1)
        ends += self.cut(queued, launches.kv_rows[i : i + 1] - launches.num_keys[i : i + 1])
        is_cut = np.arange(ctas) % tiles == tiles - 1
        rest = int(launches.seqlen[i] % launches.query_rows[i])
        return self.slots.launch(rest, is_cut, np.concatenate([[0.0], ends]), num_sms)

    def cut(self, queued: IntArray, absent: IntArray) -> FloatArray:
        """Return the cycles that partial last K/V tiles add to queues of equal CTAs on one SM.

        Args:
            queued: CTAs queued on the SM.
            absent: absent keys of the last tile; 0 if it is whole. Both broadcast.
        """
        if not self.cut_keys:
            return np.zeros(np.broadcast_shapes(queued.shape, absent.shape))
        ones, fulls = zip(*self.cut_cycles, strict=True)
        one, full = (np.interp(absent, self.cut_keys, added) for added in (ones, fulls))
        resident = self.times.resident
        rounds, rest = np.divmod(queued, resident)
        share = (rest - 1) / max(1, resident - 1)
        of_rest = np.where(rest > 0, one + share * (full - one), 0.0)
        result: FloatArray = np.where(absent > 0, rounds * full + of_rest, 0.0)
        return result

    def _sequences(self, config: Config, each: Launches, num_sms: int) -> float:
        """Return the cycles of sequences of different lengths, whose CTAs start one sequence after
        the other.

        CTAs past a sequence's end exit at once and are assumed to cost nothing.
        """
        found: dict[tuple[int, int], FloatArray] = {}
        of_all = []
        for i, size in enumerate(zip(each.num_keys.tolist(), each.seqlen.tolist(), strict=True)):
            if size not in found:
                heads, group = _heads(config, each, i)
                of_head = self._slice(config, each, i, group) if heads else each.kv_rows[i : i + 1]
                repeats = heads or int(each.useful_ctas[i])
                found[size] = np.tile(of_head.astype(np.float64), repeats)
            of_all.append(found[size])
        return grid_cycles(self.times, np.concatenate(of_all), num_sms)

    def _slice(self, config: Config, launches: Launches, i: int, group: int = 1) -> FloatArray:
        """Return the K/V rows of the CTAs of one head, in starting order.

        Args:
            group: query heads whose rows are packed into one tile.
        """
        keys, chunk = int(launches.num_keys[i]), int(launches.kv_rows[i])
        query_rows, step = int(launches.query_rows[i]), config.get("block_n", 1)
        tiles = -(-int(launches.seqlen[i]) * group // query_rows)
        ends = np.full(tiles, keys)
        # Query tiles see the keys up to their own rows. A window is not modelled here: the
        # simulated CTAs include it, and their times are by the keys up to their ends.
        if launches.causal[i] or launches.window[i]:
            reach = 0 if launches.causal[i] else int(launches.window[i]) - 1
            rows = -(-np.arange(1, tiles + 1) * query_rows // group)
            own = keys - int(launches.seqlen[i]) + rows
            ends = np.minimum(keys, own + reach)
        ends, splits = -(-ends // step), config.get("num_splits", 1)
        if self.longest_first:
            ends = ends[::-1]
        if self.has_even_splits:
            # CTAs without a tile start and end like the others.
            visited = step * np.diff(ends[:, np.newaxis] * np.arange(splits + 1) // splits)
            return visited.reshape(-1).astype(np.float64)
        begins = chunk * np.arange(splits)[:, np.newaxis]
        visited = np.clip(step * ends - begins, 0, chunk)
        return visited[visited > 0].astype(np.float64)


_cached_grid_cycles = lru_cache(maxsize=4096)(grid_cycles)  # a slider draws batches again


def _heads(config: Config, launches: Launches, i: int) -> tuple[int, int]:
    """Return (number of heads with the same CTAs, query heads packed into a tile); (0, 1) for
    other grids."""
    batch, heads, kv_heads = (
        int(x[i]) for x in (launches.batch, launches.num_heads, launches.kv_heads)
    )
    rows, splits = int(launches.query_rows[i]), config.get("num_splits", 1)
    for repeats, group in ((batch * heads, 1), (batch * kv_heads, heads // kv_heads)):
        tiles = -(-int(launches.seqlen[i]) * group // rows)
        if repeats * tiles * splits == int(launches.ctas[0, i]):
            return repeats, group
    return 0, 1


def _slices(config: Config, launches: Launches) -> IntArray:
    """Return batch × heads if each has a CTA for each split of each query tile; else 0."""
    heads = launches.batch * launches.num_heads
    tiles = -(-launches.seqlen // launches.query_rows)
    has_each = heads * tiles * config.get("num_splits", 1) == launches.ctas[0]
    return np.where(has_each, heads, 0)


# Cache on disk.

KernelCtas: TypeAlias = SimulatedCtas | PersistentCtas
REGIMES: tuple[Regime, ...] = ("alone", "shared")
_VERSION = 24
# K/V rows of the simulated CTAs. The overlap of CTAs on an SM varies from tile to tile and settles
# after some tiles, which long CTAs show, if they are quick to simulate. Short CTAs show the cost of
# filling the pipeline.
ROWS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048)


def plans_of(
    kernel: Kernel, problem: Problem, rows: Sequence[int] = ROWS
) -> tuple[LaunchPlan, ...]:
    """Return a plan for each number of K/V rows that a CTA is to visit, ascending.

    If a CTA's number of rows is fixed, return only the problem's own plan.
    """
    variant, config, plans = kernel.variant, kernel.config, {}
    with suppress(InvalidProblem):  # too long for the kernel
        for least in rows:
            plan = _plan(kernel, problem, least)
            plans[variant.work.kv_rows(plan.problem, config)] = plan
    return tuple(plans.values()) if len(plans) > 1 else (make_plan(variant, problem, config),)


def _plan(kernel: Kernel, problem: Problem, rows: int) -> LaunchPlan:
    """Return a plan whose CTAs visit `rows` K/V rows, rounded up to whole tiles."""
    variant, config = kernel.variant, kernel.config

    def short(rows: int) -> Problem:
        return problem.with_keys(rows * config.get("num_splits", 1))

    return make_plan(variant, short(variant.work.kv_rows(short(rows), config)), config)


def name_of(
    kernel: Kernel, plan: LaunchPlan, compiled: CompileReport, resident: int, regime: Regime
) -> str:
    """Return the cache key: cubin, GPU, resident CTAs, and what lengths and regime depend on."""
    device = kernel.device
    gpu = [device.num_sms, device.boost_clock_mhz, device.fp16_tensor_tflops]
    lengths = [(FIRST_ROWS, LATER_ROWS)]
    if kernel.variant.work.schedule is None:
        plans = plans_of(kernel, plan.problem, (ROWS[0], ROWS[-1]))
        lengths = [(p.problem.seqlen, p.problem.num_keys) for p in plans]
    key = [_VERSION, compiled.key, plan.passes[0].entry, device.arch, gpu, resident]
    key += [plan.problem.causal, lengths, regime]  # the mask may be an argument
    text = json.dumps([*key, plan.passes[0].dynamic_smem_bytes])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def path_of(name: str) -> Path:
    """Return the path of a cached result, which changes with the code that simulates."""
    digest = hashlib.sha256(f"{simulator_digest()} {name}".encode()).hexdigest()
    return cache_root() / "sass" / f"{digest[:32]}.entry"


# Results read so far. Missing results may appear at any time.
_kept: Newest[Path, KernelCtas] = Newest(256)


def find(name: str, shipped: bool = False) -> KernelCtas | None:
    """Return the cached result with this name, read once per process; None if it was not simulated.

    Args:
        shipped: also use figures that ship with Attune.
    """
    path = path_of(name)
    if (kept := _kept.get(path)) is not None:
        return kept
    if (payload := read_entry(path)) is not None and (read := _read(payload)) is not None:
        _kept[path] = read
        return read
    return _read_fields(shipped_figures().ctas.get(name)) if shipped else None


def store(name: str, ctas: KernelCtas) -> None:
    """Write a result for `find`."""
    write_entry(path_of(name), json.dumps(asdict(ctas)).encode())


def _read(payload: bytes) -> KernelCtas | None:
    try:
        return _read_fields(json.loads(payload))
    except ValueError:
        return None  # it is simulated again


def _read_fields(fields: Mapping[str, Any] | None) -> KernelCtas | None:
    if fields is None:
        return None
    try:
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
                cta_start_cycles=float(times["cta_start_cycles"]),
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


def _slot_times(fields: Mapping[str, Any] | None) -> SlotTimes | None:
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
    """Return the regime: few or all SMs read from L2. (Data that do not fit in L2 are DRAM's
    term.)"""
    return "alone" if 2 * plan.passes[0].ctas <= (device.num_sms or 1) else "shared"


def known_ctas(
    kernel: Kernel,
    plan: LaunchPlan,
    compiled: CompileReport,
    resident: int,
    shipped: bool = False,
) -> KernelCtas | None:
    """Return the main pass's simulated CTAs, by K/V rows; None if they were not simulated.

    Args:
        shipped: as `find`'s.
    """
    regime = regime_of(plan, kernel.device)
    return find(name_of(kernel, plan, compiled, resident, regime), shipped)


# CTA times of launches.

_MAX_BATCHES = 5  # batches of a curve at which the order of CTAs is evaluated


def known_launch_curve(
    kernel: Kernel,
    plan: LaunchPlan,
    compiled: CompileReport,
    resident: int,
    shipped: bool = False,
) -> CtaCurve | None:
    """Return the CTA times of a launch whose kernel was simulated before. Takes milliseconds.

    Args:
        compiled: `plan`'s kernel for the GPU.
        resident: CTAs of the main pass per SM.
        shipped: as `find`'s.
    """
    ctas = known_ctas(kernel, plan, compiled, resident, shipped)
    if ctas is None:
        return None
    moved = traffic_by_order(kernel, plan, resident)
    launches = collect(kernel, [plan.problem])
    traffic = _in_unknown_order(launches, kernel.device)
    if moved is not None:
        traffic = CurveTraffic(np.array([moved.dram_bytes]), np.array([moved.miss_share]))
    return ctas.curve(kernel, launches, traffic)


def known_batch_curve(
    kernel: Kernel, problem: Problem, launches: Launches, resident: IntArray
) -> CtaCurve | None:
    """Return the CTA times of `problem` at many batches if its kernel was simulated before.

    Args:
        launches: the problem's, at each batch.
        resident: CTAs per SM of each pass, `[passes, n]`, which do not depend on the batch.
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
        known = find(name_of(kernel, plan, compiled, held, regime))
        if known is None:
            return None
        spread = known.spread
        if there.any():
            of_these = replace(traffic, dram_bytes=None, miss_share=traffic.miss_share[there])
            curve = known.curve(kernel, launches.take(there), of_these)
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
    """Return the traffic if the order of CTAs is not known: all reads come from DRAM unless
    everything fits in L2."""
    kept_bytes = kept_l2_bytes(device.arch, device.l2_bytes or 0)
    return CurveTraffic(None, (launches.device_bytes > kept_bytes).astype(np.float64))


def _traffic(kernel: Kernel, problem: Problem, launches: Launches, held: int) -> CurveTraffic:
    """Return the traffic by the order of CTAs, computed at a few batches that do not fit in L2
    and interpolated between them."""
    variant, config, device = kernel.variant, kernel.config, kernel.device
    kept_bytes = kept_l2_bytes(device.arch, device.l2_bytes or 0)
    beyond = np.flatnonzero(launches.device_bytes > kept_bytes)
    moved, missed = np.zeros((2, launches.size))
    if len(beyond) == 0:
        return CurveTraffic(moved, missed)
    last = len(beyond) - 1
    looked_at = beyond[np.unique(np.geomspace(1, last + 1, _MAX_BATCHES).astype(np.int64) - 1)]
    at = []
    for batch in launches.batch[looked_at].tolist():
        plan = make_plan(variant, replace(problem, batch=int(batch)), config)
        if (traffic := traffic_by_order(kernel, plan, held)) is None:
            return _in_unknown_order(launches, device)
        at.append((traffic.dram_bytes, traffic.miss_share))
    batches, known = launches.batch[looked_at], np.array(at).T
    moved[beyond], missed[beyond] = (np.interp(launches.batch[beyond], batches, y) for y in known)
    return CurveTraffic(moved, missed)
