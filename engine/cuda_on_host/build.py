"""`.cu` → a shared library for this machine's CPU, from the cache when it was built before.

A cache entry is a record (`engine.base.files`) that names a library file beside it and the
library's SHA-256. Library files carry their content's hash in their name and are renamed into
place, so two processes that build the same thing cannot disturb each other, and an entry whose
library is damaged or gone is built again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from engine.base import files
from engine.base.errors import CompileError
from engine.base.files import cache_root, is_private, make_private, read_entry, write_entry
from engine.cuda_on_host.error_kinds import explain
from engine.cuda_on_host.instrument import instrument
from engine.cuda_on_host.ptx import has_asm, translate_asm
from engine.cuda_on_host.rewrite import ATTRIBUTE, TranslatedFile, place_cluster_dims, translate
from engine.cuda_on_host.toolchain import (
    CHANGED,
    DEFAULT_ARCH,
    PACKAGE,
    Toolchain,
    arch_flags,
    changed,
    find_toolchain,
    host_cpu,
    translation_digest,
)
from engine.cuda_source.sources import FOR_DEVICE, implied, read_sources
from kernels.variant import CppStandard

NATIVE_DIR = PACKAGE / "native"
COMPILE_TIMEOUT_S = 300.0
MAX_COMPILER_LOG_BYTES = 1 << 20
_LOW_PRIORITY = 19  # niceness
_ALWAYS_INCLUDED = frozenset(  # by cuda_on_host.h
    f"{name}.h" for name in ("float", "limits", "math", "stddef", "stdint", "stdio", "string")
) | {"limits", "type_traits", "utility"}


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """A compiled kernel source, ready for the child process to load."""

    path: Path
    runtime: Path  # the runtime library it was linked with
    source: str  # "v01_fa1_baseline.cu"
    sources: tuple[str, ...]  # the source and the headers it includes, as error messages name them
    entries: tuple[str, ...]
    check: bool
    build_s: float  # 0.0 when it came from the cache


def build_kernels(
    source: Path,
    entries: Sequence[str],
    defines: Sequence[tuple[str, str]] = (),
    check: bool = False,
    arch: str = DEFAULT_ARCH,
    include_folders: Sequence[Path] = (),
    cpp: CppStandard = "c++17",
) -> HostLibrary:
    """Compile `source`, or find it compiled.

    Args:
        entries: the kernels to launch later: names, or name expressions (`fwd<64, true>`).
        defines: `-D` macros as (name, value).
        check: the check build instead of the fast one.
        arch: the target GPU ("sm_90", "sm_90a"): what `__CUDA_ARCH__` says in the source.
        include_folders: where headers of the kernel are, besides its own folder.
        cpp: the standard of C++.

    Raises:
        CompileError: the source does not compile; the message starts with `file.cu:line` and `log`
            is the compiler's output.
        ToolMissing: there is no compiler.
    """
    toolchain = find_toolchain()
    sources = read_sources(source, include_folders)
    files = _translated(sources)
    standard = sorted(FOR_DEVICE.intersection(sources.foreign) - _ALWAYS_INCLUDED)
    _require_entries(files, entries)
    flags = (f"-std={cpp}", *toolchain.compile_flags(check))
    flags += arch_flags([file.text for file in files], arch)
    exports = "".join(f"COH_EXPORT({i}, {entry})\n" for i, entry in enumerate(entries))
    # In the source and no options, because the runtime's headers come before it.
    macros = implied(sources.foreign)
    macros += "".join(f"#define {name} {value}\n" for name, value in defines)
    originals = {file.name: file.text.partition("\n")[2] for file in files}
    main = TranslatedFile(files[0].name, f"{macros}{files[0].text}\nCOH_MODULE\n{exports}")
    files = (main, *files[1:])
    texts = [(file.name, file.text) for file in files]
    key = _key("kernels", toolchain, flags, _runtime_name(toolchain), texts, standard)
    headers = _Headers(toolchain, flags, tuple(standard), _of_toolkit(sources.foreign))

    def build(folder: Path) -> Path:
        (folder / _TRANSLATED).mkdir()
        for file in files:
            (folder / _TRANSLATED / file.name).write_text(file.text, encoding="utf-8")
        for name, source_file in zip(originals, sources.files, strict=True):
            # What `#line` names: the compiler's excerpts are of these.
            (folder / name).write_text(source_file.text, encoding="utf-8")
        # Relative names and no trace of the folder: equal sources give equal libraries.
        include = headers.place(folder)
        compile_command = [*toolchain.command, *flags, f"-ffile-prefix-map={folder}=."]
        translated = f"{_TRANSLATED}/{main.name}"
        uses_asm = any(has_asm(file.text) for file in files)
        clusters = any(ATTRIBUTE in file.text for file in files)
        if uses_asm or check or clusters:
            preprocess = [*compile_command, *include, "-E", "-x", "c++", translated]
            _run_compiler(preprocess, folder, "read.ii", source.name, files)
            text = (folder / "read.ii").read_text(encoding="utf-8")
            cluster_exports = ""
            if clusters:
                kernels = place_cluster_dims(text)
                _require_cluster_gpu(list(filter(kernels.of, entries)), source.name, arch)
                text, cluster_exports = kernels.text, kernels.exports(entries)
            if check:
                text = instrument(text, originals)
            if uses_asm:
                text = translate_asm(text, originals, entries)
            text += cluster_exports
            (folder / "kernels.ii").write_text(text, encoding="utf-8")
            compile_command += ["-x", toolchain.preprocessed_language, "kernels.ii"]
        else:
            compile_command += [*include, "-x", "c++", translated]
        _run_compiler([*compile_command, "-c"], folder, "kernels.o", source.name, files)
        link_command = [*toolchain.command, "-shared", "kernels.o", str(build_runtime(toolchain))]
        _run_compiler(link_command, folder, "kernels.so", source.name)
        return folder / "kernels.so"

    def build_both(folder: Path) -> Path:
        # The first kernel on a machine needs the runtime too: beside its own build, not before it.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(build_runtime, toolchain)  # linking asks for it again and says what fails
            return build(folder)

    path, build_s = _find_or_build(f"{source.stem}-{key}", build_both)
    names = tuple(file.name for file in files)
    runtime = build_runtime(toolchain)
    return HostLibrary(path, runtime, source.name, names, tuple(entries), check, build_s)


# A build that is there already is looked up by its translation, at every run of a kernel.
_translated = functools.lru_cache(maxsize=64)(translate)


def build_runtime(toolchain: Toolchain) -> Path:
    """The runtime library all kernel libraries of a process share."""
    name = _runtime_name(toolchain)
    if sys.platform == "darwin":
        naming = ["-install_name", f"@rpath/{name}.so"]
    else:
        naming = [f"-Wl,-soname,{name}.so"]

    def build(folder: Path) -> Path:
        compile_command = [*toolchain.command, *toolchain.runtime_flags(), "-c"]
        compile_command.append(f"-ffile-prefix-map={folder}=.")

        def compile_unit(source: Path) -> str:
            output = f"{source.stem}.o"
            _run_compiler([*compile_command, str(source)], folder, output, source.name)
            return output

        units = sorted((NATIVE_DIR / "units").glob("*.cpp"))
        with ThreadPoolExecutor(len(units)) as pool:  # side by side: the first Run waits for them
            objects = list(pool.map(compile_unit, units))
        link_command = [*toolchain.command, "-shared", *naming, *objects, "-lpthread", "-lm"]
        _run_compiler(link_command, folder, "runtime.so", "the runtime library")
        return folder / "runtime.so"

    return _find_or_build(name, build, alone=True)[0]


# ---- what every kernel includes ----


@dataclass(frozen=True, slots=True)
class _Headers:
    """The headers before a kernel's text, which GCC reads faster than it compiles them.

    Precompiled they hold the toolkit's headers as well, whose text is then skipped where the source
    includes them. Clang gains nothing: it preprocesses and compiles the same text again.
    """

    toolchain: Toolchain
    flags: tuple[str, ...]
    standard: tuple[str, ...]  # before CUDA's keywords, which these do not survive
    toolkit: tuple[str, ...]  # that the source names

    def place(self, folder: Path) -> list[str]:
        """Put them into a build's folder; the options that include them."""
        self._write(folder, ())
        options = [f"-I{_TOOLKIT_DIR}", "-I.", "-include", _HEADERS]
        if self.toolchain.family != "gcc":
            return options
        precompiled = _find_anywhere(self._name())
        if precompiled is None:
            self._precompile_when_missed_again()
            return options
        (folder / f"{_HEADERS}.gch").symlink_to(precompiled)
        return [*options, "-fpch-preprocess"]

    def precompile(self) -> None:
        """Raises: CompileError, ToolMissing."""

        def build(folder: Path) -> Path:
            self._write(folder, self.toolkit)
            command = [*self.toolchain.command, *self.flags, f"-I{_TOOLKIT_DIR}"]
            command += ["-x", "c++-header", _HEADERS]
            _run_compiler(command, folder, f"{_HEADERS}.gch", _HEADERS)
            return folder / f"{_HEADERS}.gch"

        _find_or_build(self._name(), build, alone=True, suffix=".gch")

    def _precompile_when_missed_again(self) -> None:
        """In the background, once there is a second kernel that it would have served."""
        with _build_locks_guard:
            missed = _missed_headers[self._name()] = _missed_headers.get(self._name(), 0) + 1
        if missed == 2:
            threading.Thread(target=self._try_to_precompile, name="precompile-headers").start()

    def _try_to_precompile(self) -> None:
        with contextlib.suppress(CompileError, OSError):  # a kernel compiles without it
            self.precompile()

    def _name(self) -> str:
        key = _key("headers", self.toolchain, self.flags, self.standard, self.toolkit)
        return f"attune-cpu-headers-{key}"

    def _write(self, folder: Path, toolkit: Sequence[str]) -> None:
        names = [f"<{name}>" for name in self.standard]
        names += [f'"{NATIVE_DIR / "cuda_on_host.h"}"', *(f"<{name}>" for name in toolkit)]
        text = "".join(f"#include {name}\n" for name in names)
        (folder / _HEADERS).write_text(text, encoding="utf-8")


