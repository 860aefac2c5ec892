"""The working session: written to its journal first, and the same for every reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sessions_data import evaluation_maker, make_latency, map_stub
from words import raises, says

from engine.base import files
from engine.base.errors import Status, StoreError
from engine.cuda_source.sources import read_sources
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.sessions.session import (
    Session,
    resume_session,
    save_outcome,
    sources_of,
    start_session,
    working_sessions,
)
from engine.sessions.snapshot import Goal, dumps, loads
from engine.sessions.store import Store
from kernels.ladder import by_id

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return start_session("KV-split", folder=tmp_path)


def state(session: Session) -> Any:
    return (
        session.id,
        session.title,
        session.hypothesis,
        session.notes,
        session.target,
        session.evaluations,
        session.error_maps,
        session.timeline(),
        session.is_unsaved,
        session.saved_as,
        dumps(session.to_snapshot().model_copy(update={"updated": session.created})),
    )


def test_a_session_is_restored_after_a_restart(session: Session, tmp_path: Path) -> None:
    target = Goal(metric="speedup", value=1.5, baseline="flash", seqlen=128)
    session.edit(title="Renamed", hypothesis="half the time", target=target)
    session.add(evaluation_maker(), maps=[map_stub()])
    session.add(evaluation_maker(median_us=10.0), maps=[map_stub(2, 2)])
    session.note("an idea")
    session.mark(0, "dropped")
    again = resume_session(session.id, folder=tmp_path)
    assert state(again) == state(session)
    assert again.title == "Renamed"
    assert again.target == target
    assert again.evaluations[1] == evaluation_maker(median_us=10.0)
    assert [m.evaluation for m in again.error_maps] == [0, 1]
    assert [row.outcome for row in again.timeline()] == ["dropped", "tried", "tried"]
    assert [row.what for row in again.timeline()][2] == "an idea"


def test_a_target_can_be_removed(session: Session) -> None:
    session.edit(target=Goal(metric="latency_us", value=5))
    assert session.status() is not None
    session.edit(notes="and")
    assert session.target is not None
    session.edit(target=None)
    assert session.target is None
    assert session.status() is None


def test_a_second_reader_sees_additions_of_the_first(session: Session, tmp_path: Path) -> None:
    other = resume_session(session.id, folder=tmp_path)
    session.add(evaluation_maker(), maps=[map_stub()])
    other.add(evaluation_maker(variant="v02"), maps=[map_stub()])
    session.refresh()
    assert state(session) == state(other)
    assert [e.variant for e in session.evaluations] == ["v05", "v02"]


def test_a_snapshot_holds_the_whole_session(session: Session) -> None:
    source = by_id("v05").source
    evaluation = evaluation_maker(source_sha256=read_sources(source).source_sha256)
    session.add(evaluation, maps=[map_stub()])
    session.add(evaluation)
    snapshot = loads(dumps(session.to_snapshot()), name="x")
    assert snapshot.id == session.id
    assert snapshot.title == "KV-split"
    assert snapshot.evaluations == (evaluation, evaluation)
    assert len(snapshot.timeline) == 2
    assert snapshot.environment.python
    assert snapshot.sources[0].text == source.read_text(encoding="utf-8")
    assert snapshot.sources[0].flags == evaluation.flags
    assert [s.name for s in snapshot.sources] == [
        *(source.name, "element.cuh", "exp2.cuh", "lse.cuh"),
    ]


def test_an_empty_session_can_be_saved(session: Session, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), shipped=None, index_folder=tmp_path / "i")
    name = session.save(store)
    assert store.open(name).title == "KV-split"


def test_a_session_knows_whether_it_is_saved(session: Session, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), shipped=None, index_folder=tmp_path / "i")
    session.add(evaluation_maker())
    assert session.is_unsaved
    name = session.save(store)
    assert (session.is_unsaved, session.saved_as) == (False, name)
    again = resume_session(session.id, folder=tmp_path)
    assert (again.is_unsaved, again.saved_as) == (False, name)
    session.note("more")
    assert session.is_unsaved


def test_a_source_is_stored_only_if_it_is_the_evaluated_one() -> None:
    assert sources_of(evaluation_maker(source_sha256="0" * 64)) == []
    assert sources_of(evaluation_maker(variant="v99")) == []


def test_damaged_lines_are_skipped_and_counted(session: Session, tmp_path: Path) -> None:
    session.add(evaluation_maker())
    with session.path.open("ab") as file:
        file.write(b'{"kind":"evaluation","evaluation":{"status"')  # killed while writing
    session.add(evaluation_maker(variant="v02"))
    for event in (
        {"kind": "evaluation", "key": "k", "evaluation": {"status": "PASSED"}},
        {"kind": "evaluation"},
        {"kind": "mark", "entry": 99, "outcome": "kept"},
        {"kind": "mark", "entry": 0, "outcome": "best"},
        {"kind": "note", "when": 5, "what": "x"},
        {"kind": "edit", "target": {"metric": "luck", "value": 1}},
        {"kind": "unheard of"},
        {"no": "kind"},
    ):
        files.append_event(session.path, event)
    again = resume_session(session.id, folder=tmp_path)
    assert [e.variant for e in again.evaluations] == ["v05", "v02"]
    assert again.damaged_lines == 6
    assert says(again.to_snapshot().log, "damaged_lines_journal", "6")


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from sessions_data import evaluation_maker
from engine.sessions.session import start_session
session = start_session("killed", folder=Path(sys.argv[2]))
print(session.id, flush=True)
for number in range(10_000):
    session.add(evaluation_maker(seed=number))
    print(number, flush=True)
"""


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    args = [sys.executable, "-c", KILLED, str(Path(__file__).parents[1]), str(tmp_path)]
    child = subprocess.Popen(args, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    session_id = child.stdout.readline().strip()
    for _ in range(5):
        child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    said = child.communicate()[0].split()
    session = resume_session(session_id, folder=tmp_path)
    assert len(session.evaluations) >= 5 + len(said)
    assert session.damaged_lines == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_gives_a_one_sentence_error(session: Session) -> None:
    session.path.unlink()
    session.path.symlink_to("/dev/full")
    with raises(StoreError, "session_not_kept", "No space left") as caught:
        session.add(evaluation_maker())
    assert "ATTUNE_CACHE_DIR" not in str(caught.value)


def test_sessions_are_listed(tmp_path: Path) -> None:
    one, two = (start_session(title, folder=tmp_path) for title in ("one", "two"))
    os.utime(one.path, (2e9, 2e9))
    assert working_sessions(folder=tmp_path) == [one.id, two.id]
    one.discard()
    assert working_sessions(folder=tmp_path) == [two.id]
    assert working_sessions(folder=tmp_path / "nowhere") == []


@pytest.mark.parametrize("session_id", ["", "nope", "../x", "a/b", "x" * 32])
def test_an_unknown_session(tmp_path: Path, session_id: str) -> None:
    (tmp_path.parent / "x.jsonl").write_text(json.dumps({"kind": "start"}))
    with raises(StoreError, "no_working_session"):
        resume_session(session_id, folder=tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(StoreError, "file_failed", str(tmp_path / "file")):
        start_session(folder=tmp_path / "file")


def test_one_evaluation_can_be_saved_as_a_snapshot(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), shipped=None, index_folder=tmp_path / "i")
    name = save_outcome(EvaluationOutcome(evaluation_maker()), store=store)
    snapshot = store.open(name)
    assert snapshot.title == "v05 on B1 H1 S128 D64 fp16"
    assert snapshot.evaluations[0] == evaluation_maker()


def test_gains_are_relative_to_the_first_comparable_time(session: Session) -> None:
    measured = evaluation_maker(median_us=20.0)
    predicted = make_latency(30.0, 0, origin="predicted")
    session.add(replace(measured, latency=predicted))
    session.add(measured)
    session.add(replace(measured, latency=None))
    session.add(evaluation_maker(median_us=10.0, variant="v02"))
    session.add(replace(measured, latency=make_latency(15.0, 0, origin="predicted")))
    session.add(evaluation_maker(median_us=5.0, device="H200"))
    session.add(
        replace(measured, latency=predicted, status=Status.INCORRECT, reason="w", correctness=None)
    )
    rows = session.timeline()
    assert [row.gain for row in rows] == [1.0, 1.0, None, 2.0, 2.0, 1.0, None]
    assert rows[3].what == (
        "v02 block_m=64 block_n=64 num_splits=4 · B1 H1 S128 D64 fp16 · 10 µs measured"
    )


def test_the_evaluation_of_a_job_is_stored_once(tmp_path):
    first = start_session(folder=tmp_path)
    first.expect("job-1")
    first.expect("job-2")
    second = resume_session(first.id, folder=tmp_path)
    assert second.expected == ("job-1", "job-2")
    # Two tabs add the same evaluation before either has read the other's.
    first.add(evaluation_maker(), job_id="job-1")
    second.add(evaluation_maker(), job_id="job-1")
    first.forget("job-2")
    for session in (first, second, resume_session(first.id, folder=tmp_path)):
        session.refresh()
        assert len(session.evaluations) == 1
        assert session.expected == ()
        assert session.damaged_lines == 0


def test_evaluations_are_read_on_demand(session: Session, tmp_path: Path) -> None:
    for number in range(3):
        session.expect(f"job-{number}")
        session.add(evaluation_maker(), job_id=f"job-{number}")
    session.expect("job-9")
    journal = session.path.read_text()
    session.path.write_text(journal.replace('"PASSED"', '"NO STATUS"'))  # found when it is read
    again = resume_session(session.id, folder=tmp_path)
    assert (again.expected, again.num_evaluations, again.is_unsaved) == (("job-9",), 3, True)
    assert again.damaged_lines == 0
    assert again.evaluations == ()
    assert again.damaged_lines == 3
