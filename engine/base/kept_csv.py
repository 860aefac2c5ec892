"""Tables of measurements that a person gave the app, kept so that a link can name them.

A file's name is what it holds: the same table twice is one file, and a link never shows another
one.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path

from engine.base import files
from engine.base.errors import StoreError
from engine.base.files import data_folder

MAX_BYTES = 16_000_000
_MOST_FILES = 200  # the oldest are removed
_NAME = re.compile(r"[0-9a-f]{16}")


def csv_folder() -> Path:
    return data_folder() / "measurements"


def is_csv_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def keep_csv(data: bytes) -> str:
    """Keep a table and return its name.

    Raises:
        StoreError: it is too large, or the folder cannot be written.
    """
    if len(data) > MAX_BYTES:
        raise StoreError(f"A table of more than {MAX_BYTES:,} bytes is not kept: shorten it.")
    name = hashlib.sha256(data).hexdigest()[:16]
    folder = csv_folder()
    path = folder / f"{name}.csv"
    if path.is_file():
        return name
    with files.as_sentence(f"The table cannot be kept in {folder}", "a link will not carry it"):
        files.make_folder(folder)
        files.write(path, data)
    _remove_oldest(folder)
    return name


def kept_csv(name: str) -> bytes:
    """The table of that name.

    Raises:
        StoreError: there is none on this machine.
    """
    try:
        if is_csv_name(name):
            return files.read(csv_folder() / f"{name}.csv", MAX_BYTES)
    except OSError:
        pass
    raise StoreError(
        f"The link names a CSV file, {name[:16]!r}, that is not kept on this machine: upload it."
    )


def _remove_oldest(folder: Path) -> None:
    with contextlib.suppress(OSError):
        by_age = sorted(folder.glob("*.csv"), key=lambda path: path.stat().st_mtime)
        for path in by_age[:-_MOST_FILES]:
            path.unlink()
