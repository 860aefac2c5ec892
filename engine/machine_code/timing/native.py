"""Interface to the cycle-level simulator in C++: its input rows, constants and results."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import CompileError, InvalidProblem
from engine.base.memory import Newest
from engine.devices.spec import DeviceSpec, DramRate, limits_for
from engine.machine_code.disassembly import SCOREBOARDS, Instruction, Pipe, Program
from engine.machine_code.emulation import CtaTrace
from engine.machine_code.native_library import load_library
from engine.machine_code.timing.constants import (
    PORTS,
    SmConstants,
    SmTiming,
    StallReason,
    kept_l2_bytes,
    sm_constants,
)

# Convert machine instructions to rows of the native model: pipe, cycles, registers read.

PIPES = tuple(Pipe)
_PIPE_NUMBER = {pipe: n for n, pipe in enumerate(PIPES)}
_CODE_LINE_BYTES = 128
_SLOTS = 3
_KEPT = 256
_REGISTER = re.compile(r"^[-+~|!]*R(\d+)")
_PREDICATE = re.compile(r"^!?U?P(\d|T)$")
_HALF = {"HADD2", "HFMA2", "HMUL2", "HSET2", "HSETP2", "HMNMX2"}
_INTEGER_FMA = {"IMAD", "IMUL", "IDP"}
# These write only predicates, so their first general operand is a source.
_NO_DESTINATION = {"ISETP", "FSETP", "FCHK", "R2P", "VOTE", "HSETP2", "DSETP", "PSETP", "PLOP3"}
# K of a tensor instruction by the digits of its shape ("16816" is m16n8k16), and its FMAs relative
# to FP16: with 8-bit integers twice as many.
_SHAPE_FMAS = {"884": 256, "1684": 512, "1688": 1024, "16816": 2048, "16832": 4096, "16864": 8192}

# As `Op` in native/timing.h.
OP = np.dtype(
    [
        *((name, np.int32) for name in ("pipe", "stall", "write_barrier", "read_barrier")),
        *((name, np.int32) for name in ("wait_mask", "first_unit_only")),
        *((name, np.int32) for name in ("result_cycles", "read_cycles", "code_line", "uses_l1")),
        *((name, np.int32) for name in ("is_fence", "is_warpgroup", "closes_group")),
        ("reads", np.int32, (_SLOTS,)),
        ("pipe_cycles", np.float32),
        ("passes", np.float32),
    ]
)


# All regimes of a kernel share them.
_ops_cache = Newest[tuple[object, ...], NDArray[np.void]](4)


def ops_of(program: Program, c: SmConstants, tensor: TensorRates) -> NDArray[np.void]:
    """One row of dtype `OP` per instruction."""
    key = (program.cubin_sha256, program.entry, c, tensor)
    if not program.cubin_sha256 or (known := _ops_cache.get(key)) is None:
        rows = [_op(i, c, tensor) for i in program.instructions]
        known = np.array(rows, OP)
        _ops_cache[key] = known
    return known


def _op(i: Instruction, c: SmConstants, tensor: TensorRates) -> tuple[object, ...]:
    """Fields of one instruction, in the order of `OP`."""
    control = i.control
    first_unit_only = (i.opcode in _HALF and c.half_on_first_unit) or (
        i.opcode in _INTEGER_FMA and c.imad_on_first_unit
    )
    accepted = c.accept_cycles if i.pipe in (Pipe.SHARED, Pipe.GLOBAL) else 0
    result_cycles, read_cycles = _latencies(i, c)
    return (
        _PIPE_NUMBER[i.pipe],
        control.stall,
        _barrier(control.write_barrier),
        _barrier(control.read_barrier),
        control.wait_mask,
        bool(first_unit_only),
        result_cycles,
        read_cycles,
        i.address // _CODE_LINE_BYTES,
        _uses_l1(i),
        i.opcode in ("MEMBAR", "FENCE"),
        i.opcode.endswith("GMMA"),
        "gsb0" in i.operands,
        _registers_read(i),
        _pipe_cycles(i, c, tensor),
        max(accepted, _register_passes(i)),
    )


def _barrier(number: int) -> int:
    return number if number < SCOREBOARDS else -1  # also for 6, which no GPU uses


def _uses_l1(i: Instruction) -> bool:
    """True if a load may hit in L1: not for volatile loads and cp.async that bypasses L1."""
    if i.opcode in ("LDL", "STL"):
        return True
    around = {"STRONG", "BYPASS", "MMIO", "CONSTANT_BYPASS"} & set(i.modifiers)
    return i.opcode in ("LDG", "LD", "LDGSTS") and not around


def _register_passes(i: Instruction) -> int:
    """Cycles of a wide global access, one register each; for shared ones the trace has them."""
    if i.opcode in ("LDG", "LD", "LDL", "STG", "ST", "STL"):
        return 4 if "128" in i.modifiers else 2 if "64" in i.modifiers else 1
    return 0


def _registers_read(i: Instruction) -> tuple[int, ...]:
    """Registers that need a read port of the register file, by operand slot.

    Only the named register of a pair counts. Only FMA and ALU instructions are covered: the others
    read their operands later, without a fixed window.
    """
    reads = [-1] * _SLOTS
    if i.pipe not in (Pipe.FMA, Pipe.ALU):
        return tuple(reads)
    general = [o for o in i.operands if not _PREDICATE.match(o)]
    sources = general if i.opcode in _NO_DESTINATION else general[1:]
    for slot, operand in enumerate(sources[:_SLOTS]):
        if (match := _REGISTER.match(operand)) is not None:
            reads[slot] = int(match[1]) + (_KEPT if ".reuse" in operand else 0)
    return tuple(reads)


def _pipe_cycles(i: Instruction, c: SmConstants, tensor: TensorRates) -> float:
    match i.pipe:
        case Pipe.FMA:
            return c.half_cycles if i.opcode in _HALF else c.fma_cycles
        case Pipe.ALU:
            return c.alu_cycles
        case Pipe.XU:
            return c.xu_cycles
        case Pipe.FP64:
            return c.fp64_cycles
        case Pipe.TENSOR:
            return _tensor_cycles(i, c, tensor)
        case Pipe.UNIFORM:
            return 0.0 if i.opcode in ("S2R", "S2UR", "LDC") else c.uniform_cycles
        case _:
            return 0.0


def _tensor_cycles(i: Instruction, c: SmConstants, tensor: TensorRates) -> float:
    """Cycles of one warp's tensor instruction on its partition's tensor core."""
    of_peak = 100 if i.opcode.endswith("GMMA") else c.mma_sync_share
    gain = 1.0 if _has_halved_sums(i) else tensor.gain_of_other_sums
    return tensor_fmas(i) / (tensor.fmas_per_cycle * gain * of_peak / 100)


def _has_halved_sums(i: Instruction) -> bool:
    """True if GeForce cards execute it at half rate: FP16, BF16, TF32 and FP8 with FP32 sums, but
    not FP8 with scales (MXFP8; github.com/gau-nernst/learn-cuda)."""
    return "F32" in i.modifiers and "SF" not in i.modifiers


def tensor_fmas(i: Instruction) -> float:
    """FP16 multiply-adds that take as long as one warp's tensor instruction; 0 for others."""
    if i.pipe is not Pipe.TENSOR:
        return 0.0
    if i.opcode.endswith("GMMA"):
        # m64nNk16 is shared by four warps, a quarter of its rows each.
        shape = next((m for m in i.modifiers if re.fullmatch(r"\d+x\d+x\d+", m)), "64x64x16")
        rows, columns, depth = map(int, shape.split("x"))
        element = 0.5 if i.opcode in ("QGMMA", "IGMMA") else 1.0
        return element * rows / 4 * columns * depth
    digits = next((m for m in i.modifiers if m.isdigit()), "16816")
    fmas = _SHAPE_FMAS.get(digits, 2048)
    element = 1.0
    if i.opcode == "IMMA" or i.opcode == "QMMA":
        element = 0.5
    elif "TF32" in i.modifiers:
        element = 2.0
    return element * fmas


