"""The tab "Live latency" of the Tune page, with streams written by the tests."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_driver import badge, charts, metric, texts
from fake_jobs import FakeManager, done
from streamlit.testing.v1 import AppTest
from test_run_states import BASE
from words import says

from app.shared.palette import DARK, LIGHT
from app.tune import latency_stream_chart, latency_stream_jobs
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.schema import decode, encode
from engine.jobs.latency_series import (
    LatencySample,
    LatencySeries,
    StreamPart,
    append_samples,
    begin_stream,
    read_samples,
)
from engine.jobs.manager import JobStatus, use_manager
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest

CAP, HOT = "power cap", "software thermal slowdown"
SWITCH = "Measure continuously"


class FakeStreams(FakeManager):
    """A fake manager with latency streams; each is `queued` until a test changes its state."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.streams: dict[str, JobStatus] = {}

    def submit_stream(self, request: EvaluationRequest) -> str:
        job_id = f"{time.time_ns():020d}-{self.folder.name}"
        payload = encode(request)
        self.streams[job_id] = JobStatus(job_id, "queued", payload, kind="live", started=1.0)
        return job_id

    def jobs(self) -> list[JobStatus]:
        return [*reversed(self.streams.values()), *super().jobs()]

    def status(self, job_id: str) -> JobStatus | None:
        return self.streams.get(job_id) or super().status(job_id)

    def cancel(self, job_id: str) -> None:
        if job_id in self.streams:
            self.set(job_id, state="cancelled", error="Cancelled before it finished.")
        else:
            super().cancel(job_id)

    def read_stream(self, job_id: str, after: int = 0) -> StreamPart:
        return read_samples(self.path(job_id), after)

    # -- for tests

    def path(self, job_id: str) -> Path:
        return self.folder / f"{job_id}.jsonl"

    def set(self, job_id: str, **fields: Any) -> None:
        self.streams[job_id] = replace(self.streams[job_id], ended=4.0, **fields)

    @property
    def newest(self) -> str:
        return list(self.streams)[-1]

    def runs_with(self, samples: list[LatencySample], kind: str = "device_warm") -> str:
        """Set the newest job running with these samples."""
        job_id = self.newest
        self.set(job_id, state="running", stage="Measuring repeatedly")
        if not self.path(job_id).exists():
            device = "NVIDIA H200" if kind == "device_warm" else "this machine's CPU"
            begin_stream(self.path(job_id), kind, device)  # type: ignore[arg-type]
        append_samples(self.path(job_id), samples)
        return job_id


@pytest.fixture
def jobs(monkeypatch, tmp_path, _isolated) -> Iterator[FakeStreams]:
    # The preview finds its registers in the cache and waits for no compile.
    evaluate(EvaluationRequest("v01", Problem(1, 1, 128, 64), gpu="L4", execute=False))
    fake = FakeStreams(tmp_path)
    before = use_manager(fake)
    monkeypatch.setattr(latency_stream_jobs, "_SETTLED_S", 0.0)
    yield fake
    use_manager(before)


@pytest.fixture
def open_tab(open_app):
    return lambda **params: open_app(tab="Live latency", **params)


def switch(at):
    return next(t for t in at.toggle if t.label == SWITCH)


def flip(at, on: bool):
    return switch(at).set_value(on).run()


def gpu_samples(count: int = 200, state: bool = True) -> list[LatencySample]:
    """Return ten samples a second, the second quarter power-capped, the third thermally slowed."""
    found = []
    for i in range(count):
        quarter = 4 * i // count
        reasons = {1: (CAP,), 2: (HOT,)}.get(quarter, ())
        time_us = 12.0 + 0.1 * math.sin(i) + 3 * (quarter == 2)
        known = (1400 if quarter == 2 else 1980, 500.0, 60) if state else (None, None, None)
        found.append(LatencySample(1e9 + i / 10, time_us, *known, reasons if state else ()))
    return found


def figure(at) -> dict[str, Any]:
    """Return the figure that the page sent to the chart."""
    (drawn,) = charts(at).values()
    return drawn


def titles(drawn: dict[str, Any]) -> list[str]:
    return [a["text"] for a in drawn["layout"]["annotations"]]


def test_the_page_explains_the_stream_switch(open_tab, jobs):
    at = open_tab()
    assert not at.exception
    assert not switch(at).value
    assert says(texts(at), "measured_live_yet")
    assert not charts(at)
    assert jobs.streams == {}


