"""`bench`: without a GPU, its options, and the file it writes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from words import raises, says

from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, Status, UnknownName
from engine.cli import main
from engine.cli.bench import _as_dict, _print_result, parse_entrant
from engine.measure.statistics import Comparison, Verdict
from engine.pipeline.bench import BenchLine, BenchResult, Entrant
from engine.sessions.lookup import export_evaluations

PROBLEM = Problem(1, 8, 128, 64)


@pytest.mark.parametrize("preset", ["small", "large", "decode"])
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_bench_without_a_gpu_gives_one_sentence_and_no_time(
    preset: str,
    extra: list[str],
    capsys: pytest.CaptureFixture[str],
    set_local_gpu: Callable[..., None],
) -> None:
    why = "No NVIDIA driver is installed here."
    set_local_gpu(why)
    assert main(["bench", "--against", "sdpa", "--preset", preset, *extra]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"error: {why}\n"
    told = json.loads(captured.out)["error"]["kind"] if extra else captured.out
    assert told == ("ToolMissing" if extra else "")


def test_an_existing_output_file_is_reported_before_measuring(
    set_local_gpu: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_local_gpu()
    out = tmp_path / "there.json"
    out.write_text("precious")
    assert main(["bench", "--preset", "small", "--out", str(out)]) == 2
    assert says(capsys.readouterr().err, "file_exists", out.name)
    assert out.read_text() == "precious"
    assert main(["bench", "--preset", "small", "--out", str(tmp_path / "no" / "a.json")]) == 2
    assert says(capsys.readouterr().err, "folder_missing", str(tmp_path / "no"))


@pytest.mark.parametrize(
    ("options", "name", "facts"),
    [
        (["--preset", "small", "--variant", "v0l"], "unknown_name", ("'v0l'",)),
        (["--preset", "small", "--variant", "v05:splits"], "variant_option_form", ()),
    ],
)
def test_bad_usage(
    options: list[str],
    name: str,
    facts: tuple[str, ...],
    set_local_gpu: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_local_gpu()
    assert main(["bench", *options]) == 2
    assert says(capsys.readouterr().err, name, *facts)


def test_zero_seconds_are_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--preset", "small", "--seconds", "0"]) == 2
    assert says(capsys.readouterr().err, "positive_form", "--seconds", "0")


def test_entrants_of_a_benchmark() -> None:
    assert parse_entrant("v02") == Entrant("v02", {})
    found = parse_entrant("v05_kv_split:num_splits=4,block_n=64")
    assert found == Entrant("v05", {"num_splits": 4, "block_n": 64})
    assert found.name == "v05 num_splits=4 block_n=64"
    with pytest.raises(InvalidProblem):
        parse_entrant("v05:num_splits=four")
    with pytest.raises(UnknownName):
        parse_entrant("w05")


def latency(time_us: float) -> Latency:
    samples = (0.99 * time_us, time_us, 1.01 * time_us)
    return Latency("measured", time_us, samples[0], samples[2], "so", samples_us=samples)


def line(name: str, time_us: float | None, comparison: Comparison | None) -> BenchLine:
    found = latency(time_us) if time_us else None
    return BenchLine(
        *(name, not name.startswith("v"), found, found, None),
        *(1.25, 0.5, 420.4 if time_us else None, comparison, "refused"),
    )


FASTER = Comparison(Verdict.FASTER, 0.5, 0.49, 0.51, 0.001, 30, "50.0 % faster")
UNDECIDED = Comparison(Verdict.UNDECIDED, math.nan, math.nan, math.nan, 0.001, 2, "too few")


def result() -> BenchResult:
    lines = (
        line("v02", 5.0, FASTER),
        line("cudnn", 10.0, None),
        line("math", 90.0, UNDECIDED),
        line("flash", None, None),
    )
    return BenchResult(PROBLEM, "H200", lines, "cudnn", (), ("a note",), "enough", "")


def test_the_table_has_the_ratio_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    _print_result(result())
    out = capsys.readouterr().out
    assert "B1 H8 S128 D64 fp16 on H200, measured" in out
    (ours,) = [x for x in out.splitlines() if x.lstrip().startswith("v02")]
    assert "2.000×" in ours
    assert "1.961 – 2.041" in ours
    assert "50.0%" in ours
    assert "420" in ours
    (best,) = [x for x in out.splitlines() if "SDPA cudnn" in x]
    assert says(best, "best_sdpa")
    assert "nan" not in out
    assert "flash: refused" in out
    assert says(out, "note_line", "a note")


def test_json_has_the_ratio_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    from engine.cli.output import print_json

    print_json(_as_dict(result()))
    found = json.loads(capsys.readouterr().out)
    ours, _, undecided, refused = found["lines"]
    assert ours["against_best"]["speedup"] == 2.0
    assert ours["origin"] == "measured"
    assert undecided["against_best"]["speedup"] is None
    assert (refused["device_us"], refused["reason"]) == (None, "refused")


EVALUATION = Evaluation(
    status=Status.SKIPPED,
    reason="It was \x1b[31mnot\x1b[0m executed.",
    variant="v02",
    problem=PROBLEM,
    config={"block_n": 64},
    device="H200",
    when="2026-01-01T00:00:00+00:00",
    latency=latency(5.0),
    log="x" * 100_000,
)


def test_a_snapshot_opens_again(tmp_path: Path) -> None:
    from engine.sessions.snapshot import loads

    for name in ("a.json", "a.json.gz"):
        path = tmp_path / name
        said = export_evaluations(path, [EVALUATION], "bench small")
        assert says(said, "wrote_snapshot", str(path))
        (found,) = loads(path.read_bytes(), name=name).opened()
        assert found.latency is not None
        assert (found.latency.median_us, found.latency.origin) == (5.0, "recorded")
    with raises(InvalidProblem, "file_exists"):
        export_evaluations(path, [EVALUATION], "again")
    with raises(UnknownName, "file_failed", "a.json"):
        export_evaluations(tmp_path / "no" / "a.json", [EVALUATION], "nowhere")


def test_a_journal_can_be_read_as_a_session(tmp_path: Path) -> None:
    from engine.sessions.session import Session

    path = tmp_path / "a.json.jsonl"
    said = export_evaluations(path, [EVALUATION, replace(EVALUATION, log="")], "bench small")
    assert str(path) in said
    session = Session(path)
    assert session.damaged_lines == 0
    assert session.title == "bench small"
    assert [e.config for e in session.evaluations] == [{"block_n": 64}] * 2
    assert "\x1b" not in session.evaluations[0].reason
    assert session.to_snapshot().opened()[0].latency is not None
