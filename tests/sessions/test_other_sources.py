"""Evaluations of another source than the variant's present one: a name, row and colour of their
own."""

from __future__ import annotations

import json
from dataclasses import replace

from compare_data import evaluation, latency, session
from sessions_data import present_sha256

from app.compare.charts import winner_map
from app.sessions import frames
from app.shared.palette import LIGHT, color_of
from engine.sessions.compare import compare_sessions, parse_pick
from engine.sessions.compare.formats import after_label, before_label, rows_frame, winners_frame
from engine.sessions.exporters import exported
from engine.sessions.report import to_html, to_markdown
from engine.sessions.snapshot import Spent, summarise
from engine.sessions.tables import session_tables

OLD = "3f2a91ab" + "0" * 56  # the hash of a source that the file no longer has
OLD_NAME = "v05 (source 3f2a91ab)"
OLDER = "aa" * 32


def test_sources_of_a_variant_are_compared_under_their_own_names() -> None:
    week_ago, now = OLD, present_sha256("v05")
    sessions = {
        "a": session(evaluation(100.0, source_sha256=week_ago)),
        "b": session(evaluation(50.0, source_sha256=now)),
    }
    compared = compare_sessions(sessions)
    (row,) = compared.rows
    assert (row.baseline_variant, row.variant, row.same_kernel) == ("v05", "v05", True)
    assert (row.baseline_source, row.source) == ("3f2a91ab", "")
    assert before_label(row) == "v05 (source 3f2a91ab) num_splits=4"
    assert after_label(row) == "v05 num_splits=4"
    assert list(rows_frame(compared)["baseline_variant"]) == [OLD_NAME]
    (winner,) = compared.winners
    assert (winner.best.variant, winner.runner_up.variant) == ("v05", OLD_NAME)
    assert not winner.caveat


def test_one_session_may_hold_several_sources_of_a_variant() -> None:
    """The newest of each session are compared, with their own times alone."""
    both = session(
        evaluation(10.0, source_sha256=OLDER, when="2026-01-01T00:00:00+00:00"),
        evaluation(20.0, source_sha256=OLD, when="2026-01-02T00:00:00+00:00"),
        evaluation(
            None,
            source_sha256=present_sha256("v05"),
            when="2026-01-03T00:00:00+00:00",
            latency=latency(30.0, origin="predicted"),
        ),
    )
    sessions = {"a": session(evaluation(100.0, source_sha256=OLD)), "b": both}
    compared = compare_sessions(sessions)
    (row,) = compared.rows
    assert (row.baseline_source, row.source, row.origin) == ("3f2a91ab", "", "predicted")
    assert set(row.after.times) == {"predicted"}  # the measured ones are of other sources
    assert [(u.session, u.source) for u in compared.unmatched] == [("b", "aaaaaaaa")]
    (winner,) = compared.winners
    assert (winner.best.variant, winner.best.median_us) == ("v05 (source aaaaaaaa)", 10.0)
    before, after = (
        parse_pick(text, ["b"]) for text in ("v05,source=aaaaaaaa", "v05,source=3f2a91ab")
    )
    assert before.label == "v05 (source aaaaaaaa)"
    (picked,) = compare_sessions({"b": both}, pairs=[(before, after)]).rows
    assert (picked.baseline_us, picked.time_us) == (10.0, 20.0)
    assert (picked.baseline_source, picked.source) == ("aaaaaaaa", "3f2a91ab")


def test_reports_tables_and_exports_name_the_source() -> None:
    mine, before = present_sha256("v05"), evaluation(10.0, source_sha256=OLD)
    saved = session(before, evaluation(20.0, source_sha256=mine))
    tables = {t.title: t for t in session_tables(saved)}
    assert tables["Results"].frame()["variant"].tolist() == [OLD_NAME, "v05"]
    assert dict(tables["Summary"].texts)["fastest"].startswith(OLD_NAME)
    assert list(frames.evaluations(saved.opened(), "S")["variant"]) == [OLD_NAME, "v05"]
    assert OLD_NAME in to_markdown(saved).replace("\\", "")
    page = to_html(saved)
    assert OLD_NAME in page
    assert color_of(OLD_NAME) in page
    assert color_of(OLD_NAME) not in (color_of("v05"), color_of("v05 (source aaaaaaaa)"))
    one = json.loads(exported(saved, "kernel-tuner", OLD_NAME))
    assert one["kernel_name"] == OLD_NAME
    names = [b["name"] for b in json.loads(exported(saved, "nvbench"))["benchmarks"]]
    assert names == [OLD_NAME, "v05"]
    [bars] = winner_map(winners_frame(compare_sessions({"a": saved})), LIGHT).data
    assert bars.marker.color == (color_of(OLD_NAME),)


def test_a_slice_that_was_stored_as_the_whole_gpu_has_its_own_name() -> None:
    """Files from before slices had names: "L4" with the SMs that were used."""
    whole = evaluation(100.0)
    first = whole.passes[0]
    part = replace(first, occupancy=replace(first.occupancy, num_sms=29))
    half = replace(evaluation(200.0), passes=(part, part))
    saved = {"a": session(whole), "b": session(half)}
    (row,) = compare_sessions(saved).rows
    assert (row.baseline_device, row.device, row.verdict) == ("L4", "L4 (29 SMs)", None)
    assert [w.device for w in compare_sessions(saved).winners] == ["L4", "L4 (29 SMs)"]
    tables = {t.title: t for t in session_tables(saved["b"])}
    assert tables["Results"].frame()["GPU"].tolist() == ["L4 (29 SMs)"]
    assert dict(tables["Summary"].texts)["GPU"] == "L4 (29 SMs)"
    assert summarise(saved["b"]).devices == ("L4 (29 SMs)",)


def test_hours_of_a_slice_do_not_cost_what_the_whole_gpu_does() -> None:
    whole = evaluation(100.0)
    first = whole.passes[0]
    half = replace(first, occupancy=replace(first.occupancy, num_sms=29))
    for e, costs in ((whole, True), (replace(whole, passes=(half,)), False)):
        snapshot = session(e).model_copy(update={"spent": Spent(gpu_hours=2.0)})
        assert ("cost" in dict(session_tables(snapshot)[0].texts)) is costs
