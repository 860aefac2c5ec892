"""Batch-invariance determined by execution, for kernels of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from words import raises, says

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.schema import decode, encode
from engine.history import History
from engine.model.kernel import Kernel
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.invariance import (
    BatchInvariance,
    Comparison,
    InvariantAlternative,
    SplitChoice,
    batch_invariance,
    cheapest_splits,
)
from engine.pipeline.request import EvaluationRequest


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    """Return an evaluator that looks times up and simulates none; another test covers costs."""
    with Evaluator(History().doing("look up")) as made:
        yield made


def ask(evaluator: Evaluator, variant: str, problem: Problem, **config: int) -> BatchInvariance:
    request = EvaluationRequest(variant, problem, config, gpu="L4", backend="cpu")
    return batch_invariance(evaluator, request)


def test_independent_ctas_give_the_same_bits_at_every_batch(evaluator: Evaluator) -> None:
    found = ask(evaluator, "v01", Problem(3, 2, 64, 32))
    assert found.is_invariant
    assert not found.depends_on_splits
    assert found.problem == Problem(1, 1, 64, 32)
    assert {(c.batch, c.order) for c in found.comparisons} == {
        (1, "reverse"),
        (1, "random"),
        (2, "in_order"),
        (3, "in_order"),
        (3, "reverse"),
        (3, "random"),
    }
    assert says(found.sentence, "is_batch_invariant")
    assert decode(BatchInvariance, encode(found), name="it") == found


@pytest.mark.slow
def test_another_number_of_splits_changes_the_bits(evaluator: Evaluator) -> None:
    found = ask(evaluator, "v05", Problem(2, 1, 256, 32), num_splits=4)
    assert found.is_invariant
    assert found.depends_on_splits
    by_splits = {c.num_splits: c.differing for c in found.comparisons if c.batch == 1}
    assert by_splits[1] > 0
    assert by_splits[4] == 0
    assert says(found.sentence, "long_num_splits")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seqlen", "causal"),
    [(512, True), pytest.param(512, False, marks=pytest.mark.exhaustive), (128, False)],
)
def test_tiles_cut_by_the_number_of_ctas_depend_on_the_batch(
    evaluator: Evaluator, seqlen: int, causal: bool
) -> None:
    """v13 gives each CTA an equal share of all tiles, whose limits depend on the batch.

    With four query tiles per sequence of 512, four CTAs get equal shares of every sequence; with
    one tile each, shares end within the tiles of sequences in the middle of a batch.
    """
    found = ask(evaluator, "v13", Problem(8, 2, seqlen, 64, causal=causal))
    assert not found.is_invariant
    assert says(found.sentence, "is_not_batch", "v13")
    (table,) = found.tables()
    assert len(table.rows) == len(found.comparisons)


@pytest.mark.slow
def test_a_long_sequence_is_cut_and_a_failure_is_an_error(evaluator: Evaluator) -> None:
    found = ask(evaluator, "v08", Problem(64, 32, 4096, 64, num_heads_kv=16))
    assert (found.problem.batch, found.problem.num_heads) == (1, 2)
    assert 2 * found.problem.flops <= 1e9
    assert max(c.batch for c in found.comparisons) >= 2
    with raises(InvalidProblem, "launch_not_taken", "head_dim 48"):
        ask(evaluator, "v08", Problem(2, 1, 64, 48))


def test_one_number_of_splits_is_chosen_by_its_worst_batch() -> None:
    times = {(1, 1): 40.0, (1, 8): 80.0, (4, 1): 12.0, (4, 8): 84.0, (16, 1): 10.0, (16, 8): 120.0}

    class Known:
        def estimate(self, kernel: Kernel, problem: Problem) -> object:
            us = times[kernel.config["num_splits"], problem.batch]
            return SimpleNamespace(latency=SimpleNamespace(median_us=us), by_machine_code=True)

    kernels = [Kernel.of("v14", "L4", {"num_splits": n}) for n in (1, 4, 16)]
    problems = [Problem(b, 8, 1, 64, seqlen_kv=1024) for b in (1, 8)]
    chosen = cheapest_splits(kernels, problems, Known())  # type: ignore[arg-type]
    assert chosen is not None
    assert (chosen.num_splits, chosen.batch) == (4, 1)
    assert chosen.cost == pytest.approx(0.2)
    assert cheapest_splits(kernels[:1], problems, Known()) is None  # type: ignore[arg-type]


def test_the_message_has_the_cost_of_batch_invariance() -> None:
    same = Comparison(2, 4, "in_order", 0, 0.0)
    other = Comparison(1, 8, "in_order", 3, 1e-4)
    found = BatchInvariance("v14", Problem(1, 1, 1, 64), (same, other), SplitChoice(4, 0.2, 1))
    assert says(found.sentence, "fixed_splits_cost", "num_splits=4", "20%", "B=1")
    apart = Comparison(5, None, "in_order", 7, 1e-4)
    words = {1.04: "takes 4% longer", 1.0: "takes as long", 0.9: "takes 10% less time"}
    for slowdown, price in words.items():
        instead = InvariantAlternative("v11 block_m=64", slowdown, 44)
        found = BatchInvariance("v13", Problem(1, 1, 512, 64), (apart,), None, instead)
        assert says(found.sentence, "other_kernel_same_bits", "v11 block_m=64", price, "B=44")


@pytest.mark.exhaustive
def test_an_invariant_alternative_is_offered_with_its_cost() -> None:
    with Evaluator(History()) as simulating:
        found = ask(simulating, "v13", Problem(8, 2, 128, 64))
    assert not found.is_invariant
    assert found.instead is not None
    assert not found.instead.kernel.startswith("v13")
    assert 0.3 < found.instead.slowdown < 3
