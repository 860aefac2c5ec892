"""Every planted bug is reported with its line; correct code gets no finding."""

from __future__ import annotations

import numpy as np
import planted
import pytest
from host_kernels import KERNELS, Attention, changed_source, line_of, run_attention, tma_job
from slow_cases import one_in
from words import says

from engine.base.cxx import find_toolchain
from engine.base.errors import FAULTS, Status
from engine.cuda_on_host.error_kinds import ErrorKind

BUGS = "planted_bugs.cu"
CLEAN = "clean_patterns.cu"

# A race may show first as a read of memory that nothing has written: then both kinds are accepted.
_SHARED = (ErrorKind.SHARED_RACE, ErrorKind.SHARED_UNINITIALISED)
_GLOBAL = (ErrorKind.GLOBAL_RACE, ErrorKind.GLOBAL_UNINITIALISED)
KINDS = {
    "missing_syncthreads": _SHARED,
    "missing_syncwarp": _SHARED,
    "two_writers": ErrorKind.SHARED_RACE,
    "two_writers_of_one_value": ErrorKind.SHARED_RACE,
    "barrier_passed_by": ErrorKind.SHARED_RACE,
    "overwritten_while_read": ErrorKind.SHARED_RACE,
    "same_byte": ErrorKind.SHARED_RACE,
    "shuffle_is_no_barrier": ErrorKind.SHARED_RACE,
    "atomic_and_plain": ErrorKind.SHARED_RACE,
    "barrier_of_the_wrong_threads": _SHARED,
    "producer_does_not_wait": ErrorKind.SHARED_RACE,
    "static_array_index": ErrorKind.ARRAY_INDEX,
    "static_array_pointer": ErrorKind.SHARED_BOUNDS,
    "dynamic_memory_end": ErrorKind.SHARED_BOUNDS,
    "uninitialised_shared": ErrorKind.SHARED_UNINITIALISED,
    "uninitialised_counter": ErrorKind.SHARED_UNINITIALISED,
    "left_from_the_cta_before": ErrorKind.SHARED_UNINITIALISED,
    "copy_without_wait": ErrorKind.COPY_NOT_COMPLETE,
    "copy_waits_for_the_wrong_group": ErrorKind.COPY_NOT_COMPLETE,
    "copy_without_barrier": _SHARED,
    "copy_misaligned": ErrorKind.MISALIGNED,
    "global_read_end": ErrorKind.GLOBAL_BOUNDS,
    "global_write_end": ErrorKind.GLOBAL_BOUNDS,
    "global_write_before": ErrorKind.GLOBAL_BOUNDS,
    "write_to_input": ErrorKind.INPUT_WRITTEN,
    "uninitialised_scratch": ErrorKind.GLOBAL_UNINITIALISED,
    "ctas_write_the_same": ErrorKind.GLOBAL_RACE,
    "cta_reads_another": _GLOBAL,
    "fusion_without_fence": ErrorKind.GLOBAL_RACE,
    "fence_before_the_writes": ErrorKind.GLOBAL_RACE,
    "fence_of_one_thread": ErrorKind.GLOBAL_RACE,
    # The other CTA may not have written yet: then it is a read of unwritten memory.
    "no_barrier_before_the_arrival": _GLOBAL,
    "no_fence_before_the_reads": ErrorKind.GLOBAL_RACE,
    "one_thread_fences_before_the_reads": ErrorKind.GLOBAL_RACE,
    "fence_of_cta_scope": ErrorKind.GLOBAL_RACE,
    "atomic_of_cta_scope": ErrorKind.GLOBAL_RACE,
    "release_without_acquire": ErrorKind.GLOBAL_RACE,
    "written_after_another_cta_read": ErrorKind.GLOBAL_RACE,
    "written_after_another_thread_read": ErrorKind.GLOBAL_RACE,
    "ctas_share_a_device_variable": ErrorKind.GLOBAL_RACE,
    "threads_share_a_device_variable": ErrorKind.GLOBAL_RACE,
    "threads_share_global": _GLOBAL,
    "misaligned_vector": ErrorKind.MISALIGNED,
    "misaligned_shared_vector": ErrorKind.MISALIGNED,
    "anothers_local_memory": ErrorKind.ILLEGAL_ADDRESS,
    "divergent_syncthreads": ErrorKind.DIVERGENT_BARRIER,
    "barrier_with_two_counts": ErrorKind.DIVERGENT_BARRIER,
    "barrier_never_complete": ErrorKind.DEADLOCK,
    "lanes_that_left": ErrorKind.DEADLOCK,
    "lanes_in_two_places": ErrorKind.WARP_DIVERGENCE,
    "mask_without_the_lane": ErrorKind.BAD_WARP_MASK,
    "trap": ErrorKind.TRAP,
}
RACES = (ErrorKind.SHARED_RACE, ErrorKind.GLOBAL_RACE, ErrorKind.COPY_NOT_COMPLETE)
BOUNDS = (ErrorKind.ARRAY_INDEX, ErrorKind.SHARED_BOUNDS, ErrorKind.GLOBAL_BOUNDS)


