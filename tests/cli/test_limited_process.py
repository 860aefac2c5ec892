"""Work in a process with limits: a crash, too much memory and a timeout are one-sentence errors."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from words import raises

from engine.base.errors import AttuneError, CompileError, UnknownName
from engine.cli.sass import run_in_process

ROOT = Path(__file__).resolve().parents[2]


def prints(args: argparse.Namespace) -> int:
    print("over\rwritten")
    return int(args.code)


def refuses(_: argparse.Namespace) -> int:
    raise UnknownName("There is no such entry.", code="cubin_entry_unknown")


def crashes(_: argparse.Namespace) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def grows(_: argparse.Namespace) -> int:
    return len(bytes(100 << 30))


def waits(_: argparse.Namespace) -> int:
    time.sleep(60)
    return 0


def test_output_and_exit_code_are_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_in_process(prints, argparse.Namespace(code=3), "k.cubin") == 3
    assert capfd.readouterr().out == "over^Mwritten\n"


@pytest.mark.parametrize(
    ("work", "kind", "code", "facts"),
    [
        (refuses, UnknownName, "cubin_entry_unknown", ("no such entry",)),
        (crashes, CompileError, "reading_process_ended", ("k.cubin", "SIGSEGV")),
        pytest.param(grows, CompileError, "reading_memory_limit", (), marks=pytest.mark.slow),
    ],
)
def test_an_abnormal_end_gives_one_sentence(
    work, kind: type[AttuneError], code: str, facts: tuple[str, ...]
) -> None:
    with raises(kind, code, *facts):
        run_in_process(work, argparse.Namespace(), "k.cubin")


@pytest.mark.slow
def test_a_process_is_ended_after_the_time_limit() -> None:
    with raises(CompileError, "reading_time_limit"):
        run_in_process(waits, argparse.Namespace(), "k.cubin", most_s=1)


PARENT = """
import sys
sys.path[:0] = sys.argv[1:]
if __name__ == "__main__":
    import argparse, test_limited_process as tests
    print("started", flush=True)
    tests.run_in_process(tests.says_who_it_is, argparse.Namespace(), "k.cubin")
"""


def says_who_it_is(args: argparse.Namespace) -> int:
    print(os.getpid(), flush=True)
    return waits(args)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells children of their parent's end")
def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    _gone(child)


def _gone(process: int) -> None:
    deadline = time.monotonic() + 20
    while Path(f"/proc/{process}").exists():
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            return
        assert time.monotonic() < deadline, f"process {process} stayed behind"
        time.sleep(0.05)
