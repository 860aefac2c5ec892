"""Kernels that hang, crash or write out of bounds give a status with a reason."""

from __future__ import annotations

import os
import time

import numpy as np
import planted
import pytest
from host_kernels import KERNELS, line_of
from words import says

from engine.base.cxx import find_toolchain
from engine.base.errors import Status
from engine.cuda_on_host.client import Client
from engine.cuda_on_host.error_kinds import ErrorKind

FILE = "faults.cu"


@pytest.fixture(scope="module")
def faults():
    return {check: planted.library(FILE, check) for check in (False, True)}


@pytest.mark.parametrize("check", [False, True], ids=["fast", "check"])
@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ("null_pointer", ErrorKind.ILLEGAL_ADDRESS),
        ("wild_pointer", ErrorKind.ILLEGAL_ADDRESS),
        ("beyond_the_buffer", ErrorKind.GLOBAL_BOUNDS),
        ("behind_shared", ErrorKind.SHARED_BOUNDS),
        ("copy_from_far_away", ErrorKind.GLOBAL_BOUNDS),
        ("atomic_far_away", ErrorKind.GLOBAL_BOUNDS),
        ("integer_division", ErrorKind.ARITHMETIC_FAULT),
    ],
)
def test_a_fault_is_reported_with_its_line(client, faults, entry, kind, check):
    if entry == "integer_division" and find_toolchain().family != "gcc":
        pytest.skip("clang computes this division without the processor's trap")
    result = planted.run(client, faults[check], entry)
    line = line_of(KERNELS / FILE, f"BUG {entry}")
    assert result.kind is kind, result.reason
    is_fault = kind is ErrorKind.ARITHMETIC_FAULT
    assert result.status is (Status.LAUNCH_ERROR if is_fault else Status.OUT_OF_BOUNDS)
    assert result.reason.startswith(f"{FILE}:{line}: {kind} ")
    assert f"{entry}, CTA (" in result.reason
    assert not result.returned


def test_stack_overflow(client, faults):
    result = planted.run(client, faults[False], "stack_overflow")
    assert result.status is Status.LAUNCH_ERROR
    assert says(result.reason, "stack_overflow")


def test_a_write_past_a_buffer_is_noticed_in_the_guard_zone(client, faults):
    result = planted.run(client, faults[False], "just_behind_the_buffer")
    assert result.status is Status.OUT_OF_BOUNDS
    assert not result.guards_intact
    assert result.kind is ErrorKind.GUARD_ZONE
    assert says(result.reason, "guard_zone_written", "1024 of buffer 'out'", "(1024 bytes)")


def test_guard_zone_has_the_requested_size(client, faults):
    """A write far past the end faults at once with a small guard zone, but not with a large one."""
    result = planted.run(client, faults[False], "beyond_the_buffer", slack_bytes=1 << 20)
    assert result.status is Status.OUT_OF_BOUNDS
    assert not result.guards_intact  # 1,024,000 bytes past the end: within the guard zone


def test_a_write_past_odd_sized_dynamic_shared_memory(client, faults):
    good = planted.run(client, faults[False], "behind_odd_shared", dynamic_smem_bytes=1024)
    assert good.status is Status.PASSED
    bad = planted.run(client, faults[False], "behind_odd_shared", dynamic_smem_bytes=1000)
    assert bad.status is Status.OUT_OF_BOUNDS
    assert says(bad.reason, "past_dynamic_shared", "1000")


def test_endless_kernel_is_stopped_and_the_line_named(client, faults):
    begin = time.monotonic()
    result = planted.run(client, faults[False], "endless", timeout_s=1.0)
    assert result.status is Status.TIMEOUT
    line = line_of(KERNELS / FILE, "BUG endless")
    assert result.reason.startswith((f"{FILE}:{line}: ", f"{FILE}:{line + 1}: "))
    assert says(result.reason, "kernel_not_finished", "1")
    assert time.monotonic() - begin < 10
    assert planted.run(client, faults[False], "well_behaved").status is Status.PASSED


def test_end_of_the_process_is_a_crash(client, faults):
    result = planted.run(client, faults[False], "ends_the_process")
    assert result.status is Status.CRASHED
    assert says(result.reason, "process_ended", "SIGABRT")
    after = planted.run(client, faults[False], "well_behaved")
    assert after.status is Status.PASSED
    np.testing.assert_array_equal(
        after.returned["out"].view(np.float32)[:128], 2 * np.tile(planted.INPUT[:64], 2)
    )


def test_child_that_was_killed_is_replaced(faults):
    client = Client(workers=1)
    assert planted.run(client, faults[False], "well_behaved").status is Status.PASSED
    os.kill(client.process_id, 9)
    # At most one job fails, whether the end is noticed before the next job or during it.
    statuses = [planted.run(client, faults[False], "well_behaved").status for _ in range(2)]
    assert statuses[0] in (Status.CRASHED, Status.PASSED)
    assert statuses[1] is Status.PASSED
    client.close()


def test_changed_input_is_reported(client, faults):
    result = planted.run(client, faults[False], "changes_its_input")
    assert result.status is Status.PASSED
    assert result.changed_inputs == ("in",)


def test_output_of_printf_is_in_the_log(client, faults):
    first = planted.run(client, faults[False], "prints")
    assert first.log == "n is 256"
    assert planted.run(client, faults[False], "well_behaved").log == ""


def test_unwritten_elements_keep_the_poison(client, faults):
    result = planted.run(client, faults[False], "forgets_elements")
    halves = result.returned["out"].view(np.uint16)
    unwritten = np.flatnonzero(halves == 0x7FA5)
    assert {18, 19, 146, 147} <= set(unwritten)  # thread 9 of both CTAs
    assert 20 not in unwritten


def test_zero_filled_buffers_are_cleared_once(client, faults):
    """A counter must reset itself: the second run finds the first one's value."""
    result = planted.run(client, faults[False], "counts_its_runs", repeat=True)
    assert result.status is Status.PASSED
    assert not result.repeatable


@pytest.mark.parametrize(
    ("changes", "name", "facts"),
    [
        ({"args": planted.ARGS[:-1]}, "launch_argument_count", ["5", "4"]),
        (
            {"args": (*planted.ARGS[1:], planted.ARGS[0])},
            "launch_argument_type",
            ["argument 4 (n)", "well_behaved", "int32", "a pointer"],
        ),
        ({"block": (1025, 1, 1)}, "launch_threads", ["1024", "1025"]),
        ({"grid": (0, 1, 1)}, "launch_grid_empty", []),
        ({"dynamic_smem_bytes": 300 << 10}, "launch_dynamic_smem", [str(300 << 10)]),
        ({"entry": "absent"}, "launch_kernel_absent", ["absent"]),
    ],
)
def test_invalid_launches(client, faults, changes, name, facts):
    from dataclasses import replace

    from engine.cuda_on_host.client import Buffer, Job, KernelLaunch

    launch = KernelLaunch("well_behaved", (1, 1, 1), (64, 1, 1), planted.ARGS)
    job = Job(
        library=faults[False],
        buffers=(
            Buffer("in", data=planted.INPUT),
            *(Buffer(name, size_bytes=1024) for name in ("out", "scratch", "counter")),
        ),
        launches=(replace(launch, **changes),),
    )
    result = client.run(job)
    assert result.status is Status.LAUNCH_ERROR
    assert says(result.reason, name, *facts)
