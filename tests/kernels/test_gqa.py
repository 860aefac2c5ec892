"""Query heads that share K/V heads: kernels with GQA are correct, the others are skipped."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fitting import fitting_config
from slow_cases import one_in
from untimed import untimed
from words import says

from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.cli import main
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest
from kernels.ladder import LADDER
from kernels.variant import KERNELS_DIR

SUPPORTING = [v.id for v in LADDER if v.gqa]
# (query heads, K/V heads): two groups of two, of three with a mask, one of all heads in decoding.
CASES: tuple[Problem, ...] = (
    Problem(2, 4, 65, 64, num_heads_kv=2),
    Problem(1, 6, 40, 32, causal=True, dtype="bfloat16", num_heads_kv=2),
    Problem(2, 5, 1, 128, seqlen_kv=110, num_heads_kv=1),
)


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with untimed() as evaluator:
        yield evaluator


@pytest.mark.parametrize(
    ("problem", "variant"),
    one_in(80, list(itertools.product(CASES, SUPPORTING)), slow=108),
    ids=lambda value: value if isinstance(value, str) else value.label(),
)
def test_correct_with_shared_heads(evaluator: Evaluator, variant: str, problem: Problem) -> None:
    config = fitting_config(LADDER.by_id(variant), problem)
    request = EvaluationRequest(variant, problem, config, gpu="H100 SXM", backend="cpu")
    made = evaluator.evaluate(request).evaluation
    assert made.status is Status.PASSED, made.reason
    assert made.correctness is not None
    assert made.correctness.baseline_name.startswith("PyTorch")


@pytest.mark.parametrize("variant", [v for v in LADDER if not v.gqa], ids=lambda v: v.id)
def test_kernels_without_gqa_are_skipped_with_a_reason(evaluator: Evaluator, variant: Any) -> None:
    problem = Problem(1, 32, 16, variant.head_dims[-1], num_heads_kv=8)
    request = EvaluationRequest(variant.id, problem, gpu="H100 SXM", backend="cpu")
    made = evaluator.evaluate(request).evaluation
    assert made.status is Status.SKIPPED
    assert says(made.reason, "query_heads_share", "32", "8")


def test_the_command_line_accepts_fewer_kv_heads(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["evaluate", "v08", "--heads", "8", "--heads-kv", "2", "--gpu", "L4", "--json"]
    assert main([*argv, "--backend", "cpu"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["status"], out["problem"]["num_heads_kv"]) == ("PASSED", 2)
    assert main(["evaluate", "v08", "--heads", "8", "--heads-kv", "3", "--gpu", "L4"]) != 0
    said = capsys.readouterr().err
    assert says(said, "heads_not_shared", "8", "3")
    assert len(said.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_sweep_and_a_recommendation_accept_shared_heads(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = str(tmp_path / "gqa.jsonl")
    argv = ["sweep", "v08", "-H", "8", "--heads-kv", "8,2", "--gpu", "L4", "--no-execute"]
    assert main([*argv, "--defaults-only", "--journal", journal, "--json"]) == 0
    capsys.readouterr()
    argv = ["recommend-batch", "v08", "--gpu", "L4", "--seqlen", "1", "--seqlen-kv", "16384"]
    argv += ["--head-dim", "128", "--heads", "32", "--heads-kv", "8", "--max-batch", "64"]
    assert main([*argv, "--json", "--curve"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["problem"]["num_heads_kv"] == 8
    cache_bytes = 2 * 8 * 16_384 * 128 * 2
    assert cache_bytes < out["curve"][0]["device_bytes"] < 1.01 * cache_bytes
    assert main([*argv, "--heads-free"]) != 0
    assert says(capsys.readouterr().err, "axis_of_shared_heads")


@pytest.mark.parametrize(
    ("kv_head", "status", "name"),
    [
        ("blockIdx.y", Status.OUT_OF_BOUNDS, "indexes_kv_by_query_head"),
        ("blockIdx.y % num_heads_kv", Status.INCORRECT, "kv_by_modulo"),
    ],
)
@pytest.mark.slow
def test_a_kernel_that_reads_the_wrong_kv_head_is_diagnosed(
    evaluator: Evaluator, tmp_path: Path, kv_head: str, status: Status, name: str
) -> None:
    shutil.copytree(KERNELS_DIR, tmp_path / "kernels")
    source = tmp_path / "kernels" / "v08_mma_sync.cu"
    text = source.read_text(encoding="utf-8")
    assert text.count("blockIdx.y / group") == 1
    source.write_text(text.replace("blockIdx.y / group", kv_head), encoding="utf-8")
    problem = Problem(2, 8, 70, 32, num_heads_kv=2)
    request = EvaluationRequest("v08", problem, gpu="L4", backend="cpu")
    made = evaluator.evaluate(request, source=source).evaluation
    assert made.status is status
    findings = made.correctness.findings if made.correctness else ()
    assert says([made.reason, *(f.sentence for f in findings)], name)
