"""The journal: damaged or half-written lines cost nothing but themselves."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from words import raises

from engine.base import journal
from engine.base.errors import StoreError


def test_round_trip_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert journal.read_from(path, 0) == ([], 0)
    journal.append(path, {"a": 1})
    events, offset = journal.read_from(path, 0)
    assert events == [{"a": 1}]
    journal.append(path, {"b": "ü\n"})
    assert journal.read_from(path, offset)[0] == [{"b": "ü\n"}]


def test_a_cut_off_line_damages_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal.append(path, {"a": 1})
    with path.open("ab") as file:
        file.write(b'\n{"event": "fini')  # a crash in mid-write
    events, offset = journal.read_from(path, 0)
    assert events == [{"a": 1}]
    journal.append(path, {"c": 3})
    assert journal.read_from(path, offset)[0] == [{"c": 3}]


def test_lines_that_are_no_objects_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text("[1]\nnull\n{]\n\n" + "[" * 100_000 + "\n")
    journal.append(path, {"a": 1})
    assert journal.read_from(path, 0)[0] == [{"a": 1}]


def test_concurrent_writers_never_interleave(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    def write(who: int) -> None:
        for i in range(50):
            journal.append(path, {"who": who, "i": i, "pad": "x" * 5000})

    threads = [threading.Thread(target=write, args=(w,)) for w in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    events, _ = journal.read_from(path, 0)
    assert len(events) == 200
    assert {(e["who"], e["i"]) for e in events} == {(w, i) for w in range(4) for i in range(50)}


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with raises(StoreError, "file_failed", "journal.jsonl"):
        journal.append(tmp_path / "missing" / "journal.jsonl", {})


def test_a_full_disk_is_one_sentence() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("/dev/full is a Linux device")
    with raises(StoreError, "file_failed", os.strerror(errno.ENOSPC)):
        journal.append(full, {"a": 1})
