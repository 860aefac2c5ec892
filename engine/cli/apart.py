"""A command's work in a process of its own, with limits: for files that may be anything."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from engine.base.errors import AttuneError, CompileError
from engine.cli.output import shown_output

_MOST_TIME_S = 600
_MOST_MEMORY_BYTES = 8 << 30  # beside what the process has when it starts
_PR_SET_PDEATHSIG = 1


def run_apart(run: Callable[[argparse.Namespace], int], args: argparse.Namespace, file: str) -> int:
    """`run(args)`, printing to where this process prints; what `file` does to it stays there.

    Raises:
        CompileError: it crashed, or reached a limit.
        AttuneError: as `run`.
    """
    sys.stdout.flush()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, run, args), daemon=True)
    process.start()
    theirs.close()
    answer: int | AttuneError | None = None
    try:
        if not ours.poll(_MOST_TIME_S):
            raise CompileError(f"Reading {file} took more than {_MOST_TIME_S / 60:.0f} minutes.")
        with contextlib.suppress(EOFError):
            answer = ours.recv()
    finally:
        if answer is None:
            process.kill()
        process.join()
        ours.close()
    if isinstance(answer, AttuneError):
        raise answer
    if answer is None:
        raise CompileError(
            f"The process that read {file} ended by {_how(process.exitcode or 0)}: the file is "
            "damaged, or it takes more than this machine has."
        )
    return answer


def _how(code: int) -> str:
    if code >= 0:
        return f"itself (exit code {code})"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def _serve(
    answers: Connection, run: Callable[[argparse.Namespace], int], args: argparse.Namespace
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent says that it was cancelled
    _limit()
    answer: int | AttuneError
    with shown_output():
        try:
            answer = run(args)
            sys.stdout.flush()
        except AttuneError as error:
            answer = error
        except MemoryError:
            answer = CompileError("The file takes more memory to be read than it may.")
    answers.send(answer)


def _limit() -> None:
    """End with the parent, and at the limits."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        memory = pages * resource.getpagesize() + _MOST_MEMORY_BYTES
        _at_most(resource.RLIMIT_AS, memory)
    _at_most(resource.RLIMIT_CPU, 2 * _MOST_TIME_S)
    _at_most(resource.RLIMIT_CORE, 0)


def _at_most(limit: int, amount: int) -> None:
    soft, hard = resource.getrlimit(limit)
    known = [value for value in (amount, soft, hard) if value != resource.RLIM_INFINITY]
    resource.setrlimit(limit, (min(known), hard))