def _latencies(i: Instruction, c: SmConstants) -> tuple[int, int]:
    """(cycles until the result is ready, cycles until the operands have been read)."""
    match i.pipe:
        case Pipe.SHARED:
            if i.opcode in ("LDSM", "MOVM"):
                return c.matrix_cycles, c.shared_read_cycles
            if i.opcode == "SHFL":
                return c.shuffle_cycles, c.shared_read_cycles
            return c.shared_cycles, c.shared_read_cycles
        case Pipe.GLOBAL:
            return c.l1_cycles, c.global_read_cycles
        case Pipe.TENSOR:
            return c.tensor_cycles, c.operand_read_cycles
    match i.opcode:
        case "MUFU":
            return c.mufu_cycles, c.operand_read_cycles
        case "S2R" | "S2UR":
            return c.special_cycles, c.operand_read_cycles
        case "LDC" | "LDCU" | "ULDC":
            return c.constant_cycles, c.operand_read_cycles
    return c.other_cycles, c.operand_read_cycles


_SOURCE = Path(__file__).resolve().parent / "native" / "timing.cpp"
# One SM of a GPU with a program: all input of the cycle loop except the CTAs.

_LINE_BYTES = 128
_Item = TypeVar("_Item")
_Simulated = TypeVar("_Simulated")


