"""Which times the history knows of a kernel: the order of origins, failed runs, other sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agreement_cases import Case, evaluation_of
from words import says

from engine.attention.config import find_variant
from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.devices.spec import at_clock
from engine.sessions.store import default_store

L4_STUDY = Problem(1, 1, 128, 64)
MEDIUM = Problem(4, 8, 512, 64)
RECORDED = Case("recorded", "v08", MEDIUM, "L4", ((MEDIUM, 61.0),))


def test_time_of_prefers_origins_in_the_documented_order() -> None:
    """Measured, recorded, simulated; never times of another source. Needs no compiler."""
    from made_up_history import MadeUpHistory, Times

    from engine.history.known_time import times_of
    from engine.model.kernel import Kernel

    case = RECORDED
    kernel = Kernel.of(case.variant, case.gpu)

    def time_with(*evaluations: Evaluation) -> Any:
        times = times_of(evaluations, session="Mine: test data")
        return kernel.time(case.problem, MadeUpHistory(Times({case.gpu: times})))

    recorded = evaluation_of(case, MEDIUM, 61.0)
    measured = replace(recorded, latency=Latency("measured", 59.0, 58.0, 60.0, "here"))
    newer = replace(recorded, when="2026-05-01T00:00:00+00:00")
    assert (time_with(newer, measured).us, time_with(newer).us) == (59.0, 61.0)
    assert says(time_with(recorded).where, "session_of_time", "Mine: test data")
    near = evaluation_of(case, replace(MEDIUM, seqlen=256), 25.0)
    assert not says(time_with(near).reason, "clock_of_boost")  # that of the points is not known
    assert (time_with(near).origin, time_with(near).calibrated_on) == ("predicted", 1)
    assert (time_with().method, time_with().calibrated_on) == ("roofline", 0)
    foreign = evaluation_of(replace(case, of_this_source=False), MEDIUM, 1.0)
    assert time_with(foreign) == time_with()

    others = (
        replace(near, source_sha256="ab" * 32),
        replace(near, config=near.config | {"num_warps": 8}),
        replace(recorded, latency=replace(measured.latency, kind="device_cold")),
    )
    for other in others:
        assert time_with(other) == time_with()

    kernel = replace(kernel, device=at_clock(kernel.device, 1_000))
    assert time_with(measured, near) == time_with()  # taken at the clock that the GPU chose
    assert says(time_with().reason, "as_given", "1,000 MHz")


@pytest.mark.slow  # reads machine code
def test_the_verdict_on_a_run_has_the_time_that_pages_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from made_up_history import Times

    from engine.history import History
    from engine.history.history import predictions
    from engine.history.known_time import times_of
    from engine.pipeline.evaluate import evaluate
    from engine.pipeline.request import EvaluationRequest
    from engine.pipeline.verdict import verdict_on_run

    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path))
    case = RECORDED
    times = times_of([evaluation_of(case, MEDIUM, 61.0)], session="Mine: test data")
    request = EvaluationRequest(case.variant, MEDIUM, gpu=case.gpu, execute=False)
    history = History(Times({case.gpu: times}))
    run = evaluate(request, history=history).evaluation
    found = verdict_on_run(request, run, history).time
    assert found is not None
    assert (found.us, found.origin) == (61.0, "recorded")

    evaluate(replace(request, clock_mhz=1_000, clock="given"), history=history)
    (logged,) = predictions()  # none at a clock that no launch is measured at
    assert logged.latency == run.latency


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.RACE, Status.CRASHED])
def test_a_kernel_that_failed_has_no_known_time(status: Status) -> None:
    from engine.history.known_time import times_of

    made = evaluation_of(RECORDED, MEDIUM, 61.0)
    assert times_of([made], session="")
    assert times_of([replace(made, status=status)], session="") == ()


def test_a_time_of_an_older_source_is_not_shown_on_tune() -> None:
    from app.tune.run_state import RunState, view_of

    made = evaluation_of(RECORDED, MEDIUM, 61.0)
    measured = replace(made, latency=Latency("measured", 61.0, 60.0, 62.0, "here"))
    variant = find_variant("v08")
    selection: Any = SimpleNamespace(
        problem=MEDIUM,
        variant=variant,
        config=variant.default_config(),
        gpu_name="no such GPU",
        request=lambda **_: None,
    )
    for is_stale, expected in ((False, measured.latency), (True, None)):
        state = RunState(
            preview=None,
            error="",
            compiling=None,
            simulating=None,
            compiled=None,
            job=None,
            evaluation=measured,
            evaluation_job="",
            part=None,
            digest="",
            is_stale=is_stale,
        )
        assert view_of(selection, state).latency == expected


def test_kernels_of_another_source_have_different_names() -> None:
    """Two kernels of the L4 study took 543 and 579 µs on one problem: their names differ."""
    from engine.history import History
    from engine.sessions.known_times import KnownTimes

    known = History(KnownTimes(default_store()))
    found = {r.name: r.time.latency.median_us for r in known.references(L4_STUDY, "L4")}
    assert found == {
        "L4 study kernel (series: length)": 543.0,
        "L4 study kernel (series: batch)": 579.0,
    }