@pytest.fixture(scope="module")
def bugs():
    return planted.library(BUGS, check=True)


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="fast", marks=pytest.mark.slow), pytest.param(True, id="check")],
)
def clean(request):
    return planted.library(CLEAN, request.param)


def test_every_planted_bug_has_an_expectation():
    assert set(planted.entries_of(BUGS)) == set(KINDS)


@pytest.mark.parametrize("entry", one_in(3, list(KINDS), slow=4))
def test_planted_bug(client, bugs, entry):
    if entry.startswith("misaligned_") and find_toolchain().family != "gcc":
        pytest.skip("clang does not check the alignment of whole-structure copies")
    line = f"{BUGS}:{line_of(KERNELS / BUGS, f'BUG {entry}')}"
    for schedule in ("in_order", "random", "reverse"):
        result = planted.run(client, bugs, entry, schedule=schedule)
        assert result.status in FAULTS, schedule
        kinds = KINDS[entry] if isinstance(KINDS[entry], tuple) else (KINDS[entry],)
        assert result.kind in kinds, result.reason
        assert (result.status is Status.RACE) == (result.kind in RACES)
        assert result.status is Status.OUT_OF_BOUNDS or result.kind not in BOUNDS
        assert line in result.reason
        assert "CTA (" in result.reason
        assert "thread (" in result.reason
        assert result.reason.startswith(f"{BUGS}:")  # file.cu:line first


def test_a_missing_barrier_is_not_reported_as_missing_fence(client, bugs):
    for _ in range(8):  # until the other CTA has written first
        result = planted.run(client, bugs, "no_barrier_before_the_arrival")
        if result.kind is ErrorKind.GLOBAL_RACE:
            break
    assert result.kind is ErrorKind.GLOBAL_RACE
    assert says(result.reason, "missing_before_arrival")
    for entry in ("fence_before_the_writes", "fence_of_one_thread"):
        reason = planted.run(client, bugs, entry).reason
        assert "__threadfence()" in reason
        assert not says(reason, "missing_before_arrival")


@pytest.mark.parametrize(
    ("entry", "of_one_value", "diverges"),
    [
        ("two_writers", False, False),
        ("two_writers_of_one_value", True, False),
        ("overwritten_while_read", False, False),
        ("barrier_passed_by", False, True),
    ],
)
def test_a_race_report_tells_whether_a_barrier_is_skipped(
    client, bugs, entry, of_one_value, diverges
):
    """A barrier that the thread has not reached yet does not diverge."""
    reason = planted.run(client, bugs, entry, schedule="in_order").reason
    assert says(reason, "barrier_diverges") is diverges
    assert says(reason, "no_barrier_between") is not diverges
    assert says(reason, "both_write_same") is of_one_value


def test_global_findings_name_the_buffer(client, bugs):
    for entry, name in {
        "global_read_end": "in",
        "global_write_end": "out",
        "uninitialised_scratch": "scratch",
    }.items():
        assert f"buffer '{name}'" in planted.run(client, bugs, entry).reason


def test_shared_findings_name_the_array(client, bugs):
    static = planted.run(client, bugs, "static_array_pointer").reason
    assert says(static, "shared_array_byte", "'s' byte 256 of 256")
    dynamic = planted.run(client, bugs, "dynamic_memory_end").reason
    assert says(dynamic, "dynamic_smem_byte", "byte 1024 of 1024")


@pytest.mark.parametrize("entry", planted.entries_of(CLEAN))
def test_clean_pattern(client, clean, entry):
    repeat = entry != "work_queue"  # it does not reset its counter
    for schedule, seed in (("in_order", 0), ("reverse", 0), ("random", 0), ("random", 1)):
        result = planted.run(client, clean, entry, schedule=schedule, seed=seed, repeat=repeat)
        assert result.status is Status.PASSED, (schedule, result.reason)
        assert result.repeatable
        got = result.returned["out"].view(np.float32)[:128]
        np.testing.assert_array_equal(got, np.ones(128, np.float32))


