"""One measurement at a time per GPU, across processes and users of the machine.

A lock is a file named after the GPU in a folder that all users may write; the operating system
releases the `flock` on it when its holder dies. The holder writes its process, user and purpose
into the file, so that a waiting process can report them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.base.errors import MeasureError, ToolMissing
from engine.base.schema import clean_line
from engine.devices import nvml
from engine.devices.nvml import GpuState
from engine.devices.spec import detect_local, query_nvml

# Not tempfile.gettempdir(): it depends on TMPDIR, and all users must use the same folder.
_SHARED_FOLDER = Path("/tmp/attune-gpu-locks")
_POLL_S = 0.05
_MAX_HOLDER_BYTES = 4096
_MAX_WORDS = 120  # characters shown of another user's text


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds the lock."""

    pid: int
    user: str
    since: float  # Unix time
    purpose: str

    def sentence(self) -> str:
        """Return `alice's process 4711 has measured on it for 12 s (sweep of v05).`"""
        seconds = max(0.0, time.time() - self.since)
        return (
            f"{self.user}'s process {self.pid} has measured on it for {seconds:.0f} s "
            f"({self.purpose})."
        )


@contextmanager
def device_lock(
    gpu: str,
    purpose: str,
    on_wait: Callable[[str], None] = lambda _: None,
    timeout_s: float | None = None,
) -> Iterator[None]:
    """Hold the GPU; not reentrant.

    Args:
        gpu: identifies it on this machine, preferably its UUID.
        purpose: a few words for waiting processes.
        on_wait: called with one sentence when another process holds the lock, and when the holder
        changes.
        timeout_s: how long to wait; None waits without limit.

    Raises:
        MeasureError: still held after `timeout_s`, or the lock's file cannot be opened.
    """
    handle = _open(lock_path(gpu))
    try:
        _acquire(handle, on_wait, timeout_s)
        _write_holder(handle, Holder(os.getpid(), _user(), time.time(), purpose))
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # releases the lock


def lock_path(gpu: str) -> Path:
    """Return the lock's file; in `ATTUNE_LOCK_DIR` if set."""
    folder = Path(os.environ.get("ATTUNE_LOCK_DIR") or _SHARED_FOLDER)
    return folder / f"{re.sub(r'[^A-Za-z0-9-]+', '_', gpu)}.lock"


def _open(path: Path) -> int:
    """Open the lock's file; the first use creates it, writable by all users.

    Where the system protects files in shared folders (fs.protected_regular), O_CREAT on another
    user's file is refused, so an existing file is opened without it. A read-only file can be
    locked, too.
    """
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Like /tmp: all users may add files, and remove only their own.
            path.parent.chmod(0o1777)
        for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR, os.O_RDONLY):
            try:
                handle = os.open(path, flags | os.O_NOFOLLOW, 0o666)
            except (FileNotFoundError, FileExistsError, PermissionError):
                continue
            if flags & os.O_CREAT:
                os.fchmod(handle, 0o666)  # whatever the umask
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return handle
            os.close(handle)
            raise OSError(None, "not a regular file")
        raise OSError(None, "permission denied")
    except OSError as error:
        raise MeasureError(
            f"The GPU's lock {path} cannot be opened ({error.strerror}): remove it, or set "
            "ATTUNE_LOCK_DIR to a folder that all users of this machine can write.",
            code="lock_not_opened",
        ) from error


def _acquire(handle: int, on_wait: Callable[[str], None], timeout_s: float | None) -> None:
    begin = time.monotonic()
    reported: Holder | None = None
    waited = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _holder(handle)
        if timeout_s is not None and time.monotonic() - begin >= timeout_s:
            raise MeasureError(
                f"The GPU was not free within {timeout_s:g} s: {_who(holder)} Try again later.",
                code="gpu_locked",
            )
        if not waited or holder != reported:
            on_wait(f"Waiting for the GPU: {_who(holder)}")
            reported, waited = holder, True
        time.sleep(_POLL_S)


def _who(holder: Holder | None) -> str:
    return holder.sentence() if holder else "another process measures on it."


def _holder(handle: int) -> Holder | None:
    try:
        raw = json.loads(os.pread(handle, _MAX_HOLDER_BYTES, 0))
        pid, since = int(raw["pid"]), float(raw["since"])
        if not (0 < pid < 2**31 and math.isfinite(since)):
            return None
        user, purpose = (clean_line(str(raw[name]), _MAX_WORDS) for name in ("user", "purpose"))
        return Holder(pid, user, since, purpose)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None  # incomplete, from another version, or malicious


def _write_holder(handle: int, holder: Holder) -> None:
    with contextlib.suppress(OSError):  # the file may be open for reading only
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(asdict(holder)).encode(), 0)


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return f"user {os.getuid()}"


# This machine's GPU during a measurement: locked, and monitored through NVML.


# State with a driver without NVML: unknown values drop no sample.
_UNKNOWN = GpuState(None, None, None, None, None, None, None, ())


def gpu_lock(
    purpose: str, on_wait: Callable[[str], None] = lambda _: None
) -> AbstractContextManager[None]:
    """Return the lock of the first GPU that CUDA sees, as a context manager. See `device_lock`."""
    return device_lock(_uuid() or "gpu", purpose, on_wait)


@contextmanager
def measuring(
    purpose: str, on_wait: Callable[[str], None] = lambda _: None
) -> Iterator[Callable[[], GpuState]]:
    """Hold the GPU's lock, and yield a function that reads its state. Must not be nested."""
    with gpu_lock(purpose, on_wait), gpu_states() as read_state:
        yield read_state


@contextmanager
def gpu_states() -> Iterator[Callable[[], GpuState]]:
    """Return a function that reads clocks, power, temperature and throttle reasons of that GPU."""
    uuid = _uuid()
    try:
        with nvml.session() as api:
            handle = query_nvml(api, api.nvmlDeviceGetHandleByUUID, uuid) if uuid else None
            if handle is None:
                yield lambda: _UNKNOWN
            else:
                yield nvml.StateReader(api, handle)
    except ToolMissing:
        yield lambda: _UNKNOWN


def _uuid() -> str:
    local = detect_local()
    return "" if isinstance(local, str) else local.uuid
