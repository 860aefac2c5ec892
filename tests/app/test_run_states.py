"""The Tune page for each state of a run: running, done, wrong, failed, cancelled, stale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from app_driver import badge, charts, metric, texts
from fake_jobs import CORRECT, WRONG, FakeManager, done, failed, maps
from software_nvml import described
from streamlit.testing.v1 import AppTest
from words import says

from app.shared import missing_kernels
from app.shared.widgets import plain_markdown
from app.tune import run_state, verdict_line
from engine.attention.evaluation import BaselineTiming, Evaluation, Execution, Finding, Latency
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.schema import encode
from engine.choose.auto import choose
from engine.devices import find_device
from engine.history import History
from engine.jobs.manager import use_manager
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest
from engine.pipeline.verdict import AutoPick
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR

PREDICTED = Latency("predicted", 540.0, 110.0, 2600.0, "One CTA takes most of it.")
BASE = Evaluation(
    status=Status.PASSED,
    reason="The largest error is within the tolerance.",
    variant="v01",
    problem=Problem(1, 1, 128, 64),
    config=by_id("v01").default_config(),
    device="L4",
    when="2026-11-21T10:00:00+00:00",
    execution=Execution("cpu", "fast", "in_order", 0, 8.5),
    correctness=CORRECT,
    latency=PREDICTED,
)
NOT_RUN = replace(
    BASE,
    status=Status.SKIPPED,
    reason="Not executed.",
    correctness=None,
    latency=None,
    execution=None,
)


@pytest.fixture
def jobs() -> Iterator[FakeManager]:
    fake = FakeManager()
    before = use_manager(fake)
    yield fake
    use_manager(before)


@pytest.fixture
def compiled_cache(_isolated) -> None:
    """Fill the cache, so that the preview waits for no compile."""
    evaluate(EvaluationRequest("v01", Problem(1, 1, 128, 64), gpu="L4", execute=False))


def run(at):
    at.button(key="run").click().run()
    return at


def test_a_run_passes_and_shows_its_error_and_maps(open_app, jobs):
    jobs.arrays = maps()
    jobs.answer = done(BASE)
    at = run(open_app(tab="Correctness"))
    assert not at.exception
    assert metric(at, "Correctness") == "Passed"
    assert badge(at, "Correctness") == "0.0002"
    table = at.dataframe[0].value
    assert table.set_index("figure").loc["largest |error|", "allowed"] == "≤ 0.0006"
    assert says(" ".join(table["note"]), "fixed_bound_studys")
    assert len(charts(at)) == 3
    assert says(texts(at), "says_nothing_about")


def test_notes_of_a_run_are_shown_below_the_verdict(open_app, jobs):
    note = "At the boost clock of 2,040 MHz; the power limit leaves about 1,500 MHz."
    jobs.answer = done(replace(BASE, notes=(note, note)))
    at = run(open_app())
    assert not at.exception
    assert [note in caption.value for caption in at.caption].count(True) == 1


def test_a_wrong_result_names_the_first_wrong_element(open_app, jobs):
    jobs.arrays = maps(kernel_is_wrong=True)
    jobs.answer = done(
        replace(BASE, status=Status.INCORRECT, reason=WRONG.reason, correctness=WRONG)
    )
    at = run(open_app(tab="Correctness"))
    assert not at.exception
    assert metric(at, "Correctness") == "Incorrect"
    assert metric(at, "Latency") == "–"  # the prediction of a wrong kernel says nothing
    assert WRONG.findings[0].sentence in texts(at)
    assert "batch 0, head 2, row 64, column 0" in texts(at)
    assert "over" in at.dataframe[0].value["note"][1]


def test_unwritten_elements_are_reported_before_small_errors(open_app, jobs):
    lines = by_id("v01").source.read_text("utf-8").splitlines()
    number, line = next((n, t.strip()) for n, t in enumerate(lines, 1) if "__syncthreads" in t)
    place = f"v01_fa1_baseline.cu:{number}"
    c = replace(
        WRONG,
        reason="512 of 32,768 elements were never written.",
        max_abs_err=0.0002,
        unwritten_count=512,
        findings=(Finding("unwritten", "Never written: row 3.", 1.0, place),),
    )
    jobs.arrays = maps()
    jobs.answer = done(replace(BASE, status=Status.INCORRECT, reason=c.reason, correctness=c))
    at = run(open_app(tab="Correctness"))
    assert not at.exception
    assert says(badge(at, "Correctness"), "elements_unwritten", "512")
    table = at.dataframe[0].value
    assert says(table["note"][0], "numbers_among_elements", "512")
    assert any(b.label == f"v01\\_fa1\\_baseline.cu:{number} `{line}`" for b in at.button)
    # The findings come before the error maps.
    before, maps_on = texts(at).split(c.findings[0].sentence, 1)
    assert says(maps_on, "where_error_is")
    assert not says(before, "where_error_is")


def test_warnings_of_a_passing_output_are_shown(open_app, jobs):
    warning = "The output passes, but its error has a direction."
    warned = replace(CORRECT, warnings=(warning,))
    jobs.arrays = maps()
    jobs.answer = done(replace(BASE, correctness=warned))
    at = run(open_app(tab="Correctness"))
    assert any(warning in w.value for w in at.warning)
    assert metric(at, "Correctness") == "Passed"


def test_a_fault_with_a_line_suggests_no_smaller_tile(open_app, jobs):
    reason = "v02_all_threads.cu:126: shared memory race in kernel attention_forward."
    jobs.answer = failed(NOT_RUN, Status.LAUNCH_ERROR, reason)
    assert says(texts(run(open_app(tab="Correctness"))), "look_line_named")
    for execution, is_advised in (
        (Execution("cuda", "device", "device", 0, None), True),
        (None, False),
    ):
        tried = replace(NOT_RUN, execution=execution)
        jobs.answer = failed(tried, Status.LAUNCH_ERROR, "The driver refuses the launch.")
        shown = texts(run(open_app(tab="Correctness")))
        assert says(shown, "launch_smaller_tile") is is_advised


def test_while_it_runs_the_button_cancels(open_app, jobs):
    stage = "Executing on the CPU"
    jobs.answer = {"state": "running", "stage": stage}
    at = run(open_app())
    assert stage in texts(at)
    with pytest.raises(KeyError):
        at.button(key="run")
    at.button(key="cancel").click().run()
    assert jobs.cancelled
    assert says(texts(at), "cancelled_before_finished")
    assert at.button(key="run")


def test_a_partial_verdict_is_shown_during_the_run(open_app, jobs):
    some = replace(BASE.execution, partial="partial: 9 of 4,096 CTAs")
    part = replace(BASE, execution=some, latency=None)
    stage = "Executing on the CPU"
    jobs.answer = {"state": "running", "stage": stage, "part": encode(part)}
    at = run(open_app())
    assert says(texts(at), "the_rest_is", "Correct", "9", "4,096 CTAs")
    assert stage in texts(at)
    assert at.button(key="cancel")
    off = "3 elements are off"
    wrong = replace(part, status=Status.INCORRECT, reason=f"Partial: {off}.")
    jobs.answer = {"state": "running", "part": encode(wrong)}
    at.run()
    assert says(texts(at), "the_rest_is", "Incorrect", "9", "4,096 CTAs")
    assert off in texts(at)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.CRASHED, "v01_fa1_baseline.cu:88: write out of bounds in CTA 3, thread 7."),
        (Status.TIMEOUT, "It ran longer than 60 s."),
        (Status.COMPILE_ERROR, "v01_fa1_baseline.cu(12): expected a semicolon."),
        (Status.LAUNCH_ERROR, "The driver refuses the launch."),
        (Status.OUT_OF_MEMORY, "It needs 3 TiB and there are 16 GiB."),
    ],
)
def test_a_failed_run_gives_cause_next_step_and_log(open_app, jobs, status, reason):
    jobs.answer = failed(NOT_RUN, status, reason, log="line 1\nline 2")
    at = run(open_app(tab="Correctness"))
    assert not at.exception
    assert metric(at, "Correctness") == str(status).replace("_", " ").capitalize()
    assert [plain_markdown(reason) in box.value for box in at.error] == [True]
    assert "Next: " in texts(at)
    assert any("line 2" in c.value for c in at.code)
    assert says([e.label for e in at.expander], "full_log")


def test_the_time_of_autos_kernel_is_requested_after_a_run(open_app, jobs, monkeypatch):
    """After a run, the time of the faster kernel that `auto` names is asked for."""
    judge, estimate = verdict_line.verdict_of, History.estimate
    looked_up: list[tuple[History, str]] = []
    asked: list[History] = []

    def untimed(*args, choice, **rest):
        pick = AutoPick(choice.variant.id, choice.config, None, None)
        return replace(judge(*args, choice=choice, **rest), auto=pick)

    def look_up(history, kernel, problem):
        looked_up.append((history, kernel.variant.id))
        return estimate(history, kernel, problem)

    monkeypatch.setattr(verdict_line, "verdict_of", untimed)
    monkeypatch.setattr(verdict_line, "_reading", lambda *_: None)  # no reading of machine code
    monkeypatch.setattr(missing_kernels, "jobs_for", lambda history, _: asked.append(history) or ())
    monkeypatch.setattr(History, "estimate", look_up)
    at = open_app(gpu="L4")
    assert not asked  # moving a slider asks for nothing
    jobs.answer = done(BASE)
    at = run(at)
    chosen = choose(BASE.problem, find_device("L4"), None, History(work="look up")).variant.id
    assert chosen != BASE.variant
    assert any(history is asked[-1] and name == chosen for history, name in looked_up)


def test_the_cause_of_a_failed_run_is_shown_in_every_tab(open_app, jobs):
    reason = "There is no C++ compiler."
    jobs.answer = failed(NOT_RUN, Status.COMPILE_ERROR, reason)
    at = run(open_app())
    assert [plain_markdown(reason) in box.value for box in at.error] == [True]
    assert "next: " in texts(at)  # in the verdict line, once
    assert "Next: " not in texts(at)


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        (
            replace(
                BASE,
                status=Status.INCORRECT,
                reason=WRONG.reason,
                correctness=replace(
                    WRONG,
                    findings=(Finding("tail_tile", "A tile.", 0.5, "v01_fa1_baseline.cu:99"),),
                ),
                latency=None,
            ),
            "verdict_finding_line",
        ),
        (
            replace(NOT_RUN, status=Status.RACE, reason="v01_fa1_baseline.cu:99: a race."),
            "verdict_line",
        ),
    ],
)
def test_the_verdict_links_to_the_line(open_app, jobs, answer, key):
    jobs.answer = done(answer)
    at = run(open_app())
    at.button(key=key).click().run()
    assert not at.exception
    assert at.session_state["tab"] == "Source and resources"
    assert at.session_state["source_line"].line == 99


def test_the_verdict_links_to_the_line_of_a_header_and_back(open_app, jobs):
    jobs.answer = done(replace(NOT_RUN, status=Status.RACE, reason="element.cuh:20: a race."))
    at = run(open_app())
    assert "Race" in texts(at)
    at.button(key="verdict_line").click().run()
    assert not at.exception
    assert at.session_state["source_line"][:2] == ("element.cuh", 20)
    header = (KERNELS_DIR / "element.cuh").read_text().strip()
    kernel = by_id("v01").source.read_text().strip()
    shown = [c.value for c in at.code]
    assert header in shown
    assert kernel not in shown
    at.button(key="source_of_kernel").click().run()
    shown = [c.value for c in at.code]
    assert header not in shown
    assert kernel in shown


@pytest.mark.parametrize("state", ["failed", "crashed"])
def test_a_dead_worker_is_reported_with_its_log(open_app, jobs, state):
    error, log = "The worker process died.", "Segmentation fault"
    jobs.answer = {"state": state, "error": error, "log": log}
    at = run(open_app())
    assert not at.exception
    assert error in at.error[0].value
    assert any(log in c.value for c in at.code)
    assert at.button(key="run")


def test_a_compile_error_of_the_preview_is_shown_beside_the_last_good_run(
    open_app, jobs, tmp_path, monkeypatch
):
    jobs.answer = done(BASE)
    at = run(open_app(tab="Correctness"))
    reason = "v01(7): expected a semicolon."
    jobs.compile_answer = failed(NOT_RUN, Status.COMPILE_ERROR, reason, log="the whole log")
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))  # nothing compiled yet
    at.session_state["compiles"] = {}
    at.run()
    assert plain_markdown(reason) in at.error[0].value
    assert metric(at, "Correctness") == "Passed"
    assert says(texts(at), "last_source_compiled")


def test_missing_nvrtc_is_reported_once(open_app, jobs, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    note = "Registers, occupancy and latency are unknown: CuPy is not installed."
    jobs.compile_answer = done(
        replace(NOT_RUN, status=Status.SKIPPED, reason="Not executed.", notes=(note,))
    )
    at = open_app()
    assert note in texts(at)
    at.run()
    assert len(jobs.submitted) == 1
    assert says(badge(at, "Registers"), "not_known")


def test_tiles_show_that_it_is_compiling(open_app, jobs, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    jobs.compile_answer = {"state": "running", "stage": "Compiling"}
    at = open_app()
    assert not at.exception
    assert badge(at, "Registers") == "compiling"


def test_a_result_of_an_older_source_is_marked(open_app, jobs):
    jobs.answer = done(replace(BASE, source_sha256="0" * 64))
    at = run(open_app())
    assert says(badge(at, "Correctness"), "older_source")


def test_a_result_is_shown_only_for_its_problem(open_app, jobs):
    jobs.answer = done(BASE)
    at = run(open_app())
    at.number_input(key="S").set_value(256).run()
    assert says(badge(at, "Correctness"), "not_run")
    at.number_input(key="S").set_value(128).run()
    assert metric(at, "Correctness") == "Passed"


@pytest.mark.usefixtures("compiled_cache")
def test_rerun_on_change_runs_each_new_problem_once(open_app, jobs):
    jobs.answer = done(BASE)
    at = open_app()
    at.toggle(key="live").set_value(True).run()
    at.run()
    at.number_input(key="S").set_value(64).run()
    at.run()
    executed = [r["problem"]["seqlen"] for r in jobs.submitted if r["execute"]]
    assert executed == [128, 64]


@pytest.mark.usefixtures("compiled_cache")
def test_a_link_with_rerun_on_change_runs_at_once(open_app, jobs):
    jobs.answer = {"state": "running"}
    open_app(live="true")
    assert sum(r["execute"] for r in jobs.submitted) == 1


@pytest.mark.usefixtures("compiled_cache")
def test_rerun_on_change_waits_for_the_run_before_it(open_app, jobs):
    jobs.answer = {"state": "running"}
    at = open_app()
    at.toggle(key="live").set_value(True).run()
    at.run()
    assert sum(r["execute"] for r in jobs.submitted) == 1


def test_a_measured_latency_is_shown_beside_sdpa(open_app, jobs, software_nvml):
    software_nvml.has(described("L4"))
    measured = Latency("measured", 12.5, 12.4, 12.6, "Graph replay, warm L2.")
    refused = BaselineTiming("cudnn", None, "cuDNN refuses this shape.")
    jobs.answer = done(
        replace(
            BASE,
            latency=measured,
            other_latencies=(
                replace(measured, median_us=20.0, low_us=19.0, high_us=21.0, kind="end_to_end"),
            ),
            baselines=(
                BaselineTiming(
                    "flash", replace(measured, median_us=13.0, low_us=12.9, high_us=13.1)
                ),
                refused,
            ),
            execution=Execution("cuda", "device", "device", 0, None),
        )
    )
    at = run(open_app(tab="Latency"))
    assert not at.exception
    assert not says(texts(at), "no_nvidia_gpu")
    assert at.selectbox(key="gpu").value == "local"
    assert (metric(at, "Latency"), badge(at, "Latency")) == ("12.5 µs", "measured")
    names = json.dumps(charts(at)["latencies"])
    assert "SDPA flash" in names
    assert says(names, "rows_end_to_end", "v01")
    assert refused.reason in texts(at)


def test_hostile_text_of_a_result_is_not_rendered_as_markup(open_app, jobs):
    jobs.answer = failed(NOT_RUN, Status.CRASHED, "![x](http://evil/x.png) [y](http://evil) <b>")
    shown = run(open_app(tab="Correctness")).error[-1].value
    assert "\\!\\[x\\]" in shown
    assert "http://" not in shown  # a bare address would become a link


def test_a_queued_reading_of_machine_code_is_cancelled_when_the_slider_moves_on(jobs):
    jobs.compile_answer = {"state": "running"}
    at = AppTest.from_function(_read_machine_code, default_timeout=30)
    at.session_state["S"] = 128
    at.run()
    assert [r["problem"]["seqlen"] for r in jobs.submitted] == [128]
    at.session_state["S"] = 192
    at.run()
    assert not jobs.cancelled  # it is running already
    jobs.compile_answer = {"state": "queued"}
    at.session_state["S"] = 256
    at.run()
    assert jobs.cancelled == ["job-1", "job-2"]
    assert [r["problem"]["seqlen"] for r in jobs.submitted] == [128, 192, 256]
    assert not at.exception


def _read_machine_code() -> None:
    import streamlit as st

    from app.shared.runs import machine_code_job
    from engine.attention.problem import Problem
    from engine.pipeline.request import EvaluationRequest

    seqlen = st.session_state["S"]
    machine_code_job(
        EvaluationRequest("v01", Problem(1, 1, seqlen, 64), gpu="L4", execute=False), "digest"
    )


def test_a_prediction_waiting_for_the_simulator_has_a_note(monkeypatch):
    seen = SimpleNamespace(bound_us=8.0, estimate=object())
    state = SimpleNamespace(simulating=object())
    for is_built, name in ((False, "simulator_built"), (True, "being_simulated")):
        monkeypatch.setattr(run_state, "are_libraries_built", lambda is_built=is_built: is_built)
        assert says(run_state._latency_reason(seen, state), name)


def test_missing_compiler_note_says_how_to_install_it():
    note = "Latency is unknown: pip install it"
    compiled = SimpleNamespace(notes=(note,))
    seen = SimpleNamespace(bound_us=8.0, estimate=None, latency_reason="not compiled")
    state = SimpleNamespace(simulating=None, compiled=compiled)
    assert run_state._latency_reason(seen, state) == note
