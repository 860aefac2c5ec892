"""A cluster runs on one GPC: effect on active clusters, waves and the predicted time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_history import estimate_of
from words import raises, says

from engine.attention.evaluation import Resources
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.devices import find_device, limits_for
from engine.model.kernel import Kernel
from engine.model.occupancy import max_active_clusters, occupancy, sms_of_gpcs
from kernels.description import parse_variant
from kernels.variant import Variant

HOPPER = limits_for((9, 0))
TEXT = """\
// v30 Clusters: a test.
/* attune
head_dims = [64]
min_compute_capability = 9.0

[[passes]]
entry = "attention_forward"
grid = [16, "num_heads", "batch"]
threads = 384
smem_bytes = 200000
cluster = [CLUSTER, 1, 1]
args = ["q", "k", "v", "out"]

[work]
math_unit = "tensor"
math_threads = 256
query_rows = 128
kv_rows = "seqlen_kv"
conflict_ways = 1
*/
"""
PROBLEM = Problem(4, 16, 2048, 64)


def plan_of(cluster: int, gpu: str) -> tuple[Variant, LaunchPlan]:
    variant = parse_variant(TEXT.replace("CLUSTER", str(cluster)), Path("v30_clusters.cu"))
    return variant, Kernel.of(variant, gpu).plan(PROBLEM)


@pytest.mark.parametrize(
    ("gpu", "gpcs"),
    [
        ("H100 SXM", (18, 18, *[16] * 6)),
        ("H100 PCIe", (18, *[16] * 6)),
        ("RTX 5090", (*[16] * 8, 14, 14, 14)),
        ("L4", (58,)),  # GPCs unknown, and no clusters
    ],
)
def test_sms_are_spread_evenly_in_pairs(gpu: str, gpcs: tuple[int, ...]) -> None:
    device = find_device(gpu)
    assert device.num_sms == sum(gpcs)
    assert sorted(sms_of_gpcs(device.compute_capability, sum(gpcs)), reverse=True) == list(gpcs)


@pytest.mark.parametrize(
    ("ctas_per_sm", "size", "clusters"),
    [(1, 1, 132), (1, 2, 66), (1, 4, 32), (1, 8, 16), (2, 4, 66), (2, 8, 32), (1, 3, 42)],
)
def test_clusters_do_not_cross_gpcs(ctas_per_sm: int, size: int, clusters: int) -> None:
    assert max_active_clusters((9, 0), 132, ctas_per_sm, size) == clusters


def test_waves_count_what_runs_at_once() -> None:
    alone = occupancy(HOPPER, 132, 1056, 384, 168, 200_000)
    found = occupancy(HOPPER, 132, 1056, 384, 168, 200_000, cluster_size=8)
    assert (alone.waves, alone.ctas_per_sm) == (8.0, 1)
    assert (found.waves, found.tail_ctas, found.ctas_per_sm) == (1056 / 128, 32, 1)
    assert found.sm_fill == 128 / 132
    assert found.reason.startswith(alone.reason)
    assert says(found.reason, "ctas_cluster_stay", "16", "128", "132", "132", "8")


@pytest.mark.parametrize(
    ("capability", "ctas", "size", "code", "fact"),
    [
        ((8, 9), 64, 2, "clusters_unsupported", "9.0"),
        ((9, 0), 64, 3, "clusters_divide", "64"),
        ((9, 0), 64, 0, "cluster_size_range", "not 0"),
        ((9, 0), 64, 16, "cluster_size_range", "not 16"),
    ],
)
def test_impossible_cluster_launches(
    capability: tuple[int, int], ctas: int, size: int, code: str, fact: str
) -> None:
    with raises(InvalidProblem, code, fact):
        occupancy(limits_for(capability), 58, ctas, 128, 64, 0, cluster_size=size)


def test_a_prediction_leaves_out_the_sms_that_no_cluster_fits_on() -> None:
    """1,024 CTAs, one per SM: 8 rounds on 132 SMs, and on 128 in clusters of 8."""
    resources = Resources("attention_forward", "sm_90", 384, 168, 0, 200_000, 0, 0, 0)
    h100 = find_device("H100 SXM")

    def predicted(cluster: int, num_sms: int = 132) -> float:
        device = replace(h100, num_sms=num_sms)
        variant, plan = plan_of(cluster, "H100 SXM")
        latency = estimate_of(variant, plan, (resources,), device).latency
        assert latency is not None
        return latency.median_us

    # Clusters of 8 leave 2 of 114 SMs idle: 1,024 CTAs take 10 rounds instead of 9.
    assert predicted(8, 114) > 1.05 * predicted(1, 114)
    assert predicted(8) == pytest.approx(predicted(1), rel=0.05)


def test_a_gpu_without_clusters_gives_a_reason() -> None:
    variant, _ = plan_of(2, "H100 SXM")
    older = replace(variant, min_compute_capability=(8, 0))
    with raises(InvalidProblem, "clusters_unsupported", "9.0", "8.9"):
        Kernel.of(older, "L4").plan(PROBLEM)
