"""Errors about mbarrier phases that are never complete, and about arrivals without a wait."""

from __future__ import annotations

import re
from pathlib import Path

import planted
import pytest
from host_kernels import KERNELS, line_of
from words import says

from engine.backends.cpu import with_names
from engine.base.errors import Status
from engine.cuda_on_host import error_kinds
from engine.cuda_on_host.error_kinds import ErrorKind

FILE = "mbarriers.cu"
# Kernel -> the threads that wait at the line marked BUG, the phase, and what the error says of the
# arrival or copy of the line marked OTHER.
DEADLOCKS = {
    "producer_leaves": (
        ["32", "phase 1", "full + stage", "(number 2 of 2)"],
        ["mbarrier_arrivals_missing", "mbarrier_last_arrival", "mbarrier_last_returned"],
        ["1 of its 1", "(32,0,0)"],
    ),
    "expects_too_much": (
        ["64", "phase 0", "full"],
        ["mbarrier_bytes_never_come", "mbarrier_last_arrival", "mbarrier_last_waits"],
        ["128 bytes", "(0,0,0)"],
    ),
    "expects_nothing": (
        ["64", "phase 0", "full"],
        ["mbarrier_arrivals_missing", "mbarrier_last_copy", "mbarrier_last_waits"],
        ["1 of its 1", "(0,0,0)"],
    ),
}


@pytest.fixture(scope="module")
def library():
    return planted.library(FILE, check=True, arch="sm_90a")


def place(kernel, mark):
    return f"{FILE}:{line_of(KERNELS / FILE, f'{mark} {kernel}')}"


@pytest.mark.parametrize("schedule", ["in_order", "random", "reverse"])
def test_a_deadlock_names_the_missing_arrivals(client, library, schedule):
    for kernel, (waits, names, facts) in DEADLOCKS.items():
        result = planted.run(client, library, kernel, schedule=schedule)
        assert result.status is Status.LAUNCH_ERROR
        reason = with_names(result.reason, KERNELS / FILE)
        parts = f"{result.reason[:-1]};"  # the last part ends with a full stop
        assert says(parts, "mbarrier_waits", place(kernel, "BUG"))
        assert [fact for fact in waits if fact not in reason] == []
        for name in names:
            assert says(reason, name, place(kernel, "OTHER"), *facts), (name, reason)


def test_copies_complete_on_visible_mbarriers(client, library):
    kernel = "no_fence_behind_the_initialisation"
    result = planted.run(client, library, kernel)
    assert result.status is Status.LAUNCH_ERROR
    assert result.reason.startswith(f"{place(kernel, 'BUG')}: {ErrorKind.MBARRIER_FENCE}")
    assert says(result.reason, "mbarrier_fence_missing", place(kernel, "OTHER"))


def test_unawaited_arrivals_are_a_warning(client, library):
    kernel = "arrives_once_too_often"
    result = planted.run(client, library, kernel)
    assert result.status is Status.PASSED, result.reason
    (warning,) = result.warnings
    assert warning.startswith(f"{place(kernel, 'BUG')}: {ErrorKind.OPEN_BARRIER}")
    assert says(warning, "barrier_left_open", "barrier 2", "32 of 64")


# An access that races with an asynchronous copy: names and facts of the error, which tell the phase
# of the copy and the one that the thread has waited for.
MET = {
    "waits_for_another_stage": (
        ErrorKind.COPY_NOT_COMPLETE,
        ["copy_counts_in_phase", "waited_for_other_barrier", "last_wait"],
        ["phase 0", "full + tile", "(number 2 of 2)"],
    ),
    "waits_for_another_phase": (
        ErrorKind.COPY_NOT_COMPLETE,
        ["waited_for_other_phase"],
        ["number -1"],
    ),
    "overwritten_by_a_copy": (ErrorKind.SHARED_RACE, ["copy_overwrites"], ["read by thread ("]),
}


@pytest.mark.parametrize("kernel", MET)
def test_an_early_access_to_a_copy_names_its_phase(client, library, kernel):
    kind, names, facts = MET[kernel]
    for schedule in ("in_order",) if kernel == "overwritten_by_a_copy" else ("in_order", "reverse"):
        result = planted.run(client, library, kernel, schedule=schedule)
        reason = with_names(result.reason, KERNELS / FILE)
        assert result.kind is kind, reason
        assert reason.startswith(f"{place(kernel, 'BUG')}:")
        for name in names:
            assert says(reason, name, place(kernel, "OTHER"), *facts), (name, reason)
        assert "__sync" not in reason  # it would not order the access with a copy


def test_waits_without_effect_are_reported(client, library):
    kernel = "waits_for_nothing"
    for schedule in ("in_order", "reverse"):
        result = planted.run(client, library, kernel, schedule=schedule)
        assert result.status is Status.RACE
        assert result.kind in (ErrorKind.COPY_NOT_COMPLETE, ErrorKind.SHARED_RACE)
        assert says(result.reason, "waited_for_no_mbarrier")


@pytest.mark.parametrize(
    ("kernel", "kind", "name", "facts"),
    [
        ("initialised_for_one_more", ErrorKind.OPEN_PHASE, "phase_left_open", []),
        (
            "one_barrier_for_two_groups",
            ErrorKind.SHARED_BARRIER,
            "barrier_of_two_groups",
            ["barrier 1", "32 threads"],
        ),
    ],
)
def test_schedule_dependent_faults_are_warnings(client, library, kernel, kind, name, facts):
    result = planted.run(client, library, kernel)
    assert result.status is Status.PASSED, result.reason
    assert result.warning_kinds == (kind,)
    assert result.warnings[0].startswith(f"{place(kernel, 'BUG')}:")
    assert says(result.warnings[0], name, *facts)


def test_groups_may_use_a_barrier_in_turn(client, library):
    result = planted.run(client, library, "one_barrier_in_turn")
    assert result.status is Status.PASSED, result.reason
    assert not result.warnings


def test_every_kind_of_error_has_a_code():
    words = re.compile(r'(?:fail_at|fail_at_two|fail|warn|record_fault|record_error)\(\s*"([^"]+)"')
    native = Path(error_kinds.__file__).parent / "native"
    said = {kind for file in native.rglob("*.[ch]*") for kind in words.findall(file.read_text())}
    assert said <= set(ErrorKind)
    # Kinds that the runtime does not name literally: one of two, or given by the client.
    assert set(ErrorKind) - said <= {
        ErrorKind.DEADLOCK,
        ErrorKind.REGISTERS_NEVER_FREE,
        ErrorKind.LOCAL_UNINITIALISED,
    }
