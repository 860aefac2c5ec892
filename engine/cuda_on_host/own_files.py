"""The files that this backend is made of, and whether they are still those it began with.

A kernel is compiled with headers from the disk and runs on a runtime and in a child process that
may be older: after an update under a running server their structures differ, and a right kernel
seems to have an illegal address.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CHANGED = "the files of Attune changed since this process began, as by an update: start it again"


@functools.lru_cache(maxsize=1)
def translation_digest() -> str:
    """Of what turns a source into a library: the runtime, and what changes the source."""
    translators = [
        PACKAGE / "instrument.py",
        PACKAGE / "clusters.py",
        *_sources(PACKAGE / "ptx"),
    ]
    return _digest([*_natives(), *translators])


@functools.lru_cache(maxsize=1)
def digest_at_start() -> str:
    """Of all files, when this was first asked."""
    return _digest_now()


def changed() -> bool:
    """Whether one of them is another than at the start. Takes some milliseconds."""
    return _digest_now() != digest_at_start()


def _digest_now() -> str:
    return _digest([*_natives(), *_sources(PACKAGE)])


def _sources(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in (".py", ".forms")]


def _natives() -> list[Path]:
    return [path for path in (PACKAGE / "native").rglob("*") if path.is_file()]


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(PACKAGE)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
