"""CSV of measured points: accepted forms, and errors that name line and column."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from words import raises

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, UnknownName
from engine.model.measured_points import (
    MAX_CHARS,
    MAX_ROWS,
    parse_measurements,
    read_measurements,
)

HEADER = "batch,num_heads,seqlen,head_dim,kernel_ms\n"


def test_the_series_of_the_l4_study_are_read(reference_csv: Path) -> None:
    points = read_measurements(reference_csv)
    assert [p.series for p in points] == ["length"] * 5 + ["batch"] * 3
    first, last = points[0], points[-1]
    assert first.problem == Problem(1, 1, 4, 4)
    assert (first.measured_us, first.sdpa_us, first.ctas) == (10.0, 81.0, 1)
    assert last.problem == Problem(32, 8, 128, 64)
    assert (last.measured_us, last.sdpa_us, last.ctas) == (3624.0, None, 512)
    assert last.line == 12
    assert last.place == "line 12"


def test_optional_columns_and_order_do_not_matter() -> None:
    text = (
        "\ufeff# a comment\n\nkernel_ms, dtype ,causal,head_dim,seqlen,num_heads,batch,note\n"
        '0.5,bfloat16,TRUE,64,128,4,2,"one, two"\n'
    )
    (point,) = parse_measurements(text)
    assert point.problem == Problem(2, 4, 128, 64, causal=True, dtype="bfloat16")
    assert point.measured_us == 500.0
    assert (point.line, point.ctas, point.series) == (4, None, "")


@pytest.mark.parametrize(
    ("text", "code", "facts"),
    [
        ("", "csv_empty", []),
        ("# only comments\n", "csv_empty", []),
        (HEADER, "csv_no_rows", []),
        ("batch;num_heads;seqlen;head_dim;kernel_ms\n1;1;1;4;1\n", "csv_semicolons", ["line 1"]),
        ("a,b\n1,2\n", "csv_column_missing", ["line 1", "'batch'"]),
        (
            HEADER.replace("seqlen", "seq") + "1,1,64,64,1\n",
            "csv_column_missing",
            ["line 1", "'seqlen'"],
        ),
        (
            HEADER.replace("kernel_ms", "kernel_us") + "1,1,64,64,1\n",
            "csv_time_column",
            ["kernel_us"],
        ),
        (HEADER.replace("kernel_ms", "time_s") + "1,1,64,64,1\n", "csv_time_column", ["time_s"]),
        (
            "batch,batch,num_heads,seqlen,head_dim,kernel_ms\n1,1,1,64,64,1\n",
            "csv_column_twice",
            ["batch"],
        ),
        (HEADER + "1,1,64,64\n", "csv_cells", ["line 2", "4 cells", "5 columns"]),
        (HEADER + "1,1,64,64,1,9\n", "csv_cells", ["line 2", "6 cells"]),
        (
            HEADER + "1,1,64,64,-0.5\n",
            "csv_time_not_positive",
            ["line 2", "column kernel_ms"],
        ),
        (
            HEADER + "1,1,64,64,0\n",
            "csv_time_not_positive",
            ["line 2", "column kernel_ms"],
        ),
        (
            HEADER + "1,1,64,64,0.5 ms\n",
            "csv_not_a_time",
            ["line 2", "column kernel_ms"],
        ),
        (HEADER + "1,1,64,64,fast\n", "csv_not_a_time", ["line 2", "column kernel_ms", "'fast'"]),
        (HEADER + "1,1,64,64,\n", "csv_not_a_time", ["line 2", "column kernel_ms"]),
        (HEADER + "1,1,64,64,nan\n", "csv_not_finite", ["line 2", "column kernel_ms"]),
        (HEADER + "1,1,64,64,inf\n", "csv_not_finite", ["line 2", "column kernel_ms"]),
        (HEADER + "1,1,64,64,1e12\n", "csv_time_over_an_hour", ["line 2", "column kernel_ms"]),
        (HEADER + "1,1,64,64,1\n0,1,64,64,1\n", "csv_below_one", ["line 3", "column batch"]),
        (HEADER + "1,-1,64,64,1\n", "csv_not_whole_number", ["line 2", "column num_heads"]),
        (HEADER + "1,1,64.5,64,1\n", "csv_not_whole_number", ["line 2", "column seqlen"]),
        (HEADER + "1,1,64,٦٤,1\n", "csv_not_whole_number", ["line 2", "column head_dim"]),
        (HEADER + "1,1,99999999999,64,1\n", "size_too_large", ["line 2", "seqlen"]),
        (HEADER + f"1,1,64,{'9' * 400},1\n", "csv_not_whole_number", ["line 2", "column head_dim"]),
        (HEADER.strip() + ",ctas\n1,1,64,64,1,0\n", "csv_below_one", ["line 2", "column ctas"]),
        (
            HEADER.strip() + ",sdpa_ms\n1,1,64,64,1,-1\n",
            "csv_time_not_positive",
            ["line 2", "column sdpa_ms"],
        ),
        (
            HEADER.strip() + ",causal\n1,1,64,64,1,maybe\n",
            "csv_not_boolean",
            ["line 2", "column causal"],
        ),
        (HEADER.strip() + ",dtype\n1,1,64,64,1,float8\n", "choice_unknown", ["line 2", "dtype"]),
        (HEADER + "1,1,64,64,1\n" * (MAX_ROWS + 1), "csv_too_many_rows", ["10,000"]),
        ("x" * (MAX_CHARS + 1), "csv_too_long", []),
        (HEADER + "1" * 200_000 + ",1,64,64,1\n", "csv_invalid", ["line 2"]),
    ],
)
def test_errors_name_line_and_column(text: str, code: str, facts: list[str]) -> None:
    with raises(InvalidProblem, code, *facts) as caught:
        parse_measurements(text, "points.csv")
    message = str(caught.value)
    assert message.startswith("points.csv")
    assert message.endswith(".")
    assert len(message) < 400


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"\xff\xfe\x00binary", "csv_not_utf8"), (b"batch\x00,\n", "csv_column_missing")],
    ids=["binary", "nul"],
)
def test_files_that_are_no_csv_are_refused(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "foreign.csv"
    path.write_bytes(content)
    with raises(InvalidProblem, code, "foreign.csv"):
        read_measurements(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.csv", tmp_path):
        with raises(UnknownName, "file_failed", path.name):
            read_measurements(path)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet=string.printable + "é\x00\u2028", max_size=200))
def test_any_text_gives_points_or_a_one_sentence_error(text: str) -> None:
    for body in (text, HEADER + text):
        points, complaint = (), ""
        try:
            points = parse_measurements(body)
        except InvalidProblem as error:
            complaint = str(error)
        assert "\n" not in complaint
        assert bool(points) != bool(complaint)
        assert all(p.measured_us > 0 for p in points)
