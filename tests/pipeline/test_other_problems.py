"""Other problems that a check executes in addition, and their effect on the verdict."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from untimed import untimed
from verdicts import RIGHT
from words import says

from engine.attention.coverage import Block
from engine.attention.evaluation import Evaluation
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import Inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import Status
from engine.cuda_on_host.client import RunResult
from engine.pipeline.other_problems import (
    OtherProblem,
    judge_elsewhere,
    large_problem,
    other_config,
    sharper_problem,
)
from engine.pipeline.request import EvaluationRequest
from kernels.ladder import LADDER, by_id
from kernels.variant import KERNELS_DIR, Constraint, Variant


@pytest.mark.parametrize(
    "problem",
    [
        Problem(1, 3, 200, 64),
        Problem(2, 4, 113, 64, num_heads_kv=2),
        Problem(1, 8, 1, 128, num_heads_kv=2, seqlen_kv=700),
        Problem(4, 16, 2048, 128, causal=True),
    ],
)
def test_the_large_problem_lies_between_int_and_unsigned(problem: Problem) -> None:
    large = large_problem(problem)
    assert large is not None
    elements = max(large.elements, large.k_bytes // 2)
    assert 2**31 < elements < 2**32
    assert large.batch <= 65_535
    assert (large.seqlen, large.num_keys, large.head_group) == (
        problem.seqlen,
        problem.num_keys,
        problem.head_group,
    )


def test_no_large_problem_exists_for_some_kernels() -> None:
    assert large_problem(Problem(1, 1, 1, 1)) is None


LONG = Problem(1, 1, 4096, 64)


@pytest.mark.parametrize("variant", LADDER, ids=lambda v: v.id)
@pytest.mark.parametrize("causal", [False, True])
def test_the_additional_problem_is_small_and_ragged(variant: Variant, causal: bool) -> None:
    asked = make_plan(variant, Problem(1, 3, 64, 64, causal), variant.default_config())
    other = sharper_problem(variant, asked)
    assert other is not None
    problem = other.problem
    assert variant.unsupported(problem, other.config) is None
    assert problem.flops <= 2e8
    assert problem.num_keys % 16
    assert (problem.causal, problem.dtype, problem.head_dim) == (causal, "float16", 64)
    assert (other.plan.defines, other.plan.entries) == (asked.defines, asked.entries)
    if variant.gqa and not (causal and "num_splits" in other.config):  # which needs long heads
        assert problem.head_group > 1
    if "num_ctas" in other.config:  # some CTA has a second query tile
        tiles = -(-problem.seqlen // asked.query_rows) * problem.num_heads * problem.batch
        assert tiles % other.config["num_ctas"]
        assert tiles > other.config["num_ctas"]
    elif not variant.unsupported(LONG, variant.default_config()):  # else it holds all keys
        assert problem.num_keys > 2 * other.config.get("block_n", 16)


def test_constraints_of_an_own_kernel_are_honoured() -> None:
    def whole_tiles(problem: Problem, _: object) -> bool:
        return problem.seqlen % 64 == 0 and problem.num_keys % 64 == 0 and problem.batch == 1

    rule = Constraint(whole_tiles, lambda *_: "It takes whole tiles of one sequence.")
    variant = replace(by_id("v02"), constraints=(rule,))
    asked = make_plan(variant, Problem(1, 2, 64, 64), variant.default_config())
    other = sharper_problem(variant, asked)
    assert other is not None
    assert whole_tiles(other.problem, None)
    assert other.problem.num_keys > 64
    nothing_else = Constraint(lambda problem, _: problem == asked.problem, lambda *_: "No.")
    assert sharper_problem(replace(variant, constraints=(nothing_else,)), asked) is None


def test_another_config_is_the_nearest_supported_one() -> None:
    variant, problem = by_id("v08"), Problem(1, 2, 64, 64)
    config = variant.default_config()
    other = other_config(variant, problem, config, "block_n")
    assert other is not None
    assert other.changed == {"block_n": other.config["block_n"]}
    assert other.config["block_n"] != config["block_n"]
    assert other_config(variant, problem, config, "no_such") is None


def test_code_for_another_value_of_a_tunable_is_run_and_its_failure_reported() -> None:
    variant, problem = by_id("v08"), Problem(1, 2, 64, 64)
    asked = make_plan(variant, problem, variant.default_config())
    passed = Evaluation(
        Status.PASSED, "Right.", "v08", problem, asked.config, "unknown", "", correctness=RIGHT
    )
    seen: list[OtherProblem] = []

    def judged(status: Status) -> Evaluation:
        def judge(other: OtherProblem) -> Evaluation:
            seen.append(other)
            there = replace(passed, problem=other.problem)
            if not other.changed:
                warned = replace(RIGHT, warnings=("It errs upwards.",))
                return replace(there, correctness=warned)
            return replace(there, status=status, reason="A race at a.cu:7.", correctness=None)

        return judge_elsewhere(
            variant, asked, passed, judge, lambda _: Block("Lines 1–9", "block_n")
        )

    wrong = judged(Status.RACE)
    first, second = seen
    assert first.problem == second.problem != problem
    assert list(second.changed) == ["block_n"]
    assert (wrong.status, wrong.problem) == (Status.RACE, problem)
    assert says(wrong.reason, "passes_but_not_at", problem.label(), second.label(), "a.cu:7")
    fine = judged(Status.COMPILE_ERROR)  # does not concern the requested problem
    assert fine.status is Status.PASSED
    assert fine.reason.startswith("Right. ")  # of the first execution
    assert says(fine.reason, "also_executed_at", first.label())
    assert fine.correctness is not None
    (warning,) = fine.correctness.warnings
    assert says(warning, "at_other_problem", first.label(), "It errs upwards.")


@pytest.mark.slow
def test_bugs_hidden_by_one_tile_are_found_on_the_additional_problem(tmp_path: Path) -> None:
    source = by_id("v01").source
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, tmp_path)
    text = source.read_text(encoding="utf-8")
    kept = "            m = m_new;\n"
    assert kept in text
    changed = tmp_path / source.name
    changed.write_text(text.replace(kept, ""), encoding="utf-8")
    asked = Problem(1, 1, 20, 32)
    request = EvaluationRequest("v01", asked, backend="cpu", check=True)
    with untimed() as evaluator:
        right = evaluator.evaluate(request).evaluation
        wrong = evaluator.evaluate(request, source=changed).evaluation
        plain = evaluator.evaluate(replace(request, check=False), source=changed).evaluation
    assert right.status is plain.status is Status.PASSED
    assert says(right.reason, "also_executed_at", "B2 H2")
    assert right.problem == wrong.problem == asked
    assert wrong.status is Status.INCORRECT
    assert says(wrong.reason, "passes_but_not_at", asked.label(), "B2 H2")
    assert wrong.correctness is not None
    assert wrong.correctness.first_bad_index is None
    assert wrong.correctness.findings


@pytest.mark.slow
def test_a_32_bit_index_is_warned_of(tmp_path: Path) -> None:
    source = by_id("v08").source
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, tmp_path)
    text = source.read_text(encoding="utf-8")
    old, new = "const size_t q_index = (size_t)blockIdx.z", "const int q_index = blockIdx.z"
    assert old in text
    changed = tmp_path / source.name
    changed.write_text(text.replace(old, new), encoding="utf-8")
    request = EvaluationRequest("v08", Problem(1, 2, 65, 64), backend="cpu", check=True)
    with untimed() as evaluator:
        right = evaluator.evaluate(request).evaluation
        wrong = evaluator.evaluate(request, source=changed).evaluation
    assert right.status is wrong.status is Status.PASSED
    assert right.correctness is not None
    assert wrong.correctness is not None
    assert right.correctness.warnings == ()
    (warning,) = wrong.correctness.warnings
    assert says(warning, "past_factor_size")
    assert f"{source.name}:" in warning


@pytest.mark.slow
def test_the_second_inputs_run_in_random_order() -> None:
    seen: list[str] = []

    class Noting(CpuBackend):
        def run(self, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
            seen.append(options.schedule)
            return super().run(plan, inputs, options)

    problem = Problem(1, 1, 65, 32)
    with untimed({"cpu": Noting()}) as evaluator:
        for schedule in ("in_order", "reverse"):
            request = EvaluationRequest(
                "v01", problem, backend="cpu", check=True, schedule=schedule
            )
            assert evaluator.evaluate(request).evaluation.status is Status.PASSED
    # At the requested problem, and at one that shows more.
    assert seen == [*2 * ("in_order", "random"), *4 * ("reverse",)]
