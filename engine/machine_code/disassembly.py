"""Read the machine instructions of a cubin from the listing of NVIDIA's disassembler, nvdisasm.

A `Program` is one entry function, a sequence of `Instruction`s. nvdisasm runs with limits on CPU
time and memory, because a damaged cubin can keep it busy without end.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.base.errors import CompileError, InvalidCubin, ToolMissing, UnknownName
from engine.cuda_source.toolkit import INSTALL_HINT
from engine.machine_code.cubin import Cubin, Entry

SCOREBOARDS = 6
_LISTED_SYMBOLS, _LISTED_LETTERS = 8, 100  # limits of a message that lists symbols
_MIN_PART = 4  # shortest part of a symbol that is accepted in place of the whole
NO_BARRIER = 7  # value of write_barrier or read_barrier: the instruction sets no scoreboard


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

    stall: int  # cycles before this warp's next instruction; covers only fixed-latency results
    yield_hint: bool  # asks the scheduler to issue from another warp next
    write_barrier: int  # scoreboard 0..5, released when the result is written; or NO_BARRIER
    read_barrier: int  # scoreboard 0..5, released when operands have been read; or NO_BARRIER
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
    predicate: str  # "P0", "!P3", "UP1"; "" for an unpredicated instruction
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


# Pipe of each opcode. Names of the pipes: NVIDIA's Nsight Compute documentation, "Pipelines";
# results per cycle: the CUDA C++ programming guide, "Arithmetic instructions".


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
    """The pipe that executes an opcode such as "LDS".

    Opcodes of the uniform datapath ("UIADD3") are UNIFORM, unknown ones OTHER.
    """
    if (pipe := _PIPES.get(opcode)) is not None:
        return pipe
    return Pipe.UNIFORM if opcode.startswith("U") else Pipe.OTHER


# Parse nvdisasm's listing into instructions with control bits, branch targets and source lines.

# Code only, encodings, source lines with inlining. -ndf skips the analysis of branch stacks: only
# GPUs before Volta have them, and it takes a quarter of the time.
LISTING_OPTIONS = ("-c", "-hex", "-gi", "-ndf")
LIVE_OPTIONS = ("-c", "-plr", "-lrm", "count")  # needs a second run, because -plr disables -gi

_SECTION = re.compile(r"^\.text\.(\S+?):(?:\s|$)")
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:\{\s*)?(?:@(?P<predicate>!?U?P[\dT]+)\s+)?"
    r"(?P<mnemonic>[A-Z][A-Za-z0-9_.]*)\s*(?P<operands>.*?)\s*;?\s*(?:\})?\s*"
    r"/\* 0x(?P<low>[0-9a-f]{16}) \*/"
)
_HIGH_WORD = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/")
_SOURCE = re.compile(r'//## File "([^"]+)", line (\d+)')
_LABEL = re.compile(r"^(\S+):\s*$")
_TARGET = re.compile(r"`\((.*)\)$")
_LIVE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/.*//\s*\|\s*(\d*)")
_CONTROL_SHIFT = 41  # bit 105 of the instruction, within its high word


def parse_listing(text: str, entry: str | None = None) -> dict[str, tuple[Instruction, ...]]:
    """Parse a listing into instructions by section ("attention_forward"), in address order.

    Args:
        text: output of nvdisasm with `LISTING_OPTIONS`.
        entry: the section to read; None reads all of them.

    Raises:
        InvalidCubin: the listing gives an instruction without its encoding.
    """
    sections: dict[str, _Reader] = {}
    reader: _Reader | None = None
    for line in text.splitlines():
        if match := _SECTION.match(line):
            reader = None
            if entry in (None, match[1]):
                reader = sections[match[1]] = _Reader()
        elif line.startswith("//---"):
            reader = None
        elif reader is not None:
            reader.read(line)
    return {name: r.finish(name) for name, r in sections.items() if r.parts}


def parse_live(text: str) -> dict[str, dict[int, int]]:
    """{section: {address: live general registers}}, from the output with `LIVE_OPTIONS`."""
    sections: dict[str, dict[int, int]] = {}
    current: dict[int, int] | None = None
    for line in text.splitlines():
        if match := _SECTION.match(line):
            current = sections[match[1]] = {}
        elif current is not None and (match := _LIVE.match(line)):
            current[int(match[1], 16)] = int(match[2] or 0)
    return sections


def decode_control(high_word: int) -> Control:
    """Decode the control bits in the upper 64 bits of an instruction."""
    bits = high_word >> _CONTROL_SHIFT
    return Control(
        stall=bits & 15,
        yield_hint=not bits >> 4 & 1,  # stored inverted
        write_barrier=bits >> 5 & 7,
        read_barrier=bits >> 8 & 7,
        wait_mask=bits >> 11 & 63,
        reuse=bits >> 17 & 15,
    )


def split_operands(text: str) -> tuple[str, ...]:
    """Split an operand list at the commas outside brackets."""
    if "(" not in text and "[" not in text:
        return tuple(part.strip() for part in text.split(",")) if text else ()
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        if char in "[(":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return (*parts, text[start:].strip())


class _Reader:
    """Parser of one section of the listing, fed line by line."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, str, str, str, tuple[SourceLine, ...]]] = []
        self.controls: list[Control] = []
        self.labels: dict[str, int] = {}
        self.waiting: list[str] = []  # labels read since the last instruction; they mark the next
        self.source: tuple[SourceLine, ...] = ()
        self.chain_open = False  # the lines just read are one inlining chain

    def read(self, line: str) -> None:
        if match := _INSTRUCTION.match(line):
            address = int(match["address"], 16)
            self.labels.update((label, address) for label in self.waiting)
            self.waiting, self.chain_open = [], False
            predicate, operands = match["predicate"] or "", match["operands"]
            self.parts.append((address, predicate, match["mnemonic"], operands, self.source))
        elif match := _HIGH_WORD.match(line):
            if len(self.controls) < len(self.parts):
                self.controls.append(decode_control(int(match[1], 16)))
        elif match := _SOURCE.search(line):
            here = SourceLine(match[1].rpartition("/")[2], int(match[2]))
            self.source = (*self.source, here) if self.chain_open else (here,)
            self.chain_open = True
        elif match := _LABEL.match(line.strip()):
            self.waiting.append(match[1])

    def finish(self, name: str) -> tuple[Instruction, ...]:
        if len(self.controls) != len(self.parts):
            raise InvalidCubin(
                f"nvdisasm lists {name} without the encodings that contain its control bits: it is "
                "for an architecture before Volta, which Attune does not support."
            )
        return tuple(map(self._instruction, self.parts, self.controls))

    def _instruction(
        self, part: tuple[int, str, str, str, tuple[SourceLine, ...]], control: Control
    ) -> Instruction:
        address, predicate, mnemonic, text, source = part
        opcode, *modifiers = mnemonic.split(".")
        operands = split_operands(text)
        target = None
        for operand in operands:
            if match := _TARGET.match(operand):
                target = self.labels.get(match[1])
        return Instruction(
            address=address,
            opcode=opcode,
            modifiers=tuple(modifiers),
            operands=operands,
            predicate=predicate,
            control=control,
            pipe=pipe_of(opcode),
            source=source,
            target=target,
        )


