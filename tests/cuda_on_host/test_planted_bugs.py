"""Every planted mistake is found and named with its line; correct code is left alone."""

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

# What the finding is called; where a race may first show as a read of nothing, either will do.
KINDS = {
    "missing_syncthreads": "shared memory",
    "missing_syncwarp": "shared memory",
    "two_writers": "shared memory race",
    "two_writers_of_one_value": "shared memory race",
    "barrier_passed_by": "shared memory race",
    "overwritten_while_read": "shared memory race",
    "same_byte": "shared memory race",
    "shuffle_is_no_barrier": "shared memory race",
    "atomic_and_plain": "shared memory race",
    "barrier_of_the_wrong_threads": "shared memory",
    "producer_does_not_wait": "shared memory race",
    "static_array_index": "array index out of bounds",
    "static_array_pointer": "shared memory out of bounds",
    "dynamic_memory_end": "shared memory out of bounds",
    "uninitialised_shared": "uninitialised shared memory",
    "uninitialised_counter": "uninitialised shared memory",
    "left_from_the_cta_before": "uninitialised shared memory",
    "copy_without_wait": "asynchronous copy not complete",
    "copy_waits_for_the_wrong_group": "asynchronous copy not complete",
    "copy_without_barrier": "shared memory",
    "copy_misaligned": "misaligned address",
    "global_read_end": "global memory out of bounds",
    "global_write_end": "global memory out of bounds",
    "global_write_before": "global memory out of bounds",
    "write_to_input": "write to an input",
    "uninitialised_scratch": "uninitialised global memory",
    "ctas_write_the_same": "global memory race",
    "cta_reads_another": "global memory",
    "fusion_without_fence": "global memory race",
    "fence_before_the_writes": "global memory race",
    "fence_of_one_thread": "global memory race",
    # The other CTA, at the same time, may have written nothing yet: then nothing raced.
    "no_barrier_before_the_arrival": ("global memory race", "uninitialised global memory"),
    "no_fence_before_the_reads": "global memory race",
    "one_thread_fences_before_the_reads": "global memory race",
    "fence_of_cta_scope": "global memory race",
    "atomic_of_cta_scope": "global memory race",
    "release_without_acquire": "global memory race",
    "written_after_another_cta_read": "global memory race",
    "written_after_another_thread_read": "global memory race",
    "ctas_share_a_device_variable": "global memory race",
    "threads_share_a_device_variable": "global memory race",
    "threads_share_global": "global memory",
    "misaligned_vector": "misaligned address",
    "misaligned_shared_vector": "misaligned address",
    "anothers_local_memory": "illegal address",
    "divergent_syncthreads": "divergent barrier",
    "barrier_with_two_counts": "divergent barrier",
    "barrier_never_complete": "deadlock",
    "lanes_that_left": "deadlock",
    "lanes_in_two_places": "warp divergence",
    "mask_without_the_lane": "bad warp mask",
    "trap": "trap",
}


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
        assert (result.status is Status.RACE) == (
            "race" in result.kind or "not compl" in result.kind
        )
        assert result.status is Status.OUT_OF_BOUNDS or "out of bounds" not in result.kind
        kinds = KINDS[entry] if isinstance(KINDS[entry], tuple) else (KINDS[entry],)
        assert any(kind in result.reason for kind in kinds)
        assert line in result.reason
        assert "CTA (" in result.reason
        assert "thread (" in result.reason
        assert result.reason.startswith(f"{BUGS}:")  # file.cu:line first


def test_a_missing_barrier_is_no_missing_fence(client, bugs):
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
def test_a_race_says_whether_a_barrier_is_passed_by(client, bugs, entry, of_one_value, diverges):
    """A barrier that the thread has not reached yet is no divergent one."""
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
    repeat = entry != "work_queue"  # it leaves its counter used up
    for schedule, seed in (("in_order", 0), ("reverse", 0), ("random", 0), ("random", 1)):
        result = planted.run(client, clean, entry, schedule=schedule, seed=seed, repeat=repeat)
        assert result.status is Status.PASSED, (schedule, result.reason)
        assert result.repeatable
        got = result.returned["out"].view(np.float32)[:128]
        np.testing.assert_array_equal(got, np.ones(128, np.float32))


# Every barrier, wait and fence of the five kernels, and what replaces its line.
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
                # Its accumulators read, or its tile overwritten, whichever comes first.
                kinds = (ErrorKind.RUNNING_WGMMA_REGISTERS, ErrorKind.WGMMA_NOT_COMPLETE)
                assert got.result.kind in kinds, got.result.reason
            return
    raise AssertionError(got.result)


_OF_P = "wgmma_rs_transposed(o, p[kk], "
_COPIED = "for (int i = 0; i < 4; i++) a[i] = p[kk][i]; wgmma_rs_transposed(o, a, "
# How A of a product lies in registers, and whether it is another array for each product.
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
    assert "A's registers" in result.reason


@pytest.mark.parametrize(
    ("marker", "kind"),
    [
        ("PROXY", "proxy fence missing"),
        ("STORED", "shared memory race"),
        ("BULKWAIT", "asynchronous store not complete"),
    ],
)
def test_removed_step_of_a_tma_store_is_found(client, tmp_path, marker, kind):
    source = changed_source(tmp_path, "tma_negate", marker)
    result = client.run(tma_job(np.ones((128, 64), np.float16), source=source, check=True))
    assert result.status is Status.RACE
    assert kind in result.reason
