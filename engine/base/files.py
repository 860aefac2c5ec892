"""Files on disk: atomic writes, locks, the data folder, cache entries and journals.

A file is written under a temporary name in its own folder, flushed to disk and renamed. After a
kill, with a full disk or with a second process, there is either the old or the whole new file.
Failures raise OSError, which `explain_os_error` turns into an error with a readable message.

The cache has reproducible data: compiled kernels, host libraries, simulated times. An entry is one
file: a line of JSON (SHA-256 and size of the rest), then the payload. A damaged entry counts as
missing, and if the disk is full, read-only or missing, data are recomputed.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import gc
import hashlib
import json
import os
import secrets
import shutil
import stat
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from engine.base.errors import InvalidProblem, StoreError, UnknownName

if TYPE_CHECKING:
    from filelock import FileLock

MAX_SOURCE = 1_000_000  # bytes of a source that is read, and characters of one that is kept
MAX_LOG = 65_536  # characters of a compiler's log that is kept

TEMPORARY_PREFIX = ".saving-"
TEMPORARY_MAX_AGE_S = 3_600.0

# Errors of a full or broken disk, independent of the file.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# Errors of link() on file systems without hard links.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@contextlib.contextmanager
def explain_os_error(what: str, remedy: str = "", *, named: bool = False) -> Iterator[None]:
    """Convert an OSError to a StoreError with the message `what (No space left on device): remedy.`

    Args:
        what: the failure, as the beginning of a sentence.
        remedy: what the user can do.
        named: the user named the file: raise UnknownName, unless the disk is the cause.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        kind = UnknownName if named and error.errno not in DISK_ERRORS else StoreError
        sentence = f"{what} ({why}): {remedy}." if remedy else f"{what}: {why}."
        raise kind(sentence, code="file_failed") from error


def make_folder(folder: Path) -> None:
    """Create the folder and its missing parents, accessible only to their owner. Raises OSError."""
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def read(path: Path, most: int) -> bytes:
    """Return at most `most` bytes of a regular file.

    Raises:
        OSError: it does not exist, cannot be read, or is a folder, pipe or device.
    """
    with open_regular(path) as file:
        return file.read(most)


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading. Raises as `read`."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(fd, "rb")
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def write(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file, replacing an existing one.

    Args:
        durable: wait for the disk. Not needed for reproducible data.
    """
    path = Path(os.path.realpath(path))  # write to the target of a link
    if path.exists() and not path.is_file():  # such as /dev/stdout
        path.write_bytes(data)
        return
    write_with(path, lambda file: file.write(data), durable=durable)


def write_with(path: Path, fill: Callable[[IO[bytes]], object], *, durable: bool = True) -> None:
    """As `write`, for content that `fill` writes into an open file."""
    with _temporary(path.parent, fill, durable) as temporary:
        temporary.replace(path)


def create(path: Path, data: bytes) -> None:
    """Write a new file. Raises FileExistsError, without changes, if it exists."""
    with _temporary(path.parent, lambda file: file.write(data), True) as temporary:
        move(temporary, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def _temporary(folder: Path, fill: Callable[[IO[bytes]], object], durable: bool) -> Iterator[Path]:
    """Yield a temporary file that the caller renames; delete it on failure."""
    temporary = folder / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(fd, "wb") as file:
            fill(file)
            file.flush()
            if durable:
                os.fsync(fd)
        yield temporary
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def move(source: Path, target: Path) -> None:
    """Rename atomically, without replacing an existing file (FileExistsError)."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _move_without_links(source, target)
    else:
        source.unlink()


def _move_without_links(source: Path, target: Path) -> None:
    # rename() would replace a file; the claim ensures that only one process uses the name.
    claim = target.with_name(f"{TEMPORARY_PREFIX}claim-{target.name}")
    os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        if target.exists():
            raise FileExistsError(errno.EEXIST, "exists", str(target))
        source.rename(target)
    finally:
        claim.unlink()


def sync_folder(folder: Path) -> None:
    """Make the folder's own entries durable, where the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of processes that were killed."""
    oldest = time.time() - TEMPORARY_MAX_AGE_S
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def lock(path: Path) -> FileLock:
    """Return the lock on `path` as a context manager, which waits for other processes.

    The file is created if missing, and its content does not change. The system releases the lock if
    the process dies.

    Raises:
        OSError: it cannot be created or written.
    """
    from filelock import FileLock

    # FileLock treats a file that cannot be created in an existing folder, as in /proc, like one
    # that another process has locked, and would wait.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o600))
    return FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)


def try_lock(path: Path) -> FileLock | None:
    """Take the lock on `path` until its `release()`; return None if another process holds it.

    Raises:
        OSError: as `lock`.
    """
    from filelock import Timeout

    taken = lock(path)
    try:
        taken.acquire(timeout=0)
    except Timeout:
        return None
    return taken


def is_locked(path: Path) -> bool:
    """True if a process holds the lock on an existing file."""
    # A shared lock, so that several processes can test at the same time.
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


# The user's data folder, and the platform's folders.


def data_folder() -> Path:
    """Return `ATTUNE_DATA_DIR`, or the platform's folder for the user's data."""
    if chosen := os.environ.get("ATTUNE_DATA_DIR", "").strip():
        return Path(chosen).expanduser()
    return platform_folder("data")


def platform_folder(kind: Literal["data", "cache"]) -> Path:
    """Return the platform's folder for the user's data, or for caches."""
    try:
        import platformdirs
    except ImportError:  # may be missing on a machine that only measures
        return Path.home() / {"data": ".local/share", "cache": ".cache"}[kind] / "attune"
    path_of = {"data": platformdirs.user_data_path, "cache": platformdirs.user_cache_path}[kind]
    return path_of("attune", appauthor=False)


