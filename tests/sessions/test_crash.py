"""Saving is atomic when the process is killed (200 times) and with several processes at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.sessions.store import Store

ROOT = Path(__file__).resolve().parents[2]

PREAMBLE = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from sessions_data import evaluation_maker, snapshot_maker
from engine.base import files
from engine.sessions.store import Store
folder = Path(sys.argv[2])
store = Store(str(folder), shipped=None, index_folder=folder.parent / "index")
"""

# Half of the children die at a chosen line of the saving code, half at a random time.
KILLED = """
big = snapshot_maker(evaluations=[evaluation_maker(samples=200, seed=i) for i in range(8)])
start = time.perf_counter()
store.save(big)
usual = time.perf_counter() - start
rng = random.Random(1)
whole = new = lines = 0

def visible():
    return {name for name in os.listdir(folder) if not name.startswith(".")}

def die_at(line):
    seen = 0
    def trace(frame, event, arg):
        nonlocal seen
        code = frame.f_code
        if code.co_filename != files.__file__ or code.co_name == "remove_leftovers":
            return None
        if event == "line":
            seen += 1
            if seen > line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)

for turn in range(200):
    title, updated = f"turn {turn}", f"2026-11-21T03:{turn // 60:02}:{turn % 60:02}Z"
    before = visible()
    pid = os.fork()
    if pid == 0:
        if turn % 2:
            die_at(turn // 2 % 30)
        store.save(big.model_copy(update={"title": title, "updated": updated}))
        os._exit(0)
    if turn % 2 == 0:
        time.sleep(rng.uniform(0, 2.5 * usual))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, status = os.waitpid(pid, 0)
    lines += turn % 2 and os.WIFSIGNALED(status)
    after = visible()
    assert before <= after, "a saved session has gone"
    assert len(after - before) <= 1
    for name in after - before:
        opened = store.open(name)
        assert (opened.title, len(opened.evaluations)) == (title, 8)
        new += 1
infos = store.list()
assert {info.name for info in infos} == visible()
assert not any(info.damage for info in infos)
print(new, lines)
"""

SAVER = """
for number in range(25):
    name = store.save(snapshot_maker(title=f"{sys.argv[3]} {number}"))
    assert store.open(name).title == f"{sys.argv[3]} {number}"
    for info in store.list():
        assert not info.damage, info
    if number % 5 == 4:
        store.remove(name)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_a_killed_save_leaves_the_old_or_the_complete_new_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + KILLED, str(ROOT / "tests"), str(tmp_path / "s")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    new, died_at_a_line = map(int, done.stdout.split())
    assert 10 < new < 190  # both outcomes occurred
    assert died_at_a_line > 40


@pytest.mark.slow
@pytest.mark.exhaustive
def test_concurrent_servers_do_not_damage_a_shared_store(tmp_path: Path) -> None:
    args = [sys.executable, "-c", PREAMBLE + SAVER, str(ROOT / "tests"), str(tmp_path / "s")]
    savers = [
        subprocess.Popen([*args, who], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for who in ("one", "two", "three")
    ]
    for saver in savers:
        _, errors = saver.communicate(timeout=200)
        assert saver.returncode == 0, errors
    store = Store(str(tmp_path / "s"), shipped=None, index_folder=tmp_path / "i")
    titles = sorted(info.title for info in store.list())
    assert titles == sorted(
        f"{who} {n}" for who in ("one", "two", "three") for n in range(25) if n % 5 != 4
    )
    assert not [p for p in (tmp_path / "s").iterdir() if p.name.startswith(".")]
