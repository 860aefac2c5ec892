"""NVRTC of any version: its functions through ctypes, and separate processes with limits to run it.

A source that makes NVRTC hang or crash raises an error, and the caller's process goes on. A process
is started for the first compile (0.2 s) and kept for the next; each compiles one source at a time,
and there are as many as threads compile at once.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from engine.base.errors import CompileError, ToolMissing


class NvrtcError(RuntimeError):
    """A call of NVRTC failed."""


class Compile(NamedTuple):
    """The input of one run of NVRTC."""

    library: str  # path of libnvrtc
    source: str
    name: str  # the source's name in errors
    headers: tuple[tuple[str, str], ...]  # name as included, text
    entries: tuple[str, ...]  # name expressions
    options: tuple[str, ...]
    output: str  # "CUBIN" or "PTX"


class Compiled(NamedTuple):
    """The result of one run of NVRTC."""

    code: bytes | None  # None if it does not compile; the log has the errors
    symbols: dict[str, str]  # by entry
    log: str


class NvrtcLibrary:
    """One NVRTC library.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        # Loaded first, because NVRTC finds it by its name only if it is already loaded.
        for needed in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(needed))
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> tuple[int, int]:
        """Return (major, minor). Raises NvrtcError."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def archs(self) -> tuple[int, ...]:
        """Return compute capabilities without the dot, ascending. Raises NvrtcError."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", archs)
        return tuple(sorted(archs))

    def compile(self, given: Compile) -> Compiled:
        """Compile one source. Raises NvrtcError if there is not even a log."""
        with self._program(given) as program:
            code: bytes | None = None
            symbols: dict[str, str] = {}
            try:
                for entry in given.entries:
                    self._call("nvrtcAddNameExpression", program, entry.encode())
                options = [option.encode() for option in given.options]
                self._call("nvrtcCompileProgram", program, len(options), _strings(options))
                symbols = {entry: self._symbol(program, entry) for entry in given.entries}
                code = self._bytes(given.output, program)
            except NvrtcError:
                symbols = {}
            log = self._bytes("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            # NVRTC joins the logs of its stages with NUL characters.
            return Compiled(code, symbols, log.replace("\0", "\n").strip())

    @contextlib.contextmanager
    def _program(self, given: Compile) -> Iterator[ctypes.c_void_p]:
        program = ctypes.c_void_p()
        texts = [text.encode() for _, text in given.headers]
        names = [name.encode() for name, _ in given.headers]
        self._call(
            "nvrtcCreateProgram",
            *(ctypes.byref(program), given.source.encode(), given.name.encode()),
            *(len(texts), _strings(texts), _strings(names)),
        )
        try:
            yield program
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _symbol(self, program: ctypes.c_void_p, entry: str) -> str:
        lowered = ctypes.c_char_p()
        self._call("nvrtcGetLoweredName", program, entry.encode(), ctypes.byref(lowered))
        return (lowered.value or b"").decode()

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, content)
        return content.raw

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise NvrtcError(self._library.nvrtcGetErrorString(code).decode(errors="replace"))


def _strings(texts: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*texts)


TIME_LIMIT_S = 300.0
_MAX_IDLE = 2  # each holds some 100 MB
_SERVE = f"from {__name__} import serve; serve()"
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class _Child:
    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                cwd="/",  # because NVRTC also searches the current folder for headers
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C only interrupts the caller
                env=os.environ | {"PYTHONPATH": path},
            )

    def stop(self) -> int:
        """End the process and return its exit code, -9 if it was still running."""
        self.connection.close()
        self.process.kill()
        return self.process.wait()


_idle: list[_Child] = []


def compile_apart(given: Compile, time_limit_s: float = TIME_LIMIT_S) -> Compiled:
    """Run NVRTC in another process.

    Raises:
        CompileError: it did not end within the time limit, or crashed its process.
        ToolMissing: the library does not load.
    """
    child = _take()
    answer: Compiled | str | None = None
    try:
        child.connection.send(given)
        if not child.connection.poll(time_limit_s):
            raise CompileError(
                f"Compiling {given.name} did not finish within {time_limit_s:g} s and was stopped: "
                "does it instantiate templates without end?",
                code="compile_time_limit",
            )
        with contextlib.suppress(EOFError, ConnectionError):
            answer = child.connection.recv()
    except ConnectionError:  # the process has ended
        pass
    finally:
        if answer is not None and len(_idle) < _MAX_IDLE:
            _idle.append(child)
            code = 0
        else:
            code = child.stop()
    if answer is None:
        raise CompileError(
            f"The compiler of {given.name} ended by {_how(code)} without an answer: the source "
            "makes it crash or take more memory than there is.",
            code="compiler_died",
        )
    if isinstance(answer, str):
        raise ToolMissing(f"NVRTC does not run ({answer}).", code="nvrtc_apart")
    return answer


def _take() -> _Child:
    """Return an idle process; start a new one if there is none."""
    with contextlib.suppress(IndexError):
        while True:
            child = _idle.pop()
            if child.process.poll() is None:
                return child
            child.stop()
    return _Child()


def _how(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _stop_idle() -> None:
    while _idle:
        _idle.pop().stop()


atexit.register(_stop_idle)
# A forked process must not end the original's processes.
os.register_at_fork(after_in_child=_idle.clear)


_MAX_MEMORY_BYTES = 8 << 30

_library = functools.cache(NvrtcLibrary)


def _answer(asked: Connection, given: Compile) -> None:
    answer: Compiled | str
    try:
        answer = _library(Path(given.library)).compile(given)
    except (MemoryError, NvrtcError, OSError) as error:
        answer = str(error) or type(error).__name__
    asked.send(answer)


def serve() -> None:
    """Serve compile requests in this process until the parent ends, even during a compile."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = Connection(int(sys.argv[1]))
    while True:
        try:
            given = asked.recv()
        except (EOFError, OSError):
            os._exit(0)
        # In a thread, so that this one notices when the parent ends.
        threading.Thread(target=_answer, args=(asked, given), daemon=True).start()
