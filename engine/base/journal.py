"""An append-only file of JSON lines: what happened to jobs, sweeps and sessions.

Every event is one `os.write` to a file opened with O_APPEND, so events of several processes never
interleave. It begins and ends with a newline: one that a crash or a full disk cut off then damages
nothing but itself. A reader parses up to the last newline only and passes over damaged lines.
"""

from __future__ import annotations

import errno
import gc
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.base import files

# What mends a journal in the cache folder that cannot be written.
CACHE_REMEDY = "free some disk space or point ATTUNE_CACHE_DIR at a folder that can be written"
_MAX_READ = 1 << 30  # of one call; the next one goes on


def append(path: Path, event: Mapping[str, Any], remedy: str = CACHE_REMEDY) -> None:
    """Add one event.

    Args:
        remedy: what to do when it cannot be written, for the error.

    Raises:
        StoreError: the disk is full or the folder cannot be written.
    """
    line = ("\n" + json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n").encode()
    with files.as_sentence(f"The journal {path.name} cannot be written", remedy):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)


def read_from(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The complete events after byte `offset`, and the offset to go on from.

    Lines that are no JSON object (empty, cut off by a full disk, nested too deeply) are passed
    over.

    Raises:
        StoreError: it is no regular file, or cannot be read.
    """
    lines, end = lines_from(path, offset)
    with collector_paused():
        return [event for line in lines if (event := parse(line)) is not None], end


def lines_from(path: Path, offset: int) -> tuple[list[bytes], int]:
    """The complete lines after byte `offset`, whatever they hold, and the offset to go on from.

    Raises:
        StoreError: as `read_from`.
    """
    with files.as_sentence(f"{path} cannot be read"):
        try:
            with files.open_regular(path) as file:
                file.seek(offset)
                data = file.read(_MAX_READ)
        except FileNotFoundError:
            return [], 0
    end = data.rfind(b"\n") + 1
    return data[:end].splitlines(), offset + end


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector: it takes three times as long as parsing, and finds no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse(line: bytes) -> dict[str, Any] | None:
    """The event of a line, or None where it is none."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
