"""Host memory: bytes available on the machine or in the container, and a cache of bounded size."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_MAX_HEAP_ARRAY, _MAX_KEPT = 32 << 20, 128 << 20  # bytes; the first is the most that glibc takes


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for reuse: arrays up to 32 MiB, 128 MiB in total.

    By default it returns such memory to the system, which clears each page before it is used again.
    That takes a third of the processor time of arithmetic on arrays of a few MiB. Does nothing
    without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MAX_HEAP_ARRAY)
    mallopt(_M_TRIM_THRESHOLD, _MAX_KEPT)


def available_host_memory(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the bytes that can be allocated without swapping; None if unknown.

    This is the smaller of the kernel's MemAvailable and the limits of the control group
    (container).

    Args:
        proc, cgroups: folders of Linux with these figures.
    """
    found = (_mem_available(proc), _cgroup_v2(proc, cgroups), _cgroup_v1(proc, cgroups))
    limits = [x for x in found if x is not None]
    if limits:
        return max(0, min(limits))
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _mem_available(proc: Path) -> int | None:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_v2(proc: Path, cgroups: Path) -> int | None:
    group = _own_group(proc, "")
    if group is None:
        return None
    return _least_free(cgroups, group, "memory.max", "memory.current", "inactive_file")


def _cgroup_v1(proc: Path, cgroups: Path) -> int | None:
    group = _own_group(proc, "memory")
    if group is None:
        return None
    files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return _least_free(cgroups / "memory", group, *files)


def _own_group(proc: Path, controller: str) -> str | None:
    """Return the process's group of a v1 controller, or of v2 with an empty name."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return None


def _least_free(root: Path, group: str, limit: str, usage: str, cache: str) -> int | None:
    """Return the tightest limit from the process's group up to the root.

    In a container, the group's path may not exist below the mounted root; the root is then the
    container's group.
    """
    least: int | None = None
    folders = [root / group, *(root / group).parents]
    for folder in folders[: folders.index(root) + 1]:
        maximum = _number(folder / limit)
        if maximum is None:
            continue  # no such folder, or no limit
        current = _number(folder / usage)
        if current is None:
            continue
        free = maximum - current + _reclaimable(folder / "memory.stat", cache)
        least = free if least is None else min(least, free)
    return least


def _reclaimable(stat: Path, field: str) -> int:
    """Return the file cache, which counts as used but is reclaimable."""
    for line in _read(stat).splitlines():
        name, _, value = line.partition(" ")
        if name == field:
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


Key = TypeVar("Key")
Value = TypeVar("Value")


class Newest(dict[Key, Value], Generic[Key, Value]):
    """A thread-safe dictionary of at most `most` entries; a new entry replaces the oldest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        while key not in self and len(self) >= self._most:
            with suppress(StopIteration, RuntimeError):  # another thread removed it first
                self.pop(next(iter(self)), None)
        super().__setitem__(key, value)
