"""Constants of the timing model with their sources, its error on measured kernels, its results.

Origins: *published*: in a document of NVIDIA or a paper that measured it on that arch (named).
*carried over*: published for another arch of the table and assumed here. *assumed*: of the order
that micro-benchmarks report, not traced to one. *chosen*: selected among values by comparison with
measured times; the row says which, and `tests/bench/bench_sass_validation.py` marks those points.
*fitted*: to series of `tests/bench/counted_sets.json`, each of which was left out in turn.

Huerta is Huerta et al., "Analyzing Modern NVIDIA GPU Cores", arXiv 2503.20481, measured on an RTX
A6000 (Ampere). gpu-benches is github.com/te42kyfo/gpu-benches, whose files hold the bandwidth of L2
over the footprint on an A100, H100 PCIe, H200, A40 and L40, and the latency of a load on an H100
PCIe and an L40. Of an RTX PRO 6000 Blackwell, Chips and Cheese measured 8.7 TB/s of L2.

Not modelled: the distance of an SM from each slice of L2 (222 to 339 cycles on an L40, over all
SMs, by the abstract of arXiv 2606.22588), and the register-file bandwidth that a wgmma needs for
its accumulators and for a left operand in registers. Most simulated times are slightly too short:
wgmma GEMM by 12 %, SGEMM by 6 % on average. The clock under a power limit: see `power.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import exp, hypot
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import UnknownName
from engine.devices.spec import ClockKind
from engine.machine_code.disassembly import Pipe, Program
from engine.machine_code.emulation import CtaTrace

# Error of the simulation on measured kernels, by class of kernel.
#
# 90 % of the measured points of a class lie within exp(+- 1.645 residual) of their simulated time.
# The clock is that of the source, or else of the energy model, so residuals include errors of the
# clock. `tests/bench/counted_sets.py` has the points, and for each series how many of its points
# lie inside the intervals made from the other series.

KernelClass: TypeAlias = Literal["scalar", "mma", "wgmma", "memory", "conflict"]
_Z90 = 1.6449
_CLOCK_SPREAD = 0.08  # of log(clock), for kernels and GPUs outside the calibration
CONFLICT_SHARE = 1.25  # shared-memory passes over those needed: class `conflict` from here on
MEMORY_SHARE = 0.8  # DRAM time over SM time: class `memory` from here on

RESIDUALS: Mapping[KernelClass, float] = {
    "scalar": 0.11,
    "mma": 0.1,
    "wgmma": 0.1,
    "memory": 0.05,
    "conflict": 0.15,
}
# Archs without measured points are assumed to have twice the error.
MEASURED_ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")


def kernel_class(program: Program, trace: CtaTrace) -> KernelClass:
    """Class by the unit that does the products, or `conflict` if shared-memory accesses take many
    passes. The class `memory` depends on the launch and is not decided here."""
    rows = trace.access[trace.access >= 0]
    passes, ideal = int(trace.wavefronts[rows].sum()), int(trace.ideal_wavefronts[rows].sum())
    tensor = [i.opcode for i in program.instructions if i.pipe is Pipe.TENSOR]
    if any(opcode.endswith("GMMA") for opcode in tensor):
        return "wgmma"
    if passes >= CONFLICT_SHARE * ideal > 0:
        return "conflict"
    return "mma" if tensor else "scalar"


def spread(arch: str, kind: KernelClass) -> float:
    """Standard deviation of the logarithm of a simulated time's error."""
    return RESIDUALS[kind] * (1 if arch.rstrip("af") in MEASURED_ARCHS else 2)


def interval(
    median_us: float,
    arch: str,
    kind: KernelClass,
    clock: ClockKind = "boost",
    start_spread: float = 0.0,
) -> tuple[float, float]:
    """The 90 % interval of a simulated time.

    Args:
        start_spread: standard deviation of its logarithm over start offsets of CTAs.
    """
    return widened(median_us, _Z90 * hypot(spread(arch, kind), start_spread), clock)


