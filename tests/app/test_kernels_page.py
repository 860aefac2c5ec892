"""The Kernels page: rungs fill in as they are worked out, and what is known is drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from app_driver import charts, texts
from fake_jobs import FakeManager

from app.ladder import charts as ladder_charts
from app.ladder import overview, rungs
from app.shared import runs
from app.shared.palette import DARK, LIGHT
from app.tune import polling, run_state
from engine.evaluation import Latency
from engine.history.known_time import KnownTime
from engine.kernel_figures.counts import TileCounts
from engine.kernel_figures.rung import Rung, known_rung, request_of
from engine.problem import Problem
from kernels.ladder import LADDER

PROBLEM = Problem(1, 8, 1024, 64)
COUNTS = TileCounts({"tensor": 256.0, "fma": 500.0}, 320.0, 320.0, 832)


def rung(name: str, us: float, known_us: float | None = None) -> Rung:
    variant = LADDER.by_id(name)
    request = request_of(variant, PROBLEM, "L4")
    known = None
    if known_us is not None:
        taken = Latency("recorded", known_us, known_us, known_us, "taken")
        known = KnownTime(
            *(name, False, dict(request.config), PROBLEM, "L4", taken),
            *("2026-11-22", "a session", "", False, True, ""),
        )
    return Rung(
        variant=variant,
        config=dict(request.config),
        request=request,
        why_not="",
        main=None,
        spill_bytes=0,
        counts=COUNTS,
        latency=Latency("predicted", us, us / 1.5, us * 1.5, "simulated"),
        is_simulated=True,
        known=known,
        is_complete=True,
    )


@pytest.fixture
def jobs(monkeypatch) -> FakeManager:
    fake = FakeManager()
    for module in (runs, run_state, polling):  # the app opens on the Tune page
        monkeypatch.setattr(module, "manager", lambda: fake)
    monkeypatch.setattr(runs, "COMPILE_WAIT_S", 0.0)
    return fake


def test_rungs_are_worked_out_one_job_each_and_can_be_cancelled(open_app, jobs, monkeypatch):
    def unknown(variant, request, *_):  # whatever other tests worked out
        found = known_rung(variant, request)
        return replace(found, is_complete=bool(found.why_not))

    monkeypatch.setattr(rungs, "known_rung", unknown)
    monkeypatch.setattr(overview, "_POLL_S", 60)
    at = open_app("ladder", gpu="L4", H="8", S="1024", variant="v09")
    assert not at.exception
    shown = texts(at)
    possible = [v for v in LADDER if v.id != "v12" and not v.arch_specific]
    asked = len(jobs.submitted)
    assert asked >= len(possible)
    assert f"Compiling, simulating and counting {len(possible)} of {len(LADDER)} rungs" in shown
    assert "v12 keeps all keys of a head in one CTA" in shown.replace("\\", "")
    for variant in LADDER:
        assert variant.title in shown.replace("\\", "")
    at.button(key="kernels_stop").click().run()
    assert len(jobs.cancelled) == asked
    assert "rungs are not worked out" in texts(at)
    assert len(jobs.submitted) == asked
    at.button(key="kernels_go_on").click().run()
    assert len(jobs.submitted) == asked + len(possible)


def test_what_failed_is_a_sentence_and_not_tried_again(open_app, jobs):
    jobs.compile_answer = {"state": "failed", "error": "nvdisasm is not installed."}
    at = open_app("ladder", gpu="L4", H="8", S="1024")
    assert "nvdisasm is not installed." in texts(at)
    assert "rungs are not worked out" not in texts(at)


def test_known_figures_are_table_and_chart(open_app, monkeypatch):
    def known(variant, request, *_):
        found = known_rung(variant, request)
        return found if found.why_not else rung(variant.id, 10.0 + int(variant.id[1:]))

    monkeypatch.setattr(rungs, "known_rung", known)
    at = open_app("ladder", gpu="L4", H="8", S="1024", variant="v09")
    assert not at.exception
    frame = at.dataframe[0].value
    shown = [v.id for v in LADDER if v.id != "v12" and not v.arch_specific]
    assert list(frame["rung"]) == shown
    assert set(frame["instructions"]) == {756}
    assert list(frame.columns)[:4] == ["rung", "title", "simulated", "90 % interval"]
    assert set(frame["config"]) == {"defaults"}
    assert "Config: block_n=64 num_warps=4" in texts(at).replace("\\", "")
    assert "v16 needs compute capability 9.0 and L4 has 8.9" in texts(at)
    figure = charts(at)["kernels_chart"]
    assert figure["data"][0]["error_x"]["array"]
    assert "Against v08: simulated 19 µs where that takes 18 µs" in texts(at).replace("\\", "")


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_chart_marks_times_that_were_taken(theme):
    frame = ladder_charts.times_frame([rung("v08", 39.0), rung("v09", 33.0, 31.0)], "v09")
    figure = ladder_charts.times(frame, theme)
    bars, marks = figure.data
    assert list(bars.x) == [39.0, 33.0]
    assert bars.marker.color == (theme.muted, theme.accent)
    assert list(marks.x) == [31.0]
    assert figure.layout.xaxis.title.text == "time of one launch, logarithmic"