_WHEELS = ("nvidia-cuda-nvdisasm", "nvidia-cuda-nvcc-cu12")
_NAMES = ("nvdisasm", "nvdisasm.exe")
_TIMEOUT_S = 120.0
_MAX_CPU_S = 120
_MEMORY_KIB = 16 << 20
_OUT_OF_TIME = (128 + signal.SIGXCPU, 128 + signal.SIGKILL)
# A damaged file can keep nvdisasm busy without end. The shell script ends it at its limits, and
# also when this process dies, because that closes the pipe that is its standard input.
_BOUNDED = """
ulimit -t "$1" && ulimit -v "$2" 2>/dev/null; shift 2
exec 3<&0
"$@" 3<&- </dev/null &
tool=$!
{ read -r _ <&3; kill -9 "$tool"; } >/dev/null 2>&1 &
watch=$!
wait "$tool"; code=$?
kill -9 "$watch" 2>/dev/null
exit "$code"
"""


@functools.cache
def find_nvdisasm() -> Path:
    """Path of nvdisasm: from a wheel, a CUDA toolkit or PATH.

    Raises:
        ToolMissing: it is not installed; the message says how to install it.
    """
    for wheel in _WHEELS:
        try:
            installed = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in installed:
            if file.name in _NAMES and (path := Path(str(file.locate()))).is_file():
                return path
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if root := os.environ.get(variable):
            for name in _NAMES:
                if (path := Path(root) / "bin" / name).is_file():
                    return path
    if located := shutil.which("nvdisasm"):
        return Path(located)
    raise ToolMissing(
        "NVIDIA's disassembler nvdisasm, which reads machine code, is not installed: "
        f"{INSTALL_HINT} brings it (package nvidia-cuda-nvdisasm).",
        code="nvdisasm_missing",
    )


