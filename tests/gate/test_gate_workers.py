"""A task that crashes, hangs or needs too much memory gives a message; the next task runs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from words import says

from engine.versions.workers import Failed, Workers


def work(task: tuple[str, str]) -> str:
    what, given = task
    if what == "endless":  # with a child process, like a compiler
        child = subprocess.Popen(["sleep", "600"])
        Path(given).write_text(str(child.pid))
        time.sleep(600)
    if what == "large":
        return str(len(bytearray(8 << 30)))
    if what == "crash":
        os._exit(11)
    return given


@pytest.mark.slow
def test_limits_and_crashes_of_workers_give_messages(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    tasks = [("large", ""), ("crash", ""), ("endless", str(pid)), ("answer", "42")]
    workers: Workers[tuple[str, str], str] = Workers(work, 10.0, 2.0, processes=1)
    large, crash, endless, answer = workers.run(tasks)
    assert isinstance(large, Failed)
    assert says(large.sentence, "gate_memory_limit", "2 GiB")
    assert isinstance(crash, Failed)
    assert says(crash.sentence, "gate_process_died", "11")
    assert isinstance(endless, Failed)
    assert says(endless.sentence, "gate_time_limit", "10 s")
    assert answer == "42"
    child = int(pid.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
