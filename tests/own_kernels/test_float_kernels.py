"""Kernels of float tensors, and buffers that host code fills before a launch."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from untimed import untimed
from words import says

import engine as attune
from engine.attention.config import VARIABLE, usual_dtype, usual_head_dim
from engine.attention.evaluation import Evaluation
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.base.errors import Status
from engine.cli import main
from engine.model.kernel import compile_plan
from engine.own_kernels.host_launch import kernels_of
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest
from engine.pipeline.trial import explain
from kernels.description import read_own
from kernels.ladder import LADDER

DATA = Path(__file__).with_name("kernels")


def evaluated(
    name: str, problem: Problem, *, is_timed: bool = False, **options: object
) -> Evaluation:
    request = EvaluationRequest(name, problem, {}, gpu="L4", backend="cpu", **options)  # type: ignore[arg-type]
    with Evaluator() if is_timed else untimed() as evaluator:
        return evaluator.evaluate(request).evaluation


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for name in ("float_rows.cu", "packed_running.cu", "warp_rows.cu"):
        shutil.copy(DATA / name, tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("check", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_float_kernel_is_checked_in_fp32_and_predicted(check: bool) -> None:
    problem = Problem(1, 2, 203, 64, causal=check, dtype="float32")
    evaluation = evaluated("float_rows", problem, is_timed=True, check=check)
    assert evaluation.status is Status.PASSED, evaluation.reason
    assert says(evaluation.reason, "sdpa_name", "float32", "the CPU")
    assert says(evaluation.reason, "rounding_of_a_sum", "203")
    assert evaluation.correctness is not None
    assert 0 < evaluation.correctness.tolerance < 5e-6
    assert not evaluation.correctness.warnings
    assert evaluation.latency is not None
    assert evaluation.latency.origin == "predicted"


@pytest.mark.usefixtures("folder")
@pytest.mark.slow
@pytest.mark.parametrize("check", [False, True])
def test_a_template_of_cpp20_with_ptx_in_its_own_body(check: bool) -> None:
    """Modifiers in another order, cooperative groups, an object as template argument."""
    evaluation = evaluated("warp_rows", Problem(2, 2, 45, 64, dtype="float32"), check=check)
    assert evaluation.status is Status.PASSED, evaluation.reason
    assert evaluation.passes[0].resources.entry == "warp_rows<Shape{64, 4}>"


def test_float_pointers_get_float_tensors(folder: Path) -> None:
    source = folder / "float_rows.cu"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace('"float32"', '"float16", "float32"'), encoding="utf-8")
    evaluation = evaluated("float_rows", Problem(1, 1, 9, 64))
    assert evaluation.status is Status.COMPILE_ERROR
    facts = ("attention_rows", "const float* Q", "q", "float16", 'dtypes = ["float32"]')
    assert says(evaluation.reason, "declared_otherwise", *facts)
    packed = folder / "packed_running.cu"
    text = packed.read_text(encoding="utf-8")
    packed.write_text(text.replace('"float64"', '"float32"'), encoding="utf-8")
    evaluation = evaluated("packed_running", Problem(1, 1, 9, 64, dtype="float32"))
    facts = ("sums", "float32", 'dtype = "float64"')
    assert says(evaluation.reason, "declared_otherwise", *facts)


def test_a_copy_of_a_rung_finds_the_headers_of_the_ladder(folder: Path) -> None:
    rung = LADDER.by_id("v02").source
    (folder / "mine.cu").write_text(rung.read_text(encoding="utf-8"), encoding="utf-8")
    plan = make_plan(
        read_own(folder / "mine.cu"), Problem(1, 1, 9, 64), {"block_n": 32, "threads_per_row": 4}
    )
    assert compile_plan(plan, "sm_89").entries


@pytest.mark.usefixtures("folder")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_sequential_long_sum_passes() -> None:
    """SDPA sums in blocks, with less than half the error."""
    for seqlen in (1, 8, 1024):
        evaluation = evaluated("float_rows", Problem(1, 2, seqlen, 64, dtype="float32"))
        assert evaluation.status is Status.PASSED, evaluation.reason


@pytest.mark.slow
def test_tf32_products_are_reported(folder: Path) -> None:
    source = folder / "float_rows.cu"
    text = source.read_text(encoding="utf-8")
    rounded = "__int_as_float(__float_as_int(x) & 0xffffe000)"
    product = (
        f"static __device__ float tf32(float x) {{ return {rounded}; }}\n"
        "#define PRODUCT(a, b) (tf32(a) * tf32(b))\n#if !defined(PRODUCT)"
    )
    source.write_text(text.replace("#if !defined(PRODUCT)", product), encoding="utf-8")
    problem = Problem(1, 1, 77, 64, dtype="float32")
    evaluation = evaluated("float_rows", problem)
    assert evaluation.status is Status.INCORRECT
    assert evaluation.correctness is not None
    (finding,) = evaluation.correctness.findings
    assert finding.pattern == "tf32"
    assert "tf32 = true" in finding.sentence
    declared = source.read_text(encoding="utf-8").replace("[[passes]]", "tf32 = true\n[[passes]]")
    source.write_text(declared, encoding="utf-8")
    evaluation = evaluated("float_rows", problem)
    assert evaluation.status is Status.PASSED, evaluation.reason
    assert says(evaluation.reason, "emulation_attention_tf32")


def test_an_fp32_bug_is_not_reported_as_tf32(folder: Path) -> None:
    source = folder / "float_rows.cu"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace("l = l * c + p", "l = l + p"), encoding="utf-8")
    evaluation = evaluated("float_rows", Problem(1, 1, 77, 64, dtype="float32"))
    assert evaluation.status is Status.INCORRECT
    assert evaluation.correctness is not None
    patterns = [finding.pattern for finding in evaluation.correctness.findings]
    assert patterns
    assert "tf32" not in patterns


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "causal",
    [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.exhaustive)],
)
def test_packed_tensors_and_accumulation_in_global_memory(causal: bool) -> None:
    """Fills are repeated before the second run, which otherwise would differ."""
    problem = Problem(2, 3, 45, 64, causal=causal, dtype="float32")
    evaluation = evaluated("packed_running", problem, check=causal)
    assert evaluation.status is Status.PASSED, evaluation.reason


def test_a_missing_fill_is_noticed(folder: Path) -> None:
    source = folder / "packed_running.cu"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace('fill = "-inf"', 'fill = "poison"'), encoding="utf-8")
    evaluation = evaluated("packed_running", Problem(1, 1, 9, 64, dtype="float32"))
    assert evaluation.status is Status.INCORRECT


def test_packed_tensors_have_the_described_layout() -> None:
    variant = read_own(DATA / "packed_running.cu")
    problem = Problem(2, 3, 5, 64, dtype="float32")
    plan = make_plan(variant, problem, {})
    inputs = make_inputs(problem)
    packed = inputs.in_layouts(plan.layouts, packed=plan.packed)["qkv"]
    assert packed.shape == (2, 5, 3, 3, 64)
    np.testing.assert_array_equal(packed[1, 4, 2, 1], inputs.v[1, 1, 4])
    assert plan.buffer_bytes["qkv"] == packed.nbytes
    assert plan.addresses({"qkv": 1000})["k"] == 1000 + 3 * 64 * 4
    assert plan.refilled["highest"].view(np.float32).tolist() == [-np.inf] * 30
    assert plan.refilled["out"].nbytes == problem.tensor_bytes
    assert {s.name: s.size_bytes for s in plan.scratch} == {"highest": 120, "sums": 240}
    rows = explain(plan, kernels_of(variant.source.read_text(encoding="utf-8")))
    values = {row.given: row.value for row in rows}
    assert values["k"] == "[2, 5, 3, 3, 64] float32, from K on"
    assert says(values["sums"], "scratch_filled", "[2, 3, 5] float64", "zero")
    other = Problem(2, 3, 5, 64, dtype="float32", seqlen_kv=7)
    assert "seqlen_kv" in (variant.unsupported(other, {}) or "")


@pytest.mark.usefixtures("folder")
def test_the_only_format_of_a_kernel_needs_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["occupancy", "float_rows", "--seqlen", "64", "--gpu", "L4"]) == 0
    assert "fp32" in capsys.readouterr().out
    assert main(["occupancy", "float_rows", "--seqlen", "64", "--gpu", "L4", "--dtype=bf16"]) != 0


@pytest.mark.usefixtures("folder")
def test_the_default_format_is_one_that_the_kernels_support(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = attune.sweep("float_rows", gpu="L4", seqlen=9, execute=False)
    assert {row.problem.dtype for row in found.rows} == {"float32"}
    source = str(folder / "float_rows.cu")
    for options, told in (
        (["sweep", source, "--dry-run"], '"runnable": 1'),
        (["recommend-batch", source, "--max-batch", "2"], '"dtype": "float32"'),
        (["variants", source], '"not here, because": null'),
    ):
        assert main([*options, "-S", "9", "--gpu", "L4", "--json"]) == 0
        assert told in capsys.readouterr().out
    # If no format is supported by all, FP16 is used, and other kernels report it.
    assert usual_dtype(["float_rows", "v01"]) == usual_dtype(["v99"]) == "float16"
    assert usual_dtype(["float_rows", "auto"]) == "float16"


@pytest.mark.usefixtures("folder")
def test_a_sweep_without_a_time_gives_the_reason() -> None:
    found = attune.sweep("float_rows", gpu="L4", seqlen=9, dtype="fp16")
    assert says(str(found), "float_type_not_taken", "float16")


def test_the_default_head_dim_is_one_that_the_kernel_supports(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder / "float_rows.cu"
    dims = re.compile(r"^head_dims = .*$", re.MULTILINE)
    wide = dims.sub("head_dims = [128]", source.read_text(encoding="utf-8"), count=1)
    source.write_text(wide, encoding="utf-8")
    assert main(["occupancy", str(source), "-S", "9", "--gpu", "L4"]) == 0
    assert "D128 fp32" in capsys.readouterr().out
    assert attune.kernel(source).variant.head_dims == (128,)  # type: ignore[union-attr]
    assert usual_head_dim(attune.kernel(source).variant) == 128
    assert usual_head_dim(attune.kernel("v01").variant) == 64


def test_the_default_mask_is_the_only_one_of_the_kernel(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder / "float_rows.cu"
    text = source.read_text(encoding="utf-8")
    source.write_text(
        re.sub(r"^(head_dims = .*)$", r"\1\ncausal = [true]", text, count=1, flags=re.M)
    )
    command = ["occupancy", str(source), "-S", "9", "--gpu", "L4"]
    assert main(command) == 0
    assert "fp32 causal" in capsys.readouterr().out
    assert main([*command, "--no-causal"]) != 0
    assert attune.kernel(source, gpu="L4").check(seqlen=9).problem.causal
    on_l4 = [str(source), "-S", "9", "--gpu", "L4"]
    assert main(["recommend-batch", *on_l4, "--max-batch", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problem"]["causal"]
    assert main(["variants", *on_l4]) == 0
    assert "causal" in capsys.readouterr().out
    assert main(["sweep", *on_l4, "--dry-run"]) == 0
    assert "0 of" not in capsys.readouterr().out
    assert attune.recommend_batch(source, gpu="L4", seqlen=9, max_batch=4).problem.causal
    assert attune.sweep(source, gpu="L4", seqlen=9, execute=False).rows[0].problem.causal
