"""A machine instruction as the compiler wrote it, and an entry function made of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SCOREBOARDS = 6
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


# Which unit takes which opcode.
#
# Names and shares of the units: NVIDIA's Nsight Compute documentation, "Pipelines", and the CUDA
# C++ programming guide, "Arithmetic instructions" (results per cycle).


_OPCODES: dict[Pipe, str] = {
    Pipe.FMA: "FFMA FFMA2 FADD FADD2 FMUL FMUL2 FFMA32I FMUL32I FADD32I FSWZADD IMAD IMUL IDP "
    "IDP4A HADD2 HFMA2 HMUL2 HADD2_32I HFMA2_32I HMUL2_32I HSET2 HSETP2 HMNMX2",
    Pipe.ALU: "IADD IADD3 IADD32I VIADD VIADDMNMX VIMNMX VIMNMX3 VABSDIFF VABSDIFF4 IABS IMNMX "
    "ISETP ISCADD LEA LOP LOP3 LOP32I SHF SHL SHR PRMT SEL MOV MOV32I FSEL FSET FSETP FMNMX FMNMX3 "
    "FCHK PLOP3 PSETP P2R R2P CS2R LEPC VOTE VOTEU F2FP I2IP SGXT BMSK",
    Pipe.XU: "MUFU F2F F2I I2F I2FP F2IP FRND POPC FLO BREV I2I",
    Pipe.FP64: "DADD DFMA DMUL DSETP DMNMX",
    Pipe.TENSOR: "HMMA IMMA BMMA DMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCIMMA UTCQMMA "
    "UTCOMMA",
    Pipe.SHARED: "LDS STS LDSM STSM ATOMS SHFL MOVM REDUX CREDUX MATCH LDSLK STSUL STAS REDAS",
    Pipe.GLOBAL: "LDG STG LDGSTS LDL STL LD ST LDK ATOM ATOMG RED REDG LDGDEPBAR UTMALDG UTMASTG "
    "UTMAREDG UTMAPF UTMACMDFLUSH UBLKCP UBLKRED UBLKPF TEX TLD TLD4 SULD SUST",
    Pipe.UNIFORM: "R2UR S2R S2UR LDC LDCU ULDC REDUX",
    Pipe.SYNC: "BAR MEMBAR FENCE DEPBAR WARPSYNC BSSY BSYNC BMOV ERRBAR CCTL CCTLL CGAERRBAR SYNCS "
    "B2R R2B WARPGROUP WARPGROUPSET USETMAXREG UCGABAR_ARV UCGABAR_WAIT UTMACCTL ELECT ARRIVES "
    "ACQBULK PREEXIT UTCBAR BARRIER",
    Pipe.BRANCH: "BRA BRX BRXU JMP JMX JMXU CALL RET EXIT BREAK KILL BPT NOP YIELD NANOSLEEP RTT",
}
_PIPES = {opcode: pipe for pipe, names in _OPCODES.items() for opcode in names.split()}


def pipe_of(opcode: str) -> Pipe:
    """The pipe of "LDS"; uniform opcodes ("UIADD3") share one, unknown ones are OTHER."""
    if (pipe := _PIPES.get(opcode)) is not None:
        return pipe
    return Pipe.UNIFORM if opcode.startswith("U") else Pipe.OTHER
