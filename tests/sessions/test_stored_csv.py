"""Uploaded tables are stored under a hash of their content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from words import raises

from engine.base.errors import StoreError
from engine.model import measured_points as measurements


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path))


def test_the_same_table_is_one_file() -> None:
    name = measurements.store_csv(b"a,b\n1,2\n")
    assert measurements.store_csv(b"a,b\n1,2\n") == name
    assert measurements.store_csv(b"a,b\n1,3\n") != name
    assert measurements.stored_csv(name) == b"a,b\n1,2\n"
    assert len(list(measurements.csv_folder().iterdir())) == 2


@pytest.mark.parametrize("name", ["", "0" * 16, "../../etc/passwd", "x" * 16, "0" * 15 + "\n"])
def test_a_name_that_is_no_hash_gives_a_message(name: str) -> None:
    with raises(StoreError, "csv_not_kept"):
        measurements.stored_csv(name)


def test_an_unwritable_table_gives_one_sentence() -> None:
    measurements.csv_folder().write_text("in the way")
    with raises(StoreError, "file_failed", str(measurements.csv_folder())):
        measurements.store_csv(b"1")
    with raises(StoreError, "csv_too_large"):
        measurements.store_csv(bytes(measurements.MAX_BYTES + 1))


def test_the_oldest_tables_are_deleted() -> None:
    names = []
    for i in range(4):
        names.append(measurements.store_csv(f"{i}".encode(), most_files=2))
        os.utime(measurements.csv_folder() / f"{names[-1]}.csv", (i, i))
    assert len(list(measurements.csv_folder().iterdir())) == 2
    assert measurements.stored_csv(names[-1]) == b"3"
