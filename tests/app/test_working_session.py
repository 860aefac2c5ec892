"""The working session: every run is journaled and survives a reload and a server restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from app_driver import texts
from fake_jobs import done, maps
from test_run_states import BASE, jobs  # noqa: F401  (a fixture)
from test_tables import REM_PX
from words import says

from engine.attention.evaluation import BaselineTiming, Latency
from engine.sessions import session as session_module
from engine.sessions import store as store_module

pytestmark = pytest.mark.usefixtures("no_shipped_sessions")


def run(at):
    return at.button(key="run").click().run()


def only_session():
    [found] = session_module.working_sessions()
    return session_module.resume_session(found)


def test_before_the_first_run_a_text_explains_the_session(open_app):
    at = open_app("sessions")
    assert not at.exception
    assert says(texts(at), "every_run_tune")
    assert session_module.working_sessions() == []
    at.button(key="working_start").click().run()
    assert not at.exception
    assert says(texts(at), "nothing_tried_yet")


def test_a_run_is_in_the_journal_before_it_ends_and_collected_by_any_tab(open_app, jobs):  # noqa: F811
    jobs.answer = {"state": "running", "stage": "Executing on the CPU"}
    run(open_app())
    assert only_session().expected == ("job-1",)
    assert only_session().evaluations == ()
    # The tab is closed, the run ends, and another tab opens another page.
    jobs.arrays = maps()
    ended = replace(BASE, config={"block_n": 64, "threads_per_row": 4, "num_splits": 4})
    jobs.answer = done(ended)
    at = open_app("sessions")
    assert not at.exception
    assert only_session().evaluations == (ended,)
    assert len(only_session().error_maps) == 3
    assert only_session().expected == ()
    table = next(d for d in at.dataframe if "outcome" in d.value)
    assert list(table.value["outcome"]) == ["tried"]
    # A text longer than its column wraps: rows are above 4 rem.
    assert len(table.value["what"].iloc[0]) > 64
    assert table.proto.row_height > 4 * REM_PX


def test_every_run_is_kept_once_failures_included(open_app, jobs):  # noqa: F811
    jobs.answer = done(BASE)
    at = run(open_app())
    at.run()
    other = open_app()
    run(other)
    at.run()
    assert [e.status for e in only_session().evaluations] == ["PASSED", "PASSED"]


def test_a_cancelled_run_leaves_nothing_to_wait_for(open_app, jobs):  # noqa: F811
    jobs.answer = {"state": "running"}
    at = run(open_app())
    at.button(key="cancel").click().run()
    at.run()
    assert only_session().expected == ()
    assert only_session().evaluations == ()


def test_the_state_of_the_target_is_shown_and_a_note_is_stored(open_app, jobs):  # noqa: F811
    took = Latency("recorded", 10.0, 9.9, 10.1, "test data")
    slow = Latency("recorded", 25.0, 24.9, 25.1, "test data")
    jobs.answer = done(replace(BASE, latency=took, baselines=(BaselineTiming("flash", slow),)))
    run(open_app())
    at = open_app("sessions")
    assert says(texts(at), "no_target_yet")
    at.selectbox(key="target_metric").set_value("speedup").run()
    at.number_input(key="target_value").set_value(2.0).run()
    at.button(key="target_set").click().run()
    assert not at.exception
    assert "Met" in texts(at)
    hypothesis = next(t for t in at.text_area if t.key.startswith("working_hypothesis."))
    hypothesis.set_value("Splits halve the time.").run()
    assert says(texts(at), "hypothesis_line", "Splits halve the time.")
    assert says(texts(at), "goal_met", "Confirmed", "2.5×")
    at.number_input(key="target_value").set_value(3.0).run()
    at.button(key="target_set").click().run()
    assert says(texts(at), "missed_by", "Refuted")
    note = next(t for t in at.text_input if t.key.startswith("working_note."))
    note.set_value("wider tiles spill").run()
    assert not at.exception
    rows = only_session().timeline()
    assert rows[-1].what == "wider tiles spill"


def test_saving_keeps_the_whole_session(open_app, jobs):  # noqa: F811
    jobs.answer = done(BASE)
    run(open_app())
    at = open_app("sessions")
    title = next(t for t in at.text_input if t.key.startswith("working_title."))
    title.set_value("Splits at S=128").run()
    at.button(key="working_save").click().run()
    assert not at.exception
    assert says(texts(at), "saved_as")
    [info] = store_module.default_store().list()
    assert info.title == "Splits at S=128"
    assert not only_session().is_unsaved


def test_a_new_session_and_discarding_it(open_app, jobs):  # noqa: F811
    jobs.answer = done(BASE)
    run(open_app())
    at = open_app("sessions")
    at.button(key="working_new").click().run()
    assert len(session_module.working_sessions()) == 2
    assert says(texts(at), "nothing_tried_yet")
    at.button(key="working_discard").click().run()
    assert not at.exception
    assert only_session().evaluations == (BASE,)
    assert not says(texts(at), "nothing_tried_yet")


def test_a_run_continues_when_its_session_cannot_be_written(open_app, jobs, sessions_dir):  # noqa: F811
    sessions_dir.with_name("data").write_text("not a folder")
    jobs.answer = done(BASE)
    at = run(open_app())
    assert not at.exception
    assert says(at.warning[0].value.replace("\\", ""), "folder_of_sessions")
    assert jobs.submitted


def test_phases_decision_and_cost_are_kept_and_shown(open_app):
    session = session_module.start_session("Tiling")
    at = open_app("sessions")
    at.selectbox(key="target_metric").set_value("latency_us")
    at.number_input(key="target_value").set_value(400.0)
    at.text_input(key="phase_name").set_value("tiling")
    at.button(key="phase_add").click().run()
    at.selectbox(key="decision_outcome").set_value("kept")
    at.text_area(key="decision_why").set_value("Twice as fast.")
    at.number_input(key="decision_gpu_hours").set_value(2.0)
    at.button(key="decision_keep").click().run()
    assert not at.exception
    session.refresh()
    assert [p.name for p in session.phases] == ["tiling"]
    assert session.phases[0].target is not None
    assert session.spent is not None
    assert session.spent.gpu_hours == 2.0
    assert says(texts(at), "decision_line", "kept", "Twice as fast.")
    assert "GPU-hours 2 h" in texts(at)