def widened(median_us: float, half_width: float, clock: ClockKind) -> tuple[float, float]:
    """(low, high) around a time; wider at a sustained clock, which is itself predicted.

    Args:
        half_width: half width of the 90 % interval of the time's logarithm.
    """
    if clock == "sustained":
        half_width = hypot(half_width, _Z90 * _CLOCK_SPREAD)
    return median_us / exp(half_width), median_us * exp(half_width)


# Results of simulating an SM: cycles, busy pipes, stalls by reason and instruction.


_UNITS = ("MIO", "LG", "GMMA")


class StallReason(IntEnum):
    """Why a warp did not issue, by Nsight Compute's names; `SELECTED`: it issued in that cycle."""

    SELECTED = 0
    WAIT = 1  # fixed latency, in the stall count of the instruction
    LONG_SCOREBOARD = 2  # global or local memory
    SHORT_SCOREBOARD = 3  # shared memory, shuffles, special functions
    BARRIER = 4
    MEMBAR = 5
    MATH_PIPE_THROTTLE = 6
    MIO_THROTTLE = 7  # the queue to shared memory is full
    LG_THROTTLE = 8  # the queue to global memory is full
    NOT_SELECTED = 9  # another warp was issued
    NO_INSTRUCTION = 10  # instruction not fetched yet
    GMMA = 11  # wgmma

    @property
    def label(self) -> str:
        """`Long scoreboard`, `MIO throttle`."""
        first, *rest = self.name.split("_")
        return " ".join((first if first in _UNITS else first.capitalize(), *map(str.lower, rest)))


@dataclass(frozen=True, slots=True, eq=False)
class SmTiming:
    """Timing of one SM that executes a queue of CTAs."""

    cycles: float
    issued: int  # warp instructions
    started: NDArray[np.float64]  # [ctas] cycle of each CTA's start, in the queue's order
    finished: NDArray[np.float64]  # [ctas]
    busy_cycles: dict[str, float]  # by pipe and port, summed over the four partitions of the SM
    stalls: NDArray[np.float64]  # [instructions, StallReason] warp cycles; [0, …] if not recorded

    def busy(self) -> dict[str, float]:
        """Share of the cycles in which each pipe or port was busy, 0 to 1."""
        units = {name: 1.0 if name in PORTS else 4.0 for name in self.busy_cycles}
        return {k: v / (units[k] * max(self.cycles, 1.0)) for k, v in self.busy_cycles.items()}

    def stall_cycles(self) -> dict[StallReason, float]:
        """Warp cycles by stall reason, over all instructions."""
        return {r: float(self.stalls[:, r].sum()) for r in StallReason}


# Ports that the four partitions share.
PORTS = ("shared_port", "l1_tags", "l2_port")


Origin: TypeAlias = Literal["published", "carried over", "assumed", "chosen", "fitted"]

