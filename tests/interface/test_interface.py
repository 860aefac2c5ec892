"""The Python interface, `import engine as attune`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from words import raises, says

import engine as attune
from engine.attention.evaluation import Latency
from engine.backends.cuda import why_not_cuda
from engine.base.table import Table, Tabular

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"seqlen": 70, "head_dim": 32}


def test_the_import_is_light_and_its_names_are_there() -> None:
    code = "import sys, engine; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    heavy = {"torch", "cupy", "pandas", "numpy", "pydantic", "plotly", "engine.base"}
    assert heavy & set(done.stdout.split()) == set()
    for name in attune.__all__:
        assert getattr(attune, name) is not None
    assert sorted(dir(attune)) == sorted(attune.__all__)
    with raises(AttributeError, "no_attribute_module", "kernels"):
        attune.kernels  # noqa: B018


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    wide = (x.double() for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)


@pytest.mark.parametrize(
    ("dtype", "causal"),
    [(torch.float16, True), pytest.param(torch.bfloat16, False, marks=pytest.mark.slow)],
)
def test_a_kernel_returns_tensors_of_the_kind_it_was_given(
    dtype: torch.dtype, causal: bool
) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 2, 70, 32).to(dtype) for _ in range(3))
    out = attune.kernel("v01").run(q, k, v, causal=causal)
    assert (out.dtype, out.shape, out.device) == (q.dtype, q.shape, q.device)
    error = (out.double() - attention(q, k, v, causal)).abs().max().item()
    assert error < (0.002 if dtype == torch.float16 else 0.02)
    if dtype == torch.float16:
        same = attune.kernel("v01").run(*(x.numpy() for x in (q, k, v)), causal=causal)
        assert isinstance(same, np.ndarray)
        assert np.array_equal(same, out.numpy())


Q = np.zeros((1, 2, 70, 32), np.float16)


@pytest.mark.parametrize(
    ("q", "k", "name", "facts"),
    [
        (Q.astype(np.float64), Q, "tensor_type", ("q", "float64")),
        (Q, Q.astype(np.float32), "tensor_formats", ("float16", "float32")),
        (Q[0], Q[0], "tensor_dimensions", ("q", "3")),
        (Q, Q[..., :16], "tensor_shape", ("k",)),
        (Q[..., :16], Q[..., :16], "launch_not_taken", ("head_dim_v",)),
        ("text", Q, "tensor_type", ("q", "str")),
        (Q[..., ::2], Q[..., ::2], "launch_not_taken", ("head_dim", "16")),
    ],
)
def test_tensors_that_do_not_match_give_a_one_sentence_error(
    q: Any, k: Any, name: str, facts: tuple[str, ...]
) -> None:
    v = k if "head_dim" in facts else Q
    with raises(attune.InvalidProblem, name, *facts):
        attune.kernel("v01").run(q, k, v)


@pytest.mark.parametrize(
    ("call", "kind", "name", "facts"),
    [
        (lambda: attune.kernel("v99"), attune.UnknownName, "unknown_variant", ("v19",)),
        (
            lambda: attune.kernel("nowhere.cu"),
            attune.UnknownName,
            "no_such_cu_file",
            ("nowhere.cu",),
        ),
        (lambda: attune.kernel("v01", gpu="L44"), attune.UnknownName, "gpu_unknown", ("L4",)),
        (
            lambda: attune.kernel("v01", block=3),
            attune.InvalidProblem,
            "tunable_not_offered",
            ("block",),
        ),
        (
            lambda: attune.kernel("v01").check(seqlen=0),
            attune.InvalidProblem,
            "size_too_small",
            ("seqlen",),
        ),
        (
            lambda: attune.kernel("v01").check(seqln=8),
            attune.UnknownName,
            "unknown_keyword",
            ("'seqln'", "seqlen"),
        ),
        (
            lambda: attune.testing.assert_correct("v01", num_heads=2),
            attune.UnknownName,
            "unknown_keyword",
            ("heads",),
        ),
        (
            lambda: attune.testing.assert_correct("v01", gpu="L44"),
            attune.UnknownName,
            "gpu_unknown",
            ("L4",),
        ),
        (
            lambda: attune.kernel("v01").check(dtype="fp8"),
            attune.InvalidProblem,
            "dtype_name",
            ("'fp8'",),
        ),
        (lambda: attune.kernel("v01").occupancy(), attune.InvalidProblem, "gpu_not_named", ()),
        (
            lambda: attune.recommend_batch("v01", seqlen=64),
            attune.InvalidProblem,
            "batch_needs_gpu",
            (),
        ),
        (
            lambda: attune.recommend_batch("v01", gpu="L4", seqlen=64, head=1),
            attune.UnknownName,
            "unknown_keyword",
            ("heads",),
        ),
        (
            lambda: attune.recommend_mix(["1,1,4,64"], "v01", gpu="L4", max_batches=2),
            attune.UnknownName,
            "unknown_keyword",
            ("max_batch",),
        ),
        (
            lambda: attune.recommend_batch("v01", seqln=64),
            attune.UnknownName,
            "unknown_keyword",
            ("seqlen",),
        ),
        (lambda: attune.sweep("v01", seqln=64), attune.UnknownName, "unknown_keyword", ("seqlen",)),
        (
            lambda: attune.compare("v01", "v02", accross=True),
            attune.UnknownName,
            "unknown_keyword",
            ("across",),
        ),
        (
            lambda: attune.kernel("v01").run(Q, Q, Q, causl=True),
            attune.UnknownName,
            "unknown_keyword",
            ("causal",),
        ),
        (
            lambda: attune.sweep("v01", seqlen=[]),
            attune.InvalidProblem,
            "axis_without_value",
            ("seqlen",),
        ),
        (
            lambda: attune.sweep("v01", tunables={"nope": 1}),
            attune.UnknownName,
            "tunable_of_no_variant",
            ("'nope'",),
        ),
        (
            lambda: attune.compare("nowhere", "v01"),
            attune.UnknownName,
            "no_file_no_snapshot",
            ("nowhere",),
        ),
        (
            lambda: attune.compare("nowhere", "v01", seqlen=64),
            attune.InvalidProblem,
            "sizes_without_a_kernel",
            ("seqlen",),
        ),
        (
            lambda: attune.sweep("v01", seqlen="64"),
            attune.InvalidProblem,
            "size_no_whole_number",
            ("seqlen",),
        ),
        (
            lambda: attune.sweep("v01", strategy="randm"),
            attune.UnknownName,
            "unknown_strategy",
            ("random",),
        ),
        (
            lambda: attune.sweep("v01", evaluations=0),
            attune.InvalidProblem,
            "number_of_an_option",
            ("evaluations",),
        ),
        (
            lambda: attune.sweep("v01", problems=["small"]),
            attune.InvalidProblem,
            "no_problem_of_a_sweep",
            ("'small'",),
        ),
        (lambda: attune.sweep([]), attune.InvalidProblem, "sweep_without_kernel", ()),
        (lambda: attune.sweep(None), attune.UnknownName, "kernel_of_no_name", ("NoneType",)),
        (
            lambda: attune.kernel("v01").check(backend="gpu"),
            attune.UnknownName,
            "unknown_backend",
            ("cpu",),
        ),
        (
            lambda: attune.kernel("v01").check(schedule="rnd"),
            attune.UnknownName,
            "unknown_schedule",
            ("random",),
        ),
        (
            lambda: attune.kernel("v01").check(seed="x"),
            attune.InvalidProblem,
            "number_of_an_option",
            ("seed",),
        ),
        (
            lambda: attune.kernel("v01").check(timeout_s=0),
            attune.InvalidProblem,
            "number_of_an_option",
            ("timeout_s",),
        ),
        (lambda: attune.kernel("v01", gpu=4), attune.UnknownName, "gpu_unknown", ("T4",)),
        (
            lambda: attune.compare(None, 3),
            attune.InvalidProblem,
            "not_to_be_compared",
            ("NoneType",),
        ),
        (lambda: attune.kernel(None), attune.UnknownName, "kernel_of_no_name", ("NoneType",)),
        (
            lambda: attune.recommend_mix("auto", ["1,1,4,64"], gpu="L4"),
            attune.UnknownName,
            "kernel_of_no_name",
            ("list",),
        ),
    ],
)
def test_invalid_arguments_give_messages(
    call: Any, kind: type[Exception], name: str, facts: tuple[str, ...]
) -> None:
    with raises(kind, name, *facts):
        call()


def test_a_wrong_kernel_is_a_status_and_fails_an_assertion(tmp_path: Path) -> None:
    source = (ROOT / "kernels" / "v01_fa1_baseline.cu").read_text()
    right = "acc_rmem[d] * inv_l);"
    assert right in source
    wrong = tmp_path / "wrong_exp.cu"
    wrong.write_text(source.replace(right, "1.5f * " + right))
    for header in (ROOT / "kernels").glob("*.cuh"):
        shutil.copy(header, tmp_path)
    mine = attune.kernel(wrong)
    assert mine.check(**SMALL).status is attune.Status.INCORRECT
    with pytest.raises(AssertionError, match=attune.Status.INCORRECT) as failed:
        attune.testing.assert_correct(mine, **SMALL)
    # pytest then shows the line of the test.
    assert failed.traceback[-1].ishidden(failed)


@pytest.fixture(scope="module")
def swept() -> attune.SweepResult:
    sizes = {"head_dim": 32, "seqlen": 70}
    return attune.sweep(attune.kernel("v01", gpu="L4", block_n=64), **sizes)


@pytest.mark.slow
def test_a_sweep_keeps_the_values_that_its_kernel_was_given(swept: attune.SweepResult) -> None:
    assert [row.config["block_n"] for row in swept.rows] == [64]
    assert swept.best[0].origin == "predicted"
    assert swept.plot().data[0].x[0] == pytest.approx(swept.rows[0].median_us)


def test_a_result_is_printed_on_one_screen(swept: attune.SweepResult) -> None:
    title, names, _, best = repr(swept).splitlines()
    assert says(title, "sweep_title", "finished", "1")
    assert names.split() == ["problem", "GPU", "best", "time", "interval"]
    assert best.split()[:6] == ["B1", "H1", "S70", "D32", "fp16", "L4"]
    assert "µs predicted" in best
    (evaluation,) = swept.evaluations
    code = attune.kernel("v01", gpu="L4").machine_code(**SMALL)
    for result in (evaluation, code, attune.compare(evaluation, evaluation)):
        assert 3 < len(repr(result).splitlines()) < 30
        assert "(" not in repr(result).splitlines()[1]  # a table, not the repr of a dataclass


def test_a_long_table_is_printed_to_its_first_rows() -> None:
    class Long(Tabular):
        def tables(self) -> tuple[Table, ...]:
            return (Table("Long", ("name",), tuple((f"{i} {'x' * 99}",) for i in range(40))),)

    lines = repr(Long()).splitlines()
    assert len(lines) == 3 + 25 + 1
    assert says(lines[-1], "more_rows", "15")
    assert max(map(len, lines)) <= 66


def test_a_predicted_time_is_not_written_for_another_tuner(swept: attune.SweepResult) -> None:
    with raises(attune.InvalidProblem, "only_predicted_times", "predicted"):
        swept.to_kernel_tuner()


def test_measured_times_are_written_as_kernel_tuner_reads_them(
    swept: attune.SweepResult,
) -> None:
    from dataclasses import replace

    from engine.base.schema import encode

    taken = Latency("measured", 20.0, 19.0, 21.0, "Made up.", samples_us=(19.0, 20.0, 21.0))
    evaluation = replace(swept.evaluations[0], latency=taken)
    row = replace(swept.rows[0], result=encode(evaluation))
    cache = json.loads(replace(swept, rows=(row,)).to_kernel_tuner())
    (entry,) = cache["cache"].values()
    assert (entry["time"], entry["block_n"]) == (pytest.approx(0.02), 64)
    assert cache["tune_params"]["block_n"] == [64]


class Made(Tabular):
    def tables(self) -> tuple[Table, ...]:
        records = [{"name": "<b>a</b>", "µs": 1.5}, {"name": "=b", "µs": 2.0}]
        return (Table.of("Two <rows>", records, "Simulated."),)


@pytest.mark.parametrize("ending", ["csv", "json", "md", "parquet"])
def test_a_result_is_written_in_every_format(ending: str, tmp_path: Path) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    path = Made().save(tmp_path / f"out.{ending}")
    if ending == "md":
        assert "| <b>a</b> | 1.5 |" in path.read_text()
        return
    read: Any = getattr(pd, f"read_{ending}")(path)
    assert read["µs"].tolist() == [1.5, 2.0]
    # Texts that look like spreadsheet formulas are escaped in CSV.
    assert read["name"].tolist()[1] == ("'=b" if ending == "csv" else "=b")


def test_unknown_file_endings_and_missing_folders_give_messages(tmp_path: Path) -> None:
    with raises(attune.InvalidProblem, "table_format", ".xlsx"):
        Made().save(tmp_path / "out.xlsx")
    with raises(attune.UnknownName, "file_failed", "out.csv"):
        Made().save(tmp_path / "no" / "out.csv")


def test_notebook_tables_are_escaped() -> None:
    shown = Made()._repr_html_()
    assert shown.startswith("<table><caption>Two &lt;rows&gt;</caption>")
    assert "<b>" not in shown


def test_results_have_frames_tables_and_figures() -> None:
    k = attune.kernel("v01", gpu="L4")
    found = attune.recommend_batch(k, seqlen=70, head_dim=32, max_batch=256)
    for result in (k.occupancy(**SMALL), k.predict(**SMALL), k.machine_code(**SMALL), found):
        assert len(result.to_frame()) >= 1
        assert result._repr_html_().startswith("<table>")
        assert len(result.plot().data[0].x) >= 1
    assert len(found.plot().data[0].x) == len(found.table)
    shares = k.machine_code(**SMALL).plot().data[0].x
    assert 0 < sum(shares) <= 100.5


def test_a_batch_of_the_backward_pass_follows_from_its_passes_simulated() -> None:
    sizes = {"gpu": "A100 80GB SXM", "seqlen": 70, "head_dim": 32, "max_batch": 3}
    found = attune.recommend_batch("v24", **sizes, direction="backward")
    assert (found.problem.direction, found.method) == ("backward", "machine code")
    assert [r.target for r in found.recommendations] == [0.7, 0.9, 0.95]
    # All three take one round of CTAs, so the largest batch has the best throughput.
    assert list(found.table["batch"]) == [1, 2, 3]
    assert found.recommendations[-1].enough_batch == 3
    for name, given in (("v24", {}), ("v01", {"direction": "backward"})):
        with raises(attune.InvalidProblem, "launch_not_taken", "backward"):
            attune.recommend_batch(name, **sizes, **given)


def test_comparing_evaluations_of_two_kernels_shows_both() -> None:
    one = attune.kernel("v01", gpu="L4").check(**SMALL)
    made = attune.compare(one, [one])
    assert made.to_frame()["speedup"].tolist() == [1.0]
    assert not made.is_worse
    assert made.tables()
    assert list(made.plot().data[0].x) == [1.0]
    assert one.latency is not None
    bar = one.plot().data[0]
    assert (list(bar.x), list(bar.y)) == ([one.latency.median_us], ["v01"])
    ends = bar.error_x.arrayminus[0], bar.error_x.array[0]
    assert ends == (bar.x[0] - one.latency.low_us, one.latency.high_us - bar.x[0])


@pytest.mark.gpu
def test_cupy_arrays_stay_on_the_gpu() -> None:
    if (why := why_not_cuda()) is not None:
        pytest.skip(why)
    import cupy as cp

    drawn = np.random.default_rng(1).standard_normal((3, 1, 2, 70, 32)).astype(np.float16)
    out = attune.kernel("v01").run(*(cp.asarray(x) for x in drawn), causal=True)
    assert isinstance(out, cp.ndarray)
    q, k, v = (torch.from_numpy(x) for x in drawn)
    error = torch.from_numpy(cp.asnumpy(out)).double() - attention(q, k, v, causal=True)
    assert error.abs().max().item() < 0.002
