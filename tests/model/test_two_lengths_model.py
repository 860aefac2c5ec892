"""Decoding in the model: work, memory and time follow the keys, not the square of the queries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.choose.batch.recommend import BatchRequest, recommend_batch
from engine.devices import find_device
from engine.model.kernel import Kernel, Known
from engine.model.launches import collect, collect_batches
from engine.model.measured_points import parse_measurements
from kernels.ladder import LADDER, by_id

L4 = find_device("L4")
DECODE = Problem(2, 32, 1, 128, seqlen_kv=500)


@pytest.mark.parametrize("variant", LADDER, ids=lambda v: v.id)
def test_launches_agree_with_problem_and_plan(variant) -> None:
    problem = replace(DECODE, seqlen_kv=100)
    # v20 is made for D = 64 and supports more only with smaller tiles.
    config = variant.default_config() | ({"block_n": 64} if variant.id == "v20" else {})
    kernel = Kernel.of(variant, L4, config)
    (alone, curve) = (
        collect(kernel, [problem]),
        collect_batches(kernel, problem, np.array([1, 2, 3])).take(np.arange(3) == 1),
    )
    plan = make_plan(variant, problem, kernel.config)
    for launches in (alone, curve):
        assert launches.flops.tolist() == [problem.flops]
        assert launches.device_bytes.tolist() == [plan.device_bytes]
        assert launches.ctas[:, 0].tolist() == [p.ctas for p in plan.passes]
        assert launches.num_keys.tolist() == [100]
    block_n = config.get("block_n", 128)
    splits = config.get("num_splits", 1)
    assert alone.kv_rows[0] * splits >= 100
    assert alone.kv_rows[0] < 100 + block_n


@pytest.mark.parametrize("variant_id", ["v01", "v05", "v06", "v08"])
def test_time_grows_with_the_cache_and_hardly_with_queries(variant_id: str, known: Known) -> None:
    variant = by_id(variant_id)
    kernel = Kernel.of(variant, L4)

    def total_us(problem: Problem) -> float:
        latency = known.estimate(kernel, problem).latency
        assert latency is not None
        return latency.median_us

    times = [total_us(replace(DECODE, seqlen_kv=kv)) for kv in (1024, 4096, 16_384)]
    assert times[0] < times[1] < times[2]
    assert 3 < times[2] / times[1] < 5  # in proportion to the bytes read
    # A query tile costs the same with one row or sixteen.
    more = total_us(replace(DECODE, seqlen=16, seqlen_kv=4096))
    assert times[1] <= more <= 1.05 * times[1]


def test_splits_help_a_single_sequence(known: Known) -> None:
    def latency_us(num_splits: int) -> float:
        request = BatchRequest(
            variant="v05",
            gpu="L4",
            seqlen=1,
            seqlen_kv=16_384,
            head_dim=128,
            heads=2,
            config={"num_splits": num_splits},
            max_batch=4,
        )
        table = recommend_batch(request, known).table
        return float(table["predicted_us"].iloc[0])

    assert latency_us(16) < 0.25 * latency_us(1)


def test_measured_points_may_name_the_keys() -> None:
    text = (
        "batch,num_heads,seqlen,head_dim,kernel_ms,seqlen_kv\n1,32,1,128,0.5,4096\n1,1,64,64,1,\n"
    )
    problems = [m.problem for m in parse_measurements(text)]
    assert problems == [Problem(1, 32, 1, 128, seqlen_kv=4096), Problem(1, 1, 64, 64)]
