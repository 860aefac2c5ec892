"""The host's C++ compiler, and a cache of built files.

A cache entry is a record (`engine.base.files`) that names a file beside it and the file's SHA-256.
Built files carry their content's hash in their name and are renamed into place, so two processes
that build the same thing cannot disturb each other, and an entry whose file is damaged or gone is
built again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Literal

from engine.base import files
from engine.base.errors import CompileError, ToolMissing
from engine.base.files import cache_root, is_private, make_private, read_entry, write_entry

HOW_TO_GET_ONE = (
    "install g++ or clang++ (Debian and Ubuntu: apt install g++; macOS: xcode-select --install), "
    "or run `pip install ziglang`"
)
_VERSION_TIMEOUT_S = 30.0
COMPILE_TIMEOUT_S = 300.0
MAX_COMPILER_LOG_BYTES = 1 << 20
_LOW_PRIORITY = 19  # niceness


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A working compiler."""

    command: tuple[str, ...]
    family: Literal["gcc", "clang", "zig"]
    version: str  # first line of --version; part of every cache key

    @property
    def preprocessed_language(self) -> str:
        """Return the `-x` language of preprocessed C++. zig has no name for it, so it is
        preprocessed again, which is harmless because no macros are left."""
        return "c++" if self.family == "zig" else "c++-cpp-output"

    def runtime_flags(self) -> tuple[str, ...]:
        """Return flags for Attune's own C++, which is never instrumented.

        Debug lines are left out: they are not used and take a quarter of the build time.
        """
        flags = ["-std=c++17", "-fPIC", "-w", "-march=native", "-g0", "-O2"]
        # Its functions call each other directly.
        flags += ["-fvisibility=hidden", "-fno-semantic-interposition"]
        if self.family == "zig":
            flags.append("-fno-sanitize=undefined")
        return tuple(flags)


