"""NVIDIA's disassembler as a process: its limits, and its end with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from words import raises

from engine.base.errors import CompileError, ToolMissing
from engine.machine_code import disassembly as nvdisasm

ROOT = Path(__file__).resolve().parents[2]


def made(folder: Path, script: str) -> Path:
    """Install `script` in place of the disassembler."""
    path = folder / "nvdisasm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_nvdisasm_output_and_errors(tmp_path: Path) -> None:
    tool = made(tmp_path, 'cat "$2"; echo "$1"')
    assert nvdisasm.run_nvdisasm(b"code\n", "-c", tool=tool) == "code\n-c\n"
    tool = made(tmp_path, 'echo "error: $1 is odd." >&2; exit 3')
    with raises(CompileError, "cubin_unreadable", "error: the file is odd."):
        nvdisasm.run_nvdisasm(b"", tool=tool)
    with raises(ToolMissing, "nvdisasm_broken", "absent"):
        nvdisasm.run_nvdisasm(b"", tool=tmp_path / "absent")


@pytest.mark.slow
@pytest.mark.parametrize("script", ["while :; do :; done", "exec sleep 60"])
def test_a_hanging_nvdisasm_is_ended(tmp_path: Path, script: str) -> None:
    pid = tmp_path / "pid"
    tool = made(tmp_path, f"echo $$ > {pid}; {script}")
    with raises(CompileError, "nvdisasm_time_limit"):
        nvdisasm.run_nvdisasm(b"", tool=tool, timeout_s=1.0)
    gone(int(pid.read_text()))


ASKS = """
import sys
from pathlib import Path
from engine.machine_code import disassembly as nvdisasm
nvdisasm.run_nvdisasm(b"", tool=Path(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nvdisasm_ends_with_its_caller(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    tool = made(tmp_path, f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 60")
    asker = subprocess.Popen([sys.executable, "-c", ASKS, str(tool)], cwd=ROOT)
    deadline = time.monotonic() + 120
    while not pid.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(asker.pid, signal.SIGKILL)
    asker.wait(10)
    gone(int(pid.read_text()))


def gone(process: int) -> None:
    deadline = time.monotonic() + 20
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < deadline, f"process {process} stayed behind"
        time.sleep(0.05)
