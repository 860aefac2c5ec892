"""Where Attune keeps what a person made, and the platform's folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal


def data_folder() -> Path:
    """`ATTUNE_DATA_DIR`, or the platform's folder for the user's data."""
    if chosen := os.environ.get("ATTUNE_DATA_DIR", "").strip():
        return Path(chosen).expanduser()
    return platform_folder("data")


def platform_folder(kind: Literal["data", "cache"]) -> Path:
    """The platform's folder for the user's data, or for what can be made again."""
    try:
        import platformdirs
    except ImportError:  # a machine that only measures may lack it
        return Path.home() / {"data": ".local/share", "cache": ".cache"}[kind] / "attune"
    path_of = {"data": platformdirs.user_data_path, "cache": platformdirs.user_cache_path}[kind]
    return path_of("attune", appauthor=False)
