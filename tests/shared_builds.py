"""A cache folder of a test's own, in which what was compiled and simulated is the whole run's.

The runtime of the CPU backend takes ten seconds to compile, a kernel up to one, and its simulation
about as long; all three are stored by content.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from engine.base.files import cache_root, make_private

SHARED = ("cpu", "cubin", "machine_code", "sass", "software_gpu")


def own_cache(folder: Path, shared: Iterable[str] = SHARED) -> Path:
    """`folder` as a cache: new but for what is compiled and simulated, or a part of that."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in shared:
        of_run = cache_root() / name
        make_private(of_run)
        (folder / name).symlink_to(of_run)
    return folder
