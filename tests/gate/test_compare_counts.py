"""Machine code in a comparison: by counts stored in sessions, or from their sources."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sessions_data import evaluation_maker
from words import says

from engine.attention.evaluation import CodeCounts, Latency
from engine.attention.problem import Problem
from engine.cli import main
from engine.sessions.compare import SessionComparison, compare_sessions
from engine.sessions.compare.formats import change_of, to_dict
from engine.sessions.rerun import uncounted, with_counts
from engine.sessions.session import make_snapshot, make_source
from engine.sessions.snapshot import Snapshot, dumps, loads
from engine.versions.figures import LABELS, GateVerdict
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR

VARIANT = by_id("v08")
TEXT = VARIANT.source.read_text()
COUNTS = CodeCounts("a" * 64, 1_000, 2_000, 0, 500, 800, 0)


def session(text: str, *, with_source: bool = True, **changes: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "variant": "v08",
        "problem": Problem(1, 2, 128, 64),
        "config": VARIANT.default_config(),
        "device": "L4",
        "source_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "latency": None,
    }
    headers = [make_source(p.name, p.read_text(), ()) for p in KERNELS_DIR.glob("*.cuh")]
    sources = [make_source(VARIANT.source.name, text, ()), *headers] if with_source else []
    made = evaluation_maker(**(fields | changes))
    return make_snapshot([made], environment={"gpus": []}, sources=sources)


def counted(**changes: Any) -> Snapshot:
    return session(TEXT, counts=replace(COUNTS, **changes))


def verdicts(comparison: SessionComparison) -> list[str]:
    return [str(each["verdict"]) for each in to_dict(comparison)["verdicts"]]


@pytest.mark.parametrize(
    ("after", "expected", "code"),
    [
        (counted(), GateVerdict.SAME_CODE, 0),
        (counted(code_sha256="b" * 64), GateVerdict.NOT_JUDGED, 3),  # no times
        (counted(code_sha256="b" * 64, conflicts=900), GateVerdict.COUNTED_WORSE, 1),
        (counted(code_sha256="b" * 64, instructions=1_500), GateVerdict.COUNTED_BETTER, 0),
    ],
)
def test_counts_that_sessions_hold_are_compared(after: Snapshot, expected: str, code: int) -> None:
    sessions = {"a": counted(), "b": after}
    assert not uncounted(compare_sessions(sessions), sessions)
    comparison = compare_sessions(sessions)
    assert verdicts(comparison) == [expected]
    assert comparison.exit_code == code


def test_counts_decide_if_times_are_too_close() -> None:
    def simulated(us: float, **changes: Any) -> Snapshot:
        why = "By machine code: simulated."
        taken = Latency("predicted", us, 0.9 * us, 1.1 * us, why)
        return session(TEXT, latency=taken, counts=replace(COUNTS, **changes))

    sessions = {
        "a": simulated(50.0),
        "b": simulated(53.0, code_sha256="b" * 64, instructions=1_500),
    }
    (row,) = compare_sessions(sessions).rows
    assert (row.verdict, row.is_too_near) == (GateVerdict.COUNTED_BETTER, True)
    change = change_of(row) or ""
    assert "1.06× slower" in change
    assert "13%" in change
    assert says(row.reason, "recorded_pairs_times")
    assert LABELS["instructions"] in row.reason


def test_a_file_with_counts_is_the_same_when_opened() -> None:
    made = counted()
    assert made.evaluations[0].counts is not None
    assert loads(dumps(made), name="x") == made


@pytest.mark.slow
def test_the_sources_of_both_sessions_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = session(TEXT)

    def code_of(after: Snapshot) -> int:
        files = []
        for name, snapshot in (("a", before), ("b", after)):
            file = tmp_path / f"{name}.json"
            file.write_bytes(dumps(snapshot, compress=False))
            files.append(str(file))
        return main(["compare", *files])

    assert code_of(session(TEXT + "\n// a comment\n")) == 0
    assert GateVerdict.SAME_CODE in capsys.readouterr().out
    padded = "ROW_STRIDE = HEAD_DIM + VECTOR"
    assert padded in TEXT
    assert code_of(session(TEXT.replace(padded, "ROW_STRIDE = HEAD_DIM"))) == 1
    assert GateVerdict.COUNTED_WORSE in capsys.readouterr().out
    assert code_of(session(TEXT.replace("__global__", "__globule__"))) == 3
    assert says(capsys.readouterr().err, "kernel_not_counted")


def test_a_session_without_its_source_is_not_judged() -> None:
    sessions = {"a": session(TEXT), "b": session(TEXT, with_source=False)}
    comparison = compare_sessions(sessions)
    assert [each.session for each in uncounted(comparison, sessions)] == ["a"]
    assert with_counts(sessions, {("a", 0): "It does not compile."}) == sessions
    assert verdicts(comparison) == [GateVerdict.NOT_JUDGED]
    assert comparison.exit_code == 3
