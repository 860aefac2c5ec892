"""Output of the command line: full disks, terminals, and sweeps too large to start unasked."""

from __future__ import annotations

import errno
import os
import pty
import re
import resource
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO

import pytest
from sessions_data import snapshot_maker
from words import says

from engine.base.table import Table
from engine.cli import main
from engine.cli.output import print_table
from engine.cli.sweep import Reporter
from engine.search.sweep.journal import Progress
from engine.sessions.store import Store


@pytest.mark.parametrize("flags", [[], pytest.param(["--json"], marks=pytest.mark.exhaustive)])
def test_a_full_disk_at_standard_output_gives_a_message(flags: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "engine", "variants", *flags],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 1
    assert says(ended.stderr, "output_unwritten", os.strerror(errno.ENOSPC))
    assert ended.stderr.count("\n") == 1


def test_a_report_that_cannot_be_written_keeps_the_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = Store(str(tmp_path / "store"), shipped=None).save(snapshot_maker())
    session = tmp_path / "store" / name
    report = tmp_path / "report.md"
    report.write_text("the old one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as if the disk were full
    try:
        assert main(["report", str(session), "--no-advice", "-o", str(report)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert says(capsys.readouterr().err, "another_file", os.strerror(errno.EFBIG))
    assert report.read_text() == "the old one"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.md", "store"]


def test_a_sweep_of_all_variants_must_be_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep"]) == 2
    err = capsys.readouterr().err
    assert "points" in err
    assert "--all" in err
    assert main(["sweep", "--all", "--dry-run"]) == 0
    assert "points" in capsys.readouterr().out


def test_tuned_refuses_an_unknown_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tuned", "v99"]) == 2
    assert "v99" in capsys.readouterr().err


_ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


@pytest.fixture
def terminal() -> Iterator[tuple[IO[str], Callable[[], str]]]:
    """Yield a terminal as a stream, and a function that returns what was written to it."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:

        def written() -> str:
            stream.flush()
            data = b""
            while select.select([ours], [], [], 0.2)[0]:
                data += os.read(ours, 1 << 16)
            return data.decode()

        yield stream, written
    os.close(ours)


def test_a_sweep_has_a_bar_on_a_terminal_alone(
    terminal: tuple[IO[str], Callable[[], str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    half = Progress(
        total=8, done=4, passed=0, skipped=0, failed=4, resumed=0, elapsed_s=1.0, per_minute=60.0,
        eta_s=3.0, best={}, last=None,
    )  # fmt: skip
    with Reporter(quiet=False) as told:
        told(half)
    line = "4/8 · 4 failed · 60/min · 3 s left"
    assert capsys.readouterr().err == f"{line}\n"
    stream, written = terminal
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(stream), Reporter(quiet=False) as told:
        told(half)
    shown = written()
    assert "━━━━" in _ESCAPES.sub("", shown)
    assert line[:20] in shown
    assert "\x1b[2K" in shown  # the line is redrawn in place


@pytest.mark.parametrize("columns", [70, 100])
def test_help_lists_commands_by_group_as_wide_as_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    groups = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert len(groups) >= 4
    assert columns - 15 < max(map(len, lines)) <= columns


def test_a_table_is_as_wide_as_the_terminal_at_most(
    terminal: tuple[IO[str], Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    stream, written = terminal
    with redirect_stdout(stream):
        print_table(Table("t", ("name", "words"), (("one", "many " * 60),)))
    lines = _ESCAPES.sub("", written()).splitlines()
    assert len(lines) > 5
    assert 60 < max(map(len, lines)) <= 70
