"""CTAs of empty splits are launched and do no work: fills, waves and predictions leave them out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions_data import evaluation_maker, snapshot_maker
from words import says

from engine.attention.evaluation import Occupancy
from engine.attention.problem import Problem
from engine.devices import find_device
from engine.model.equations import visited_share
from engine.model.kernel import Estimate, Kernel, Known
from engine.model.launches import collect, traffic_by_order
from engine.sessions.snapshot import dumps, loads
from kernels.ladder import by_id
from kernels.variant import ceil_div

L4 = find_device("L4")
V05 = by_id("v05")


def with_splits(num_splits: int) -> Kernel:
    return Kernel.of(V05, L4, {"num_splits": num_splits})


def by_hand(problem: Problem, num_splits: int) -> int:
    """Count CTA by CTA with the kernel's loop bounds."""
    chunk = ceil_div(ceil_div(problem.num_keys, 64), num_splits) * 64
    useful = 0
    for first_query in range(0, problem.seqlen, 64):
        end = min(problem.num_keys, first_query + 64) if problem.causal else problem.num_keys
        useful += sum(split * chunk < end for split in range(num_splits))
    return problem.batch * problem.num_heads * useful


@given(
    seqlen=st.integers(1, 900),
    keys=st.integers(1, 900),
    splits=st.sampled_from([1, 2, 4, 8, 16, 32]),
    causal=st.booleans(),
)
def test_useful_ctas_are_those_whose_loop_runs(
    seqlen: int, keys: int, splits: int, causal: bool
) -> None:
    problem = Problem(2, 3, seqlen, 64, causal, seqlen_kv=None if causal else keys)
    launches = collect(with_splits(splits), [problem])
    assert launches.useful_ctas.tolist() == [by_hand(problem, splits)]
    assert launches.useful_ctas[0] <= launches.ctas[0, 0]


def test_without_splits_every_cta_is_useful() -> None:
    for name in ("v01", "v08", "v12"):
        problem = Problem(2, 3, 65, 64, causal=True)
        launches = collect(Kernel.of(name, L4), [problem])
        assert launches.useful_ctas.tolist() == launches.ctas[0].tolist()


def test_sequences_of_their_own_lengths_are_not_padded() -> None:
    for name in ("v10", "v14", "v21"):
        kernel, lengths = Kernel.of(name, L4), (300, 40, 300, 1)
        problem = Problem(4, 8, 300, 64, num_heads_kv=2, seqlens=lengths)
        own = collect(kernel, [problem])
        alone = [problem.of_sequence(i) for i in range(4)]
        each = collect(kernel, alone)
        assert own.useful_ctas.tolist() == [each.useful_ctas.sum()]
        assert own.useful_ctas[0] < own.ctas[0, 0]
        assert own.elements.tolist() == [8 * 641 * 64]
        assert own.flops.tolist() == [each.flops.sum()]
        moved = each.device_bytes - each.scratch_bytes
        assert own.device_bytes.tolist() == [moved.sum() + own.scratch_bytes[0]]
        rows = each.useful_ctas * each.kv_rows
        share = rows.sum() / (own.useful_ctas * own.kv_rows)
        assert visited_share(own) == pytest.approx(share)


def test_bytes_from_dram_follow_the_lengths() -> None:
    v10, plenty = Kernel.of("v10", L4), (40_000, 100, 100, 100)
    moved = []
    for problem in (
        Problem(4, 8, 40_000, 64, seqlens=plenty),
        Problem(1, 8, 40_000, 64),
        Problem(4, 8, 40_000, 64),
    ):
        traffic = traffic_by_order(v10, v10.plan(problem), 3)
        assert traffic is not None
        moved.append(traffic.dram_bytes)
    assert moved[1] < moved[0] < 1.02 * moved[1] < moved[2] / 3


def estimated(num_splits: int, known: Known) -> tuple[Estimate, Occupancy]:
    made = known.estimate(with_splits(num_splits), Problem(1, 1, 128, 64))
    return made, made.passes[0].occupancy


def test_empty_splits_do_not_count_as_work(known: Known) -> None:
    two, few = estimated(2, known)
    thirty_two, many = estimated(32, known)
    assert (many.ctas, many.useful_ctas) == (64, 4)
    assert says(many.launched(), "of_with_keys", "4", "64", "CTAs")
    assert (many.sm_fill, many.waves) == (few.sm_fill, few.waves) == (4 / 58, few.waves)
    assert many.thread_fill == few.thread_fill
    assert (few.ctas, few.idle_ctas, few.launched()) == (4, 0, "4 CTAs")
    # More splits to fuse, but no more CTAs with work: not faster.
    assert two.latency is not None
    assert thirty_two.latency is not None
    assert thirty_two.latency.median_us >= two.latency.median_us
    assert says(two.reason, "of_sms_idle", "54", "58")


def test_a_file_stores_the_number_of_idle_ctas() -> None:
    evaluation = evaluation_maker()
    report = evaluation.passes[0]
    idle = replace(report, occupancy=replace(report.occupancy, idle_ctas=60))
    snapshot = snapshot_maker(evaluations=[replace(evaluation, passes=(idle, report))])
    assert loads(dumps(snapshot), name="x") == snapshot
    assert b"idle_ctas" not in dumps(snapshot_maker(), compress=False)


@pytest.mark.parametrize("num_splits", [1, 32])
def test_the_recommendation_counts_useful_ctas(num_splits: int, known: Known) -> None:
    from engine.choose.batch.recommend import BatchRequest, recommend_batch

    request = BatchRequest(
        "v05", "L4", seqlen=128, head_dim=64, config=with_splits(num_splits).config, max_batch=256
    )
    table = recommend_batch(request, known).table
    useful = 2 if num_splits == 1 else 4
    assert table["useful_ctas"].iloc[0] == useful
    assert table["ctas"].iloc[0] == 2 * num_splits
    assert table["sm_fill"].iloc[0] == pytest.approx(useful / 58)
    assert table["thread_fill"].iloc[0] == pytest.approx(useful * 256 / (58 * 1536))
