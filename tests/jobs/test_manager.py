"""The job manager with a real worker process: results, cancel, crash, restart, two servers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from words import says

from engine.attention.problem import Problem
from engine.base import files
from engine.base.schema import encode
from engine.jobs.layout import TASKS
from engine.jobs.manager import ENDED, JobManager, JobStatus
from engine.pipeline.request import EvaluationRequest, preview

SMALL = EvaluationRequest("v01", Problem(1, 1, 64, 64), gpu="L4", backend="cpu")
# The quickest job, for tests in which the work does not matter.
COMPILED = replace(SMALL, execute=False)
# About ten seconds of CPU execution, to be cancelled meanwhile.
LONG = EvaluationRequest("v01", Problem(8, 8, 2048, 64), gpu="L4", backend="cpu", timeout_s=300)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobManager]:
    """Yield a manager for tests that do not change its worker."""
    made = JobManager(tmp_path_factory.mktemp("shared") / "jobs")
    yield made
    made.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[JobManager]:
    made = JobManager(tmp_path / "jobs")
    yield made
    made.close()


def wait(manager: JobManager, job_id: str, states: frozenset[str] = ENDED) -> JobStatus:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        status = manager.status(job_id)
        assert status is not None
        if status.state in states:
            return status
        time.sleep(0.02)
    raise AssertionError(f"still {status.state} ({status.stage}) after 120 s")


def reap(manager: JobManager) -> None:
    """Wait for the killed worker of a manager that was dropped without closing it."""
    process = manager._worker._process
    assert process is not None
    process.wait()


def worker_pid(manager: JobManager) -> int:
    pid = manager._run.live_worker()
    assert pid is not None
    return pid


def test_a_job_runs_and_its_maps_are_kept(shared: JobManager) -> None:
    job = wait(shared, shared.submit(SMALL))
    assert job.state == "done", job.error + job.log
    assert job.result is not None
    assert job.result["status"] == "PASSED", job.result["reason"]
    assert job.elapsed_s > 0
    assert shared.maps(job.job_id)
    assert [j.job_id for j in shared.jobs()].count(job.job_id) == 1


def test_a_partial_verdict_is_available_until_the_job_ends() -> None:
    queued = JobStatus.queued({"job": "1", "event": "queued", "t": 1.0})
    part = {"event": "part", "result": {"status": "PASSED"}}
    told = queued.after({"event": "started", "t": 2.0}).after(part)
    assert (told.state, told.part, told.result) == ("running", {"status": "PASSED"}, None)
    over = told.after({"event": "finished", "t": 3.0, "result": {"status": "INCORRECT"}})
    assert (over.part, over.result) == (None, {"status": "INCORRECT"})


@pytest.mark.slow
def test_a_simulation_runs_beside_a_run_and_serves_the_preview(manager: JobManager) -> None:
    running = manager.submit(LONG)
    wait(manager, running, frozenset({"running"}))
    simulated = wait(manager, manager.submit(COMPILED, "simulate"))
    assert simulated.state == "done", simulated.error + simulated.log
    job = manager.status(running)
    assert job is not None
    assert job.state == "running"
    estimate = preview(COMPILED).estimate
    assert estimate is not None
    assert estimate.by_machine_code


def test_a_job_with_an_unknown_name_fails_with_its_message(shared: JobManager) -> None:
    job = wait(shared, shared.submit(EvaluationRequest("v99", Problem(1, 1, 64, 64), gpu="L4")))
    assert job.state == "failed"
    assert "v99" in job.error
    assert "Traceback" not in job.error


@pytest.mark.slow
def test_cancel_takes_less_than_half_a_second(manager: JobManager) -> None:
    wait(manager, manager.submit(SMALL))  # the worker is up
    running = manager.submit(LONG)
    queued = manager.submit(COMPILED)
    wait(manager, running, frozenset({"running"}))
    children = psutil.Process(worker_pid(manager)).children(recursive=True)
    begin = time.monotonic()
    manager.cancel(running)
    status = manager.status(running)
    took = time.monotonic() - begin
    assert status is not None
    assert status.state == "cancelled"
    assert took < 0.5
    # The next job runs on a new worker; the child of the old one has ended.
    assert wait(manager, queued).state == "done"
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    manager.cancel(running)  # cancelling again has no effect
    assert wait(manager, running).state == "cancelled"


def test_a_queued_job_can_be_cancelled(manager: JobManager) -> None:
    running = manager.submit(LONG)
    queued = manager.submit(COMPILED)
    manager.cancel(queued)
    manager.cancel(running)
    assert wait(manager, queued).state == "cancelled"
    assert wait(manager, queued).started is None


def test_a_killed_worker_ends_the_job_and_the_next_one_runs(manager: JobManager) -> None:
    running = manager.submit(LONG)
    wait(manager, running, frozenset({"running"}))
    os.killpg(worker_pid(manager), signal.SIGKILL)
    job = wait(manager, running)
    assert job.state == "crashed"
    assert "died" in job.error
    assert wait(manager, manager.submit(COMPILED)).state == "done"


@pytest.mark.slow
def test_a_restarted_server_finds_the_running_job(tmp_path: Path) -> None:
    first = JobManager(tmp_path / "jobs")
    done = wait(first, first.submit(COMPILED)).job_id
    running = first.submit(LONG)
    wait(first, running, frozenset({"running"}))
    pid = worker_pid(first)
    first._slot_lock.release()  # as after a killed server: the lock is released, the worker runs on
    second = JobManager(tmp_path / "jobs")
    try:
        assert worker_pid(second) == pid
        found = second.status(running)
        assert found is not None
        assert found.state == "running"
        kept = second.status(done)
        assert kept is not None
        assert kept.state == "done"
        second.cancel(running)
        assert wait(second, running).state == "cancelled"
        assert wait(second, second.submit(COMPILED)).state == "done"
    finally:
        second.close()
        reap(first)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_servers_do_not_mix(tmp_path: Path, manager: JobManager) -> None:
    other = JobManager(tmp_path / "jobs")
    try:
        job = wait(manager, manager.submit(COMPILED))
        assert other.status(job.job_id) is None
        assert wait(other, other.submit(COMPILED)).state == "done"
    finally:
        other.close()


def test_a_result_after_a_cancel_is_discarded(manager: JobManager) -> None:
    job = wait(manager, manager.submit(COMPILED))
    cancelled = manager.submit(LONG)
    manager.cancel(cancelled)
    late = {"job": cancelled, "event": "finished", "t": time.time(), "result": job.result}
    files.append_event(manager._run.journal, late)
    status = manager.status(cancelled)
    assert status is not None
    assert status.state == "cancelled"
    assert status.result is None


@pytest.mark.slow
def test_an_abandoned_worker_exits(tmp_path: Path) -> None:
    from engine.jobs import worker
    from engine.jobs.layout import RunDir

    run = RunDir(tmp_path / "server0")
    run.create()
    assert worker.main([str(run.root)], idle_check_s=0.1) == 0  # no server has claimed the folder

    held = JobManager(tmp_path)  # claims server0
    try:
        assert not run.is_abandoned()
    finally:
        held.close()
    assert run.is_abandoned()


UNREADABLE: tuple[dict[str, object], ...] = (
    {},
    {"request": [1, 2]},
    {"request": {"problem": {}}},
    {"kind": "sweep", "request": {"space": {}}},
    {"kind": "dance", "request": {}},
    {"kind": [], "request": {}},
    {"kind": "single", "task": "dance", "request": encode(COMPILED)},
)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_single_job_of_an_older_journal_has_its_task_as_its_kind(task: str) -> None:
    event = {"job": "1", "event": "queued", "request": encode(COMPILED)}
    old = JobStatus.queued({**event, "kind": task})
    assert old == JobStatus.queued({**event, "kind": "single", "task": task})
    assert (old.kind, old.task) == ("single", task)
    assert old.is_background == (task not in ("evaluate", "invariance"))


def test_a_job_that_cannot_be_read_fails_alone(shared: JobManager) -> None:
    with shared._run.journal.open("ab") as file:
        file.write(b'\n{"job": "cut off by a full di')
    bad = {f"{number:020}-1-1": queued for number, queued in enumerate(UNREADABLE)}
    for job_id, queued in bad.items():
        event = {"job": job_id, "event": "queued", "t": 1.0, **queued}
        files.append_event(shared._run.journal, event)
    assert wait(shared, shared.submit(COMPILED)).state == "done"
    for job_id, queued in bad.items():
        job = shared.status(job_id)
        assert job is not None, queued
        assert job.state == "failed", queued
        assert says(job.error, "job_unreadable"), queued


def test_events_of_another_version_change_nothing(shared: JobManager) -> None:
    before = len(shared.jobs())
    job_id = shared.submit(COMPILED)
    for event in (
        {"job": job_id, "event": "progress"},
        {"job": job_id, "event": "progress", "progress": {"done": 1}},
        {"job": job_id, "event": "applause", "t": "late"},
        {"event": "queued"},
    ):
        files.append_event(shared._run.journal, event)
    assert wait(shared, job_id).state == "done"
    assert len(shared.jobs()) == before + 1


def test_a_worker_that_never_starts_ends_the_jobs_with_its_last_output(
    manager: JobManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # the interpreter cannot start
    jobs = [manager.submit(COMPILED) for _ in range(2)]
    for job_id in jobs:
        job = wait(manager, job_id)
        assert job.state == "crashed"
        assert says(job.error, "ends_soon_started")
        assert "encodings" in job.log
    monkeypatch.delenv("PYTHONHOME")
    assert wait(manager, manager.submit(COMPILED)).state == "done"  # works again once it is fixed


@pytest.mark.slow
def test_a_worker_of_other_code_is_replaced(tmp_path: Path) -> None:
    first = JobManager(tmp_path / "jobs")
    wait(first, first.submit(COMPILED))
    old = worker_pid(first)
    first._slot_lock.release()  # the server ends, the worker runs on

    second = JobManager(tmp_path / "jobs")
    assert worker_pid(second) == old  # it runs the same code, so it is kept
    second._slot_lock.release()

    file = tmp_path / "jobs" / "server0" / "worker.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "code": "older"}))
    third = JobManager(tmp_path / "jobs")
    assert third._run.live_worker() is None
    assert wait(third, third.submit(COMPILED)).state == "done"
    assert worker_pid(third) != old
    third.close()
    reap(first)
