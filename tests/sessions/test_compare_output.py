"""A comparison as tables, JSON, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import json

import pytest
from compare_data import evaluation, session, source
from words import says

from engine.base.errors import Status
from engine.sessions.compare import SessionComparison, compare_sessions
from engine.sessions.compare.formats import (
    environment_table,
    rows_frame,
    to_csv,
    to_dict,
    to_markdown,
    unmatched_frame,
    winners_frame,
)


@pytest.fixture
def mixed() -> SessionComparison:
    a = session(
        evaluation(),
        evaluation(seqlen=256),
        evaluation(seqlen=512),
        sources=[source("a | b\n```\n")],
    )
    b = session(
        evaluation(50.0),
        evaluation(150.0, seqlen=256),
        evaluation(None, seqlen=512, status=Status.CRASHED, reason="=SUM(A1) | <b>boom</b>"),
        evaluation(seqlen=1024),
        sources=[source("a | c\n```\n")],
        torch="2.10.0",
    )
    return compare_sessions({"monday": a, "=cmd()": b})


class TestOutput:
    def test_frames_of_a_comparison(self, mixed: SessionComparison) -> None:
        rows = rows_frame(mixed)
        assert rows["verdict"].tolist() == ["BROKEN", "SLOWER", "FASTER"]
        assert rows["regressed"].tolist() == [True, True, False]
        assert rows["problem"].tolist()[2] == "B1 H1 S128 D64 fp16"
        assert [row[0] for d in mixed.differences for row in environment_table(d).rows] == ["torch"]
        assert winners_frame(mixed)["winner"].tolist() == ["v05"] * 4
        assert len(unmatched_frame(mixed)) == 1

    def test_empty_frames_keep_their_columns(self) -> None:
        empty = compare_sessions({"a": session()})
        for frame in (rows_frame(empty), winners_frame(empty), unmatched_frame(empty)):
            assert frame.empty
            assert len(frame.columns) >= 5

    def test_the_object_is_valid_json(self, mixed: SessionComparison) -> None:
        data = json.loads(json.dumps(to_dict(mixed), allow_nan=False))
        assert list(data)[3] == "differences"
        assert len(data["regressions"]) == 2
        assert data["rows"][1]["verdict"] == "SLOWER"
        assert data["rows"][0]["broken"] is True
        assert data["winners"][0]["best"]["variant"] == "v05"

    def test_csv_is_one_row_per_evaluation_and_no_formula(self, mixed: SessionComparison) -> None:
        rows = list(csv.DictReader(io.StringIO(to_csv(mixed))))
        assert len(rows) == 3
        assert {row["session"] for row in rows} == {"'=cmd()"}
        assert float(rows[1]["time_us"]) == 150.0

    def test_markdown_puts_differences_and_regressions_first(
        self, mixed: SessionComparison
    ) -> None:
        text = to_markdown(mixed)
        headings = [line for line in text.splitlines() if line.startswith("#")]
        first, differences, regressions, rows, *problems, winners, rest = headings
        assert first.endswith(" against monday")
        assert says(differences, "what_differs")
        assert says(regressions, "what_got_worse")
        assert says(rows, "table_of_evaluations")
        assert problems == [f"## B1 H1 S{seqlen} D64 fp16 on L4" for seqlen in (512, 256, 128)]
        assert says(winners, "fastest_kernel")
        assert says(rest, "in_one_session_only")
        assert "    -a | b" in text
        assert "    +a | c" in text
        assert "<b>boom" not in text
        widths = {
            line.replace("\\|", "").count("|")
            for line in text.split(regressions)[1].split(rows)[0].splitlines()
            if line.startswith("|")
        }
        assert widths == {6}

    def test_markdown_of_equal_sessions_gives_a_note(self) -> None:
        same = compare_sessions({"a": session(evaluation()), "b": session(evaluation())})
        assert says(to_markdown(same), "no_difference_of_sessions")
