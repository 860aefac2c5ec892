"""The C++ libraries of this package, built once into the cache and loaded once per process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from engine.base.cxx import build_library, find_library
from engine.base.errors import ToolMissing

_loaded: dict[Path, ctypes.CDLL] = {}
_lock = threading.Lock()  # held during a build, so that other threads wait for it


def load_library(source: Path, *, ahead: bool = False) -> ctypes.CDLL:
    """Build (if needed) and load the library of `source`.

    Args:
        ahead: build at low priority, because nothing waits for it yet.

    Raises:
        ToolMissing: there is no C++ compiler.
        CompileError: the library does not compile on this machine.
    """
    if source not in _loaded:
        with _lock:
            if source not in _loaded:
                library = build_library(source, low_priority=ahead)
                _loaded[source] = ctypes.CDLL(str(library))
    return _loaded[source]


def is_built(source: Path) -> bool:
    """True if the library of `source` is already built."""
    if source in _loaded:
        return True
    try:
        return find_library(source) is not None
    except ToolMissing:
        return False


def are_libraries_built() -> bool:
    """True if the libraries that a simulation needs are built."""
    return all(is_built(source) for source in _sources())


def build_libraries() -> None:
    """Build the libraries of a simulation in parallel and load them. Raises as `load_library`."""
    sources = _sources()
    _build(sources, ahead=True)
    for source in sources:
        load_library(source)


def build_all() -> None:
    """Build all libraries, the one for execution included, in parallel, without loading them.

    Raises as `load_library`.
    """
    _build(sorted(Path(__file__).resolve().parent.rglob("native/*.cpp")))


def _build(sources: Sequence[Path], *, ahead: bool = False) -> None:
    with ThreadPoolExecutor(len(sources)) as pool:
        list(pool.map(partial(build_library, low_priority=ahead), sources))


def _sources() -> list[Path]:
    """Sources without the library for execution, which is rarely needed and built on first use."""
    sources = Path(__file__).resolve().parent.rglob("native/*.cpp")
    return sorted(source for source in sources if source.name != "execute.cpp")
