"""Devices, pipes and files of other users are not read, or only as checked text."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from words import raises, says

from engine.attention.config import load_tuned
from engine.base.errors import CompileError, StoreError, UnknownName
from engine.base.files import MAX_SOURCE, read_entry, write_entry
from engine.cli import main
from engine.cuda_source.sources import read_sources
from engine.jobs.layout import RunDir
from engine.measure import device_lock
from engine.measure.device_lock import Holder
from engine.model.measured_points import read_measurements
from kernels.source_text import read_text
from kernels.toml_block import KernelDescriptionError

NO_FILES = ("/dev/zero", "fifo", "folder")


@pytest.fixture
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "it.jsonl"
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    else:
        path.symlink_to(request.param)
    return path


@pytest.mark.timeout(30)
@pytest.mark.parametrize("no_file", NO_FILES, indirect=True)
def test_a_sweep_is_resumed_from_regular_files_alone(
    no_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--resume", str(no_file)]) == 2
    assert says(capsys.readouterr().err, "journal_missing", str(no_file))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("no_file", NO_FILES, indirect=True)
def test_a_kernel_is_a_regular_file(no_file: Path) -> None:
    with raises(CompileError, "source_unreadable"):
        read_sources(no_file)
    with pytest.raises(KernelDescriptionError) as refused:
        read_text(no_file)
    sentence = str(refused.value)
    assert says(sentence, "no_regular_source") or says(sentence, "source_not_read")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("no_file", NO_FILES, indirect=True)
def test_measurements_and_tuned_configs_are_regular_files(no_file: Path) -> None:
    with raises(UnknownName, "file_failed", no_file.name):
        read_measurements(no_file)
    with raises(StoreError, "tuned_file_unreadable", no_file.name):
        load_tuned(no_file)


def test_a_kernel_has_a_largest_size(tmp_path: Path) -> None:
    source = tmp_path / "v.cu"
    source.write_bytes(b" " * (MAX_SOURCE + 1))
    with raises(CompileError, "source_too_large"):
        read_sources(source)


@pytest.mark.parametrize("which", ["folder", "file"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_cache_entries_that_others_may_write_are_not_read(
    tmp_path: Path, which: str, mode: int
) -> None:
    entry = tmp_path / "cache" / "entry"
    assert write_entry(entry, b"mine")
    assert read_entry(entry) == b"mine"
    open_to_others = entry if which == "file" else entry.parent
    open_to_others.chmod(open_to_others.stat().st_mode | mode)
    assert read_entry(entry) is None
    assert write_entry(entry, b"made again")
    assert read_entry(entry) == b"made again"


@pytest.mark.parametrize("which", ["folder", "file"])
def test_cache_entries_of_others_are_not_read(
    tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tmp_path / "cache" / "entry"
    assert write_entry(entry, b"theirs")
    if os.geteuid() == 0:
        os.chown(entry if which == "file" else entry.parent, 12345, 12345)
    else:  # without root files have one owner, so the reader is changed
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert read_entry(entry) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"pid": "x", "created": 0}', '{"pid": 1e400, "created": 0}', "\x00"]
)
def test_a_broken_worker_file_is_no_worker(tmp_path: Path, text: str) -> None:
    (tmp_path / "worker.json").write_text(text)
    run_dir = RunDir(tmp_path)
    assert run_dir.live_worker() is None
    assert run_dir.worker_code() == ""


def holder_of(tmp_path: Path, raw: object) -> Holder | None:
    path = tmp_path / "gpu.lock"
    path.write_text(json.dumps(raw))
    handle = os.open(path, os.O_RDONLY)
    try:
        return device_lock._holder(handle)
    finally:
        os.close(handle)


def test_foreign_text_in_a_lock_file_is_one_short_line(tmp_path: Path) -> None:
    raw = {"pid": 7, "since": 0.0, "user": "eve\x1b[2J\n" * 50, "purpose": "x\u202e" * 200}
    holder = holder_of(tmp_path, raw)
    assert holder is not None
    assert holder.sentence().isprintable()
    assert len(holder.sentence()) < 400


@pytest.mark.parametrize(
    "raw", [[], {"pid": 1}, {"pid": -1, "since": 0, "user": "", "purpose": ""}, {"pid": "x"}]
)
def test_a_lock_file_of_another_form_names_nobody(tmp_path: Path, raw: object) -> None:
    assert holder_of(tmp_path, raw) is None
    assert holder_of(tmp_path, {"pid": 1, "since": float("inf"), "user": "", "purpose": ""}) is None
