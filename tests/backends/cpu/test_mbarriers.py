"""What is said of a phase that nobody completes, and of arrivals that nobody waits for."""

from __future__ import annotations

import planted
import pytest
from host_kernels import KERNELS, line_of

from engine.backends.cpu import with_names
from engine.base.status import Status

FILE = "mbarriers.cu"
# `BUG` and `OTHER` stand for the lines that say so.
DEADLOCKS = {
    "producer_leaves": "32 threads wait at BUG for phase 1 of the mbarrier full + stage of {} "
    "(number 2 of 2), which nobody will complete: 1 of its 1 arrivals is missing; thread (32,0,0), "
    "which arrived last at OTHER, has returned.",
    "expects_too_much": "64 threads wait at BUG for phase 0 of the mbarrier full of {}, which "
    "nobody will complete: 128 bytes that it expects never come; thread (0,0,0), which arrived "
    "last at OTHER, waits at BUG.",
    "expects_nothing": "64 threads wait at BUG for phase 0 of the mbarrier full of {}, which "
    "nobody will complete: 1 of its 1 arrivals is missing; thread (0,0,0), which asked for a copy "
    "to it at OTHER, waits at BUG.",
}


@pytest.fixture(scope="module")
def library():
    return planted.library(FILE, check=True, arch="sm_90a")


def place(kernel, mark):
    return f"{FILE}:{line_of(KERNELS / FILE, f'{mark} {kernel}')}"


@pytest.mark.parametrize("schedule", ["in_order", "random", "reverse"])
def test_a_deadlock_says_who_should_have_come(client, library, schedule):
    for kernel, words in DEADLOCKS.items():
        result = planted.run(client, library, kernel, schedule=schedule)
        assert result.status is Status.LAUNCH_ERROR
        for mark in ("BUG", "OTHER"):
            words = words.replace(mark, place(kernel, mark))
        before, behind = words.split("{}")
        reason = with_names(result.reason, KERNELS / FILE)
        assert before in reason
        assert reason.endswith(behind)


def test_copies_complete_on_mbarriers_that_they_can_see(client, library):
    kernel = "no_fence_behind_the_initialisation"
    result = planted.run(client, library, kernel)
    assert result.status is Status.LAUNCH_ERROR
    assert result.reason.startswith(f"{place(kernel, 'BUG')}: mbarrier fence missing")
    assert f"initialised at {place(kernel, 'OTHER')}" in result.reason


def test_arrivals_that_nobody_waits_for_are_a_warning(client, library):
    kernel = "arrives_once_too_often"
    result = planted.run(client, library, kernel)
    assert result.status is Status.PASSED, result.reason
    (warning,) = result.warnings
    assert warning.startswith(f"{place(kernel, 'BUG')}: arrivals that nobody waited for")
    assert "barrier 2 has 32 of 64 arrivals" in warning
