"""A live latency job on the CPU backend: one stream, several readers, and how it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from engine.attention.problem import Problem
from engine.base.files import read_events
from engine.base.schema import encode
from engine.devices.nvml import GpuState
from engine.jobs.latency_series import (
    UNSEEN_IN_THE_WAY_S,
    UNSEEN_S,
    LatencySample,
    append_samples,
    begin_stream,
    is_unseen,
    mark_seen,
    read_samples,
)
from engine.jobs.layout import RunDir
from engine.jobs.manager import JobManager, JobStatus
from engine.jobs.supervisor import JobRunner, JobType
from engine.jobs.worker import JOB_TYPES, run_latency_stream
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest

REQUEST = EvaluationRequest("v01", Problem(1, 1, 64, 64), gpu="L4", backend="cpu")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobManager]:
    made = JobManager(tmp_path_factory.mktemp("streams") / "jobs")
    yield made
    made.close()


@pytest.fixture
def manager(server: JobManager) -> Iterator[JobManager]:
    """Yield the shared job manager; streams of a test are ended after it."""
    yield server
    for job in server.jobs():
        if not job.is_over:
            server.cancel(job.job_id)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def status_of(manager: JobManager, job_id: str) -> JobStatus:
    status = manager.status(job_id)
    assert status is not None
    return status


@pytest.mark.exhaustive
def test_two_tabs_read_one_stream_to_its_end(manager: JobManager) -> None:
    job_id = manager.submit_stream(REQUEST)
    assert manager.read_stream(job_id).samples == ()
    wait_until(lambda: len(manager.read_stream(job_id).samples) >= 3)
    first = manager.read_stream(job_id)
    # It is labelled as CPU execution time, without figures of a GPU.
    assert (first.kind, first.device) == ("cpu_execution", "this machine's CPU")
    assert all(s.sm_clock_mhz is None and s.time_us > 0 for s in first.samples)
    wait_until(lambda: bool(manager.read_stream(job_id, first.after).samples))
    rest = manager.read_stream(job_id, first.after)
    other_tab = manager.read_stream(job_id)
    assert other_tab.samples[: len(first.samples)] == first.samples
    assert other_tab.samples[len(first.samples)] == rest.samples[0]

    begin = time.monotonic()
    manager.cancel(job_id)
    assert status_of(manager, job_id).state == "cancelled"
    assert time.monotonic() - begin < 0.5
    worker = manager._run.live_worker()
    after = manager.submit(REQUEST)
    wait_until(lambda: status_of(manager, after).is_over)
    assert status_of(manager, after).state == "done"
    assert manager._run.live_worker() == worker  # the stream was stopped without killing the worker
    end = manager.read_stream(job_id).after
    time.sleep(0.3)
    assert manager.read_stream(job_id, end).samples == ()


@pytest.mark.slow
def test_an_evaluation_interrupts_a_stream(manager: JobManager) -> None:
    live = manager.submit_stream(REQUEST)
    wait_until(lambda: bool(manager.read_stream(live).samples))
    single = manager.submit(REQUEST)
    wait_until(lambda: status_of(manager, single).is_over)
    assert status_of(manager, single).state == "done"
    seen = manager.read_stream(live).after
    wait_until(lambda: bool(manager.read_stream(live, seen).samples))
    assert status_of(manager, live).state == "running"


def test_a_kernel_that_does_not_run_gets_no_stream(manager: JobManager) -> None:
    job_id = manager.submit_stream(
        EvaluationRequest("v01", Problem(1, 1, 64, 80), gpu="L4", backend="cpu")
    )
    wait_until(lambda: status_of(manager, job_id).is_over)
    job = status_of(manager, job_id)
    assert job.state == "done"
    assert job.result is not None
    assert job.result["status"] == "SKIPPED"
    assert manager.read_stream(job_id).samples == ()


def age_last_poll(manager: JobManager, job_id: str, for_s: float = UNSEEN_S) -> None:
    """Set the time of the last poll back by `for_s` seconds."""
    long_ago = time.time() - for_s - 1
    os.utime(manager._run.stream(job_id).with_suffix(".seen"), (long_ago, long_ago))


@pytest.mark.slow
def test_a_stream_ends_if_nobody_reads_it(manager: JobManager) -> None:
    live = manager.submit_stream(REQUEST)
    wait_until(lambda: bool(manager.read_stream(live).samples))
    worker = manager._run.live_worker()
    assert status_of(manager, live).state == "running"
    age_last_poll(manager, live)
    wait_until(lambda: status_of(manager, live).is_over)
    job = status_of(manager, live)
    assert (job.state, job.end, job.result) == ("done", "unseen", None)
    assert manager.read_stream(live).samples  # samples are kept
    assert manager._run.live_worker() == worker
    # A stream that nobody polls while it is queued is not started.
    first = manager.submit_stream(REQUEST)
    waiting = manager.submit_stream(REQUEST)
    wait_until(lambda: bool(manager.read_stream(first).samples))
    manager.read_stream(waiting)
    age_last_poll(manager, waiting)
    manager.cancel(first)
    wait_until(lambda: status_of(manager, waiting).is_over)
    assert status_of(manager, waiting).end == "unseen"
    assert manager.read_stream(waiting).kind is None


def test_a_closed_tab_does_not_delay_the_next_job(manager: JobManager) -> None:
    closed = manager.submit_stream(REQUEST)
    wait_until(lambda: bool(manager.read_stream(closed).samples))
    age_last_poll(manager, closed, UNSEEN_IN_THE_WAY_S)
    assert status_of(manager, closed).state == "running"  # the tab may be hidden, and no job waits
    waiting = manager.submit_stream(REQUEST)
    wait_until(lambda: status_of(manager, closed).is_over)
    assert status_of(manager, closed).end == "unseen"
    wait_until(lambda: bool(manager.read_stream(waiting).samples))


def test_each_poll_restarts_the_time_limit(tmp_path: Path) -> None:
    stream = tmp_path / "stream.jsonl"
    now = time.time()
    assert not is_unseen(stream, now)
    assert is_unseen(stream, now - UNSEEN_S - 1)
    assert is_unseen(stream, now - UNSEEN_IN_THE_WAY_S - 1, UNSEEN_IN_THE_WAY_S)
    mark_seen(stream)
    assert not is_unseen(stream, now - UNSEEN_S - 1)
    mark_seen(tmp_path / "no such folder" / "stream.jsonl")  # marking never fails


def test_a_full_stream_ends_the_job(tmp_path: Path) -> None:
    short = JobType(EvaluationRequest, partial(run_latency_stream, max_samples=3), is_long=True)
    run = RunDir(tmp_path / "server0")
    run.create()
    with Evaluator() as evaluator:
        runner = JobRunner(run, evaluator, {**JOB_TYPES, "live": short})
        runner.event("1", "queued", kind="live", request=encode(REQUEST))
        runner.serve(runner.waiting()[0])
        assert runner.waiting() == []
    assert len(read_samples(run.stream("1")).samples) == 3
    last = read_events(run.journal, 0)[0][-1]
    assert (last["event"], last["end"]) == ("finished", "full")


def test_samples_are_read_back_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl"
    state = GpuState(1980, 1980, 2619, 412.5, 700.0, 61, None, ("power cap",))
    rounds = [[LatencySample.of(100.0 + i, 4.25, state)] * 2 for i in range(3)]
    begin_stream(path, "device_warm", "H200")
    for samples in rounds:
        append_samples(path, samples)
    append_samples(path, [])
    part = read_samples(path)
    assert (part.kind, part.device) == ("device_warm", "H200")
    assert part.samples == tuple(s for samples in rounds for s in samples)
    assert part.samples[0].throttle_reasons == ("power cap",)
    again = read_samples(path, part.after)
    assert (again.kind, again.device, again.samples, again.after) == (None, "", (), part.after)