class MachineRow(ctypes.Structure):
    """`Machine` of native/timing.h."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("fma_units", "operand_window", "queue_depth")),
        *((name, ctypes.c_int32) for name in ("dispatch_cycles", "barrier_cycles", "l1_cycles")),
        *((name, ctypes.c_int32) for name in ("l2_cycles", "l1_lines", "fetch_cycles")),
        *((name, ctypes.c_int32) for name in ("cta_start_cycles", "stagger_cycles")),
        *((name, ctypes.c_int32) for name in ("bulk_copy_cycles", "shared_pass_cycles")),
        *((name, ctypes.c_int32) for name in ("arrive_cycles", "lookup_bytes")),
        *((name, ctypes.c_int32) for name in ("registers", "product_queue", "warpgroup_cycles")),
        ("cycles_per_sector", ctypes.c_float),
        ("shared_bytes_per_cycle", ctypes.c_float),
    )


# Arrays of `Trace`: their names and types in CtaTrace.
_TRACE_ARRAYS = (
    ("warp_start", np.int64),
    ("instruction", np.int32),
    ("access", np.int32),
    ("kind", np.uint8),
    ("wavefronts", np.uint16),
    ("sectors", np.uint16),
    ("size_bytes", np.uint32),
    ("address", np.uint64),
    ("amount", np.int32),
    ("line_start", np.int64),
    ("line", np.uint64),
    ("line_sectors", np.uint8),
)


class _Trace(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name, _ in _TRACE_ARRAYS),
        ("num_warps", ctypes.c_int32),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("machine", ctypes.POINTER(MachineRow)),
        ("ops", ctypes.c_void_p),
        ("traces", ctypes.POINTER(_Trace)),
        ("queue", ctypes.c_void_p),
        ("num_code_lines", ctypes.c_int32),
        ("num_ctas", ctypes.c_int32),
        ("resident", ctypes.c_int32),
        ("num_sms", ctypes.c_int32),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("started", "finished", "stalls", "busy")),
        ("cycles", ctypes.c_double),
        ("issued", ctypes.c_int64),
        ("events", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("max_events", "num_events")),
    )


# `Event` of native/timing.h.
EVENT = np.dtype(
    [
        *((name, np.float64) for name in ("begin", "end")),
        *((name, np.int32) for name in ("kind", "cta", "warp", "op", "reason", "partition")),
    ]
)
ISSUED, PRODUCT, COPY = range(3)  # `EVENT`'s kind


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A program's rows and the SM that executes them, independent of the CTAs."""

    ops: NDArray[np.void]  # [instructions] of dtype `OP`
    machine: MachineRow


