"""Where Attune keeps what a person made."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """`ATTUNE_DATA_DIR`, or the platform's folder for the user's data."""
    if chosen := os.environ.get("ATTUNE_DATA_DIR", "").strip():
        return Path(chosen).expanduser()
    try:
        import platformdirs
    except ImportError:  # a machine that only measures may lack it
        return Path.home() / ".local" / "share" / "attune"
    return platformdirs.user_data_path("attune", appauthor=False)
