"""Where the command line writes: full disks, and commands that would do more than was asked."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sessions_data import snapshot_maker

from engine.base import files
from engine.cli import main
from engine.sessions.store import Store


@pytest.mark.parametrize("flags", [[], pytest.param(["--json"], marks=pytest.mark.slow)])
def test_a_full_disk_behind_standard_output_is_a_sentence(flags: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "engine", "variants", *flags],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 1
    assert ended.stderr == "error: The output cannot be written: No space left on device.\n"


def test_a_report_that_does_not_fit_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    name = Store(str(tmp_path / "store"), shipped=None).save(snapshot_maker())
    session = tmp_path / "store" / name
    report = tmp_path / "report.md"
    report.write_text("the old one")
    monkeypatch.setattr(files.os, "fsync", full)
    assert main(["report", str(session), "--no-advice", "-o", str(report)]) == 1
    assert "(No space left on device): name another file." in capsys.readouterr().err
    assert report.read_text() == "the old one"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.md", "store"]


def test_a_sweep_of_everything_is_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep"]) == 2
    err = capsys.readouterr().err
    assert "points" in err
    assert "--all" in err
    assert main(["sweep", "--all", "--dry-run"]) == 0
    assert "points" in capsys.readouterr().out


def test_tuned_refuses_a_variant_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tuned", "v99"]) == 2
    assert "v99" in capsys.readouterr().err
