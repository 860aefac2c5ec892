"""A sweep on a GPU in which points kill their process or break its CUDA context."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_gpu import DEADLY_SEQLEN, LOSING_SEQLEN
from words import says

from engine.base.errors import Status
from engine.search.sweep.journal import SweepJournal

TESTS = Path(__file__).resolve().parents[1]
SEQLENS = (32, DEADLY_SEQLEN, 64, LOSING_SEQLEN, 128)


@pytest.mark.slow
def test_a_point_that_breaks_the_gpu_or_its_process_affects_no_other(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import made_up_gpu\nmade_up_gpu.install()\n")
    folders = (tmp_path, TESTS, TESTS.parent)
    path = tmp_path / "s.jsonl"
    command = [sys.executable, "-m", "engine", "sweep", "v05", "--head-dim", "64"]
    command += ["--seqlen", ",".join(map(str, SEQLENS)), "--tunable", "num_splits=4,8"]
    command += ["--defaults-only", "--journal", str(path), "--json"]
    ended = subprocess.run(
        command,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "FAKE_GPU": "GPU-0000000a",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1, ended.stderr  # exit code 1: a point failed
    assert "Traceback" not in ended.stderr
    out = json.loads(ended.stdout)
    assert (out["state"], out["passed"], out["failed"]) == ("finished", 9, 1)
    rows = SweepJournal.open(path).rows
    (crashed,) = (row for row in rows.values() if row.status is not Status.PASSED)
    assert (crashed.status, crashed.problem.seqlen) == (Status.CRASHED, DEADLY_SEQLEN)
    assert says(crashed.reason, "point_process_died", "-9")
    # The final round ran in such a process too, unaffected by the replaced one.
    assert [says(r["reason"], "measured_side_by_side") for r in out["best"]] == [True] * 5
