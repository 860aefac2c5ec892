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

from engine.base import files
from engine.base.errors import InvalidProblem
from engine.base.files import platform_folder

_MAGIC = "attune-cache-1"
_MAX_ENTRY = 256 << 20


def cache_root() -> Path:
    """The folder everything Attune can rebuild lives in; it may not exist yet.

    `ATTUNE_CACHE_DIR` when set, else the platform's user cache folder.
    """
    if chosen := os.environ.get("ATTUNE_CACHE_DIR"):
        return Path(chosen).expanduser()
    return platform_folder("cache")


def check_root() -> str:
    """Try the cache folder: builds that it cannot keep take a minute anew.

    Returns:
        What is wrong with it, empty where nothing is. It may still hold entries.

    Raises:
        InvalidProblem: `ATTUNE_CACHE_DIR` names a folder that is not there and cannot be made.
    """
    root, chosen = cache_root(), os.environ.get("ATTUNE_CACHE_DIR")
    folder = f"ATTUNE_CACHE_DIR names {root}, which" if chosen else f"The cache folder {root}"
    remedy = "set it to a folder that can be written, or unset it."
    if not chosen:
        remedy = "set ATTUNE_CACHE_DIR to a folder that can be written."
    fault = "cannot be written"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        why = "not a folder" if isinstance(error, FileExistsError) else error.strerror
        fault = f"cannot be made ({why})"
        if chosen:
            raise InvalidProblem(f"{folder} {fault}: {remedy}") from None
    else:
        if os.access(root, os.W_OK | os.X_OK):
            return ""
    return f"{folder} {fault}, so that what is compiled is not kept: {remedy}"


def read_entry(path: Path) -> bytes | None:
    """The payload of the entry at `path`; None when it is absent, unreadable or damaged."""
    try:
        if not is_private(path.parent) or not is_private(path):
            return None
        head, separator, payload = files.read(path, _MAX_ENTRY).partition(b"\n")
    except OSError:
        return None
    if not separator or head != _header(payload):
        return None
    return payload


def is_private(path: Path) -> bool:
    """Whether only this user and root can have written it: what is read there is executed.

    Raises:
        OSError: it is not there.
    """
    status = path.stat()
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def make_private(folder: Path) -> bool:
    """Create a folder that only this user writes; an own one is closed to others.

    Returns:
        False where it is somebody else's.

    Raises:
        OSError: it cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o022:
        folder.chmod(status.st_mode & 0o755)  # as a umask of 002 made it
    return is_private(folder)


def write_entry(path: Path, payload: bytes) -> bool:
    """Store `payload` at `path`, all or nothing. False when the disk does not take it."""
    try:
        if not make_private(path.parent):
            return False
        files.write(path, _header(payload) + b"\n" + payload, durable=False)
    except OSError:
        return False
    return True


def _header(payload: bytes) -> bytes:
    fields = [_MAGIC, hashlib.sha256(payload).hexdigest(), len(payload)]
    return json.dumps(fields).encode("ascii")
