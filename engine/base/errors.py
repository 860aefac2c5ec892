"""Statuses of evaluations and their steps, and the tree of exceptions.

An error's text is one sentence (or two) that says what is wrong, why, and what to do. Pages and the
command line print it unchanged; any other exception is a bug of Attune. Its `code` identifies the
sentence independently of its wording, for programs and tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum

# The status of an evaluation or of one of its steps.


class Status(StrEnum):
    PASSED = "PASSED"
    SKIPPED = "SKIPPED"
    COMPILE_ERROR = "COMPILE_ERROR"
    LAUNCH_ERROR = "LAUNCH_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INCORRECT = "INCORRECT"
    RACE = "RACE"  # two unordered accesses
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS"  # access outside of a buffer
    CRASHED = "CRASHED"
    TIMEOUT = "TIMEOUT"
    THROTTLED = "THROTTLED"
    CANCELLED = "CANCELLED"


# Statuses of an execution with a detected error.
FAULTS = frozenset({Status.LAUNCH_ERROR, Status.RACE, Status.OUT_OF_BOUNDS, Status.CRASHED})
WITHOUT_TIME = FAULTS | {Status.INCORRECT}  # nothing is said about the speed of a wrong kernel


class AttuneError(Exception):
    """Base of all expected failures. `code` identifies the message; empty if it has no code yet."""

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class BadInput(AttuneError):
    """Invalid input: a name, a value or a file. The command line exits with 2 for it, and with 1
    for every other AttuneError."""


class InvalidProblem(BadInput):
    """An invalid or unsupported shape, dtype or config."""


class UnknownName(BadInput):
    """An unknown variant, device, backend or preset (the message offers the nearest names), or a
    path without a file."""


_MAX_LISTED = 24


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Return the error for an unknown name, which offers the nearest names, or else the first known
    ones."""
    names = list(known)
    code = f"unknown_{kind.replace(' ', '_')}"
    if not names:
        return UnknownName(f"There is no {kind} called {name!r}: none are defined.", code=code)
    near = get_close_matches(name.casefold(), {n.casefold(): n for n in names}, n=3, cutoff=0.5)
    by_folded = {n.casefold(): n for n in names}
    same = [n for n in names if _unpadded(n) == _unpadded(name)]  # v01 for v1
    offered = same or [by_folded[n] for n in near] or names[:_MAX_LISTED]
    listing = ", ".join(offered)
    if not near and len(names) > _MAX_LISTED:
        listing += f" and {len(names) - _MAX_LISTED} more"
    remedy = f"did you mean {listing}?" if near else f"known are {listing}."
    return UnknownName(f"There is no {kind} called {name!r}: {remedy}", code=code)


def _unpadded(name: str) -> str:
    return re.sub(r"(?<!\d)0+(?=\d)", "", name.casefold())


class InvalidKernel(BadInput):
    """A kernel with a mistake in its description; the text then starts with `file.cu:line`.

    `block` is a description to paste if there is none.
    """

    def __init__(self, message: str, block: str = "", *, code: str = "") -> None:
        super().__init__(message, code=code)
        self.block = block


class CompileError(AttuneError):
    """A kernel did not compile. `log` holds the compiler's output with `file.cu(line)`."""

    def __init__(self, message: str, log: str = "", *, code: str = "") -> None:
        super().__init__(message, code=code)
        self.log = log


class InvalidBuild(CompileError, BadInput):
    """An entry that the source does not have, or an option that the compiler does not know."""


class InvalidCubin(CompileError, BadInput):
    """A file that is not a cubin, or a damaged cubin."""


class ToolMissing(AttuneError):
    """A compiler, package or driver is not installed; the text says how to get it."""


class ExecutionError(AttuneError):
    """A kernel's execution did not finish; `log` has the messages."""

    def __init__(self, message: str, log: str = "", *, code: str = "") -> None:
        super().__init__(message, code=code)
        self.log = log


class MeasureError(AttuneError):
    """A kernel that is correct could not be timed."""


class SnapshotError(BadInput):
    """A snapshot that is damaged, in another format, too large or of an unknown version."""


class StoreError(AttuneError):
    """The sessions folder cannot be read or written (missing, read-only, full)."""


class InvalidStore(StoreError, BadInput):
    """A setting names a folder or file that cannot be used for sessions or tuned configs."""


class ClusterError(AttuneError):
    """The Dask cluster of a sweep cannot be reached, has no suitable worker, or is gone."""
