"""What a task that is meant badly comes to: a sentence, and the next task is answered."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from engine.versions.workers import Failed, Workers


def work(task: tuple[str, str]) -> str:
    what, given = task
    if what == "endless":  # with a process of its own, as a compiler is
        child = subprocess.Popen(["sleep", "600"])
        Path(given).write_text(str(child.pid))
        time.sleep(600)
    if what == "large":
        return str(len(bytearray(8 << 30)))
    if what == "crash":
        os._exit(11)
    return given


@pytest.mark.slow
def test_what_takes_too_long_too_much_or_crashes_is_a_sentence(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    tasks = [("large", ""), ("crash", ""), ("endless", str(pid)), ("answer", "42")]
    workers: Workers[tuple[str, str], str] = Workers(work, 10.0, 2.0, processes=1)
    large, crash, endless, answer = workers.run(tasks)
    assert large == Failed("It needs more than 2 GiB of memory, the limit.")
    assert isinstance(crash, Failed)
    assert "exit code 11" in crash.sentence
    assert isinstance(endless, Failed)
    assert "longer than 10 s" in endless.sentence
    assert answer == "42"
    child = int(pid.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