# Columns: name, then one value for each of these archs. The line below each row gives its source.
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_TABLE = """
fma_units               1     1     2     2     2     2     2
    published: CUDA programming guide, arithmetic throughput: 64 or 128 FP32 results a cycle and SM
fma_cycles              2     2     2     2     2     2     2
    published: CUDA programming guide, 16 lanes a unit and partition
half_cycles             2     1     2     2     2     2     2
    published: CUDA programming guide, 128 or 256 FP16 results a cycle; sm_120 assumed as sm_90
half_on_first_unit      1     1     1     1     0     0     0
    published: CUDA programming guide, the same figures
imad_on_first_unit      1     1     1     1     1     1     0
    published: CUDA programming guide, 64 a cycle; sm_120: RTX Blackwell whitepaper, unified cores
alu_cycles              2     2     2     2     2     2     2
    published: CUDA programming guide, 64 integer results a cycle and SM
xu_cycles               8     8     8     8     8     8     8
    published: CUDA programming guide, 16 results a cycle and SM
fp64_cycles            64     4    64    64     2     2    64
    published: CUDA programming guide, 2, 32 or 64 FP64 results a cycle and SM
uniform_cycles          2     2     2     2     2     2     2
    assumed: one uniform instruction every other cycle and partition
mma_sync_share        100   100   100   100    62   100   100
    published: arXiv 2402.13499: mma.sync gets 62 % of Hopper's wgmma peak; others 100
operand_window          3     3     3     3     3     3     3
    published: Huerta: three cycles to read operands, two banks of one port
queue_depth             5     5     5     5     5     5     5
    published: Huerta: four entries and a latch (Ampere); others carried over
dispatch_cycles         4     4     4     4     4     4     4
    published: Huerta: a memory instruction every 4 cycles and partition
accept_cycles           2     1     2     2     1     1     2
    published: whitepapers, 16 or 32 load/store units an SM; sm_86: Huerta; sm_120 carried over
shared_pass_cycles      2     1     1     1     1     1     1
    published: GA102 whitepaper, shared memory and L1: 64 bytes a cycle on Turing, 128 on Ampere
arrive_cycles           1     1     1     1     1     1     1
    assumed: lanes that arrive at an mbarrier change one word, one after the other, as atomics do
lookup_bytes          512   128   512   512   512   512   512
    published: NVIDIA's developer forum, 4 sets of 4 sectors a cycle; sm_80: from rows of SGEMM
shared_cycles          23    23    23    23    23    23    23
    published: Huerta: 23 from a uniform address (Ampere); others carried over
matrix_cycles          29    29    29    29    33    33    33
    assumed: ldmatrix, six cycles more than a shared load
shuffle_cycles         23    23    23    23    24    24    24
    assumed: as a shared load
l1_cycles              32    32    32    32    32    32    32
    published: Huerta: 32 from a regular address (Ampere); others carried over
l2_cycles             230   210   280   277   266   280   350
    published: gpu-benches: random loads, L40 and H100 PCIe; other archs assumed, of that order
dram_cycles           450   410   540   540   480   600   620
    assumed: of the order that micro-benchmarks report
tensor_cycles          33    33    33    33    33    33    33
    assumed: first operand to result of one mma.sync, where a scoreboard waits for it
product_queue          32    32    32    32    32    32    32
    assumed: queued wgmmas of a partition; a warp continues while its wgmma is pending (PTX ISA)
warpgroup_cycles       32    32    32    32    32    32    32
    assumed: pipeline latency after the last pass of a wgmma
mufu_cycles            22    22    22    22    22    22    22
    assumed: MUFU to result
special_cycles         30    30    30    30    30    30    30
    assumed: S2R to result
constant_cycles        26    26    26    26    26    26    26
    published: Huerta: LDC (Ampere); others carried over
other_cycles           20    20    20    20    20    20    20
    assumed: any other result that sets a scoreboard
operand_read_cycles     4     4     4     4     4     4     4
    assumed: until an instruction that sets a scoreboard has read its registers
shared_read_cycles      8     8     8     8     8     8     8
    assumed: the same of shared-memory instructions, from leaving the queue
global_read_cycles     10    10    10    10    10    10    10
    assumed: the same of global-memory instructions (Huerta: 9 to 16 by width)
barrier_cycles         20    20    20    20    20    20    20
    assumed: from the last arrival to the first instruction after bar.sync
fetch_cycles           20    20    20    20    20    20    20
    chosen: from 0, 15 and 20 on fa_mma, B*H=1, S=64, 128, 512 on an H200; not validated on those
bulk_copy_cycles      170   170   170   170   170   170   170
    assumed: what TMA adds to an L2 access
cta_start_cycles      900   900   900   900   900   900   900
    fitted: scans, reductions, transposes on an H100, each left out: 900 to 1,200; carried over
l1_kib                 96   192   128   128   256   256   128
    published: whitepapers, L1 and shared memory together
l2_port_bytes_per_cycle    64    64    64    64    64    64    64
    published: A100 whitepaper, an SM's port to L2; others carried over
l2_kept_percent        98    70    98    98    72    72    98
    published: gpu-benches: footprint at which bandwidth is a tenth lower; others carried over
l2_share_bytes_per_cycle   24    36    17    15    37    24    18
    published: L2 bandwidth over cycles and SMs (above); sm_75, sm_100 assumed
"""