def in_parallel(
    simulate: Callable[[_Item], _Simulated], items: Sequence[_Item]
) -> list[_Simulated]:
    """Results of `simulate` for each item, in threads: the native calls below release the GIL."""
    if len(items) < 2:
        return [simulate(item) for item in items]
    with ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as pool:
        # Start with the last item, which takes longest.
        return list(pool.map(simulate, reversed(items)))[::-1]


def simulate_sm(
    kernel: Kernel,
    traces: Sequence[CtaTrace],
    queue: Sequence[int],
    resident: int,
    num_sms: int = 1,
    *,
    stalls: bool = True,
) -> SmTiming:
    """Simulate one or more SMs that execute a queue of CTAs, each SM `resident` at a time.

    Args:
        queue: for each CTA in order of starting, which of `traces` it executes.
        num_sms: SMs that share the queue. They first take CTAs in turn, then as slots fall free.
        stalls: whether to record stall reasons, which takes a quarter of the time.

    Raises:
        CompileError: the CTAs of the trace deadlock.
        ToolMissing: there is no C++ compiler to build the model with.
    """
    call = _Call(kernel, traces, queue, resident, num_sms, stalls)
    _check(_library().attune_time_sm(ctypes.byref(call.launch), ctypes.byref(call.result)))
    names = (*(p.value for p in PIPES), *PORTS)
    return SmTiming(
        cycles=call.result.cycles,
        issued=call.result.issued,
        started=call.started,
        finished=call.finished,
        busy_cycles=dict(zip(names, call.busy.tolist(), strict=True)),
        stalls=call.stalls,
    )


def follow_sm(
    kernel: Kernel, traces: Sequence[CtaTrace], queue: Sequence[int], resident: int, most: int
) -> NDArray[np.void]:
    """The first events, at most `most`, of one SM that executes a queue of CTAs: `[n]` of dtype
    `EVENT`. Raises as `simulate_sm`."""
    call = _Call(kernel, traces, queue, resident, 1, stalls=True)
    events = np.zeros(most, EVENT)
    call.result.events, call.result.max_events = events.ctypes.data, most
    _check(_library().attune_time_sm(ctypes.byref(call.launch), ctypes.byref(call.result)))
    return events[: call.result.num_events]


def simulate_counts(
    kernel: Kernel, trace: CtaTrace, counts: Sequence[int], resident: int
) -> NDArray[np.float64]:
    """Cycles that each of `counts` equal CTAs take on one SM, `[counts]`.

    All counts together take little longer to simulate than the largest.

    Args:
        counts: ascending.

    Raises as `simulate_sm`.
    """
    call = _Call(kernel, [trace], [0] * counts[-1], resident, 1, stalls=False)
    wanted, ends = np.array(counts, dtype=np.int32), np.zeros(len(counts))
    arrays = wanted.ctypes.data, len(wanted), ends.ctypes.data, None
    at = ctypes.byref(call.launch), ctypes.byref(call.result)
    _check(_library().attune_time_counts(*at, *arrays))
    return ends


def simulate_slot_releases(
    kernel: Kernel, traces: Sequence[CtaTrace], queue: Sequence[int], resident: int
) -> NDArray[np.float64]:
    """Cycles at which slots of an SM fall free for the CTAs after the first `resident`, ascending,
    `[len(queue) - resident]`. The simulation ends at the last of these cycles.

    Args:
        queue: for each CTA in order of starting, which of `traces` it executes.

    Raises as `simulate_sm`.
    """
    call = _Call(kernel, traces, queue, resident, 1, stalls=False)
    freed = np.zeros(max(0, len(queue) - resident))
    at = ctypes.byref(call.launch), ctypes.byref(call.result)
    _check(_library().attune_time_counts(*at, None, 0, None, freed.ctypes.data))
    return freed


