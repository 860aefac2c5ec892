"""NVIDIA's disassembler: found in its wheel or an installed toolkit, run on one cubin."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import CompileError, InvalidCubin, ToolMissing, UnknownName
from engine.cuda_source.toolkit import INSTALL_HINT
from engine.machine_code.cubin import Cubin, Entry
from engine.machine_code.instruction import Instruction, Loop, Program
from engine.machine_code.listing import LISTING_OPTIONS, LIVE_OPTIONS, parse_listing, parse_live

_WHEELS = ("nvidia-cuda-nvdisasm", "nvidia-cuda-nvcc-cu12")
_NAMES = ("nvdisasm", "nvdisasm.exe")
_TIMEOUT_S = 120.0  # of the clock, and of CPU time
_MEMORY_KIB = 16 << 20
_OUT_OF_TIME = (128 + signal.SIGXCPU, 128 + signal.SIGKILL)
# A damaged file can keep it busy for ever. It ends with its limits, and when nobody holds the other
# end of the pipe that is standard input any more, however this process ended.
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
    """Its path.

    Raises:
        ToolMissing: it is not installed; the sentence says how to get it.
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
        f"{INSTALL_HINT} brings it (package nvidia-cuda-nvdisasm)."
    )


def _too_long() -> CompileError:
    return CompileError(
        f"nvdisasm did not finish within {_TIMEOUT_S:.0f} s: the cubin is damaged, or very large."
    )


def run_nvdisasm(cubin: bytes, *options: str) -> str:
    """What it prints for a complete cubin.

    Raises:
        ToolMissing: it is not installed or does not run.
        InvalidCubin: it refuses the file.
        CompileError: it does not finish.
    """
    tool = find_nvdisasm()
    with tempfile.TemporaryDirectory(prefix="attune-sass-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        held, hold = os.pipe()
        limits = [str(round(_TIMEOUT_S)), str(_MEMORY_KIB)]
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", _BOUNDED, "sh", *limits, str(tool), *options, str(path)],
                stdin=held,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _too_long() from None
        finally:
            os.close(hold)
            os.close(held)
    if done.returncode in (126, 127):  # as a shell says of what cannot be started
        why = done.stderr.strip().rpartition(": ")[2] or "it cannot be started"
        raise ToolMissing(
            f"nvdisasm at {tool} does not run ({why}): {INSTALL_HINT} brings one that does."
        )
    if done.returncode in _OUT_OF_TIME:
        raise _too_long()
    if done.returncode != 0:
        message = done.stderr.replace(str(path), "the file").strip().splitlines()
        reason = message[0] if message else f"exit code {done.returncode}"
        raise InvalidCubin(f"nvdisasm cannot read this cubin: {reason.rstrip('.')}.")
    return done.stdout


# A cubin → its programs: instructions, loops, live registers.


@dataclass(frozen=True, slots=True)
class Disassembly:
    """What nvdisasm printed for one cubin, parsed when asked for."""

    cubin: Cubin
    sha256: str
    listing: str

    def program(self, entry: str) -> Program:
        """One entry's machine code. Raises UnknownName, or InvalidCubin where there is none."""
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
        ToolMissing: there is no nvdisasm.
        CompileError: it refuses the file.
    """
    listing = run_nvdisasm(cubin.data, *LISTING_OPTIONS)
    return Disassembly(cubin, hashlib.sha256(cubin.data).hexdigest(), listing)


def list_live_registers(cubin: Cubin) -> dict[str, dict[int, int]]:
    """{entry: {address: general registers alive there}}; a run of its own. Raises as above."""
    return parse_live(run_nvdisasm(cubin.data, *LIVE_OPTIONS))


def find_entry(cubin: Cubin, name: str | None) -> Entry:
    """The entry called `name`: its symbol, the plain name that was mangled, or a name expression
    (`flash::fwd<64, true>`) where the C++ library can tell; the only one if None.

    Raises:
        UnknownName: there is none, or several fit; names them.
    """
    entries = cubin.entries
    if name is None and len(entries) == 1:
        return next(iter(entries.values()))
    known = ", ".join(sorted(entries))
    if name is None:
        raise UnknownName(f"There are {len(entries)} entries: choose one of {known} by --entry.")
    if name in entries:
        return entries[name]
    fitting = [e for symbol, e in entries.items() if plain_name(symbol) == name]
    if not fitting and ("<" in name or "::" in name):
        wanted = name.replace(" ", "")
        fitting = [e for symbol, e in entries.items() if name_expression(symbol) == wanted]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        which = ", ".join(sorted(e.name for e in fitting))
        raise UnknownName(f"Several entries are called {name!r}: choose one of {which}.")
    raise UnknownName(f"There is no entry {name!r}: the code has {known}.")


def plain_name(symbol: str) -> str:
    """The name in a symbol: "sgemm" of "_Z5sgemmiiPf" and of "_ZN4mine5sgemmEv".

    The grammar is the Itanium C++ ABI's: a nested name is N, then <length><identifier> each.
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
    """What stands before the parameters, without blanks: `flash::fwd<64,true>`; empty where there
    is no C++ library that tells."""
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
    # The parameters are the last brackets; of a template a type of the result goes before.
    depth, end = 0, len(text)
    for end in range(len(text) - 1, -1, -1):
        depth += (text[end] == ")") - (text[end] == "(")
        if depth == 0 and text[end] == "(":
            break
    return text[:end].removeprefix("void ").replace(" ", "")


def find_loops(instructions: Sequence[Instruction]) -> tuple[Loop, ...]:
    """Loops by their first instruction: a branch backwards closes one.

    The branch to itself behind the last EXIT is padding and no loop.
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
