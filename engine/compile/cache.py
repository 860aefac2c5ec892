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

from engine.errors import InvalidProblem
from engine.records import files

_MAGIC = "attune-cache-1"
_MAX_ENTRY = 256 << 20


def cache_root() -> Path:
    """The folder everything Attune can rebuild lives in; it may not exist yet.

    `ATTUNE_CACHE_DIR` when set, else the platform's user cache folder.
    """
    if chosen := os.environ.get("ATTUNE_CACHE_DIR"):
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("attune", appauthor=False)


def check_chosen_root() -> str:
    """Try the folder that `ATTUNE_CACHE_DIR` names: builds that it cannot keep take a minute anew.

    Returns:
        What is wrong with it; empty where nothing is, or none is named. It may still hold entries.

    Raises:
        InvalidProblem: there is no such folder, and none can be made.
    """
    if not os.environ.get("ATTUNE_CACHE_DIR"):
        return ""
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        why = "not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise InvalidProblem(
            f"ATTUNE_CACHE_DIR names {root}, which cannot be made ({why}): set it to a folder "
            "that can be written, or unset it."
        ) from None
    if os.access(root, os.W_OK | os.X_OK):
        return ""
    return (
        f"ATTUNE_CACHE_DIR names {root}, which cannot be written, so that what is compiled is not "
        "kept: set it to a folder that can be, or unset it."
    )


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
