"""The Sessions page: empty states, search, damaged files, opening, removing, hostile text."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from app_driver import badge, charts, metric, texts, until
from test_run_states import BASE
from words import says

from app.sessions import frames
from engine.attention.evaluation import BaselineTiming, Latency
from engine.base.errors import Status
from engine.history.history import log_prediction, predictions
from engine.history.known_time import RECORDED, times_of
from engine.sessions import store as store_module
from engine.sessions.known_times import score
from engine.sessions.session import make_snapshot, make_source
from engine.sessions.snapshot import Goal, TimelineEntry

ROOT = Path(__file__).resolve().parents[2]
MEASURED = Latency("measured", 12.5, 12.4, 12.6, "Graph replay.")
HOSTILE = "![x](http://evil/x.png) <script>alert(1)</script> [y](http://evil) :red[z] `q`"


pytestmark = pytest.mark.usefixtures("no_shipped_sessions")


def save(title: str = "Tuning", *evaluations, **fields) -> str:
    snapshot = make_snapshot(
        evaluations or (BASE,), environment={"torch": "2.13.0"}, title=title, **fields
    )
    return store_module.default_store().save(snapshot)


def test_an_empty_page_says_how_to_begin(open_app):
    at = open_app("sessions")
    assert not at.exception
    assert says(texts(at), "no_snapshots_yet")
    assert says(texts(at), "press_save_run")


def test_a_filter_without_matches_gives_a_message(open_app):
    save()
    at = open_app("sessions")
    at.text_input(key="session_text").set_value("nowhere to be found").run()
    assert says(texts(at), "none_snapshots_matches", "1")
    at.text_input(key="session_text").set_value("tun").run()
    assert list(at.dataframe[0].value["title"]) == ["Tuning"]


def test_many_snapshots_are_listed_in_pages(open_app, monkeypatch):
    from app.sessions import snapshot_list

    monkeypatch.setattr(snapshot_list, "_PAGE_ROWS", 2)
    names = [save(f"Session {i}") for i in range(5)]
    at = open_app("sessions")
    assert says(texts(at), "snapshots_shown", "1", "2", "5")
    seen = list(at.dataframe[0].value["file"])
    for page in (2, 3):
        at.number_input(key="session_page").set_value(page).run()
        assert not at.exception
        seen += list(at.dataframe[0].value["file"])
    assert sorted(seen) == sorted(names)
    assert says(texts(at), "snapshots_shown", "5 to 5 of 5")
    at.text_input(key="session_text").set_value("Session").run()
    at.text_input(key="session_text").set_value("Session 3").run()  # one page
    assert list(at.dataframe[0].value["title"]) == ["Session 3"]


def test_an_unreadable_store_gives_a_message(open_app, sessions_dir):
    sessions_dir.write_text("not a folder")
    at = open_app("sessions")
    assert not at.exception
    assert says(at.error[0].value, "path_unreadable")


def test_a_measured_latency_is_shown_as_recorded(open_app):
    name = save("Measured", replace(BASE, latency=MEASURED))
    at = open_app("sessions", session=name)
    assert not at.exception
    assert (metric(at, "Latency"), badge(at, "Latency")) == ("12.5 µs", "recorded")
    environment = next(d.value for d in at.dataframe if "what" in d.value)
    assert "2.13.0" in set(environment["value"])


def test_the_recorded_source_is_shown_instead_of_the_local_one(open_app):
    text = "__global__ void recorded() {}\n"
    source = make_source("v01_fa1_baseline.cu", text)
    noted = replace(BASE, source_sha256=source.sha256, notes=("The power limit binds.",))
    name = save("Source", noted, sources=[source])
    at = open_app("sessions", session=name)
    assert any(noted.notes[0] in caption.value for caption in at.caption)
    at.session_state["session_tab"] = "Source and resources"
    at.run()
    assert [c.value for c in at.code][-1] == text.strip()


def test_several_evaluations_are_rows_failures_included(open_app):
    failed = replace(
        BASE, status=Status.CRASHED, reason="It crashed.", correctness=None, latency=None
    )
    name = save("Two", BASE, failed)
    at = open_app("sessions", session=name)
    assert not at.exception
    rows = next(d.value for d in at.dataframe if "status" in d.value)
    assert list(rows["status"]) == ["PASSED", "CRASHED"]


def test_the_opened_snapshot_comes_first(open_app):
    name = save("Opened", replace(BASE, latency=MEASURED))
    at = open_app("sessions", session=name)
    headings = [m.value for m in at.markdown]
    opened = next(i for i, text in enumerate(headings) if "#### Opened" in text)
    working = next(i for i, text in enumerate(headings) if "Working session" in text)
    assert opened < working


def test_a_recorded_time_is_not_shown_as_a_failure(open_app):
    imported = replace(BASE, status=Status.SKIPPED, reason="Elsewhere.", correctness=None)
    name = save("Imported", replace(imported, latency=MEASURED))
    at = open_app("sessions", session=name)
    assert metric(at, "Correctness") == "Not checked"
    assert "SKIPPED" not in texts(at)
    at.session_state["session_tab"] = "Correctness"
    at.run()
    assert any(RECORDED.capitalize() in each.value for each in at.info)


def test_a_session_of_baselines_opens_as_a_table_and_a_chart(open_app, sessions_dir):
    for path in (ROOT / "sessions").glob("*h200_sdpa*"):
        sessions_dir.mkdir(exist_ok=True)
        (sessions_dir / path.name).write_bytes(path.read_bytes())
        at = open_app("sessions", session=path.name)
    assert not at.exception
    assert [m.label for m in at.metric] == []
    figure = charts(at)["session_baselines"]
    assert {trace["name"] for trace in figure["data"]} >= {"SDPA flash", "SDPA cudnn"}
    table = next(d.value for d in at.dataframe if "flash µs" in d.value)
    assert len(table) == 43
    assert "SKIPPED" not in texts(at)


def test_predictions_that_were_measured_later_are_one_plot(open_app):
    predicted = Latency("predicted", 11.0, 8.0, 15.0, "one CTA binds")
    first = replace(BASE, source_sha256="ab" * 32)
    log_prediction(first, predicted)
    measured = replace(first, latency=MEASURED, when="2999-01-01T00:00:00+00:00")
    save("Measured later", measured)
    at = open_app("sessions")
    at.session_state["ledger"] = True
    at.run()
    assert not at.exception
    assert says(texts(at), "times_lie_inside", "1", "1")
    line, points = charts(at)["ledger_chart"]["data"]
    assert (points["x"], points["y"]) == ([12.5], [11.0])
    assert line["x"] == line["y"]

    of_another_source = score(
        predictions(), times_of([replace(measured, source_sha256="")], session="S")
    )
    assert len(of_another_source.scores) == 1
    assert frames.ledger(of_another_source).empty


def test_baselines_of_two_gpus_are_not_mixed() -> None:
    on = [
        replace(
            BASE,
            device=gpu,
            baselines=(BaselineTiming("flash", replace(MEASURED, high_us=us, median_us=us)),),
        )
        for gpu, us in (("L4", 24.0), ("H200", 13.0))
    ]
    label = BASE.problem.label()
    table = frames.baseline_table(on).set_index("problem")
    assert dict(table["flash µs"]) == {f"{label} on L4": 24.0, f"{label} on H200": 13.0}
    assert list(frames.baseline_table(on[:1])["problem"]) == [label]


def test_a_damaged_file_is_listed_and_opening_it_gives_one_sentence(open_app, sessions_dir):
    save()
    (sessions_dir / "20261121T000000Z-broken.json").write_text('{"format": "attune-snap')
    at = open_app("sessions", session="20261121T000000Z-broken.json")
    assert not at.exception
    assert len(at.error) == 1
    listed = next(d.value for d in at.dataframe if "damage" in d.value)
    assert list(listed.columns[:2]) == ["title", "damage"]
    broken = listed[listed["damage"] != ""].iloc[0]
    assert says("The file " + broken["damage"], "snapshot_no_json")
    assert broken["latency"] == ""  # a damaged file has no figures


@pytest.mark.parametrize("name", ["../../etc/passwd", "missing.json", "a" * 500, "<b>.json"])
def test_a_link_to_no_session_gives_a_one_sentence_error(open_app, name):
    save()
    at = open_app("sessions", session=name)
    assert not at.exception
    assert len(at.error) == 1


def test_hostile_text_is_not_rendered_as_markup(open_app):
    name = save(HOSTILE, notes=HOSTILE, hypothesis=HOSTILE)
    at = open_app("sessions", session=name)
    assert not at.exception
    rendered = [e.value for kind in (at.markdown, at.caption, at.success) for e in kind]
    assert not any("![x](" in text or "<script>" in text for text in rendered)
    assert any(HOSTILE in t.value for t in at.text)  # st.text reads no markup


def test_remove_moves_to_the_trash_with_a_message(open_app, sessions_dir):
    name = save()
    at = open_app("sessions", session=name)
    at.button(key="session_remove").click().run()
    assert not at.exception
    assert "trash" in texts(at)
    assert not (sessions_dir / name).exists()
    assert len(list((sessions_dir / "trash").iterdir())) == 1
    assert says(texts(at), "no_snapshots_yet")
    at.button(key="session_undo").click().run()
    assert not at.exception
    assert "Restored" in texts(at)
    assert (sessions_dir / name).exists()
    assert list((sessions_dir / "trash").iterdir()) == []


def test_open_in_tune_sets_variant_problem_and_gpu_in_the_sidebar(open_app):
    """Also of an evaluation whose source is not the variant's present one, which has its own
    name."""
    problem = replace(BASE.problem, batch=3, seqlen=197, causal=True)
    edited = replace(BASE, problem=problem, variant="v02", config={}, source_sha256="ab" * 32)
    name = save("Go", edited)
    at = open_app("sessions", session=name)
    assert "v02 (source abababab)" in texts(at)
    at.button(key="session_tune").click().run()
    assert not at.exception
    assert [at.number_input(key=k).value for k in "BHSD"] == [3, 1, 197, 64]
    assert at.toggle(key="causal").value
    assert at.selectbox(key="gpu").value == "L4"
    assert at.selectbox(key="variant").value == "v02"


def test_an_uploaded_snapshot_is_validated_kept_and_opened(open_app):
    data = store_module.default_store().read(save("Sent by a friend"))
    at = open_app("sessions")
    at.file_uploader(key="session_upload").set_value(("theirs.json.gz", data, "application/gzip"))
    at.run()
    assert not at.exception
    assert metric(at, "Correctness") == "Passed"


def test_a_foreign_upload_is_refused_with_one_sentence(open_app):
    at = open_app("sessions")
    at.file_uploader(key="session_upload").set_value(("x.json", b'{"a": 1}', "application/json"))
    at.run()
    assert not at.exception
    assert len(at.error) == 1
    assert store_module.default_store().list() == []


def test_an_uploaded_table_becomes_a_recorded_session(open_app):
    table = b"B,H,S,D,kernel_ms\n1,1,128,64,0.5\n"
    at = open_app("sessions")
    at.file_uploader(key="session_upload").set_value(("mine.csv", table, "text/csv"))
    at.run()
    assert len(at.error) == 1  # the file names no kernel and no GPU
    at.text_input(key="import_variant").set_value("v01").run()
    at.text_input(key="import_gpu").set_value("L4").run()
    at.button(key="session_import").click().run()
    assert not at.exception
    assert (metric(at, "Latency"), badge(at, "Latency")) == ("500 µs", "recorded")


def test_filters_by_variant_problem_and_day(open_app):
    save("One", replace(BASE, variant="v02", config={}), updated="2026-01-01T00:00:00Z")
    save("Two", updated="2026-02-01T00:00:00Z")
    at = open_app("sessions")
    at.text_input(key="session_variant").set_value("v02").run()
    assert list(at.dataframe[0].value["title"]) == ["One"]
    at.text_input(key="session_variant").set_value("").run()
    at.date_input(key="session_since").set_value(date(2026, 1, 15)).run()
    assert list(at.dataframe[0].value["title"]) == ["Two"]
    at.text_input(key="session_problem").set_value("S999").run()
    assert says(texts(at), "none_snapshots_matches", "2")


def test_sources_and_timeline_of_a_snapshot_are_shown(open_app):
    source = make_source("v01_fa1_baseline.cu", "int main() {}\n")
    entry = TimelineEntry(when="2026-01-01T00:00:00Z", what="a dead end", outcome="dropped")
    name = save("All", sources=[source], timeline=[entry], target=Goal(metric="speedup", value=2))
    at = open_app("sessions", session=name)
    assert "undecided" in texts(at).casefold()
    assert any("a dead end" in list(d.value.get("what", [])) for d in at.dataframe)
    at.session_state["session_sources"] = True
    at.run()
    assert not at.exception
    assert "int main() {}" in [c.value for c in at.code]


def test_advice_is_compiled_by_the_worker_and_ordered(open_app, ladder_of):
    ladder_of("v01", "v02")
    name = save("Advice", replace(BASE, problem=replace(BASE.problem, seqlen=512)))
    at = open_app("sessions", session=name)
    assert not any(says(d.value, "expected_gain") for d in at.dataframe)  # empty until it is opened
    at.session_state["session_advice"] = True
    at.run()
    assert not at.exception
    until(at, lambda at: any("Use v02" in str(d.value.get("what")) for d in at.dataframe))
    [frame] = [d.value for d in at.dataframe if "expected gain" in d.value]
    gains = [float(gain.rstrip("×")) for gain in frame["expected gain"] if "×" in gain]
    assert gains == sorted(gains, reverse=True)
    assert all(frame["why"])
