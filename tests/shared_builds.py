"""A cache folder of a test's own, in which what was compiled and simulated is the whole run's.

The runtime of the CPU backend takes ten seconds to compile, a kernel up to one, and its simulation
about as long; all three are stored by content.
"""

from __future__ import annotations

from pathlib import Path

from engine.base.files import cache_root, make_private

SHARED = ("cpu", "cubin", "sass", "software_gpu")


def own_cache(folder: Path) -> Path:
    """`folder` as a cache: new but for what is compiled and simulated."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in SHARED:
        shared = cache_root() / name
        make_private(shared)
        (folder / name).symlink_to(shared)
    return folder