def test_a_gpu_stream_has_every_panel_and_is_measured(open_tab, jobs):
    at = flip(open_tab(), on=True)
    job_id = jobs.runs_with(gpu_samples())
    at.run()
    assert not at.exception
    assert switch(at).value
    assert says(texts(at), "measuring_repeatedly")
    assert (metric(at, "Median"), badge(at, "Median")) == ("12 µs", "measured")
    assert metric(at, "Samples") == "200"
    assert says(badge(at, "Samples"), "samples_left_out", "50")
    assert metric(at, "Measured for") == "20 s"
    assert "NVIDIA H200" in texts(at)
    drawn = figure(at)
    panels = ("Latency, µs", "SM clock, MHz", "Power, W", "Throttled by", CAP, HOT)
    assert all(any(p in t for t in titles(drawn)) for p in panels), titles(drawn)
    bars = [t for t in drawn["data"] if t["type"] == "bar"]
    assert {b["name"]: (b["base"], b["x"]) for b in bars} == {
        CAP: ([pytest.approx(5.0)], [pytest.approx(5.0)]),
        HOT: ([pytest.approx(10.0)], [pytest.approx(5.0)]),
    }
    assert drawn["layout"]["uirevision"] == job_id
    assert {t.get("xaxis", "x") for t in drawn["data"]} == {"x"}  # all panels share one time axis


def test_on_the_cpu_it_is_an_execution_time_and_no_latency(open_tab, jobs):
    at = flip(open_tab(), on=True)
    jobs.runs_with([LatencySample(1e9 + i, 950.0 + i) for i in range(30)], "cpu_execution")
    at.run()
    assert not at.exception
    assert says(badge(at, "Median CPU execution time"), "cpu_not_gpu")
    assert says(texts(at), "their_charts_left")
    (title,) = titles(figure(at))
    assert says(title, "cpu_execution_time")
    assert "atency" not in title


def test_missing_driver_values_hide_panels_with_a_note(open_tab, jobs):
    at = flip(open_tab(), on=True)
    jobs.runs_with(gpu_samples(state=False))
    at.run()
    assert says(texts(at), "driver_reports_not", "SM clock or power or throttling")
    assert len(titles(figure(at))) == 1


def test_a_second_tab_shows_the_same_stream_and_stops_it_for_both(open_tab, jobs):
    first = flip(open_tab(), on=True)
    jobs.runs_with(gpu_samples())
    second = open_tab()
    assert switch(second).value
    assert metric(second, "Samples") == "200"
    flip(second, on=False)
    assert list(jobs.streams) == [jobs.newest]
    for at in (first.run(), second.run()):
        assert not at.exception
        assert not switch(at).value
        assert says(texts(at), "stream_stopped", "20 s")
        assert says(texts(at), "samples_kept")
        assert metric(at, "Samples") == "200"
        assert figure(at)
    flip(first, on=True)
    assert len(jobs.streams) == 2


def test_two_tabs_share_one_stream_job(open_tab, jobs):
    first, second = open_tab(), open_tab()
    flip(first, on=True)
    flip(second, on=True)
    assert len(jobs.streams) == 1


def test_a_repeated_click_starts_one_job(open_tab, jobs):
    flip(open_tab(), on=True)
    latency_stream_jobs.stop(jobs.streams[jobs.runs_with(gpu_samples())])
    request = decode(EvaluationRequest, jobs.streams[jobs.newest].request)
    latency_stream_jobs.start(request, None)
    assert len(jobs.streams) == 1
    latency_stream_jobs.start(request, jobs.streams[jobs.newest])
    assert len(jobs.streams) == 2


def test_the_stream_restarts_for_another_kernel(open_tab, jobs):
    at = flip(open_tab(), on=True)
    old = jobs.runs_with(gpu_samples())
    at.run()
    at.number_input(key="S").set_value(256).run()
    assert jobs.streams[old].state == "cancelled"
    at.run()  # the next poll: the selection has settled
    assert [j.request["problem"]["seqlen"] for j in jobs.streams.values()] == [128, 256]
    assert switch(at).value
    at.number_input(key="S").set_value(128).run()
    at.run()
    assert [j.request["problem"]["seqlen"] for j in jobs.streams.values()] == [128, 256, 128]


def test_a_stream_of_another_tab_is_kept(open_tab, jobs):
    at = flip(open_tab(), on=True)
    old = jobs.runs_with(gpu_samples())
    at.run()
    other = open_tab()
    at.number_input(key="S").set_value(256).run()
    at.run()
    assert list(jobs.streams) == [old]
    assert jobs.streams[old].state == "running"
    assert not switch(at).value
    assert switch(other.run()).value