def find_toolchain() -> Toolchain:
    """Return the C++ compiler: `ATTUNE_CXX` if set, else the first of g++, clang++, c++ and the
    `ziglang` package that runs.

    Raises:
        ToolMissing: there is none; the message says how to get one.
    """
    if sys.platform == "win32":
        raise ToolMissing(
            "The CPU backend runs on Linux and macOS: on Windows, start Attune inside WSL 2."
        )
    return _first_working(os.environ.get("ATTUNE_CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=16)
def _first_working(forced: str, search_path: str) -> Toolchain:
    if forced:
        command = tuple(shlex.split(forced))
        if not command or (toolchain := _probe(command)) is None:
            raise ToolMissing(
                f"ATTUNE_CXX names {forced!r}, which does not run as a C++ compiler: correct it, "
                f"or unset it and {HOW_TO_GET_ONE}.",
                code="cxx_does_not_run",
            )
        return toolchain
    for name in ("g++", "clang++", "c++"):
        program = shutil.which(name, path=search_path)
        if program is not None and (toolchain := _probe((program,))) is not None:
            return toolchain
    if importlib.util.find_spec("ziglang") is not None:
        toolchain = _probe((sys.executable, "-m", "ziglang", "c++"))
        if toolchain is not None:
            return toolchain
    raise ToolMissing(
        f"No C++ compiler was found, and the CPU backend compiles every kernel: {HOW_TO_GET_ONE}."
    )


def _probe(command: tuple[str, ...]) -> Toolchain | None:
    try:
        answer = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0 or not answer.stdout.strip():
        return None
    version = answer.stdout.splitlines()[0].strip()
    if "ziglang" in command or Path(command[0]).stem.startswith("zig"):
        return Toolchain(command, "zig", version)
    return Toolchain(command, "clang" if "clang" in version.lower() else "gcc", version)


@functools.lru_cache(maxsize=1)
def host_cpu() -> str:
    """Return the CPU properties on which `-march=native` depends, for cache keys."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    features = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return f"{platform.machine()} {' '.join(dict.fromkeys(features))}"


def build_library(source: Path, *, low_priority: bool = False) -> Path:
    """Build a C++ file of Attune as a shared library of plain C functions.

    Args:
        source: may only include headers of its folder, whose files are the cache key.
        low_priority: run with low priority, for builds ahead of their use.

    Raises:
        CompileError: it does not compile, or cannot be written to the cache.
        ToolMissing: there is no compiler.
    """
    toolchain = find_toolchain()
    flags = library_flags(toolchain)

    def build(folder: Path) -> Path:
        command = [*toolchain.command, *flags, f"-ffile-prefix-map={source.parent}=."]
        command += ["-shared", str(source)]
        run_compiler(command, folder, "library.so", source.name, low_priority=low_priority)
        return folder / "library.so"

    return find_or_build(_library_name(source, toolchain, flags), build, alone=True)[0]


def find_library(source: Path) -> Path | None:
    """Return the library built by `build_library` from this file, or None. Raises ToolMissing."""
    toolchain = find_toolchain()
    return find_built(_library_name(source, toolchain, library_flags(toolchain)))


def library_flags(toolchain: Toolchain) -> tuple[str, ...]:
    # Nothing reads floating-point exceptions or errno: loops with conditions become vector code.
    own = ("-O3", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno")
    return (*toolchain.runtime_flags(), *own, "-fvisibility=default")


def _library_name(source: Path, toolchain: Toolchain, flags: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in (*toolchain.command, toolchain.version, host_cpu(), *flags):
        digest.update(f"{part}\0".encode())
    for file in sorted(source.parent.iterdir()):
        if file.suffix in (".cpp", ".h"):
            digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return f"attune-{source.stem}-{digest.hexdigest()[:20]}"


# ---- the compiler's run ----


def run_compiler(
    command: Sequence[str],
    folder: Path,
    output: str,
    source: str,
    *,
    first_error: Callable[[str], str] | None = None,
    low_priority: bool = False,
    timeout_s: float = COMPILE_TIMEOUT_S,
) -> None:
    """Run the compiler so that it writes the file `output` in `folder`.

    Args:
        command: the compiler and its arguments, without `-o`.
        source: name in error messages.
        first_error: makes the error message from the compiler's log; None: the log's last line.
        low_priority: run at low CPU priority.

    Raises:
        CompileError: the compiler fails, exceeds the time limit, or does not write the file.
    """
    log = bytearray()

    def keep_head(stream: IO[bytes]) -> None:
        while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
            log.extend(chunk[: MAX_COMPILER_LOG_BYTES - len(log)])  # the rest is discarded

    # In its own process group, because child processes of a compiler survive it when it is killed.
    with subprocess.Popen(
        [*command, "-o", output],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        env=os.environ | {"LC_ALL": "C"},
    ) as process:
        if low_priority:  # of the whole group
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, process.pid, _LOW_PRIORITY)
        reader = threading.Thread(target=keep_head, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            process.wait(timeout_s)
            reader.join(timeout_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise CompileError(
                    f"Compiling {source} for the CPU did not finish within {timeout_s:g} s.",
                    code="host_compile_time_limit",
                ) from None
            raise
    text = log.decode(errors="replace")
    if process.returncode != 0:
        raise CompileError((first_error or partial(last_line, source))(text), log=text)
    if not (folder / output).is_file():
        raise CompileError(
            f"The C++ compiler {command[0]} reported success for {source} and wrote no file: set "
            "ATTUNE_CXX to a compiler that works.",
            log=text,
            code="compiler_wrote_nothing",
        )


def last_line(source: str, log: str) -> str:
    """Return the last line of a compiler's log, after the name of the source."""
    lines = log.strip().splitlines() or ["the compiler failed without a message"]
    return f"{source}: {lines[-1]}"


# ---- the cache ----

_MAX_LIBRARY = 256 << 20

_build_locks: dict[str, threading.Lock] = {}
_build_locks_guard = threading.Lock()


@contextlib.contextmanager
def _building(name: str) -> Iterator[None]:
    """Allow one build of a name at a time in this process."""
    with _build_locks_guard:
        lock = _build_locks.setdefault(name, threading.Lock())
    with lock:
        yield


@contextlib.contextmanager
def _building_alone(name: str) -> Iterator[None]:
    """Allow one build of a name at a time on this machine, if the cache is writable."""
    folder = cache_root() / "cpu"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            if make_private(folder):
                stack.enter_context(files.lock(folder / f"{name}.lock"))
        yield


def find_or_build(
    name: str, build: Callable[[Path], Path], *, alone: bool = False, suffix: str = ".so"
) -> tuple[Path, float]:
    """Return the file built under this name; build it if necessary.

    Args:
        name: without a suffix; must contain everything on which the result depends.
        build: builds the file in the folder that it gets, and returns its path.
        alone: only one process builds at a time, and the others wait for its file. Otherwise,
            several processes may build the same file.
        suffix: of the file.

    Returns:
        The file, and the seconds that it took to build; 0.0 if it was found.

    Raises:
        CompileError: the build fails, or its file cannot be written.
    """
    with _building(name), contextlib.ExitStack() as stack:
        if (built := find_built(name)) is not None:
            return built, 0.0
        if alone:
            stack.enter_context(_building_alone(name))
            if (built := find_built(name)) is not None:
                return built, 0.0
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="attune-build-") as scratch:
            library = build(Path(scratch)).read_bytes()
        stored = _store(cache_root() / "cpu", name, library, suffix)
        # If the cache is not writable, only this process uses the file; the next one builds again.
        path = stored or _store(_private_folder(), name, library, suffix)
        if path is None:
            raise CompileError(
                f"The compiled kernel {name} cannot be written to {cache_root()} nor to "
                f"{_private_folder()}: make room on the disk, or set ATTUNE_CACHE_DIR to a folder "
                f"that can be written.",
                code="host_build_not_written",
            )
        return path, time.perf_counter() - begin


def find_built(name: str) -> Path | None:
    """Return the file that `find_or_build` has built under this name, or None."""
    folders = [cache_root() / "cpu"]
    if _private_folder.cache_info().currsize:  # exists only if the cache is not writable
        folders.append(_private_folder())
    return next((path for folder in folders if (path := _find(folder, name)) is not None), None)


def _find(folder: Path, name: str) -> Path | None:
    if (payload := read_entry(folder / f"{name}.entry")) is None:
        return None
    try:
        record = json.loads(payload)
        path = folder / Path(str(record["library"])).name
        status = path.stat()
        digest = _digest(path, status.st_ino, status.st_size, status.st_mtime_ns)
        return path if digest == record["sha256"] and is_private(path) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # rebuilt


@functools.lru_cache(maxsize=64)
def _digest(path: Path, _inode: int, _size: int, _mtime_ns: int) -> str:
    """Return the SHA-256 of a library; cached while the file is unchanged, because every run checks
    it."""
    return hashlib.sha256(files.read(path, _MAX_LIBRARY)).hexdigest()


def _store(folder: Path, name: str, library: bytes, suffix: str) -> Path | None:
    digest = hashlib.sha256(library).hexdigest()
    path = folder / f"{name}-{digest[:8]}{suffix}"
    try:
        if not make_private(folder):
            return None
        files.write(path, library, durable=False)
    except OSError:
        return None
    record = {"library": path.name, "sha256": digest}
    return path if write_entry(folder / f"{name}.entry", json.dumps(record).encode()) else None


@functools.lru_cache(maxsize=1)
def _private_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="attune-cpu-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
