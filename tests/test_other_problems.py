"""Offsets past 2³¹: which problem tells, and that a product in 32 bits is warned of there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.backends.base import RunOptions, RunResult
from engine.backends.cpu import CpuBackend
from engine.base.status import Status
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.other_problems import large_problem
from engine.pipeline.request import EvaluationRequest
from engine.plan import LaunchPlan
from engine.problem import Problem
from engine.tensors import Inputs
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR


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
    elements = max(large.elements, large.kv_bytes // 2)
    assert 2**31 < elements < 2**32
    assert large.batch <= 65_535
    assert (large.seqlen, large.num_keys, large.head_group) == (
        problem.seqlen,
        problem.num_keys,
        problem.head_group,
    )


def test_where_no_size_lies_between_there_is_none() -> None:
    assert large_problem(Problem(1, 1, 1, 1)) is None


@pytest.mark.slow
def test_an_index_in_32_bits_is_warned_of_and_the_kernel_itself_is_not(tmp_path: Path) -> None:
    source = by_id("v08").source
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, tmp_path)
    text = source.read_text(encoding="utf-8")
    old, new = "const size_t q_index = (size_t)blockIdx.z", "const int q_index = blockIdx.z"
    assert old in text
    changed = tmp_path / source.name
    changed.write_text(text.replace(old, new), encoding="utf-8")
    request = EvaluationRequest("v08", Problem(1, 2, 65, 64), backend="cpu", check=True)
    with Evaluator() as evaluator:
        right = evaluator.evaluate(request).evaluation
        wrong = evaluator.evaluate(request, source=changed).evaluation
    assert right.status is wrong.status is Status.PASSED
    assert right.correctness is not None
    assert wrong.correctness is not None
    assert right.correctness.warnings == ()
    (warning,) = wrong.correctness.warnings
    assert "past 2^31 one factor has to be a size_t" in warning
    assert f"{source.name}:" in warning


@pytest.mark.slow
def test_the_second_inputs_run_in_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    run = CpuBackend.run

    def noted(self: CpuBackend, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
        seen.append(options.schedule)
        return run(self, plan, inputs, options)

    monkeypatch.setattr(CpuBackend, "run", noted)
    problem = Problem(1, 1, 65, 32)
    with Evaluator() as evaluator:
        for schedule in ("in_order", "reverse"):
            request = EvaluationRequest(
                "v01", problem, backend="cpu", check=True, schedule=schedule
            )
            assert evaluator.evaluate(request).evaluation.status is Status.PASSED
    # At the problem that was asked for, and at a sharper one.
    assert seen == [*2 * ("in_order", "random"), *4 * ("reverse",)]
