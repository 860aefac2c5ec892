"""The journal: damaged or incomplete lines are skipped, all others are read."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from words import raises

from engine.base import files
from engine.base.errors import StoreError


def test_round_trip_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert files.read_events(path, 0) == ([], 0)
    files.append_event(path, {"a": 1})
    events, offset = files.read_events(path, 0)
    assert events == [{"a": 1}]
    files.append_event(path, {"b": "ü\n"})
    assert files.read_events(path, offset)[0] == [{"b": "ü\n"}]


def test_a_cut_off_line_damages_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    files.append_event(path, {"a": 1})
    with path.open("ab") as file:
        file.write(b'\n{"event": "fini')  # a crash while writing
    events, offset = files.read_events(path, 0)
    assert events == [{"a": 1}]
    files.append_event(path, {"c": 3})
    assert files.read_events(path, offset)[0] == [{"c": 3}]


def test_lines_that_are_no_objects_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text("[1]\nnull\n{]\n\n" + "[" * 100_000 + "\n")
    files.append_event(path, {"a": 1})
    assert files.read_events(path, 0)[0] == [{"a": 1}]


def test_concurrent_writers_never_interleave(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    def write(who: int) -> None:
        for i in range(50):
            files.append_event(path, {"who": who, "i": i, "pad": "x" * 5000})

    threads = [threading.Thread(target=write, args=(w,)) for w in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    events, _ = files.read_events(path, 0)
    assert len(events) == 200
    assert {(e["who"], e["i"]) for e in events} == {(w, i) for w in range(4) for i in range(50)}


def test_a_folder_that_is_not_there_gives_a_one_sentence_error(tmp_path: Path) -> None:
    with raises(StoreError, "file_failed", "journal.jsonl"):
        files.append_event(tmp_path / "missing" / "journal.jsonl", {})


def test_a_full_disk_gives_a_one_sentence_error() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("/dev/full is a Linux device")
    with raises(StoreError, "file_failed", os.strerror(errno.ENOSPC)):
        files.append_event(full, {"a": 1})