class _Call:
    """The structures of one native call, and the arrays that they point to."""

    def __init__(
        self,
        kernel: Kernel,
        traces: Sequence[CtaTrace],
        queue: Sequence[int],
        resident: int,
        num_sms: int,
        stalls: bool,
    ) -> None:
        self._order = np.ascontiguousarray(queue, dtype=np.int32)
        self._ops = np.ascontiguousarray(kernel.ops)
        assert self._ops.dtype == OP
        self._kept = []
        self._rows = (_Trace * len(traces))()
        for row, trace in zip(self._rows, traces, strict=True):
            for name, dtype in _TRACE_ARRAYS:
                array = np.ascontiguousarray(getattr(trace, name), dtype=dtype)
                self._kept.append(array)
                setattr(row, name, array.ctypes.data)
            row.num_warps = trace.num_warps
        self.started = np.zeros(len(self._order))
        self.finished = np.zeros(len(self._order))
        self.stalls = np.zeros((len(self._ops) if stalls else 0, len(StallReason)))
        self.busy = np.zeros(len(PIPES) + len(PORTS))
        self.launch = _Launch(
            ctypes.pointer(kernel.machine),
            self._ops.ctypes.data,
            self._rows,
            self._order.ctypes.data,
            int(self._ops["code_line"].max()) + 1,
            len(self._order),
            resident,
            num_sms,
        )
        self.result = _Result(
            self.started.ctypes.data,
            self.finished.ctypes.data,
            self.stalls.ctypes.data if stalls else None,
            self.busy.ctypes.data,
        )


def _check(status: int) -> None:
    if status:
        raise CompileError(
            "The simulated CTAs deadlock: a barrier expects more threads than reach it, or a "
            "branch on loaded data took a side that it never takes on a GPU.",
            code="simulated_deadlock",
        )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = load_library(_SOURCE)
    library.attune_time_sm.argtypes = [ctypes.POINTER(_Launch), ctypes.POINTER(_Result)]
    library.attune_time_sm.restype = ctypes.c_int
    library.attune_time_counts.argtypes = [
        *(ctypes.POINTER(_Launch), ctypes.POINTER(_Result)),
        *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
    ]
    library.attune_time_counts.restype = ctypes.c_int
    return library


# Regimes of global loads: "alone": few SMs are busy and the data is in L2; "shared": all SMs are
# busy and the data is in L2; "streaming": all SMs are busy and the data comes from DRAM.
Regime: TypeAlias = Literal["alone", "shared", "streaming"]

_PARTITIONS = 4
_SHARED_BYTES_PER_PASS = 128.0
_SECTOR_BYTES = 32
# Tensor peaks of Hopper are quoted at a lower clock than the FP32 peak (see engine.devices.spec).
_HOPPER_FMAS_PER_CYCLE = 512.0


@dataclass(frozen=True, slots=True)
class TensorRates:
    """Rates of one partition's tensor core."""

    fmas_per_cycle: float  # FP16 multiply-adds with FP32 sums, at the peak
    gain_of_other_sums: float  # integer and FP16 sums: 2 on GeForce, else 1


@dataclass(frozen=True, slots=True)
class GpuRates:
    """The rates of one GPU that the timing model takes from the table of devices."""

    name: str
    constants: SmConstants
    num_sms: int
    cycles_per_us: float
    tensor: TensorRates
    dram: DramRate
    kept_bytes: int  # that L2 can keep, see `kept_l2_bytes`


