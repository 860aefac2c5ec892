"""Exporting times as files of other tools, which import to the same times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from compare_data import evaluation, latency, session
from importing import imported
from words import raises, says

from engine.base.errors import InvalidProblem, Status
from engine.cli import main
from engine.sessions.exporters import Format, exported
from engine.sessions.snapshot import dumps
from engine.sessions.store import default_store

MEASURED = (
    evaluation(100.0, config={"num_splits": 4}),
    evaluation(60.0, seqlen=256, config={"num_splits": 8}),
)


@pytest.mark.parametrize("form", get_args(Format))
def test_exported_times_are_imported_unchanged(form: str) -> None:
    made = json.loads(exported(session(*MEASURED), form))
    back = imported(made)
    assert [(e.variant, e.device, e.problem) for e in back] == [
        (e.variant, e.device, e.problem) for e in MEASURED
    ]
    assert [e.config["num_splits"] for e in back] == [4, 8]
    for one, before in zip(back, MEASURED, strict=True):
        assert one.latency is not None
        assert before.latency is not None
        assert one.latency.median_us == pytest.approx(before.latency.median_us, rel=0.01)
    if form == "kernel-tuner":
        assert back[0].latency.samples_us == pytest.approx(MEASURED[0].latency.samples_us)


def test_a_failure_is_an_error_of_the_cache() -> None:
    failed = evaluation(None, status=Status.COMPILE_ERROR, reason="No.", config={"num_splits": 2})
    made = json.loads(exported(session(MEASURED[0], failed), "kernel-tuner"))
    assert [entry["time"] for entry in made["cache"].values()][1] == "CompilationFailedConfig"


@pytest.mark.parametrize("form", get_args(Format))
def test_a_prediction_is_not_written_as_a_time(form: str) -> None:
    guess = evaluation(latency=latency(50.0, origin="predicted"))
    with raises(InvalidProblem, "only_predicted_times"):
        exported(session(guess), form)
    other = evaluation(80.0, config={"num_splits": 8})
    assert len(imported(json.loads(exported(session(guess, other), form)))) == 1


def test_a_cache_is_of_one_kernel() -> None:
    both = session(MEASURED[0], evaluation(50.0, variant="v01", config={}))
    with raises(InvalidProblem, "export_of_several_kernels", "v01, v05"):
        exported(both, "kernel-tuner")
    assert json.loads(exported(both, "kernel-tuner", "v01"))["kernel_name"] == "v01"
    assert len(json.loads(exported(both, "nvbench"))["benchmarks"]) == 2


@pytest.mark.parametrize("form", get_args(Format))
def test_times_of_another_kernel_have_its_name(form: str) -> None:
    """The two kernels of the L4 study, 543 and 579 µs at one problem, stay apart."""
    (study,) = (i for i in default_store().list() if i.shipped and "L4" in i.title)
    snapshot = default_store().open(study.name)
    names = {f"L4 study kernel (series: {series})" for series in ("length", "batch")}
    if form == "nvbench":
        made = json.loads(exported(snapshot, form))
        assert {each["name"] for each in made["benchmarks"]} == names
        return
    for name in names:
        made = json.loads(exported(snapshot, form, name))
        assert made["kernel_name"] == name
        assert made["cache"]["1,1,128,64,0,float16,64"]["time"] in (0.543, 0.579)
    with raises(InvalidProblem, "export_of_several_kernels", *sorted(names)):
        exported(snapshot, form, "v01")


def test_the_export_command_writes_a_file_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "a.json", tmp_path / "cache.json"
    file.write_bytes(dumps(session(*MEASURED)))
    command = ["sessions", "export", str(file), "--as", "kernel-tuner", "-o", str(out)]
    assert main(command) == 0
    assert json.loads(out.read_text())["kernel_name"] == "v05"
    assert main(command) == 2
    assert says(capsys.readouterr().err, "file_exists")