# The location of this Attune: a checkout or an installation.

# The folder that holds `app`, `engine` and `kernels`, in a checkout and in site-packages.
PACKAGES: Final = Path(__file__).resolve().parents[2]
_PROJECT: Final = PACKAGES / "pyproject.toml"
_SHIPPED: Final = PurePosixPath("share/attune/sessions")


@cache
def version() -> str:
    """Return Attune's version, of the checkout or the installation."""
    if _PROJECT.is_file():
        project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
        return str(project["version"])
    return metadata.version("attune")


def shipped_sessions() -> Path:
    """Return the folder of shipped snapshots, which may be missing.

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


# The cache of reproducible data.

_MAGIC = "attune-cache-1"
_MAX_ENTRY = 256 << 20


def cache_root() -> Path:
    """Return the cache folder, which may not exist yet.

    `ATTUNE_CACHE_DIR` when set, else the platform's user cache folder.
    """
    if chosen := os.environ.get("ATTUNE_CACHE_DIR"):
        return Path(chosen).expanduser()
    return platform_folder("cache")


def check_root() -> str:
    """Check that the cache folder is writable. Otherwise every build is repeated, which takes a
    minute.

    Returns:
        What is wrong with it, as a sentence; empty if nothing. It may still have entries.

    Raises:
        InvalidProblem: `ATTUNE_CACHE_DIR` names a folder that does not exist and cannot be created.
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
            raise InvalidProblem(f"{folder} {fault}: {remedy}", code="cache_not_made") from None
    else:
        if os.access(root, os.W_OK | os.X_OK):
            return ""
    return f"{folder} {fault}, so that what is compiled is not kept: {remedy}"


def read_entry(path: Path) -> bytes | None:
    """Return the payload of the entry at `path`; None if it is missing, unreadable or damaged."""
    try:
        if not is_private(path.parent) or not is_private(path):
            return None
        head, separator, payload = read(path, _MAX_ENTRY).partition(b"\n")
    except OSError:
        return None
    if not separator or head != _header(payload):
        return None
    return payload


def is_private(path: Path) -> bool:
    """True if only this user and root can have written the file, whose content will be executed.

    Raises:
        OSError: it is not there.
    """
    status = path.stat()
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def make_private(folder: Path) -> bool:
    """Create a folder that only this user can write; restrict the permissions of an existing one.

    Returns:
        False if it belongs to another user.

    Raises:
        OSError: it cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o022:
        folder.chmod(status.st_mode & 0o755)  # with a umask of 002, the group can write it
    return is_private(folder)


def write_entry(path: Path, payload: bytes) -> bool:
    """Store `payload` at `path` atomically; return False on a write error."""
    try:
        if not make_private(path.parent):
            return False
        write(path, _header(payload) + b"\n" + payload, durable=False)
    except OSError:
        return False
    return True


def _header(payload: bytes) -> bytes:
    fields = [_MAGIC, hashlib.sha256(payload).hexdigest(), len(payload)]
    return json.dumps(fields).encode("ascii")


# Journals: append-only files of JSON lines with the events of jobs, sweeps and sessions.
#
# Every event is one `os.write` to a file opened with O_APPEND, so events of several processes
# never interleave. It begins and ends with a newline, so an event that a crash or a full disk
# truncated does not affect the next one. A reader parses up to the last newline and skips
# damaged lines.

# The remedy for a journal in the cache folder that cannot be written.
CACHE_REMEDY = "free some disk space or point ATTUNE_CACHE_DIR at a folder that can be written"
_MAX_READ = 1 << 30  # bytes read by one call; the next call continues


def append_event(path: Path, event: Mapping[str, Any], remedy: str = CACHE_REMEDY) -> None:
    """Add one event.

    Args:
        remedy: what to do if the file cannot be written, for the error.

    Raises:
        StoreError: the disk is full or the folder cannot be written.
    """
    line = ("\n" + json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n").encode()
    with explain_os_error(f"The journal {path.name} cannot be written", remedy):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)


def read_events(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the complete events after byte `offset`, and the next offset.

    Lines that are not a JSON object (empty, truncated, nested too deeply) are skipped.

    Raises:
        StoreError: it is not a regular file, or cannot be read.
    """
    lines, end = read_lines(path, offset)
    with collector_paused():
        return [event for line in lines if (event := parse_event(line)) is not None], end


def read_lines(path: Path, offset: int) -> tuple[list[bytes], int]:
    """Return the complete lines after byte `offset`, and the next offset.

    Raises:
        StoreError: as `read_events`.
    """
    with explain_os_error(f"{path} cannot be read"):
        try:
            with open_regular(path) as file:
                file.seek(offset)
                data = file.read(_MAX_READ)
        except FileNotFoundError:
            return [], 0
    end = data.rfind(b"\n") + 1
    return data[:end].splitlines(), offset + end


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which takes three times as long as parsing and finds no
    cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_event(line: bytes) -> dict[str, Any] | None:
    """Parse the event of a line; None if it is invalid."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def make_cupy_folder() -> None:
    """Make CuPy use a writable folder. Call it before importing CuPy, which fails with an
    unwritable home."""
    folder = Path(os.environ.get("CUPY_CACHE_DIR", "~/.cupy/kernel_cache"))
    try:
        folder.expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # there may be no home directory
        scratch = tempfile.mkdtemp(prefix="attune-cupy-")
        os.environ["CUPY_CACHE_DIR"] = scratch
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