_HEADERS = "attune_headers.h"
_TRANSLATED = "translated"  # the folder of what is compiled
_TOOLKIT_DIR = NATIVE_DIR / "toolkit"
_missed_headers: dict[str, int] = {}


def precompile_headers() -> None:
    """Those of the ladder's kernels, where the compiler gains by it.

    Raises:
        CompileError: they do not compile, or cannot be written to the cache.
        ToolMissing: there is no compiler.
    """
    toolchain = find_toolchain()
    if toolchain.family == "gcc":
        of_ladder = ("cuda_bf16.h", "cuda_fp16.h")
        flags = ("-std=c++17", *toolchain.compile_flags(False))
        _Headers(toolchain, flags, (), of_ladder).precompile()


def _of_toolkit(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if (_TOOLKIT_DIR / name).is_file()))


def build_library(source: Path, *, low_priority: bool = False) -> Path:
    """A C++ file of the project's own as a shared library of plain C functions.

    Args:
        source: includes headers of its own folder alone; the folder's files are the cache key.
        low_priority: whatever else runs goes first: for what is built ahead of its use.

    Raises:
        CompileError: it does not compile, or cannot be written to the cache.
        ToolMissing: there is no compiler.
    """
    toolchain = find_toolchain()
    flags = _library_flags(toolchain)

    def build(folder: Path) -> Path:
        command = [*toolchain.command, *flags, f"-ffile-prefix-map={source.parent}=."]
        command += ["-shared", str(source)]
        _run_compiler(command, folder, "library.so", source.name, low_priority=low_priority)
        return folder / "library.so"

    return _find_or_build(_library_name(source, toolchain, flags), build, alone=True)[0]


