"""The Compare page: differences, regressions, no verdict across machines, empty states."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from app_driver import charts, metric, texts
from test_run_states import BASE
from words import says

from engine.attention.evaluation import Evaluation, Latency
from engine.sessions import store as store_module
from engine.sessions.session import make_snapshot, make_source

ENVIRONMENT = {"gpus": [{"name": "NVIDIA L4", "max_sm_clock_mhz": 2040}], "driver": "570.1"}
HOSTILE = "![x](http://evil/x.png) <script>alert(1)</script> [y](http://evil) :red[z] `q`"


pytestmark = pytest.mark.usefixtures("no_shipped_sessions")


def timed(us: float, **changes) -> Evaluation:
    samples = tuple(us * (1 + 0.001 * (i % 5)) for i in range(30))
    latency = Latency("measured", sorted(samples)[15], us, max(samples), "", samples_us=samples)
    return replace(BASE, latency=latency, **changes)


def save(title: str, *evaluations: Evaluation, day: int = 1, **fields) -> str:
    fields = {"environment": ENVIRONMENT, "updated": f"2026-01-{day:02}T00:00:00Z", **fields}
    return store_module.default_store().save(make_snapshot(evaluations, title=title, **fields))


def tables(at, column: str) -> list:
    return [d.value for d in at.dataframe if column in d.value]


def test_without_a_second_kernel_instructions_are_shown(open_app):
    at = open_app("compare")
    assert not at.exception
    assert says(texts(at), "save_session_tune")
    save("Alone", BASE)
    at = open_app("compare")
    assert not at.exception
    assert says(texts(at), "select_second_session")


def test_two_kernels_of_one_session_are_compared(open_app):
    save("Both", timed(10.0, variant="v01"), timed(5.0, variant="v02", config={}))
    at = open_app("compare")
    assert not at.exception
    (figures,) = tables(at, "change")
    change = dict(zip(figures["figure"], figures["change"], strict=True))
    assert change["recorded time"] == "2× faster"
    assert metric(at, "Faster") == "1"
    # The runner-up's column is as wide as its content.
    [winners] = [d for d in at.dataframe if "runner-up" in d.value]
    assert winners.value["runner-up"][0].startswith("v01, ")
    width_px = json.loads(winners.proto.columns)["runner-up"]["width"]
    assert width_px >= 6 * len(winners.value["runner-up"][0])


def test_a_regression_comes_first_with_its_interval(open_app):
    old = save("Old", timed(10.0), timed(20.0, variant="v02", config={}))
    new = save("New", timed(13.0), timed(16.0, variant="v02", config={}), day=2)
    at = open_app("compare")
    assert not at.exception
    assert at.selectbox(key="compare_baseline").value == old
    assert sorted(at.multiselect(key="compare_sessions").value) == sorted([old, new])
    assert (metric(at, "Slower"), metric(at, "Faster")) == ("1", "1")
    (worse,) = tables(at, "finding")
    assert list(worse["what"]) == ["time"]
    assert "95 % interval" in worse["finding"][0]
    (rows,) = tables(at, "verdict")[:1]
    assert list(rows["verdict"]) == ["SLOWER", "FASTER"]
    assert says(rows["change"][0], "times_slower", "1.3×", "(1.3 to 1.3)")
    assert says(rows["change"][1], "times_faster", "1.25×", "(1.25 to 1.25)")
    assert set(rows["origin"]) == {"recorded"}
    assert not charts(at)  # one problem: a chart would have one bar
    at.dataframe(key="compare_rows")


def test_two_variants_on_one_problem_are_compared_on_the_page(open_app):
    save("Old", timed(10.0, variant="v01"))
    save("New", timed(5.0, variant="v02", config={}), day=2)
    at = open_app("compare")
    assert not at.exception
    assert metric(at, "Faster") == "1"
    (figures,) = tables(at, "figure")[:1]
    assert any("v02" in column for column in figures.columns)
    at.segmented_control(key="compare_by").set_value("same").run()
    assert says(texts(at), "problem_both_sessions")


def test_the_link_chooses_sessions_and_baseline(open_app):
    old, new = save("Old", timed(10.0)), save("New", timed(13.0), day=2)
    save("Third", timed(11.0), day=3)
    at = open_app("compare", session=old, baseline=new)
    assert not at.exception
    assert at.multiselect(key="compare_sessions").value == [old, new]
    assert at.selectbox(key="compare_baseline").value == new
    assert metric(at, "Faster") == "1"


def test_a_link_with_a_baseline_leads_from_sessions_to_compare(open_app):
    old, new = save("Old", timed(10.0)), save("New", timed(13.0), day=2)
    save("Newest", timed(11.0), day=3)
    at = open_app("sessions", session=old, baseline=new)
    assert not at.exception
    assert at.multiselect(key="compare_sessions").value == [old, new]
    assert at.selectbox(key="compare_baseline").value == new
    assert metric(at, "Faster") == "1"


def test_a_link_to_a_missing_session_is_one_warning(open_app):
    save("Old", timed(10.0))
    save("New", timed(13.0), day=2)
    at = open_app("compare", session="<b>gone</b>.json")
    assert not at.exception
    assert len(at.warning) == 1
    assert "<b>" not in at.warning[0].value.replace("\\<", "")


def test_sessions_of_two_drivers_get_a_verdict_only_on_request(open_app):
    save("Old", timed(10.0))
    save("New", timed(13.0), day=2, environment={**ENVIRONMENT, "driver": "580.2"})
    at = open_app("compare")
    assert not [m for m in at.metric if m.label in ("Slower", "Faster")]
    differs = tables(at, "field")[0]
    assert list(differs["field"]) == ["driver"]
    assert says(differs["effect"], "without_verdict")
    at.toggle(key="compare_across").set_value(True).run()
    assert metric(at, "Slower") == "1"
    assert says(tables(at, "finding")[0]["finding"][0], "across_different_conditions")


def test_different_sources_are_shown_as_a_diff(open_app):
    name = "v01_fa1_baseline.cu"
    save("Old", timed(10.0), sources=[make_source(name, "int a;\nint b;\n")])
    save("New", timed(10.0), day=2, sources=[make_source(name, "int a;\nint c;\n")])
    at = open_app("compare")
    assert not at.exception
    assert ["-int b;" in c.value and "+int c;" in c.value for c in at.code] == [True]


def test_without_common_problems_instructions_are_shown(open_app):
    save("Old", timed(10.0))
    other = replace(BASE.problem, seqlen=BASE.problem.seqlen * 2)
    save("New", timed(10.0, problem=other), day=2)
    at = open_app("compare")
    assert not at.exception
    assert says(texts(at), "problem_both_sessions")
    assert len(tables(at, "missing_in")[0]) == 2
    assert not at.metric


def test_hostile_text_is_not_rendered_as_markup(open_app):
    evil = timed(10.0, variant=HOSTILE, device=HOSTILE, config={})
    sources = [make_source(HOSTILE, "int a;\n")]
    save(HOSTILE, evil, sources=sources, notes=HOSTILE)
    save("New", evil, day=2, sources=[make_source(HOSTILE, "int b;\n")])
    at = open_app("compare")
    assert not at.exception
    kinds = (at.markdown, at.caption, at.success, at.warning, at.info, at.expander)
    shown = [getattr(e, "value", getattr(e, "label", "")) for kind in kinds for e in kind]
    assert not any("![x](" in text or "<script>" in text for text in map(str, shown))
    figure = json.dumps(charts(at))
    assert "<script>" not in figure.replace("\\u003c", "<")


def test_defaults_are_the_newest_sessions_with_a_common_problem(open_app):
    old = save("Old", timed(10.0))
    save("Else", timed(3.0, problem=replace(BASE.problem, seqlen=77)), day=2)
    new = save("New", timed(13.0), day=3)
    at = open_app("compare")
    assert not at.exception
    assert at.multiselect(key="compare_sessions").value == [new, old]
    assert metric(at, "Slower") == "1"
