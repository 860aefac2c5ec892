"""Uploaded tables are kept under the name of what they hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.base import kept_csv
from engine.base.errors import StoreError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path))


def test_the_same_table_is_one_file() -> None:
    name = kept_csv.keep_csv(b"a,b\n1,2\n")
    assert kept_csv.keep_csv(b"a,b\n1,2\n") == name
    assert kept_csv.keep_csv(b"a,b\n1,3\n") != name
    assert kept_csv.kept_csv(name) == b"a,b\n1,2\n"
    assert len(list(kept_csv.csv_folder().iterdir())) == 2


@pytest.mark.parametrize("name", ["", "0" * 16, "../../etc/passwd", "x" * 16, "0" * 15 + "\n"])
def test_another_name_is_one_sentence(name: str) -> None:
    with pytest.raises(StoreError, match="not kept on this machine"):
        kept_csv.kept_csv(name)


def test_what_cannot_be_kept_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_csv.csv_folder().write_text("in the way")
    with pytest.raises(StoreError, match="a link will not carry it"):
        kept_csv.keep_csv(b"1")
    monkeypatch.setattr(kept_csv, "MAX_BYTES", 3)
    with pytest.raises(StoreError, match="shorten it"):
        kept_csv.keep_csv(b"1234")


def test_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_csv, "_MOST_FILES", 2)
    names = []
    for i in range(4):
        names.append(kept_csv.keep_csv(f"{i}".encode()))
        os.utime(kept_csv.csv_folder() / f"{names[-1]}.csv", (i, i))
    assert len(list(kept_csv.csv_folder().iterdir())) == 2
    assert kept_csv.kept_csv(names[-1]) == b"3"