def find_library(source: Path) -> Path | None:
    """What `build_library` has built of this file; None where it has not. Raises ToolMissing."""
    toolchain = find_toolchain()
    return _find_anywhere(_library_name(source, toolchain, _library_flags(toolchain)))


def _library_flags(toolchain: Toolchain) -> tuple[str, ...]:
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


def _runtime_name(toolchain: Toolchain) -> str:
    return f"attune-cpu-runtime-{_key('runtime', toolchain, toolchain.runtime_flags())}"


def export_number(library: HostLibrary, entry: str) -> int:
    """The number under which a library exports a kernel; -1 where it does not."""
    return library.entries.index(entry) if entry in library.entries else -1


def _require_entries(files: Sequence[TranslatedFile], entries: Sequence[str]) -> None:
    """A missing entry would otherwise be reported behind the file's last line."""
    for entry in entries:
        name = entry.partition("<")[0].rpartition("::")[2].strip()
        if not any(re.search(rf"\b{re.escape(name)}\b", file.text) for file in files):
            raise CompileError(
                f"{files[0].name} has no kernel {entry!r}: every pass needs a `__global__` "
                "function of its entry's name.",
                code="no_such_entry",
            )


def _require_cluster_gpu(entries: Sequence[str], source: str, arch: str) -> None:
    if entries and int(re.sub(r"\D", "", arch)) < 90:
        raise CompileError(
            f"{source}: kernel {entries[0]} has {ATTRIBUTE}, and {arch} has no thread block "
            "clusters: choose a GPU of sm_90 or newer.",
            code="clusters_need_sm_90",
        )


