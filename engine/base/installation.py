"""Where this Attune stands: in a checkout, or installed among other people's packages."""

from __future__ import annotations

import sysconfig
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final

# The folder that holds `app`, `engine` and `kernels`, in a checkout and in site-packages.
PACKAGES: Final = Path(__file__).resolve().parents[2]
_PROJECT: Final = PACKAGES / "pyproject.toml"
_SHIPPED: Final = PurePosixPath("share/attune/sessions")


@cache
def version() -> str:
    """Attune's own version: of the checkout where this is one, else of what is installed."""
    if _PROJECT.is_file():
        project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
        return str(project["version"])
    return metadata.version("attune")


def shipped_sessions() -> Path:
    """The folder of the snapshots that ship; it may be missing.

    The installer says where it put them: below the environment, the user's folder or a `--target`.
    """
    if _PROJECT.is_file():
        return PACKAGES / "sessions"
    try:
        listed = metadata.files("attune") or []
    except metadata.PackageNotFoundError:
        listed = []
    for file in listed:
        if file.suffix == ".json" and PurePosixPath(*file.parts[-4:-1]) == _SHIPPED:
            return Path(str(file.locate())).resolve().parent
    return Path(sysconfig.get_path("data")) / _SHIPPED
