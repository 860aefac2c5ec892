"""`recommend-batch` as text: calibration quality, prices, traffic, waiting, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from words import says

from engine.cli import main

STUDY = Path(__file__).parents[1] / "model" / "data" / "l4_fa1_baseline.csv"
V01 = ["recommend-batch", "v01", "--gpu", "L4", "--seqlen", "128"]


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([*V01, *argv]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_model_quality_is_printed_before_figures(capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, "--measured", str(STUDY))
    quality, recommended = words.index("Calibrated on 8"), words.index("Recommended batches")
    assert quality < recommended
    assert says(words, "worst_point_predicted", "12.5%", "line")
    assert says(words, "fit_on_sm", "2 CTAs")


def test_another_kernel_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, "--measured", str(STUDY), "--measured-kernel", "the study's")
    assert says(words, "launched_like", "the study's", "v01", "L4")


def test_prices_and_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    listed = said(capsys, "--requests-per-day", "1e6")
    assert says(listed, "requests_day_tokens", "1 million", "128 million")
    own = said(capsys, "--tokens-per-day", "1.28e8", "--price", "6", "--price", "T4=0.2")
    daily = [text.split("layer: ")[1].split("$")[1].split()[0] for text in (listed, own)]
    assert float(daily[1]) == pytest.approx(10 * float(daily[0]), rel=0.01)


def test_waiting_times_are_a_table_with_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, "--arrivals-per-s", "2000", "--budget-ms", "50")
    assert says(words, "waiting_collect_requests")
    assert words.count("chosen") == 1
    assert says(words, "over_the_budget")


@pytest.mark.parametrize(
    ("options", "name", "facts"),
    [
        (["--price", "L5=1"], "gpu_unknown", ("'L5'",)),
        (["--price", "cheap"], "price_form", ("'cheap'",)),
        (["--price", "L4=-1"], "price_range", ("-1",)),
        (
            ["--queries-per-day", "1", "--tokens-per-day", "1"],
            "see_help",
            ("--tokens-per-day", "--queries-per-day"),
        ),
    ],
)
def test_bad_input_gives_a_one_sentence_error(
    options: list[str], name: str, facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*V01, *options]) == 2
    captured = capsys.readouterr().err
    assert says(captured, name, *facts)
    assert "Traceback" not in captured


@pytest.mark.exhaustive
def test_one_kernel_and_batch_for_a_mix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    traffic = tmp_path / "traffic.csv"
    traffic.write_text("# a day\ncount,B,H,S,D\n1000,1,4,32,32\n")
    mix = ["recommend-batch", "v05", "--gpu", "L4", "-D", "32", "--max-batch", "64", "--json"]
    mix += ["--mix", str(traffic), "--mix", "10,8,4,64", "--price", "2"]
    assert main(mix) == 0
    found = json.loads(capsys.readouterr().out)
    assert {k["kernel"].split("num_splits=")[1] for k in found["kernels"]} >= {"1", "4"}
    assert [p["line"]["problem"]["seqlen"] for p in found["problems"]] == [32, 64]
    # The lines add up to the total, and no other kernel needs fewer hours at this batch.
    hours = sum(p["gpu_hours_per_day"] for p in found["problems"])
    assert hours == pytest.approx(found["hours"])
    assert found["usd_per_day"] == pytest.approx(2 * hours)
    assert min(k["gpu_hours_per_day"] for k in found["kernels"]) == pytest.approx(hours)
    assert found["plateau_hours"] <= hours <= found["plateau_hours"] / 0.9
    for problem in found["problems"]:
        of_line = problem["line"]
        sequences = of_line["count"] * of_line["problem"]["batch"]
        assert problem["launches_per_day"] * found["batch"] == pytest.approx(sequences)


@pytest.mark.parametrize(
    ("options", "name", "facts"),
    [
        (["--mix", "10,8,4"], "mix_line_form", ("'seqlen'",)),
        (["--mix", "10,8,4,x"], "csv_not_whole_number", ("line 1", "seqlen", "'x'")),
        (["--mix", "0,8,4,64"], "csv_not_positive", ("count", "'0'")),
        (["--mix", "1,8,4,64", "--alternatives"], "one_problem_no_mix", ("--alternatives",)),
        (["--mix", "none.csv"], "path_unreadable", ("none.csv",)),
        ([], "seqlen_or_mix", ()),
    ],
)
def test_an_invalid_mix_gives_one_sentence(
    options: list[str], name: str, facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recommend-batch", "v01", "--gpu", "L4", *options]) == 2
    assert says(capsys.readouterr().err, name, *facts)
