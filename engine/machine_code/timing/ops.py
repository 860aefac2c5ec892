"""Machine instructions → the rows that the native model executes: pipe, cycles, registers read."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from engine.machine_code.instruction import SCOREBOARDS, Instruction, Pipe, Program
from engine.machine_code.timing.constants import SmConstants

PIPES = tuple(Pipe)
_PIPE_NUMBER = {pipe: n for n, pipe in enumerate(PIPES)}
_CODE_LINE_BYTES = 128
_SLOTS = 3
_MOST_MADE = 4
_KEPT = 256
_REGISTER = re.compile(r"^[-+~|!]*R(\d+)")
_PREDICATE = re.compile(r"^!?U?P(\d|T)$")
_HALF = {"HADD2", "HFMA2", "HMUL2", "HSET2", "HSETP2", "HMNMX2"}
_INTEGER_FMA = {"IMAD", "IMUL", "IDP"}
# These write predicates alone: their first general operand is already a source.
_NO_DESTINATION = {"ISETP", "FSETP", "FCHK", "R2P", "VOTE", "HSETP2", "DSETP", "PSETP", "PLOP3"}
# K of one tensor instruction's shape, by its digits ("16816" is m16n8k16), and the FMAs it stands
# for beside FP16's: twice as many 8-bit integers fit.
_SHAPE_FMAS = {"884": 256, "1684": 512, "1688": 1024, "16816": 2048, "16832": 4096, "16864": 8192}

# As `Op` in native/timing.h.
OP = np.dtype(
    [
        *((name, np.int32) for name in ("pipe", "stall", "write_barrier", "read_barrier")),
        *((name, np.int32) for name in ("wait_mask", "first_unit_only")),
        *((name, np.int32) for name in ("result_cycles", "read_cycles", "code_line", "uses_l1")),
        *((name, np.int32) for name in ("is_fence", "closes_group")),
        ("reads", np.int32, (_SLOTS,)),
        ("pipe_cycles", np.float32),
        ("passes", np.float32),
    ]
)


_made: dict[tuple[object, ...], NDArray[np.void]] = {}  # both regimes of a kernel take the same


def ops_of(program: Program, c: SmConstants, tensor_fmas_per_cycle: float) -> NDArray[np.void]:
    """One row of dtype `OP` per instruction.

    Args:
        tensor_fmas_per_cycle: FP16 multiply-adds of one partition's tensor core, at the peak.
    """
    key = (program.cubin_sha256, program.entry, c, tensor_fmas_per_cycle)
    if not program.cubin_sha256 or (known := _made.get(key)) is None:
        rows = [_op(i, c, tensor_fmas_per_cycle) for i in program.instructions]
        known = np.array(rows, OP)
        while len(_made) >= _MOST_MADE:
            _made.pop(next(iter(_made)), None)
        _made[key] = known
    return known


def _op(i: Instruction, c: SmConstants, tensor_fmas_per_cycle: float) -> tuple[object, ...]:
    """In the order of `OP`."""
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
        "gsb0" in i.operands,
        _registers_read(i),
        _pipe_cycles(i, c, tensor_fmas_per_cycle),
        max(accepted, _register_passes(i)),
    )


def _barrier(number: int) -> int:
    return number if number < SCOREBOARDS else -1  # no GPU has the one between


def _uses_l1(i: Instruction) -> bool:
    """Loads that may find their data in L1: not volatile ones, nor cp.async that goes around it."""
    if i.opcode in ("LDL", "STL"):
        return True
    around = {"STRONG", "BYPASS", "MMIO", "CONSTANT_BYPASS"} & set(i.modifiers)
    return i.opcode in ("LDG", "LD", "LDGSTS") and not around


def _register_passes(i: Instruction) -> int:
    """A wide global access moves one register a cycle; the trace counts shared ones."""
    if i.opcode in ("LDG", "LD", "LDL", "STG", "ST", "STL"):
        return 4 if "128" in i.modifiers else 2 if "64" in i.modifiers else 1
    return 0


def _registers_read(i: Instruction) -> tuple[int, ...]:
    """Registers that take a read port, by operand slot; of a pair the named half counts.

    Only FMA and ALU instructions: the others read at leisure.
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


def _pipe_cycles(i: Instruction, c: SmConstants, tensor_fmas_per_cycle: float) -> float:
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
            return _tensor_cycles(i, c, tensor_fmas_per_cycle)
        case Pipe.UNIFORM:
            return 0.0 if i.opcode in ("S2R", "S2UR", "LDC") else c.uniform_cycles
        case _:
            return 0.0


def _tensor_cycles(i: Instruction, c: SmConstants, fmas_per_cycle: float) -> float:
    """Cycles of one warp's tensor instruction on its partition's tensor core."""
    of_peak = 100 if i.opcode.endswith("GMMA") else c.mma_sync_share
    return tensor_fmas(i) / (fmas_per_cycle * of_peak / 100)


def tensor_fmas(i: Instruction) -> float:
    """FP16 multiply-adds that one warp's tensor instruction stands for; other formats as many as
    take as long. 0 of other instructions."""
    if i.pipe is not Pipe.TENSOR:
        return 0.0
    if i.opcode.endswith("GMMA"):
        # m64nNk16 of four warps: a quarter of its rows each.
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
    """(to the result, to the operands being read), in cycles."""
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
