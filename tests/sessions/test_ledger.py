"""The ledger: predictions are stored when made and scored once a time is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from compare_data import evaluation, latency, session
from words import says

from engine.attention.evaluation import Evaluation, Latency
from engine.cli import main
from engine.history.history import log_prediction, predictions, predictions_path
from engine.history.known_time import KnownTime, times_of
from engine.sessions.known_times import ledger_table, score
from engine.sessions.store import default_store

SHA = "ab" * 32
PREDICTED = Latency("predicted", 110.0, 80.0, 150.0, "one CTA binds")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ATTUNE_SESSIONS", str(tmp_path / "store"))


def run(
    when: str = "2026-01-01T00:00:00+00:00", sha256: str = SHA, us: float = 100.0
) -> Evaluation:
    return evaluation(latency=latency(us), when=when, source_sha256=sha256)


def timed(*evaluations: Evaluation) -> tuple[KnownTime, ...]:
    return times_of(evaluations, session="measured")


def test_a_prediction_is_scored_by_the_time_that_came_later() -> None:
    log_prediction(run(), PREDICTED)
    ledger = score(predictions(), timed(run("2026-02-01T00:00:00+00:00")))
    (found,) = ledger.counted
    assert found.ratio == pytest.approx(1.1)
    assert found.is_inside
    assert ledger.waiting == 0
    assert says(ledger.reason, "times_lie_inside", "1", "1")
    assert says(ledger.reason, "times_lie_inside", "10%")
    missed = score(predictions(), timed(run("2026-02-01T00:00:00+00:00", us=200.0)))
    assert not missed.counted[0].is_inside
    assert list(ledger_table(missed).frame()["inside"]) == ["no"]


def test_a_repeated_prediction_is_logged_once() -> None:
    for _ in range(3):
        log_prediction(run(), PREDICTED)
    log_prediction(replace(run(), config={"num_splits": 8}), PREDICTED)
    assert len(predictions()) == 2
    ledger = score(predictions(), timed(run("2026-02-01T00:00:00+00:00")))
    assert (len(ledger.scores), ledger.waiting) == (1, 1)


def test_the_last_prediction_before_the_time_counts() -> None:
    late = replace(PREDICTED, median_us=120.0)
    last = replace(PREDICTED, median_us=90.0)
    log_prediction(run("2026-01-01T00:00:00+00:00"), PREDICTED)
    log_prediction(run("2026-01-02T00:00:00+00:00"), last)
    log_prediction(run("2026-03-01T00:00:00+00:00"), late)
    (found,) = score(predictions(), timed(run("2026-02-01T00:00:00+00:00"))).scores
    assert found.prediction.latency.median_us == 90.0


@pytest.mark.parametrize(
    ("taken", "remark"),
    [
        (run("2026-02-01T00:00:00+00:00", sha256="cd" * 32), "another source"),
        (run("2026-02-01T00:00:00+00:00", sha256=""), "source not recorded"),
        (run("2025-12-01T00:00:00+00:00"), "predicted afterwards"),
    ],
)
def test_inconclusive_predictions_are_listed_but_not_counted(
    taken: Evaluation, remark: str
) -> None:
    log_prediction(run(), PREDICTED)
    ledger = score(predictions(), timed(taken))
    assert not ledger.counted
    assert ledger.scores[0].remark == remark
    assert says(ledger.reason, "prediction_measured_yet")
    table = ledger_table(ledger)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    if remark == "predicted afterwards":
        assert (row["timed kernel"], row["predicted / time"]) == ("v05 (source abababab)", "1.1")
    else:  # another kernel's time: no ratio, and not the variant's name
        assert row["timed kernel"] in ("v05 (source cdcdcdcd)", "measured kernel (given as v05)")
        assert (row["predicted / time"], row["inside"]) == (None, None)


def test_damaged_lines_and_a_full_disk_are_tolerated(tmp_path: Path) -> None:
    log_prediction(run(), PREDICTED)
    with predictions_path().open("a") as file:
        file.write('{"when": 1}\n["x"]\nhalf a li')
    assert len(predictions()) == 1
    (tmp_path / "data").rename(tmp_path / "away")
    (tmp_path / "data").write_text("a file where the folder should be")
    log_prediction(run(), PREDICTED)


@pytest.mark.slow
def test_the_command_line_and_the_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["evaluate", "v01", "--seqlen", "32", "--head-dim", "32", "--gpu", "L4", "--json"]
    assert main(argv) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["predictions"]) == 0
    assert says(capsys.readouterr().out, "prediction_waits", "1")
    (prediction,) = predictions()
    measured = replace(
        evaluation(latency=latency(prediction.latency.median_us)),
        variant="v01",
        config=dict(prediction.config),
        problem=prediction.problem,
        source_sha256=made["source_sha256"],
        when="2999-01-01T00:00:00+00:00",
    )
    default_store().save(session(measured))
    assert main(["predictions", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["scores"]
    assert found["counts"]
    assert found["ratio"] == pytest.approx(1.0)
