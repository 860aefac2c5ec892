"""Rooflines: FLOPs, bytes, threads and roofs equal figures computed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from search_data import pass_report
from words import raises, says

from engine.attention.config import find_variant
from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, Status
from engine.cli import main
from engine.devices import find_device
from engine.history import History
from engine.model.kernel import Kernel
from engine.model.roofline import LaunchWork, launch_work, roofline_points, roofs_of
from engine.search.ranking import SweepRow
from engine.search.results import roofline_frame, sweep_roofs
from engine.search.space import Space, SweepOptions
from engine.search.sweep.journal import SweepJournal, SweepSpec
from kernels.variant import Config, ProblemLike

L4 = find_device("L4")
SPEC = SweepSpec(
    Space(("v01", "v08"), (Problem(4, 64, 2048, 64),), {}, own_values=False),
    SweepOptions(gpu="L4", execute=False),
)


def work_of(name: str, problem: Problem, resident: int = 2, **config: int) -> LaunchWork:
    kernel = Kernel.of(name, L4, config)
    return launch_work(kernel, kernel.plan(problem), resident)


def test_one_tile_of_the_baseline_by_hand() -> None:
    work = work_of("v01", Problem(1, 1, 128, 64))
    assert work.flops == 4 * 128 * 128 * 64
    # Two CTAs, each with 64 rows of Q and O and all 128 rows of K and V, 128 bytes a row.
    assert work.l2_bytes == 2 * (2 * 64 + 2 * 128) * 128
    assert work.kv_l2_loads == 2
    assert (work.dram_bytes, work.kv_dram_loads) == (0, 0)
    assert work.least_bytes == 4 * 128 * 128
    assert (work.computing_threads, work.threads) == (2 * 64, 2 * 256)
    assert work.intensity("DRAM") is None
    assert work.intensity("L2") == pytest.approx(work.flops / work.l2_bytes)
    assert says(work.dram_method, "nothing_comes_dram")


def test_keys_past_the_end_are_not_loaded() -> None:
    assert work_of("v01", Problem(1, 1, 65, 64)).kv_l2_loads == 2  # two query tiles, 65 keys each


def test_the_order_of_ctas_decides_how_often_dram_gives_the_keys() -> None:
    problem = Problem(4, 64, 2048, 64)
    tiles_first = find_variant("v08")
    (only,) = tiles_first.passes

    def heads_before_tiles(p: ProblemLike, config: Config) -> tuple[int, int, int]:
        tiles, heads, batch = only.grid(p, config)
        return heads, batch, tiles

    heads_first = replace(tiles_first, passes=(replace(only, grid=heads_before_tiles),))
    again, once = (
        launch_work(kernel, kernel.plan(problem), 3)
        for kernel in (Kernel.of(v, L4) for v in (heads_first, tiles_first))
    )
    assert again.by_order
    assert again.kv_dram_loads == pytest.approx(32)  # each query tile streams them again
    assert once.kv_dram_loads == pytest.approx(1)
    assert once.dram_bytes == pytest.approx(problem.io_bytes)
    assert again.dram_bytes > 15 * once.dram_bytes


def test_an_unknown_order_loads_every_byte_once() -> None:
    problem = Problem(64, 32, 1, 128, seqlen_kv=8192, num_heads_kv=4)
    work = work_of("v14", problem)
    assert not work.by_order
    assert work.kv_dram_loads == 1
    assert says(work.dram_method, "every_byte_once")


def test_ctas_of_empty_splits_compute_nothing() -> None:
    work = work_of("v05", Problem(1, 1, 128, 64), num_splits=32)
    assert work.computing_share == pytest.approx(4 / 64)  # 2 tiles x 2 chunks have keys


def test_shared_heads_are_loaded_by_every_query_head() -> None:
    own = Problem(1, 32, 1024, 64)
    shared = replace(own, num_heads_kv=8)
    assert work_of("v08", shared).kv_l2_loads == 4 * work_of("v08", own).kv_l2_loads


def test_roofs_are_those_of_the_math_unit_that_the_kernel_uses() -> None:
    scalar = roofs_of(L4, find_variant("v01"), "float16")
    tensor = roofs_of(L4, find_variant("v08"), "bfloat16")
    assert (scalar.math_name, scalar.math_tflops) == ("FP32 FMA", pytest.approx(30.3))
    assert (tensor.math_name, tensor.math_tflops) == ("BF16 tensor cores", pytest.approx(121))
    assert scalar.dram_gb_per_s == pytest.approx(300)
    assert scalar.ridge("DRAM") == pytest.approx(101)
    # Below the ridge bandwidth is the roof, beyond it the math unit.
    assert scalar.attainable_tflops("DRAM", 10.1) == pytest.approx(3.03)
    assert scalar.attainable_tflops("DRAM", 1e4) == pytest.approx(30.3)


def test_a_gpu_without_figures_gives_a_one_sentence_error() -> None:
    with raises(InvalidProblem, "not_predicted"):
        roofs_of(replace(L4, memory_gb_per_s=None), find_variant("v01"), "float16")


def test_a_point_uses_the_given_time() -> None:
    problem = Problem(4, 64, 2048, 64)
    work, roofs = work_of("v08", problem), roofs_of(L4, find_variant("v08"), "float16")
    l2, dram = roofline_points(roofs, work, [(4000.0, "recorded")])
    assert (l2.level, dram.level) == ("L2", "DRAM")
    assert l2.tflops == dram.tflops == pytest.approx(problem.flops / 4000e-6 / 1e12)
    assert dram.intensity == pytest.approx(1024, rel=1e-3)
    assert dram.share == pytest.approx(dram.tflops / 121)
    assert dram.origin == "recorded"


@pytest.fixture(name="rows")
def _rows() -> list[SweepRow]:
    """Return a point of each of two kernels, one without a time, and one of an unknown kernel."""
    rows = []
    for point in SPEC.space.points(SPEC.options):
        evaluation = Evaluation(
            status=Status.SKIPPED,
            reason="Not executed.",
            variant=point.request.variant,
            problem=point.request.problem,
            config=dict(point.request.config),
            device="L4",
            when="2026-01-01T00:00:00+00:00",
            passes=(pass_report(registers=128),),  # two CTAs per SM
            latency=Latency("predicted", 4000.0, 3000.0, 5000.0, "made up"),
        )
        rows.append(SweepRow.make(point, evaluation, 0.1))
    return [*rows, replace(rows[0], interval=None), replace(rows[0], variant="gone")]


def test_a_sweep_has_a_line_for_each_timed_point_and_level(rows: list[SweepRow]) -> None:
    frame = roofline_frame(rows)
    assert list(zip(frame["variant"], frame["level"], strict=True)) == [
        ("v01", "L2"), ("v01", "DRAM"), ("v08", "L2"), ("v08", "DRAM"),
    ]  # fmt: skip
    assert frame["kv_loads"].round().tolist() == [32, 1, 32, 1]
    assert [r.math_name for r in sweep_roofs(rows)] == ["FP32 FMA", "FP16 tensor cores"]


def test_the_command_line_prints_a_sweeps_points(
    rows: list[SweepRow], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = SweepJournal(tmp_path / "sweep.jsonl")
    book.begin(SPEC)
    for point, row in zip(SPEC.space.points(SPEC.options), rows, strict=False):
        book.add(point, row)
    assert main(["roofline", "--sweep", str(book.path), "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert len(out["points"]) == 4
    assert out["roofs"][0]["ridge"]["DRAM"] == pytest.approx(101)
    assert main(["roofline", "--sweep", str(book.path), "--csv"]) == 0
    assert capsys.readouterr().out.startswith("point,device,variant,label,problem,level")
    assert main(["roofline", "--sweep", str(book.path)]) == 0
    out = capsys.readouterr().out
    assert not says(out, "every_byte_once")
    assert says(out, "by_the_order")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "variant_or_sweep"),
        (["v01", "--sweep", "x.jsonl"], "variant_or_sweep"),
        (["v01", "--gpu", "L4", "--csv"], "csv_of_a_sweep"),
        (["v12", "--gpu", "L4", "--seqlen", "4096"], ""),  # the constraint of v12's description
    ],
)
def test_bad_usage_gives_a_one_sentence_error(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roofline", *arguments]) == 2
    said = capsys.readouterr().err
    assert says(said, name) if name else "v12" in said and "4,096" in said


def test_the_command_line_prints_one_kernel(
    capsys: pytest.CaptureFixture[str], set_history: Callable[[object], None]
) -> None:
    set_history(History().doing("compile"))
    assert main(["roofline", "v01", "--gpu", "L4", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["work"]["kv_l2_loads"] == 2
    assert out["work"]["computing_threads"] / out["work"]["threads"] == 0.25
    (point,) = out["points"]
    assert (point["level"], point["origin"]) == ("L2", "predicted")
    assert point["tflops"] == pytest.approx(out["work"]["flops"] / point["time_us"] / 1e6)
