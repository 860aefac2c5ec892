"""One content-addressed cache on disk, shared by the device and the host compiler.

An entry is one file: a line of JSON (SHA-256 and size of the rest), then the payload. It is written
under a temporary name and renamed, so two processes that build the same thing are safe and a reader
never sees half an entry. The cache is a convenience: a damaged entry reads as absent, and a disk
that is full, read-only or missing only costs the time to compile again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from engine.records import files

_MAGIC = "attune-cache-1"


def cache_root() -> Path:
    """The folder everything Attune can rebuild lives in; it may not exist yet.

    `ATTUNE_CACHE_DIR` when set, else the platform's user cache folder.
    """
    if chosen := os.environ.get("ATTUNE_CACHE_DIR"):
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("attune", appauthor=False)


def read_entry(path: Path) -> bytes | None:
    """The payload of the entry at `path`; None when it is absent, unreadable or damaged."""
    try:
        head, separator, payload = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if not separator or head != _header(payload):
        return None
    return payload


def write_entry(path: Path, payload: bytes) -> bool:
    """Store `payload` at `path`, all or nothing. False when the disk does not take it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, _header(payload) + b"\n" + payload, durable=False)
    except OSError:
        return False
    return True


def _header(payload: bytes) -> bytes:
    fields = [_MAGIC, hashlib.sha256(payload).hexdigest(), len(payload)]
    return json.dumps(fields).encode("ascii")