def _too_long(timeout_s: float) -> CompileError:
    limit = min(timeout_s, _MAX_CPU_S)
    return CompileError(
        f"nvdisasm did not finish within {limit:.0f} s: the cubin is damaged, or very large.",
        code="nvdisasm_time_limit",
    )


def run_nvdisasm(
    cubin: bytes, *options: str, tool: Path | None = None, timeout_s: float = _TIMEOUT_S
) -> str:
    """Run nvdisasm on a complete cubin and return its output.

    Args:
        tool: the program; None takes the one that `find_nvdisasm` finds.

    Raises:
        ToolMissing: nvdisasm is not installed or does not start.
        InvalidCubin: nvdisasm rejects the file.
        CompileError: nvdisasm exceeds its time limit.
    """
    tool = tool or find_nvdisasm()
    with tempfile.TemporaryDirectory(prefix="attune-sass-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        held, hold = os.pipe()
        limits = [str(_MAX_CPU_S), str(_MEMORY_KIB)]
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", _BOUNDED, "sh", *limits, str(tool), *options, str(path)],
                stdin=held,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _too_long(timeout_s) from None
        finally:
            os.close(hold)
            os.close(held)
    if done.returncode in (126, 127):  # the shell could not start the command
        why = done.stderr.strip().rpartition(": ")[2] or "it cannot be started"
        raise ToolMissing(
            f"nvdisasm at {tool} does not run ({why}): {INSTALL_HINT} brings one that does.",
            code="nvdisasm_broken",
        )
    if done.returncode in _OUT_OF_TIME:
        raise _too_long(timeout_s)
    if done.returncode != 0:
        message = done.stderr.replace(str(path), "the file").strip().splitlines()
        reason = message[0] if message else f"exit code {done.returncode}"
        raise InvalidCubin(
            f"nvdisasm cannot read this cubin: {reason.rstrip('.')}.", code="cubin_unreadable"
        )
    return done.stdout


# Programs of a cubin: instructions, loops, live registers.


@dataclass(frozen=True, slots=True)
class Disassembly:
    """nvdisasm's listing of one cubin, each entry parsed on first use."""

    cubin: Cubin
    sha256: str
    listing: str

    def program(self, entry: str) -> Program:
        """Machine code of one entry. Raises UnknownName, or InvalidCubin if it has no code."""
        described = find_entry(self.cubin, entry)
        instructions = parse_listing(self.listing, described.name).get(described.name)
        if not instructions:
            raise InvalidCubin(
                f"nvdisasm finds no code of {described.name} in this cubin: it is damaged."
            )
        return Program(
            entry=described.name,
            arch=self.cubin.arch,
            instructions=instructions,
            registers=described.registers,
            static_smem_bytes=described.static_smem_bytes,
            cubin_sha256=self.sha256,
        )


def disassemble(cubin: Cubin) -> Disassembly:
    """Run nvdisasm for the listing.

    Raises:
        ToolMissing: nvdisasm is not installed.
        CompileError: nvdisasm rejects the file.
    """
    listing = run_nvdisasm(cubin.data, *LISTING_OPTIONS)
    return Disassembly(cubin, hashlib.sha256(cubin.data).hexdigest(), listing)


def list_live_registers(cubin: Cubin) -> dict[str, dict[int, int]]:
    """{entry: {address: live general registers}}, from a second run of nvdisasm.

    Raises as `disassemble`.
    """
    return parse_live(run_nvdisasm(cubin.data, *LIVE_OPTIONS))


def find_entry(cubin: Cubin, name: str | None, *, whole: bool = False) -> Entry:
    """Find an entry by name.

    Args:
        name: its symbol, its unmangled name, a name expression (`flash::fwd<64, true>`) if the C++
            library can demangle, or a part that only one symbol contains, because symbols of
            templates are long. None: the only entry.
        whole: do not accept a part of a symbol.

    Raises:
        UnknownName: no entry, or more than one, matches; the message lists them.
    """
    entries = cubin.entries
    if name is None and len(entries) == 1:
        return next(iter(entries.values()))
    known = _listed(entries)
    if name is None:
        raise UnknownName(
            f"There are {len(entries)} entries: choose one of {known} by --entry.",
            code="entry_not_chosen",
        )
    if name in entries:
        return entries[name]
    fitting = [e for symbol, e in entries.items() if plain_name(symbol) == name]
    if not fitting and ("<" in name or "::" in name):
        wanted = name.replace(" ", "")
        fitting = [e for symbol, e in entries.items() if name_expression(symbol) == wanted]
    if not fitting and not whole and len(name) >= _MIN_PART:
        fitting = [e for symbol, e in entries.items() if name in symbol]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        which = _listed([e.name for e in fitting])
        raise UnknownName(
            f"Several entries are called {name!r}: choose one of {which}.", code="entry_ambiguous"
        )
    raise UnknownName(f"There is no entry {name!r}: the code has {known}.", code="entry_unknown")


def _listed(symbols: Iterable[str]) -> str:
    """List the first few symbols, shortened: those of templates have thousands of letters."""
    listed = [
        s if len(s) <= _LISTED_LETTERS else f"{s[:_LISTED_LETTERS]}…" for s in sorted(symbols)
    ]
    more = len(listed) - _LISTED_SYMBOLS
    return ", ".join(listed[:_LISTED_SYMBOLS]) + (f" and {more} more" if more > 0 else "")


def plain_name(symbol: str) -> str:
    """The function's name in a mangled symbol: "sgemm" of "_Z5sgemmiiPf" and "_ZN4mine5sgemmEv".

    By the Itanium C++ ABI, a nested name is N followed by <length><identifier> for each part.
    """
    if not symbol.startswith("_Z"):
        return symbol
    position, nested, name = 2, False, symbol
    if symbol[position : position + 1] == "N":
        position, nested = position + 1, True
    while position < len(symbol) and symbol[position].isdigit():
        end = position
        while end < len(symbol) and symbol[end].isdigit():
            end += 1
        length = int(symbol[position:end])
        name = symbol[end : end + length]
        position = end + length
        if not nested:
            break
    return name


def name_expression(symbol: str) -> str:
    """The demangled name up to the parameters, without blanks: `flash::fwd<64,true>`.

    Empty if no C++ library with a demangler is found.
    """
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return ""
    status = ctypes.c_int()
    library.__cxa_demangle.restype = ctypes.c_void_p
    at = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not at:
        return ""
    text = (ctypes.string_at(at) or b"").decode()
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(at)
    # The last brackets are the parameters. A template's name starts with the type of its result.
    depth, end = 0, len(text)
    for end in range(len(text) - 1, -1, -1):
        depth += (text[end] == ")") - (text[end] == "(")
        if depth == 0 and text[end] == "(":
            break
    return text[:end].removeprefix("void ").replace(" ", "")


def find_loops(instructions: Sequence[Instruction]) -> tuple[Loop, ...]:
    """Loops in order of their first instruction; a backward branch ends a loop.

    The branch to itself after the last EXIT is padding, not a loop.
    """
    index_of = {i.address: n for n, i in enumerate(instructions)}
    last: dict[int, int] = {}
    for n, i in enumerate(instructions):
        if i.opcode == "BRA" and i.target is not None and i.target < i.address:
            first = index_of[i.target]
            last[first] = max(last.get(first, 0), n)
    loops: list[Loop] = []
    for first, end in sorted(last.items()):
        depth = sum(1 for outer in loops if outer.first <= first and end <= outer.last)
        loops.append(Loop(first, end, depth))
    return tuple(loops)
