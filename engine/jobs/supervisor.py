"""The worker process of one server: started when there is work, killed with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from engine.jobs.layout import RunDir

_REPOSITORY = Path(__file__).resolve().parents[2]
_STARTUP_S = 30.0  # a worker that has not come up after this long is taken for dead
_MAX_FAILED_STARTS = 3  # in a row, with no job begun in between
_DEATH_S = 5.0  # a killed process that is not gone by then waits for the kernel
_LOG_TAIL_BYTES = 4000


class Supervisor:
    """Starts and kills the worker, and gives up on one that never comes up."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._spawned_at = 0.0
        self._failed_starts = 0

    @property
    def is_up(self) -> bool:
        """Whether a worker serves the folder, whoever started it."""
        return self._run.live_worker() is not None

    @property
    def is_starting(self) -> bool:
        return (
            self._process is not None
            and self._process.poll() is None
            and time.monotonic() - self._spawned_at < _STARTUP_S
        )

    @property
    def has_given_up(self) -> bool:
        """Whether workers end before they begin a job, one after another."""
        return self._failed_starts >= _MAX_FAILED_STARTS

    def ensure(self) -> None:
        """Start a worker unless there is one, or one is starting."""
        if self.is_starting or self.is_up or self.has_given_up:
            return
        with self._run.worker_log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.jobs.worker", str(self._run.root)],
                cwd=_REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._spawned_at = time.monotonic()

    def note_started_job(self) -> None:
        """A worker began a job: the next death says nothing about starting."""
        self._failed_starts = 0

    def note_death(self) -> None:
        """The worker is gone, or never came up."""
        if self._process is None:
            return
        # One that came while another still held the folder ends with 0.
        if self._process.poll() != 0:
            self._failed_starts += 1
        self.kill()

    def reset(self) -> None:
        """Start workers again: a person asks for something, and the cause may be mended."""
        if self.has_given_up:
            self._failed_starts = 0

    def kill(self) -> None:
        """Kill the worker's whole session (it has children of its own) and wait for it."""
        if self._process is not None:
            if self._process.poll() is None:
                _kill_session(self._process.pid)
            self._process.wait()
            self._process = None
        pid = self._run.live_worker()  # another server's, that ran before this one
        if pid is not None:
            _kill_session(pid)
            deadline = time.monotonic() + _DEATH_S
            while self.is_up and time.monotonic() < deadline:
                time.sleep(0.005)

    def is_outdated(self) -> bool:
        """Whether the worker that serves the folder was started from other code than this."""
        return self.is_up and self._run.worker_code() != code_stamp()

    def log_tail(self) -> str:
        """The end of what workers wrote to their log."""
        try:
            return self._run.worker_log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def code_stamp() -> str:
    """Changes with every change of the Python code that a worker runs; 2 ms."""
    newest, count = 0, 0
    for package in ("engine", "kernels"):
        for path in (_REPOSITORY / package).rglob("*.py"):
            newest, count = max(newest, path.stat().st_mtime_ns), count + 1
    return f"{_REPOSITORY} {newest} {count}"
