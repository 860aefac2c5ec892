"""A process whose GPU is lost exits at once, without destroying its CUDA objects."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from words import says

ENDLESS = """
import time
class Endless:
    def __del__(self):
        time.sleep(60)
"""


def run(code: str) -> tuple[int, str, str, float]:
    begin = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-c", ENDLESS + code],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return found.returncode, found.stdout, found.stderr, time.monotonic() - begin


def test_kept_objects_are_not_destroyed_at_exit() -> None:
    code, out, err, seconds = run(
        """
from engine.backends.cuda.availability import keep_until_exit
keep_until_exit(Endless())
print("the report")
"""
    )
    assert (code, out, err) == (1, "the report\n", "")
    assert seconds < 30


def test_an_exception_is_still_shown() -> None:
    code, _, err, _ = run(
        """
from engine.backends.cuda.availability import keep_until_exit
keep_until_exit(Endless())
raise ValueError("a bug")
"""
    )
    assert code == 1
    assert "ValueError: a bug" in err


def test_a_hanging_call_ends_the_process() -> None:
    code, out, err, seconds = run(
        """
from engine.backends.cuda.availability import watchdog
print("begun")
with watchdog("cuModuleUnload", 0.2):
    time.sleep(60)
"""
    )
    assert (code, out) == (1, "begun\n")
    assert says(err, "driver_call_hangs", "cuModuleUnload")
    assert seconds < 30


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_a_returning_call_has_no_effect(seconds: float) -> None:
    from engine.backends.cuda.availability import watchdog

    stuck: list[str] = []
    with watchdog("cudaFree", 0.2, stuck.append):
        time.sleep(seconds)
    time.sleep(0.25)
    assert stuck == []
