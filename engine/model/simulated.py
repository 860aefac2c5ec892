"""A CTA's time from its machine code, for the latency equations: simulated once, kept on disk.

The main pass of a variant is emulated at two lengths and timed on one SM; between and beyond them a
CTA's time is a straight line over the K/V rows it visits, so that a new problem of a known kernel
costs a few multiplications.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.compile import CompiledKernel, cache_root, cached_kernel
from engine.compile.cache import read_entry, write_entry
from engine.devices.spec import DeviceSpec
from engine.errors import AttuneError, InvalidProblem
from engine.model.equations import CtaCurve
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
from engine.sass.timing.residuals import family, spread
from engine.sass.timing.simulate import measured_ctas
from engine.sass.timing.sm import Regime, gpu_rates
from engine.sass.trace import CtaTrace
from kernels.variant import Config, Variant

FloatArray: TypeAlias = npt.NDArray[np.float64]
# K/V rows of the two CTAs: enough tiles that the first ones, which warm up, do not bend the line.
_ROWS = (256, 512)
_LONGEST_SEQLEN = 1 << 15
_REGIMES: tuple[Regime, ...] = ("alone", "shared")
_MOST_KEPT = 256
_VERSION = 4


@dataclass(frozen=True, slots=True)
class SimulatedCtas:
    """The main pass of one kernel on one GPU."""

    times: CtaTimes  # lengths are K/V rows
    cycles_per_us: float
    spread: float  # standard deviation of the logarithm of its error, from the validation

    def curve(self, launches: Launches, dram_bytes: FloatArray | None = None) -> CtaCurve:
        """For launches of the same kernel."""
        alone = self._line(0, launches.kv_rows)
        together = self._line(-1, launches.kv_rows)
        others = max(1, self.times.resident - 1)
        return CtaCurve(
            alone_us=alone,
            shared_us=alone
            if self.times.resident == 1
            else np.maximum(0, together - alone) / others,
            fetch_us=np.full(launches.size, self.times.fetch_cycles / self.cycles_per_us),
            spread=self.spread,
            floor_us=LAUNCH_FLOOR_US,
            dram_bytes=dram_bytes,
        )

    def _line(self, column: int, kv_rows: IntArray) -> FloatArray:
        short, long = self.times.lengths
        low, high = (row[column] for row in self.times.together)
        slope = 0.0 if short == long else (high - low) / (long - short)
        return np.asarray((low + slope * (kv_rows - short)) / self.cycles_per_us, np.float64)


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
        if (found := known(resident, launches)) is not None:
            return found
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
        regime = _regime(plan, device)
        found = _find(_path(variant, plan, compiled, device, resident, regime))
        if found is None:
            return None
        moved = traffic_by_order(variant, plan, device, resident)
        return found.curve(launches, None if moved is None else np.array([moved.dram_bytes]))

    return curve


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
        found = known(ctas, collect(variant, config, [problem]))
        if found is None:
            return None
        curves.append(found)
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
        for p in _two_lengths(variant, plan.problem, plan.config)
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
        times = fields.pop("times")
        together, steady = times.pop("together"), times.pop("steady")
        return SimulatedCtas(
            times=CtaTimes(
                resident=int(times["resident"]),
                lengths=(float(times["lengths"][0]), float(times["lengths"][1])),
                counts=tuple(times["counts"]),
                together=(tuple(together[0]), tuple(together[1])),
                steady=(float(steady[0]), float(steady[1])),
                fetch_cycles=float(times["fetch_cycles"]),
            ),
            cycles_per_us=float(fields["cycles_per_us"]),
            spread=float(fields["spread"]),
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return None  # it is simulated again


def _simulate(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> dict[Regime, SimulatedCtas]:
    """In both regimes: another problem of the kernel may be in the other one."""
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program = program_of(cubin, entry.name)
    gpu = gpu_rates(device)
    plans = _two_lengths(variant, plan.problem, plan.config)
    traces = _longest_ctas(program, entry, plans)
    lengths = [float(variant.work.kv_rows(p.problem, p.config)) for p in plans]
    error = spread(gpu.constants.arch, family(program))

    def times(regime: Regime) -> SimulatedCtas:
        measured = measured_ctas(
            program,
            gpu,
            device,
            regime,
            program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes,
            (traces[0], traces[-1]),
            (lengths[0], lengths[-1]),
            resident,
            quick=True,
        )
        return SimulatedCtas(measured, gpu.cycles_per_us, error)

    with ThreadPoolExecutor(2) as pool:  # the cycle loop lets other threads run
        return dict(zip(_REGIMES, pool.map(times, _REGIMES), strict=True))


def _regime(plan: LaunchPlan, device: DeviceSpec) -> Regime:
    """Whether few or all SMs ask L2 for data. (What does not fit there is DRAM's term.)"""
    return "alone" if 2 * plan.passes[0].ctas <= (device.num_sms or 1) else "shared"


def _two_lengths(variant: Variant, problem: Problem, config: Config) -> tuple[LaunchPlan, ...]:
    """Plans whose CTAs visit about `_ROWS` K/V rows, or the problem's own where that is fixed."""
    found = tuple(_lengths(variant, problem, config))
    if len({variant.work.kv_rows(p.problem, config) for p in found}) == 2:
        return found
    return (make_plan(variant, problem, config),)


def _lengths(variant: Variant, problem: Problem, config: Config) -> Iterator[LaunchPlan]:
    seqlen = _ROWS[0]
    for rows in _ROWS:
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
            if variant.work.kv_rows(short, config) >= rows:
                yield plan
                break
            seqlen *= 2


def _longest_ctas(
    program: Program, entry: Entry, plans: Sequence[LaunchPlan]
) -> tuple[CtaTrace, ...]:
    """Traces of the corner of the grid that executes most (a causal kernel's last tile)."""
    emulators = [Emulator(program, entry, launch_of_pass(plan, 0)) for plan in plans]
    grid = emulators[0].launch.grid
    trace, totals = emulators[0].trace()
    # Along an axis that steers nothing every CTA executes the same.
    steered = zip(grid, totals.control_axes, strict=True)
    ends = [(False, True) if n > 1 and steers else (False,) for n, steers in steered]

    def executed(last: tuple[bool, ...]) -> int:
        here = emulators[0].totals(_corner(grid, last)) if any(last) else totals
        return int(here.values[:, EXECUTED].sum())

    is_last = max(product(*ends), key=executed)

    def longest(emulator: Emulator) -> CtaTrace:
        if emulator is emulators[0] and not any(is_last):
            return trace
        return emulator.trace(_corner(emulator.launch.grid, is_last))[0]

    with ThreadPoolExecutor(2) as pool:
        return tuple(pool.map(longest, emulators))


def _corner(grid: tuple[int, int, int], is_last: Sequence[bool]) -> tuple[int, int, int]:
    x, y, z = (n - 1 if last else 0 for n, last in zip(grid, is_last, strict=True))
    return x, y, z
