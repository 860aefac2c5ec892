"""A cache folder for one test that shares the compiled and simulated entries of the whole run.

The runtime of the CPU backend takes ten seconds to compile, a kernel up to one, and its simulation
about as long; all three are stored under hashes of their inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from engine.base.files import cache_root, make_private

SHARED = ("cpu", "cubin", "machine_code", "sass", "software_gpu")


def own_cache(folder: Path, shared: Iterable[str] = SHARED) -> Path:
    """Make `folder` a new cache that shares the compiled and simulated entries, or some of them."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in shared:
        of_run = cache_root() / name
        make_private(of_run)
        (folder / name).symlink_to(of_run)
    return folder
