"""Thread block clusters: CTAs that run together and use each other's shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import planted
import pytest
from host_kernels import KERNELS, line_of
from slow_cases import one_in
from words import raises, says

from engine.base.errors import FAULTS, CompileError, Status
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.error_kinds import ErrorKind
from engine.cuda_on_host.rewrite import place_cluster_dims

FILE = "clusters.cu"
SCHEDULES = ("in_order", "random", "reverse")
_OWN, _OTHERS = planted.INPUT[:128], planted.INPUT[:128].reshape(2, 64)[::-1].reshape(-1)
RIGHT = {
    "exchange": _OTHERS,
    "exchange_ptx": _OTHERS,
    "split_barrier": _OTHERS + np.tile(planted.INPUT[128:192], 2),
    "remote_atomics": np.array([128.0]),
    "remote_mbarrier": np.concatenate([_OWN[:64][::-1] + i for i in range(4)]),
    "multicast": np.tile(_OWN[:64], 2),
    "send": _OTHERS + 1,
    "global_handover": _OTHERS,
}
WRONG = {
    "no_sync_after_writes": ErrorKind.SHARED_RACE,
    "only_a_block_barrier": ErrorKind.SHARED_RACE,
    "relaxed_arrival": ErrorKind.SHARED_RACE,
    "past_the_others_array": ErrorKind.SHARED_BOUNDS,
    "leaves_too_early": ErrorKind.CTA_HAS_LEFT,
    "before_it_started": ErrorKind.CTA_NOT_STARTED,
    "arrives_twice": ErrorKind.CLUSTER_BARRIER,
    "waits_only": ErrorKind.CLUSTER_BARRIER,
    "rank_too_high": ErrorKind.BAD_CLUSTER_RANK,
    "remote_address_on_shared": ErrorKind.ILLEGAL_ADDRESS,
    "one_cta_waits_elsewhere": ErrorKind.DEADLOCK,
    "overwritten_while_it_reads": ErrorKind.SHARED_RACE,
    "message_not_waited_for": (ErrorKind.SHARED_RACE, ErrorKind.SHARED_UNINITIALISED),
}


@pytest.fixture(scope="module")
def kernels():
    return {}


def _library(kernels, check):
    if check not in kernels:
        kernels[check] = planted.library(FILE, check, "sm_90a")
    return kernels[check]


def test_every_kernel_has_an_expectation():
    assert planted.entries_of(FILE) == [*RIGHT, *WRONG]


# The check build finds no error in them; the fast build is tested in the slow tier.
@pytest.mark.parametrize("check", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_correct_kernels_give_no_finding(client, kernels, check):
    for entry, expected in RIGHT.items():
        for schedule in SCHEDULES:
            result = planted.run(client, _library(kernels, check), entry, schedule=schedule)
            assert result.status is Status.PASSED, result.reason
            out = result.returned["out"].view(np.float32)[: expected.size]
            np.testing.assert_array_equal(out, expected.astype(np.float32), err_msg=entry)


@pytest.mark.parametrize(
    ("entry", "schedule"),
    one_in(len(SCHEDULES), [(e, s) for e in WRONG for s in SCHEDULES], slow=4),
)
def test_bugs_are_reported_with_their_line(client, kernels, entry, schedule):
    result = planted.run(client, _library(kernels, True), entry, schedule=schedule)
    assert result.status in FAULTS
    kinds = WRONG[entry] if isinstance(WRONG[entry], tuple) else (WRONG[entry],)
    assert result.kind in kinds, result.reason
    assert f"{FILE}:{line_of(KERNELS / FILE, f'BUG {entry}')}" in result.reason


def test_a_deadlock_names_waiting_threads_and_missing_arrivals(client, kernels):
    result = planted.run(client, _library(kernels, True), "one_cta_waits_elsewhere")
    line = line_of(KERNELS / FILE, "BUG one_cta_waits_elsewhere")
    reason = f"{result.reason[:-1]};"  # the last part ends with a full stop
    assert says(reason, "mbarrier_waits", "64", f"{FILE}:{line - 1}", "phase 0")
    assert says(result.reason, "mbarrier_arrivals_missing", "1 of its 1")
    assert says(result.reason, "mbarrier_nobody_arrived")
    assert says(reason, "cluster_barrier_waits", f"({FILE}:{line})")


def test_a_gpu_without_clusters_gives_a_one_sentence_error():
    with raises(CompileError, "clusters_need_sm_90"):
        build_kernels(KERNELS / FILE, ["exchange"], arch="sm_89")


@pytest.mark.parametrize(
    ("grid", "cluster", "name", "facts"),
    [
        ((3, 1, 1), None, "grid_no_multiple_of_cluster", ["(3,1,1)", "(2,1,1)"]),
        ((4, 1, 1), (4, 1, 1), "launch_other_cluster", ["__cluster_dims__(2, 1, 1)"]),
    ],
)
def test_launches_that_do_not_fit(client, kernels, grid, cluster, name, facts):
    def changed(job):
        launch = replace(job.launches[0], grid=grid, cluster=cluster)
        return replace(job, launches=(launch,))

    library = _library(kernels, True)
    result = client.run(changed(planted.job(library, "exchange")), 30.0)
    assert result.status is Status.LAUNCH_ERROR
    assert says(result.reason, name, *facts)


def test_cluster_dimensions_are_read_after_the_preprocessor():
    text = (
        "namespace a { template <int N> void COH_CLUSTER_DIMS((N > 2 ? 2 : 1), 1)\n"
        "fwd(const float *q, int (*f)(int)) { q[0]; } }\n"
        "void COH_CLUSTER_DIMS(2) declared(int);\nvoid alone(int n) { if (n) return; }\n"
    )
    placed = place_cluster_dims(text)
    assert "{ if (coh::asked_for_cluster((N > 2 ? 2 : 1), 1)) return; q[0]; }" in placed.text
    assert placed.text.count("asked_for_cluster") == 1
    assert placed.text.count("\n") == text.count("\n")
    assert placed.of("a::fwd<4>")
    assert not placed.of("alone")
    assert placed.exports(["alone", "a::fwd<4>"]).count("coh_cluster_") == 1
