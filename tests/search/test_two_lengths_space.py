"""Sweeps over key lengths; ids and classes of problems with one length are unchanged."""

from __future__ import annotations

from words import raises

from engine.attention.config import problem_class
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.schema import decode, encode
from engine.pipeline.request import EvaluationRequest
from engine.search.space import ProblemAxes, Space, point_id

CAUSAL = Problem(2, 3, 128, 64, True, "bfloat16")
DECODE = Problem(1, 32, 1, 128, seqlen_kv=4096)


def test_the_id_of_an_evaluation_is_that_of_earlier_journals() -> None:
    request = EvaluationRequest("v05", CAUSAL, {"num_splits": 8}, gpu="L4")
    assert point_id(request) == "330ab36dc202e398"


def test_key_lengths_are_separate_points() -> None:
    ids = {point_id(EvaluationRequest("v05", p)) for p in (DECODE, Problem(1, 32, 1, 128))}
    assert len(ids) == 2


def test_axes_are_combined_and_each_problem_occurs_once() -> None:
    found = ProblemAxes(seqlen=(1, 64), seqlen_kv=(None, 64, 128)).problems()
    assert [p.lengths_label() for p in found] == ["S1", "S1 KV64", "S1 KV128", "S64", "S64 KV128"]
    with raises(InvalidProblem, "causal_without_keys"):
        ProblemAxes(causal=(True,), seqlen_kv=(64,)).problems()


def test_a_journal_names_the_keys_only_where_they_differ() -> None:
    space = Space(("v05",), (CAUSAL, DECODE))
    written = encode(space)
    assert ["seqlen_kv" in p for p in written["problems"]] == [False, True]
    assert decode(Space, written) == space


def test_a_config_tuned_for_decoding_is_not_one_for_a_prompt() -> None:
    assert problem_class(CAUSAL) == "D64 bf16 causal S65-128 BH5-8"
    assert problem_class(DECODE) == "D128 fp16 S1 KV2049-4096 BH17-32"