def gpu_rates(device: DeviceSpec, arch: str | None = None) -> GpuRates:
    """The device's rates.

    Args:
        arch: of the program, if it is not the device's own (sm_80 code on an A10).

    Raises:
        InvalidProblem: the table of GPUs lacks a figure; the message names it.
        UnknownName: the timing model does not support the arch.
    """
    constants = sm_constants(arch or device.arch)
    sms = _known(device, device.num_sms, "number of SMs")
    clock = _known(device, device.boost_clock_mhz, "clock")
    tflops = _known(device, device.fp16_tensor_tflops, "FP16 tensor peak")
    if device.compute_capability == (9, 0):
        fmas = _HOPPER_FMAS_PER_CYCLE
    else:
        fmas = tflops * 1e6 / (2 * sms * clock * _PARTITIONS)
    return GpuRates(
        name=device.name,
        constants=constants,
        num_sms=int(sms),
        cycles_per_us=clock,
        tensor=TensorRates(fmas, 2.0 if device.halves_fp32_sums else 1.0),
        dram=device.dram(_known(device, device.memory_gb_per_s, "memory bandwidth")),
        kept_bytes=kept_l2_bytes(device.arch, int(_known(device, device.l2_bytes, "L2 size"))),
    )


def _known(device: DeviceSpec, figure: float | None, name: str) -> float:
    if figure is None:
        raise InvalidProblem(
            f"The table of GPUs gives no {name} for {device.name}, and a simulated time needs it: "
            "choose another GPU."
        )
    return float(figure)


def sm_kernel(
    program: Program,
    gpu: GpuRates,
    regime: Regime,
    smem_bytes: int,
    fetches_code: bool,
    miss_share: float = 1.0,
) -> Kernel:
    """Model of one SM with the program.

    Args:
        smem_bytes: shared memory of all resident CTAs; L1 gets the rest.
        fetches_code: whether instruction caches are cold, as for the first CTAs of a launch.
        miss_share: share of L1 misses that DRAM serves in the streaming regime. Loads get the mean
            latency.
    """
    c = gpu.constants
    from_dram = miss_share if regime == "streaming" else 0.0
    l1_bytes = max(0, c.l1_kib * 1024 - smem_bytes)
    per_cycle = c.l2_port_bytes_per_cycle if regime == "alone" else c.l2_share_bytes_per_cycle
    machine = MachineRow(
        fma_units=c.fma_units,
        operand_window=c.operand_window,
        queue_depth=c.queue_depth,
        dispatch_cycles=c.dispatch_cycles,
        barrier_cycles=c.barrier_cycles,
        l1_cycles=c.l1_cycles,
        l2_cycles=round(c.l2_cycles + from_dram * (c.dram_cycles - c.l2_cycles)),
        l1_lines=l1_bytes // _LINE_BYTES,
        fetch_cycles=c.fetch_cycles if fetches_code else 0,
        cta_start_cycles=c.cta_start_cycles,
        stagger_cycles=0,
        bulk_copy_cycles=c.bulk_copy_cycles,
        shared_pass_cycles=c.shared_pass_cycles,
        arrive_cycles=c.arrive_cycles,
        lookup_bytes=c.lookup_bytes,
        registers=program.registers,
        product_queue=c.product_queue,
        warpgroup_cycles=c.warpgroup_cycles,
        cycles_per_sector=_SECTOR_BYTES / per_cycle,
        shared_bytes_per_cycle=_SHARED_BYTES_PER_PASS / c.shared_pass_cycles,
    )
    return Kernel(ops_of(program, c, gpu.tensor), machine)


def allocated_smem(device: DeviceSpec, smem_bytes: int) -> int:
    """Bytes of an SM's shared memory that one CTA occupies."""
    limits = limits_for(device.compute_capability)
    unit = limits.smem_allocation_unit_bytes
    return -(-(smem_bytes + limits.reserved_smem_per_cta_bytes) // unit) * unit