# Every barrier, wait and fence of the five kernels, with the replacement of its line.
REMOVALS = [
    ("fa1", "SYNC1", ""),
    ("fa1", "SYNC2", ""),
    ("fa1", "SYNC3", ""),
    ("fa_split", "SYNC1", ""),
    ("fa_split", "SYNCW", ""),
    ("fa_split", "SYNC2", ""),
    ("fa_mma", "WAIT", ""),
    ("fa_mma", "WAIT", "cp_async_wait<2>();"),
    ("fa_mma", "SYNC1", ""),
    ("fa_mma", "SYNC2", ""),
    ("fa_wgmma", "SYNC", ""),
    ("fa_wgmma", "EMPTY", ""),
    ("fa_wgmma", "QFULL", ""),
    ("fa_wgmma", "FULL", ""),
    ("fa_wgmma", "FENCE1", ""),
    ("fa_wgmma", "WAIT1", ""),
    ("fa_wgmma", "FENCE2", ""),
    ("fa_wgmma", "WAIT2", ""),
    ("fa_wgmma", "RELEASE", ""),
    ("fa_wgmma", "READERS", "mbarrier_init(empty + i, 32);"),
]


@pytest.mark.parametrize(("kernel", "marker", "replacement"), one_in(7, REMOVALS, slow=8))
def test_removed_synchronisation_is_found(client, tmp_path, kernel, marker, replacement):
    source = changed_source(tmp_path, kernel, marker, replacement)
    a = Attention.random(1, 1, 200)
    for schedule in ("in_order", "random"):
        got = run_attention(
            client, kernel, a, source=source, check=True, schedule=schedule, num_splits=2
        )
        if got.result.status in FAULTS:
            if marker in ("WAIT1", "WAIT2") and kernel == "fa_wgmma":
                # Either its accumulators are read or its tile is overwritten first.
                kinds = (ErrorKind.RUNNING_WGMMA_REGISTERS, ErrorKind.WGMMA_NOT_COMPLETE)
                assert got.result.kind in kinds, got.result.reason
            return
    raise AssertionError(got.result)


_OF_P = "wgmma_rs_transposed(o, p[kk], "
_COPIED = "for (int i = 0; i < 4; i++) a[i] = p[kk][i]; wgmma_rs_transposed(o, a, "
# Changes of A's registers; True if each product has a separate array, which is legal.
ARRAYS = [
    ("    wgmma_wait<0>();  // WAIT2", "    p[1][2] ^= 1u; wgmma_wait<0>();", False),
    (_OF_P, f"static_assert(true); auto &a = p[0]; {_COPIED}", False),
    (_OF_P, f"uint32_t a[4]; {_COPIED}", True),
    (_OF_P, "const uint32_t a[4] = {p[kk][0], p[kk][1], p[kk][2], p[kk][3]};"
     " wgmma_rs_transposed(o, a, ", True),
    (_OF_P, "struct Fragment { uint32_t x[4]; };"
     " const auto a = Fragment{{p[kk][0], p[kk][1], p[kk][2], p[kk][3]}};"
     " wgmma_rs_transposed(o, a.x, ", True),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "is_legal"), ARRAYS)
def test_registers_that_a_product_reads_may_not_change(client, tmp_path, old, new, is_legal):
    source = changed_source(tmp_path, "fa_wgmma", "FENCE2", "wgmma_fence();")
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    a = Attention.random(1, 1, 200)
    result = run_attention(client, "fa_wgmma", a, source=source, check=True, num_splits=2).result
    if is_legal:
        assert result.status is Status.PASSED, result.reason
        return
    assert result.kind is ErrorKind.RUNNING_WGMMA_REGISTERS, result.reason
    line = next(n for n, line in enumerate(source.read_text().splitlines(), 1) if new in line)
    assert f"fa_wgmma.cu:{line}" in result.reason
    assert says(result.reason, "wgmma_a_overwritten")


@pytest.mark.parametrize(
    ("marker", "kind"),
    [
        ("PROXY", ErrorKind.PROXY_FENCE),
        ("STORED", ErrorKind.SHARED_RACE),
        ("BULKWAIT", ErrorKind.STORE_NOT_COMPLETE),
    ],
)
def test_removed_step_of_a_tma_store_is_found(client, tmp_path, marker, kind):
    source = changed_source(tmp_path, "tma_negate", marker)
    result = client.run(tma_job(np.ones((128, 64), np.float16), source=source, check=True))
    assert result.status is Status.RACE
    assert result.kind is kind, result.reason
