"""Run NVRTC in separate processes with limits: a source that hangs or crashes it raises an error,
and the caller's process goes on.

A process is started for the first compile (0.2 s) and kept for the next; each compiles one source
at a time, and there are as many as threads compile at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

from engine.base.errors import CompileError, ToolMissing
from engine.cuda_source.library import Compile, Compiled

TIME_LIMIT_S = 300.0
_MOST_IDLE = 2  # each holds some 100 MB
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class _Child:
    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine.cuda_source.nvrtc_process", str(theirs.fileno())],
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
        if answer is not None and len(_idle) < _MOST_IDLE:
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
    """Return an idle process, or a new one."""
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