def _key(kind: str, toolchain: Toolchain, flags: Sequence[str], *more: object) -> str:
    parts = [
        kind,
        toolchain.command,
        toolchain.version,
        host_cpu(),
        flags,
        translation_digest(),
        more,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


# ---- the compiler's run ----


def _run_compiler(
    command: Sequence[str],
    folder: Path,
    output: str,
    source: str,
    files: Sequence[TranslatedFile] = (),
    *,
    low_priority: bool = False,
) -> None:
    """Run the compiler so that it writes the file `output` of the folder.

    Args:
        source: what to name in errors.
        low_priority: whatever else runs goes first.

    Raises:
        CompileError: it fails, does not end, or ends without the file.
    """
    log = bytearray()

    def keep_head(stream: IO[bytes]) -> None:
        while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
            log.extend(chunk[: MAX_COMPILER_LOG_BYTES - len(log)])  # what follows is dropped

    # A group of its own, because a compiler driver's passes outlive the driver when it is killed.
    with subprocess.Popen(
        [*command, "-o", output],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        env=os.environ | {"LC_ALL": "C"},
    ) as process:
        if low_priority:  # of the passes that the driver starts, too
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, process.pid, _LOW_PRIORITY)
        reader = threading.Thread(target=keep_head, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            process.wait(COMPILE_TIMEOUT_S)
            reader.join(COMPILE_TIMEOUT_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise CompileError(
                    f"Compiling {source} for the CPU did not finish within "
                    f"{COMPILE_TIMEOUT_S:.0f} s.",
                    code="host_compile_time_limit",
                ) from None
            raise
    text = log.decode(errors="replace")
    if process.returncode != 0:
        raise CompileError(_first_error(text, source, files), log=text)
    if not (folder / output).is_file():
        raise CompileError(
            f"The C++ compiler {command[0]} reported success for {source} and wrote no file: set "
            "ATTUNE_CXX to a compiler that works.",
            log=text,
            code="compiler_wrote_nothing",
        )


def _first_error(log: str, source: str, files: Sequence[TranslatedFile]) -> str:
    match = re.search(r"^([^\s:][^:\n]*:\d+):(?:\d+:)? (?:fatal )?error: (.*)$", log, re.MULTILINE)
    if match is not None:
        where, message = match[1], match[2]
        names = "|".join(re.escape(file.name) for file in files)
        # An error in a header of the CPU backend is due to the line that uses it.
        if files and not re.match(rf"(?:{names}):", where):
            user = re.search(rf"^(?:In file included from )?({names}):\d+", log, re.MULTILINE)
            where = user[0].rpartition(" ")[2] if user is not None else where
        return explain(where, message, {file.name: file.text for file in files})
    lines = log.strip().splitlines() or ["the compiler failed without a message"]
    return f"{source}: {lines[-1]}"


# ---- the cache ----

_MAX_LIBRARY = 256 << 20

_build_locks: dict[str, threading.Lock] = {}
_build_locks_guard = threading.Lock()


@contextlib.contextmanager
def _building(name: str) -> Iterator[None]:
    """One build of a thing at a time in this process."""
    with _build_locks_guard:
        lock = _build_locks.setdefault(name, threading.Lock())
    with lock:
        yield


@contextlib.contextmanager
def _building_alone(name: str) -> Iterator[None]:
    """One build of a thing at a time on this machine, if the cache can be written."""
    folder = cache_root() / "cpu"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            if make_private(folder):
                stack.enter_context(files.lock(folder / f"{name}.lock"))
        yield


def _find_or_build(
    name: str, build: Callable[[Path], Path], *, alone: bool = False, suffix: str = ".so"
) -> tuple[Path, float]:
    """(library, seconds it took to build, 0.0 when it was found).

    Args:
        alone: other processes wait for the build, as it takes longer than waiting. Without it, two
            processes may both build the same thing.
    """
    with _building(name), contextlib.ExitStack() as stack:
        if (built := _find_anywhere(name)) is not None:
            return built, 0.0
        if alone:
            stack.enter_context(_building_alone(name))
            if (built := _find_anywhere(name)) is not None:
                return built, 0.0
        if changed():
            raise CompileError(
                f"The kernel cannot be compiled for the CPU: {CHANGED}.",
                code="attune_changed_under_way",
            )
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="attune-build-") as scratch:
            library = build(Path(scratch)).read_bytes()
        stored = _store(cache_root() / "cpu", name, library, suffix)
        # A cache that cannot be written costs the next process a build, not this one its result.
        path = stored or _store(_private_folder(), name, library, suffix)
        if path is None:
            raise CompileError(
                f"The compiled kernel {name} cannot be written to {cache_root()} nor to "
                f"{_private_folder()}: make room on the disk, or set ATTUNE_CACHE_DIR to a folder "
                f"that can be written.",
                code="host_build_not_written",
            )
        return path, time.perf_counter() - begin


def _find_anywhere(name: str) -> Path | None:
    folders = [cache_root() / "cpu"]
    if _private_folder.cache_info().currsize:  # only made when the cache cannot be written
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
        return None  # it is built again


@functools.lru_cache(maxsize=64)
def _digest(path: Path, _inode: int, _size: int, _mtime_ns: int) -> str:
    """SHA-256 of a library, read once as long as it is the same file: a run looks each time."""
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