def test_a_wrong_kernel_gets_no_stream_but_a_reason(open_tab, jobs):
    at = flip(open_tab(), on=True)
    wrong = replace(BASE, status=Status.INCORRECT, reason="512 elements are off.", latency=None)
    jobs.set(jobs.newest, **done(wrong))
    at.run()
    assert not at.exception
    assert "INCORRECT" in at.error[0].value
    assert says(at.error[0].value, "not_measured_therefore", "512 elements are off.")
    assert not charts(at)
    assert not switch(at).value


@pytest.mark.parametrize("state", ["crashed", "failed"])
def test_samples_remain_after_the_worker_died(open_tab, jobs, state):
    at = flip(open_tab(), on=True)
    job_id = jobs.runs_with(gpu_samples())
    jobs.set(job_id, state=state, error="The worker process died.", log="Killed")
    at.run()
    assert not at.exception
    assert "The worker process died." in at.error[0].value
    assert says(at.error[0].value, "samples_kept")
    assert metric(at, "Samples") == "200"
    flip(at, on=True)
    assert len(jobs.streams) == 2


@pytest.mark.parametrize(("end", "name"), [("unseen", "stream_unseen"), ("full", "stream_full")])
def test_the_reason_of_an_ended_stream_is_shown(open_tab, jobs, end, name):
    at = flip(open_tab(), on=True)
    job_id = jobs.runs_with(gpu_samples())
    jobs.set(job_id, state="done", end=end)
    at.run()
    assert says(texts(at), name)
    assert metric(at, "Samples") == "200"


def test_a_waiting_stream_names_the_job_before_it(open_tab, jobs):
    flip(open_tab(S="256"), on=True)
    ahead = jobs.runs_with(gpu_samples())
    waiting = flip(open_tab(), on=True)
    assert says(texts(waiting), "waiting_live_measurement", "v01, B1 H1 S256 D64 fp16")
    waiting.button(key="latency_stream_stop_other").click().run()
    assert jobs.streams[ahead].state == "cancelled"
    jobs.streams[ahead] = replace(jobs.streams[ahead], state="running", kind="sweep")
    assert says(texts(waiting.run()), "waiting_running_sweep")


def test_a_waiting_sweep_names_the_job_before_it(jobs):
    def page() -> None:
        from app.sweep import progress as sweep_progress
        from engine.jobs.manager import JobStatus

        sweep_progress.draw(JobStatus("9" * 20, "queued", {}, kind="sweep"))

    at = AppTest.from_function(page).run()
    assert says(texts(at), "waiting_worker_process")
    jobs.submit_stream(EvaluationRequest("v01", Problem(1, 1, 256, 64), gpu="L4"))
    jobs.runs_with(gpu_samples())
    assert says(texts(at.run()), "waiting_live_measurement", "v01, B1 H1 S256 D64 fp16")
    at.button(key="sweep_stop_other").click().run()
    assert jobs.streams[jobs.newest].state == "cancelled"
    assert not at.run().exception


@pytest.mark.usefixtures("jobs")
def test_a_request_that_cannot_be_measured_gives_the_reason(open_tab):
    at = open_tab(D="80")
    assert not at.exception
    assert switch(at).disabled
    assert says(texts(at), "cannot_be_measured", "v01", "80")


def test_a_run_is_not_shown_as_a_live_measurement(open_tab, jobs):
    at = flip(open_tab(), on=True)
    jobs.runs_with(gpu_samples())
    at.run()
    assert says(badge(at, "Correctness"), "not_run")
    assert at.button(key="run")


@pytest.mark.usefixtures("jobs")
def test_toggles_have_distinct_labels(open_tab):
    at = open_tab()
    assert says(at.toggle(key="live").label, "rerun_on_change")
    assert len({t.label for t in at.toggle}) == len(at.toggle)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_long_stream_is_drawn_with_few_points(theme):
    series = LatencySeries()
    series.extend(StreamPart("device_warm", "H200", tuple(gpu_samples(20_000)), 1))
    drawn = latency_stream_chart.latency_stream(series.view(), "job", theme).to_dict()
    assert json.dumps(drawn)  # it can be sent to the component
    points = series.view().times
    assert points is not None
    assert points.at_s.size <= 1_500
    assert np.isfinite(points.values).all()
