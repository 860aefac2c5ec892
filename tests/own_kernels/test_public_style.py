"""Kernels in the style of public ones run unchanged, described in the file or beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from slow_cases import one_in, slow_ones
from untimed import untimed
from words import says

from engine.attention.config import VARIABLE, find_variant
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.launch_arguments import StructArg, encode_argument
from engine.cli import main
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest

DATA = Path(__file__).with_name("kernels")
BF16 = {"dtype": "bfloat16"}
CASES = [
    ("fa2_params", Problem(2, 4, 100, 64, num_heads_kv=2), {}),
    ("naive_flash", Problem(1, 3, 70, 32, causal=True), {}),
    ("split_decode", Problem(2, 4, 1, 128, seqlen_kv=37, num_heads_kv=2), {"splits": 4}),
    ("fa2_params", Problem(1, 3, 129, 128, causal=True, dtype="bfloat16"), {"block_n": 32}),
    ("fa2_params", Problem(3, 2, 1, 64, seqlen_kv=203), {"num_warps": 2}),
    ("naive_flash", Problem(2, 1, 33, 128), {}),
    ("split_decode", Problem(1, 2, 30, 64), {"splits": 1}),
    ("flash_split", Problem(2, 4, 77, 128, causal=True, num_heads_kv=2), {"num_splits": 4}),
    ("flash_split", Problem(1, 2, 100, 64, dtype="bfloat16", seqlen_kv=203), {}),
]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(DATA))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("name", "problem", "config"), one_in(len(CASES), CASES, slow=4))
def test_a_public_style_kernel_runs_correctly(
    name: str, problem: Problem, config: dict[str, int]
) -> None:
    """Compiled by NVRTC and for the CPU, output and LSE checked, latency predicted."""
    request = EvaluationRequest(name, problem, config, gpu="L4", backend="cpu")
    with Evaluator() as evaluator:
        evaluation = evaluator.evaluate(request).evaluation
    assert evaluation.status is Status.PASSED, evaluation.reason
    assert says(evaluation.reason, "largest_error_lse")
    assert evaluation.passes[0].resources.registers_per_thread > 16
    assert evaluation.latency is not None
    assert evaluation.latency.origin == "predicted"


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "name", slow_ones(4, ["fa2_params", "naive_flash", "flash_split", "split_decode"])
)
def test_the_check_build_finds_nothing(name: str) -> None:
    request = EvaluationRequest(
        name, Problem(1, 2, 65, 64), gpu="L4", backend="cpu", check=True, schedule="random"
    )
    with untimed() as evaluator:
        evaluation = evaluator.evaluate(request).evaluation
    assert evaluation.status is Status.PASSED, evaluation.reason


@pytest.mark.usefixtures("kernels")
def test_structures_have_the_layout_of_cpp() -> None:
    """A structure of five pointers, twelve 64-bit strides, five ints, a float and a bool."""
    problem = Problem(2, 4, 100, 64, num_heads_kv=2, seqlen_kv=37)
    plan = make_plan(find_variant("fa2_params"), problem, {"block_n": 64, "num_warps": 4})
    (params,) = plan.passes[0].args
    assert isinstance(params, StructArg)
    encoded = encode_argument(params)
    assert encoded.pointers == ((0, "q"), (8, "k"), (16, "v"), (24, "out"), (32, "lse"))
    assert (encoded.kind, len(encoded.data), encoded.alignment) == ("s", 168, 8)
    strides = memoryview(encoded.data[40:136]).cast("q").tolist()
    assert strides[:4] == [100 * 4 * 64, 37 * 2 * 64, 37 * 2 * 64, 100 * 4 * 64]  # [B, S, H, D]
    assert strides[4:8] == [64] * 4
    assert strides[8:] == [4 * 64, 2 * 64, 2 * 64, 4 * 64]
    assert memoryview(encoded.data[136:156]).cast("i").tolist() == [2, 4, 2, 100, 37]
    assert plan.passes[0].entry == (
        "flash::flash_fwd_kernel<flash::Kernel_traits<64, 64, 64, 4>, __half, false>"
    )


@pytest.mark.usefixtures("kernels")
def test_types_of_arguments_and_blocks_of_two_dimensions() -> None:
    variant = find_variant("split_decode")
    plan = make_plan(variant, Problem(1, 8, 5, 64, num_heads_kv=2), {"splits": 2})
    split, merge = plan.passes
    assert (split.threads, split.block, merge.block) == (128, (32, 4, 1), (64, 1, 1))
    assert merge.entry == "decode_merge<2>"
    kinds = [(encode_argument(a).kind, len(encode_argument(a).data)) for a in split.args]
    assert kinds == [*[("p", 8)] * 2, ("f", 8), *[("p", 8)] * 3, ("i", 4), ("i", 4), ("i", 8),
                     ("i", 4), ("p", 8)]  # fmt: skip
    assert plan.defines == (("D", "64"), ("ROWS", "4"))
    assert plan.device_bytes == sum(plan.buffer_bytes.values())
    assert plan.buffer_bytes["lse"] == 4 * 8 * 5


WRONG = [
    ("m + logf(l)", "m + log2f(l)", "lse_is_wrong"),
    ("m + logf(l)", "(m + logf(l)) * 1.44269504f", "lse_base_2"),
    ("m + logf(l)", "logf(l)", "lse_without_maximum"),
    ("m + logf(l)", "m", "lse_row_maximum_alone"),
    ("m + logf(l)", "l * expf(m)", "lse_sum_alone"),
    ("L[(size_t)bh * N + row]", "L[(size_t)bh * N + N - 1 - row]", "lse_at_wrong_rows"),
    ("    L[(size_t)bh * N", "    if (row) L[(size_t)bh * N", "lse_not_finite"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "name"), one_in(7, WRONG, offset=1, slow=3))
def test_a_wrong_lse_is_an_incorrect_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, name: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    shutil.copy(DATA / "naive_flash.attune.toml", tmp_path)
    text = (DATA / "naive_flash.cu").read_text(encoding="utf-8")
    assert text.count(old) == 1
    (tmp_path / "naive_flash.cu").write_text(text.replace(old, new), encoding="utf-8")
    request = EvaluationRequest("naive_flash", Problem(1, 1, 40, 32), gpu="L4", backend="cpu")
    with untimed() as evaluator:
        evaluation = evaluator.evaluate(request).evaluation
    assert evaluation.status is Status.INCORRECT
    assert says(evaluation.reason, name)
    assert evaluation.latency is None


@pytest.mark.usefixtures("kernels")
def test_arguments_that_do_not_fit_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    shutil.copy(DATA / "naive_flash.cu", tmp_path)
    text = (DATA / "naive_flash.attune.toml").read_text(encoding="utf-8")
    sidecar = tmp_path / "naive_flash.attune.toml"
    sidecar.write_text(text.replace('{name = "causal", ctype = "bool"}', '"causal"'), "utf-8")
    command = ["evaluate", "naive_flash", "--seqlen", "9", "--gpu", "L4"]
    assert main(command) == 1
    reason = capsys.readouterr().out
    assert says(reason, "launch_argument_type", "argument 7 (causal)", "flash_attn_fwd", "int32")
    sidecar.write_text(text.replace("flash_attn_fwd", "flash_fwd"), encoding="utf-8")
    assert main(command) == 1
    facts = ("naive_flash.cu", "flash_fwd", "flash_attn_fwd")
    assert says(capsys.readouterr().out, "no_global_function", *facts)