@dataclass(frozen=True, slots=True)
class Constant:
    """One row of the table."""

    name: str
    values: tuple[int, ...]  # in the order of the archs
    origin: Origin
    source: str


def _rows() -> tuple[Constant, ...]:
    lines = _TABLE.strip("\n").splitlines()
    rows = []
    for values, source in zip(lines[::2], lines[1::2], strict=True):
        name, *numbers = values.split()
        origin, _, text = source.strip().partition(": ")
        rows.append(Constant(name, tuple(map(int, numbers)), _origin(origin), text))
    return tuple(rows)


def _origin(text: str) -> Origin:
    for known in get_args(Origin):
        if text == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(text)


CONSTANTS = _rows()
LAUNCH_FLOOR_US = 0.51  # an empty kernel in a CUDA graph on an H200, measured
_CLOSEST = {87: 86, 88: 86, 101: 100, 103: 100, 110: 100, 121: 120}


@dataclass(frozen=True, slots=True)
class SmConstants:
    """Constants of one arch, named as in the table; in cycles unless the name has a unit."""

    arch: str
    fma_units: int
    fma_cycles: int
    half_cycles: int
    half_on_first_unit: int
    imad_on_first_unit: int
    alu_cycles: int
    xu_cycles: int
    fp64_cycles: int
    uniform_cycles: int
    mma_sync_share: int  # per cent
    operand_window: int
    queue_depth: int
    dispatch_cycles: int
    accept_cycles: int
    shared_pass_cycles: int
    arrive_cycles: int
    lookup_bytes: int
    shared_cycles: int
    matrix_cycles: int
    shuffle_cycles: int
    l1_cycles: int
    l2_cycles: int
    dram_cycles: int
    tensor_cycles: int
    product_queue: int
    warpgroup_cycles: int
    mufu_cycles: int
    special_cycles: int
    constant_cycles: int
    other_cycles: int
    operand_read_cycles: int
    shared_read_cycles: int
    global_read_cycles: int
    barrier_cycles: int
    fetch_cycles: int
    bulk_copy_cycles: int
    cta_start_cycles: int
    l1_kib: int
    l2_port_bytes_per_cycle: int
    l2_kept_percent: int
    l2_share_bytes_per_cycle: int


@lru_cache(maxsize=64)
def kept_l2_bytes(arch: str, l2_bytes: int) -> int:
    """Bytes that L2 can keep of data that all SMs read. This is less than its size on GPUs with two
    L2 partitions, as each keeps a copy. Archs that the table lacks use the oldest arch's share."""
    return l2_bytes * _constants_or_oldest(arch).l2_kept_percent // 100


@lru_cache(maxsize=16)
def l2_share_bytes_per_cycle(arch: str) -> int:
    """L2 bandwidth of an SM while all SMs use it; the oldest arch's if the table lacks the arch."""
    return _constants_or_oldest(arch).l2_share_bytes_per_cycle


def _constants_or_oldest(arch: str) -> SmConstants:
    try:
        return sm_constants(arch)
    except UnknownName:
        return sm_constants(ARCHS[0])


@lru_cache(maxsize=16)
def sm_constants(arch: str) -> SmConstants:
    """Constants of `sm_90`, `sm_90a` and so on; those of a close arch if it is not in the table.

    Raises:
        UnknownName: neither the arch nor a related one is in the table.
    """
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    number = int(match[1]) if match else 0
    column = f"sm_{_CLOSEST.get(number, number)}"
    if column not in ARCHS:
        raise UnknownName(
            f"The timing model does not support {arch}: it supports {', '.join(ARCHS)} and "
            "archs close to them.",
            code="arch_not_timed",
        )
    i = ARCHS.index(column)
    return SmConstants(arch=column, **{row.name: row.values[i] for row in CONSTANTS})
