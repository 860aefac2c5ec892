"""Journals of a machine that only measures are imported as snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from words import raises

from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.base.errors import SnapshotError
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest
from engine.search.ranking import SweepRow
from engine.search.space import Space, SweepOptions
from engine.search.sweep.journal import SweepJournal, SweepSpec
from engine.sessions.importers import ImportOptions, import_measurements
from engine.sessions.lookup import export_evaluations

REQUEST = EvaluationRequest("v01", Problem(1, 1, 64, 64), gpu="L4", execute=False)
SPEC = SweepSpec(
    Space(("v01",), (REQUEST.problem,)), SweepOptions(gpu="L4", backend="cpu", execute=False)
)


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return evaluate(REQUEST).evaluation


def read(path: Path, **options: Any) -> Any:
    return import_measurements(path.read_bytes(), name=path.name, options=ImportOptions(**options))


def test_a_session_with_its_environment_and_sources(tmp_path: Path, evaluation: Evaluation) -> None:
    path = tmp_path / "bench.jsonl"
    export_evaluations(path, [evaluation], "bench small on H200")
    snapshot = read(path)
    assert snapshot.title == "bench small on H200"
    assert snapshot.environment.python is not None
    assert [e.variant for e in snapshot.opened()] == ["v01"]
    names = [source.name for source in snapshot.sources]
    assert "v01_fa1_baseline.cu" in names
    assert read(path, title="mine").title == "mine"


def test_a_sweep_with_every_point_once(tmp_path: Path, evaluation: Evaluation) -> None:
    book = SweepJournal(tmp_path / "sweep.jsonl")
    book.begin(SPEC)
    points = SPEC.space.points(SPEC.options)
    for point in [*points, points[0]]:
        book.add(point, SweepRow.make(point, evaluation, 0.1))
    book.end("finished")
    snapshot = read(book.path, title="night run")
    assert snapshot.title == "night run"
    assert len(snapshot.evaluations) == len(points)
    assert snapshot.environment.driver is None  # a sweep's journal does not record it


def test_only_a_truncated_last_line_is_lost(tmp_path: Path, evaluation: Evaluation) -> None:
    path = tmp_path / "bench.jsonl"
    export_evaluations(path, [evaluation, evaluation], "cut")
    path.write_bytes(path.read_bytes()[:-200])
    assert len(read(path).evaluations) == 1


@pytest.mark.parametrize(
    ("lines", "code", "place"),
    [
        ([{"kind": "start"}], "journal_empty", ""),
        (
            [{"kind": "start"}, {"kind": "evaluation", "evaluation": {"status": "FINE"}}],
            "enum",
            "line 2",
        ),
        ([{"kind": "start"}, [1], {"kind": "edit"}], "journal_line_form", "line 2"),
        ([{"kind": "start"}, "{", {"kind": "edit"}], "snapshot_no_json", "line 2"),
        ([{"event": "sweep"}, {"event": "evaluation", "result": None}], "dataclass_type", "line 2"),
    ],
)
def test_an_invalid_line_is_named_by_its_number(lines: list[Any], code: str, place: str) -> None:
    text = "\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines)
    with raises(SnapshotError, code, place) as refused:
        import_measurements(text.encode(), name="j.jsonl")
    assert "\n" not in str(refused.value)
