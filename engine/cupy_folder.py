"""The folder that CuPy makes when it is imported; where it cannot, it does not import."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def make_cupy_folder() -> None:
    """To be called before CuPy is imported: a home that cannot be written must not end a run."""
    folder = Path(os.environ.get("CUPY_CACHE_DIR", "~/.cupy/kernel_cache"))
    try:
        folder.expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # there may be no home at all
        scratch = tempfile.mkdtemp(prefix="attune-cupy-")
        os.environ["CUPY_CACHE_DIR"] = scratch
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
