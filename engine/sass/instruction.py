"""A machine instruction as the compiler wrote it, and an entry function made of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NO_BARRIER = 7  # of a write or read barrier: the instruction sets no scoreboard


class Pipe(StrEnum):
    """The unit of an SM that takes an instruction."""

    FMA = "fma"  # FP32, and on its first half IMAD and packed FP16
    ALU = "alu"  # integer, logic, compare, convert-and-pack
    XU = "xu"  # MUFU and conversions
    FP64 = "fp64"
    TENSOR = "tensor"
    SHARED = "shared"  # the load/store unit, to shared memory; shuffles
    GLOBAL = "global"  # the load/store unit, to global and local memory; bulk copies
    UNIFORM = "uniform"  # the uniform datapath and constant loads
    SYNC = "sync"  # barriers, fences, scoreboard waits
    BRANCH = "branch"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Control:
    """The compiler's schedule: bits 105 to 125 of an instruction since Volta.

    Bits as in Huerta et al., Analyzing Modern NVIDIA GPU Cores, 2025 (arXiv 2503.20481).
    """

    stall: int  # cycles before this warp's next instruction; covers fixed-latency results alone
    yield_hint: bool  # asks the scheduler to take another warp next
    write_barrier: int  # scoreboard 0..5 that clears when the result is there; NO_BARRIER: none
    read_barrier: int  # scoreboard 0..5 that clears when operands have been read; NO_BARRIER: none
    wait_mask: int  # bit b: scoreboard b must be clear before this instruction issues
    reuse: int  # bit s: source slot s stays in the operand cache


@dataclass(frozen=True, slots=True)
class SourceLine:
    file: str  # name without folders
    line: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of the listing."""

    address: int  # bytes from the entry's first instruction
    opcode: str  # "LDS"
    modifiers: tuple[str, ...]  # ("U", "128") of LDS.U.128
    operands: tuple[str, ...]  # as nvdisasm writes them: "R4.reuse", "c[0x0][0x160]", "[R2+0x10]"
    predicate: str  # "P0", "!P3", "UP1"; "" when it always executes
    control: Control
    pipe: Pipe
    source: tuple[SourceLine, ...] = ()  # innermost (inlined) first, the kernel's own line last
    target: int | None = None  # address that a branch or call goes to

    @property
    def mnemonic(self) -> str:
        return ".".join((self.opcode, *self.modifiers))

    def __str__(self) -> str:
        guard = f"@{self.predicate} " if self.predicate else ""
        return f"{guard}{self.mnemonic} {', '.join(self.operands)}".rstrip()


@dataclass(frozen=True, slots=True)
class Loop:
    """Instructions `first` to `last` (indices, inclusive): a branch at `last` goes to `first`."""

    first: int
    last: int
    depth: int  # 0: outermost


@dataclass(frozen=True, slots=True)
class Program:
    """One entry function's machine code."""

    entry: str  # the symbol's name, mangled unless the source says extern "C"
    arch: str  # "sm_90"; "sm_90a" where the cubin says so
    instructions: tuple[Instruction, ...]  # in address order; subroutines follow the entry
    registers: int  # per thread
    static_smem_bytes: int  # per CTA
    cubin_sha256: str

    @property
    def code_bytes(self) -> int:
        return 16 * len(self.instructions)
