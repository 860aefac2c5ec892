"""The C++ libraries of this package, built once into the cache and loaded once."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from engine.base.errors import ToolMissing
from engine.cuda_on_host.build import build_library, find_library

_loaded: dict[Path, ctypes.CDLL] = {}
_lock = threading.Lock()  # a thread that needs what another one builds waits for it


def load_library(source: Path, *, ahead: bool = False) -> ctypes.CDLL:
    """The library that `source` compiles to.

    Args:
        ahead: nobody waits for it yet: whatever else runs goes before its build.

    Raises:
        ToolMissing: there is no C++ compiler, which machine code needs to be run.
        CompileError: it does not compile here.
    """
    if source not in _loaded:
        with _lock:
            if source not in _loaded:
                library = build_library(source, low_priority=ahead)
                _loaded[source] = ctypes.CDLL(str(library))
    return _loaded[source]


def is_built(source: Path) -> bool:
    """Whether `load_library` finds it built."""
    if source in _loaded:
        return True
    try:
        return find_library(source) is not None
    except ToolMissing:
        return False


def are_libraries_built() -> bool:
    """Whether a simulation waits for no compiler."""
    return all(is_built(source) for source in _sources())


def build_libraries() -> None:
    """Build them side by side ahead of their first use, and load them. Raises as `load_library`."""
    sources = _sources()
    _build(sources, ahead=True)
    for source in sources:
        load_library(source)


def build_all() -> None:
    """Build them and what executes side by side, and load none: for who waits for them.

    Raises as `load_library`.
    """
    _build(sorted(Path(__file__).resolve().parent.rglob("native/*.cpp")))


def _build(sources: Sequence[Path], *, ahead: bool = False) -> None:
    with ThreadPoolExecutor(len(sources)) as pool:
        list(pool.map(partial(build_library, low_priority=ahead), sources))


def are_libraries_loaded() -> bool:
    """Whether nothing waits for them to be built."""
    return all(source in _loaded for source in _sources())


def _sources() -> list[Path]:
    """Without what executes: few need that, and it is built when they do."""
    sources = Path(__file__).resolve().parent.rglob("native/*.cpp")
    return sorted(source for source in sources if source.name != "execute.cpp")
