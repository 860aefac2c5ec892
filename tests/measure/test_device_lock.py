"""The GPU's lock between processes: the second waits, names the holder, and then gets it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from words import raises, says

from engine.base.errors import MeasureError
from engine.measure.device_lock import device_lock, lock_path

GPU = "GPU-1234/../etc"  # must become a valid file name
HOLD = """
import sys
from engine.measure.device_lock import device_lock
with device_lock(sys.argv[1], "a sweep of v05"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTUNE_LOCK_DIR", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the lock until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, GPU],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_waiting_process_names_the_holder(other: subprocess.Popen[str]) -> None:
    said: list[str] = []

    def hear(sentence: str) -> None:
        said.append(sentence)
        assert other.stdin is not None
        other.stdin.close()  # ends the first process

    with device_lock(GPU, "mine", hear, timeout_s=30):
        mine = json.loads(lock_path(GPU).read_text())
    assert (mine["pid"], mine["purpose"]) == (os.getpid(), "mine")
    assert says(said[0], "process_has_measured", f"{other.pid}")
    assert "(a sweep of v05)" in said[0]
    assert lock_path(GPU).read_text() == ""


def test_the_lock_of_a_killed_holder_is_released(other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGKILL)
    with device_lock(GPU, "mine", timeout_s=30):
        pass


def test_waiting_for_the_lock_has_a_limit(other: subprocess.Popen[str]) -> None:
    with (
        raises(MeasureError, "gpu_locked", f"process {other.pid}"),
        device_lock(GPU, "mine", timeout_s=0.1),
    ):
        raise AssertionError("two hold it")


def test_two_gpus_do_not_wait_for_each_other(other: subprocess.Popen[str]) -> None:
    del other
    with device_lock("GPU-5678", "mine", timeout_s=0):
        pass


def test_the_lock_file_is_writable_for_all_users(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with device_lock(GPU, "mine"):
            pass
    finally:
        os.umask(before)
    assert lock_path(GPU).parent == folder
    assert stat.S_IMODE(lock_path(GPU).stat().st_mode) == 0o666
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


def test_a_symbolic_link_as_lock_file_is_refused(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder.mkdir()
    lock_path(GPU).symlink_to(victim)
    with raises(MeasureError, "lock_not_opened"), device_lock(GPU, "mine"):
        pass
    assert victim.read_text() == "precious"


def test_a_read_only_lock_file_can_be_locked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    lock_path(GPU).touch(mode=0o444)
    real = os.open

    def as_another_user(path: object, flags: int, *args: int) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", as_another_user)
    with (
        device_lock(GPU, "mine"),
        raises(MeasureError, "gpu_locked"),
        device_lock(GPU, "mine too", timeout_s=0),
    ):
        pass
