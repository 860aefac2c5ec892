"""A CTA's time from its machine code, for the latency equations: simulated once, kept on disk.

The main pass of a variant is emulated at two lengths and timed on one SM; between and beyond them a
CTA's time is a straight line over the K/V rows it visits, so that a new problem of a known kernel
costs a few multiplications.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.compile import CompiledKernel, cache_root
from engine.compile.cache import read_entry, write_entry
from engine.devices.spec import DeviceSpec
from engine.errors import AttuneError, InvalidProblem
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from engine.sass import disassemble, read_cubin
from engine.sass.cubin import Cubin
from engine.sass.disassembly import find_entry
from engine.sass.emulation import EXECUTED, Emulator, emulate
from engine.sass.instruction import Program
from engine.sass.launch import launch_of_pass
from engine.sass.timing.constants import CONSTANTS
from engine.sass.timing.cta_times import CtaTimes
from engine.sass.timing.residuals import family, spread
from engine.sass.timing.simulate import measured_ctas
from engine.sass.timing.sm import Regime, gpu_rates
from engine.sass.trace import CtaTrace
from kernels.variant import Config, Variant

FloatArray = npt.NDArray[np.float64]
# K/V rows of the two CTAs: enough tiles that the first ones, which warm up, do not bend the line.
_ROWS = (128, 256)
_LONGEST_SEQLEN = 1 << 15
_VERSION = 1


@dataclass(frozen=True, slots=True)
class SimulatedCtas:
    """The main pass of one kernel on one GPU, `resident` CTAs to an SM."""

    times: CtaTimes  # lengths are K/V rows
    cycles_per_us: float
    spread: float  # standard deviation of the logarithm of its error, from the validation

    @property
    def fetch_us(self) -> float:
        """What fetching the code adds to a launch."""
        return self.times.fetch_cycles / self.cycles_per_us

    def alone_us(self, kv_rows: npt.NDArray[np.int64]) -> FloatArray:
        """One CTA by itself on an SM, `[n]`."""
        return self._line(0, kv_rows)

    def shared_us(self, kv_rows: npt.NDArray[np.int64]) -> FloatArray:
        """What each further resident CTA adds, `[n]`."""
        resident = self.times.resident
        if resident == 1:
            return self.alone_us(kv_rows)
        return np.maximum(0.0, self._line(-1, kv_rows) - self._line(0, kv_rows)) / (resident - 1)

    def _line(self, column: int, kv_rows: npt.NDArray[np.int64]) -> FloatArray:
        (short, long), (low, high) = (
            self.times.lengths,
            (row[column] for row in self.times.together),
        )
        slope = 0.0 if short == long else (high - low) / (long - short)
        return (low + slope * (kv_rows - short)) / self.cycles_per_us


def simulated_ctas(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> SimulatedCtas | None:
    """Simulate the main pass, or find it simulated; None where the machine code cannot be run.

    Takes under a second the first time (no nvdisasm, no C++ compiler: None at once).

    Args:
        compiled: `plan`'s kernel for `device`.
        resident: CTAs per SM of the main pass.
    """
    path = _path(variant, plan, compiled, device, resident)
    if (found := _find(path)) is not None:
        return found
    try:
        result = _simulate(variant, plan, compiled, device, resident)
    except AttuneError:  # without the tool, or code that cannot be run: the roofline stays
        return None
    write_entry(path, json.dumps(asdict(result)).encode())
    return result


def known_ctas(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> SimulatedCtas | None:
    """`simulated_ctas` where they were simulated before: for a page that follows a slider."""
    return _find(_path(variant, plan, compiled, device, resident))


def _path(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> Path:
    """Where the result is kept: by cubin, GPU, residency, and what lengths and regime depend on."""
    gpu = [device.num_sms, device.boost_clock_mhz, device.fp16_tensor_tflops]
    lengths = [
        (p.problem.seqlen, p.problem.num_keys)
        for p in _two_lengths(variant, plan.problem, plan.config)
    ]
    key = [_VERSION, _own_digest(), compiled.key, plan.passes[0].entry, device.arch, gpu, resident]
    text = json.dumps([*key, lengths, _regime(plan, device), plan.passes[0].dynamic_smem_bytes])
    return cache_root() / "sass" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.entry"


@lru_cache(maxsize=1)
def _own_digest() -> str:
    """Of the constants: other ones, other times."""
    return hashlib.sha256(repr(CONSTANTS).encode()).hexdigest()


@lru_cache(maxsize=256)
def _find(path: Path) -> SimulatedCtas | None:
    if (payload := read_entry(path)) is None:
        return None
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
) -> SimulatedCtas:
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program = disassemble(cubin).program(entry.name)
    gpu = gpu_rates(device)
    plans = _two_lengths(variant, plan.problem, plan.config)
    traces = _longest_ctas(program, cubin, plans)
    lengths = [float(variant.work.kv_rows(p.problem, p.config)) for p in plans]
    times = measured_ctas(
        program,
        gpu,
        device,
        _regime(plan, device),
        program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes,
        (traces[0], traces[-1]),
        (lengths[0], lengths[-1]),
        resident,
        quick=True,
    )
    return SimulatedCtas(times, gpu.cycles_per_us, spread(gpu.constants.arch, family(program)))


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
            short = replace(problem, batch=1, seqlen=seqlen, seqlen_kv=None)
            try:
                plan = make_plan(variant, short, config)
            except InvalidProblem:
                return
            if variant.work.kv_rows(short, config) >= rows:
                yield plan
                break
            seqlen *= 2


def _longest_ctas(
    program: Program, cubin: Cubin, plans: Sequence[LaunchPlan]
) -> tuple[CtaTrace, ...]:
    """Traces of the corner of the grid that executes most (a causal kernel's last tile)."""
    entry = cubin.entries[program.entry]
    launches = [launch_of_pass(plan, 0) for plan in plans]
    grid, emulator = launches[0].grid, Emulator(program, entry, launches[0])
    ends = product(*(sorted({0, n - 1}) for n in grid))
    executed = {c: int(emulator.totals(c).values[:, EXECUTED].sum()) for c in ends}
    longest = max(executed, key=lambda c: executed[c])
    is_last = [at > 0 for at in longest]
    return tuple(emulate(program, entry, x, _corner(x.grid, is_last)) for x in launches)


def _corner(grid: tuple[int, int, int], is_last: Sequence[bool]) -> tuple[int, int, int]:
    x, y, z = (n - 1 if last else 0 for n, last in zip(grid, is_last, strict=True))
    return x, y, z
