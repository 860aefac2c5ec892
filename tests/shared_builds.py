"""A cache folder of a test's own, in which what is compiled for the CPU is the whole run's.

The runtime of the CPU backend takes ten seconds to compile, and a kernel up to one.
"""

from __future__ import annotations

from pathlib import Path

from engine.compile.cache import cache_root, make_private


def own_cache(folder: Path) -> Path:
    """`folder` as a cache: new but for the libraries of the CPU backend."""
    shared = cache_root() / "cpu"
    make_private(shared)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "cpu").symlink_to(shared)
    return folder
