"""What is said of a phase that nobody completes, and of arrivals that nobody waits for."""

from __future__ import annotations

import re
from pathlib import Path

import planted
import pytest
from host_kernels import KERNELS, line_of

from engine.backends.cpu import with_names
from engine.base.errors import Status
from engine.cuda_on_host import error_kinds
from engine.cuda_on_host.error_kinds import ErrorKind

FILE = "mbarriers.cu"
# `BUG` and `OTHER` stand for the lines that say so.
DEADLOCKS = {
    "producer_leaves": "32 threads wait at BUG for phase 1 of the mbarrier full + stage of {} "
    "(number 2 of 2), which no thread will complete: 1 of its 1 arrivals is missing; thread "
    "(32,0,0), which arrived last at OTHER, has returned.",
    "expects_too_much": "64 threads wait at BUG for phase 0 of the mbarrier full of {}, which "
    "no thread will complete: 128 bytes that it expects never come; thread (0,0,0), which arrived "
    "last at OTHER, waits at BUG.",
    "expects_nothing": "64 threads wait at BUG for phase 0 of the mbarrier full of {}, which "
    "no thread will complete: 1 of its 1 arrivals is missing; thread (0,0,0), which asked for a "
    "copy to it at OTHER, waits at BUG.",
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


# What is said of a thread that meets a copy: about which phase, and which it has waited for.
MET = {
    "waits_for_another_stage": (
        ErrorKind.COPY_NOT_COMPLETE,
        "counts in phase 0 of the mbarrier full + tile of {} (number 2 of 2), and this thread has "
        "waited for another mbarrier or stage: its last wait, at OTHER, is for phase 0",
    ),
    "waits_for_another_phase": (
        ErrorKind.COPY_NOT_COMPLETE,
        "this thread has waited for another phase of it, number -1, at OTHER: look at the parity",
    ),
    "overwritten_by_a_copy": (
        ErrorKind.SHARED_RACE,
        "is not ordered with the earlier read by thread (",
    ),
}


@pytest.mark.parametrize("kernel", MET)
def test_a_copy_that_is_met_too_early_is_told_by_its_phase(client, library, kernel):
    kind, words = MET[kernel]
    for schedule in ("in_order",) if kernel == "overwritten_by_a_copy" else ("in_order", "reverse"):
        result = planted.run(client, library, kernel, schedule=schedule)
        reason = with_names(result.reason, KERNELS / FILE)
        assert result.kind is kind, reason
        assert reason.startswith(f"{place(kernel, 'BUG')}:")
        before, _, behind = words.replace("OTHER", place(kernel, "OTHER")).partition("{}")
        assert before in reason
        assert behind in reason
        assert place(kernel, "OTHER") in reason
        assert "__sync" not in reason  # which would not help against a copy


def test_who_has_waited_for_nothing_is_told_so(client, library):
    kernel = "waits_for_nothing"
    for schedule in ("in_order", "reverse"):
        result = planted.run(client, library, kernel, schedule=schedule)
        assert result.status is Status.RACE
        assert result.kind in (ErrorKind.COPY_NOT_COMPLETE, ErrorKind.SHARED_RACE)
        assert "this thread has waited for no mbarrier" in result.reason


@pytest.mark.parametrize(
    ("kernel", "kind", "words"),
    [
        ("initialised_for_one_more", ErrorKind.OPEN_PHASE, "initialised for more arrivals"),
        ("one_barrier_for_two_groups", ErrorKind.SHARED_BARRIER, "barrier 1 counts 32 threads"),
    ],
)
def test_what_may_go_wrong_elsewhere_is_a_warning(client, library, kernel, kind, words):
    result = planted.run(client, library, kernel)
    assert result.status is Status.PASSED, result.reason
    assert result.warning_kinds == (kind,)
    assert result.warnings[0].startswith(f"{place(kernel, 'BUG')}:")
    assert words in result.warnings[0]


def test_groups_may_take_a_barrier_in_turn(client, library):
    result = planted.run(client, library, "one_barrier_in_turn")
    assert result.status is Status.PASSED, result.reason
    assert not result.warnings


def test_every_kind_of_error_has_a_code():
    words = re.compile(r'(?:fail_at|fail_at_two|fail|warn|record_fault|record_error)\(\s*"([^"]+)"')
    native = Path(error_kinds.__file__).parent / "native"
    said = {kind for file in native.rglob("*.[ch]*") for kind in words.findall(file.read_text())}
    assert said <= set(ErrorKind)
    # What the runtime says in another way: a choice of two, or the client itself.
    assert set(ErrorKind) - said <= {
        ErrorKind.DEADLOCK,
        ErrorKind.REGISTERS_NEVER_FREE,
        ErrorKind.LOCAL_UNINITIALISED,
    }
