"""The C++ libraries of this package, built once into the cache and loaded once."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from engine.backends.cpu.build import build_library


@functools.cache
def load_library(source: Path) -> ctypes.CDLL:
    """The library that `source` compiles to.

    Raises:
        ToolMissing: there is no C++ compiler, which machine code needs to be run.
        CompileError: it does not compile here.
    """
    return ctypes.CDLL(str(build_library(source)))
