"""The page "Sweep" without a browser."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest
from app_driver import charts, metric, plain_texts, texts, until
from pandas import DataFrame
from sweep_data import rows_of, spec
from words import says

from app.shared.palette import CATEGORICAL, DARK, made_distinct
from app.sweep import charts as sweep_charts
from app.sweep import frames
from app.sweep.cost_estimate import estimate
from app.sweep.results import TABS
from engine.attention.config import load_tuned, save_tuned, tuned_path
from engine.attention.problem import Problem
from engine.base.errors import StoreError
from engine.jobs.manager import JobManager, manager, use_manager
from engine.search.ranking import SweepRow, by_problem
from engine.search.results import (
    occupancy_frame,
    parallel_coordinates,
    sweep_frame,
    tunable_importance,
    winner_line,
)
from engine.search.space import Space, SweepOptions
from engine.search.sweep.journal import Budget, SweepJournal, SweepSpec

COLORS = {"v01": "#111111", "v05": "#222222"}


@pytest.fixture(autouse=True)
def _no_sweeps_of_other_tests(_isolated, tmp_path):
    """Start each test with an empty list of jobs and the shared compiled kernels."""
    own = JobManager(tmp_path / "jobs")
    before = use_manager(own)
    yield
    use_manager(before)
    own.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a finished sweep of v05 over two lengths: 4 points, compiled and predicted only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        made = JobManager(tmp_path_factory.mktemp("finished") / "jobs")
        wanted = spec(("v05",))
        space = replace(
            wanted.space, tunables={"num_splits": (1, 4), "block_n": (64,), "threads_per_row": (8,)}
        )
        job_id = made.submit_sweep(replace(wanted, space=space))
        deadline = time.monotonic() + 240
        while not made.status(job_id).is_over:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert made.status(job_id).state == "done"
        yield made
        made.close()


@pytest.fixture
def swept(open_app, finished):
    """Return a function that opens the page with the finished sweep."""

    def open_(**params):
        use_manager(finished)
        return open_app("sweep", gpu="L4", **params)

    return open_


def test_an_empty_page_says_how_to_begin(open_app):
    at = open_app("sweep", gpu="L4")
    assert not at.exception
    assert says(texts(at), "no_sweep_yet")
    assert says(texts(at), "no_nvidia_gpu")


def test_the_estimate_counts_before_anything_is_compiled(open_app):
    at = open_app("sweep", gpu="L4", variant="v05")
    assert "36 points" in texts(at)
    at.text_input(key="sweep_S").set_value("64:256:x2").run()
    assert "108 points" in texts(at)
    at.text_input(key="sweep_num_splits").set_value("1,2").run()
    assert "36 points" in texts(at)
    at.number_input(key="sweep_evaluations").set_value(5).run()
    assert says(texts(at), "points_to_evaluate", "5")
    at.text_input(key="sweep_D").set_value("64,100").run()
    assert says(texts(at), "excluded_by_constraints", "36")
    assert not [job for job in manager().jobs() if job.kind == "sweep"]


def test_an_invalid_axis_gives_a_message_and_prevents_the_start(open_app):
    at = open_app("sweep", gpu="L4")
    at.text_input(key="sweep_S").set_value("64..128").run()
    assert not at.exception
    assert says(plain_texts(at), "values_form", "seqlen")
    assert at.button(key="sweep_start").disabled


def test_start_runs_to_the_end_and_shows_every_result(open_app):
    at = open_app("sweep", gpu="L4", variant="v05")
    at.text_input(key="sweep_num_splits").set_value("1,4").run()
    at.text_input(key="sweep_S").set_value("64,128").run()
    at.text_input(key="sweep_block_n").set_value("64").run()
    at.text_input(key="sweep_threads_per_row").set_value("4").run()
    at.toggle(key="sweep_execute").set_value(False).run()
    assert "4 points" in texts(at)
    at.button(key="sweep_start").click().run()
    until(at, lambda at: any(m.label == "Took" for m in at.metric))
    assert not at.exception
    assert metric(at, "Done") == "4 of 4"
    assert says(texts(at), "none_them_measured")
    assert len(charts(at)) == 1  # the winners map of both problems
    assert says(texts(at), "finished_after")


@pytest.mark.parametrize("tab", TABS)
def test_each_tab_opens(swept, tab):
    at = swept(sweep_tab=tab)
    assert not at.exception
    assert not at.error
    if tab == "Table":
        assert len(at.dataframe[0].value) == 4
        assert "latency µs" in at.dataframe[0].value.columns
    if tab == "Roofline":
        assert set(at.dataframe[0].value["level"]) == {"L2"}
        points = [t for t in charts(at)["sweep_roofline"]["data"] if t["mode"] == "markers"]
        assert sum(len(trace["customdata"]) for trace in points) == 4


def test_a_filter_without_matches_gives_a_message(swept):
    at = swept()
    at.multiselect(key="sweep_only").set_value(["v01"]).run()
    assert says(texts(at), "no_point_matches")
    assert not at.exception


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_sweep_without_possible_points_gives_the_reason(open_app):
    problems = (Problem(1, 1, 64, 100),)
    manager().submit_sweep(SweepSpec(Space(("v01",), problems), SweepOptions(gpu="L4")))
    at = until(open_app("sweep", gpu="L4"), lambda at: any(m.label == "Took" for m in at.metric))
    assert any(says(note.value, "none_points_time", "2") for note in at.info)
    assert not at.error  # points excluded by constraints are no failures
    assert not at.exception


@pytest.mark.exhaustive  # browser stories and tests of jobs cover it
def test_a_cancelled_sweep_keeps_its_results_and_can_resume(open_app):
    wanted = spec(("v06",), (64,))
    tunables = {"threads_per_row": (4,), "num_splits": (1, 2, 4, 8)}
    space = replace(wanted.space, tunables=tunables)
    manager().submit_sweep(replace(wanted, space=space))
    at = open_app("sweep", gpu="L4")
    until(at, lambda at: any(m.label == "Done" for m in at.metric))
    at.button(key="sweep_cancel").click().run()
    until(at, lambda at: "Cancelled" in texts(at))
    assert not at.exception
    kept = len(manager().rows(manager().jobs()[0].job_id))
    at.button(key="sweep_resume").click().run()
    until(at, lambda at: any(m.label == "Took" for m in at.metric) and "Finished" in texts(at))
    job = manager().jobs()[0]
    assert job.progress.resumed == kept
    assert metric(at, "Done") == "8 of 8"


def test_a_link_to_no_sweep_gives_a_one_sentence_error(open_app):
    at = open_app("sweep", gpu="L4", sweep="nowhere")
    assert says(at.error[0].value, "not_on_this")
    assert not at.exception


def test_an_estimate_of_very_many_points_is_not_enumerated():
    wide = spec(("v05",), tuple(range(32, 32 * 2000, 32)))
    wide_estimate = estimate(wide)
    assert wide_estimate.points == 36 * 1999
    assert wide_estimate.excluded is None
    assert wide_estimate.time.expected_s > 60
    limited = SweepSpec(wide.space, wide.options, budget=Budget(seconds=30.0))
    assert estimate(limited).time.expected_s == 30.0


def test_charts_draw_the_engine_frames():
    rows = rows_of(spec())
    frame = sweep_frame(rows)
    timed = frame.dropna(subset=["median_us"])
    winners = DataFrame([winner_line(*key, group) for key, group in by_problem(rows).items()])
    cells = sweep_charts.winner_map(winners, COLORS, DARK)
    assert cells.data[0].z.shape == (1, 2)
    assert made_distinct(["#1", "#2", "#1"]) == ["#1", "#2", CATEGORICAL[0]]
    assert [list(cells.data[1].customdata)] == [winners["point"].to_list()]
    one_problem = timed[timed["problem"] == timed["problem"].iloc[0]]
    lines = sweep_charts.parallel(*parallel_coordinates(one_problem), DARK)
    assert [d.label for d in lines.data[0].dimensions][-1] == "latency"
    splits = next(d for d in lines.data[0].dimensions if d.label == "num splits")
    assert splits.ticktext[0] == sweep_charts.LACKS  # v01 lacks this tunable
    bars = sweep_charts.importance(tunable_importance(frame), COLORS, DARK)
    assert any("num_splits" in name for name in bars.data[0].y)
    scattered = occupancy_frame(one_problem)
    assert scattered["outlier"].any()
    points = sweep_charts.occupancy(scattered, COLORS, "predicted", DARK)
    assert "predicted" in points.layout.yaxis.title.text
    assert len(points.data[-1].x) == scattered["outlier"].sum()
    assert json.loads(points.to_json())


def test_indistinguishable_times_are_drawn_close_together():
    frame = DataFrame(
        {"tunable": "block_n", "variant": "v05", "value": [32, 64], "best_us": [62.31, 62.33]}
    ).assign(points=1, point="")
    axis = sweep_charts.slices(frame, COLORS, "predicted", DARK).layout.yaxis
    assert 10 ** (axis.range[1] - axis.range[0]) == pytest.approx(1.1)
    assert len(set(axis.ticktext)) == len(axis.ticktext) > 1
    far = frame.assign(best_us=[62.0, 124.0])
    assert sweep_charts.slices(far, COLORS, "predicted", DARK).layout.yaxis.range is None


def test_slices_of_tunables_share_one_time_axis():
    frame = DataFrame(
        {"tunable": ["block_n", "num_splits"], "variant": ["v05", "v01"], "value": [32, 4]}
    ).assign(best_us=[62.0, 3.0], points=1, point="")
    layout = sweep_charts.slices(frame, COLORS, "predicted", DARK).layout
    assert layout.yaxis2.matches == "y"  # else its own range, without ticks of it
    assert layout.showlegend


def test_winners_of_one_variant_are_named_by_what_differs_in_their_configs():
    rows = {row.point: row for row in rows_of(spec()) if row.variant == "v05"}
    lines = DataFrame({"point": list(rows), "winner": "v05"})
    named, differ = frames.winners_by_config(lines, rows)
    assert "num_splits" in differ
    for line in named.itertuples():
        config = rows[line.point].config
        assert line.winner == " · ".join(str(config[name]) for name in differ)
    same, nothing = frames.winners_by_config(lines[:1], rows)
    assert (list(same["winner"]), nothing) == (["v05"], [])


def test_parallel_coordinates_are_of_one_problem(swept):
    at = swept(sweep_tab="Parallel coordinates")
    offered = at.selectbox(key="sweep_lines").options
    assert len(offered) == 2
    first = charts(at)["sweep_parallel"]["data"][0]
    assert "seqlen" not in [d["label"] for d in first["dimensions"]]
    at.selectbox(key="sweep_lines").set_value(offered[1]).run()
    second = charts(at)["sweep_parallel"]["data"][0]
    assert second["dimensions"][-1]["ticktext"] != first["dimensions"][-1]["ticktext"]


def test_a_selected_row_is_opened_in_tune(swept):
    at = swept(sweep_tab="Table")
    frame = at.dataframe[0].value
    assert frame["latency µs"].is_monotonic_increasing
    at.session_state["sweep_table"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    at.run()
    assert not at.exception
    link = next(e.proto for e in at.get("page_link") if e.proto.label == "Open in Tune")
    at.query_params.update(dict(parse_qsl(link.query_string)))
    at.switch_page("app_pages/tune.py").run()
    assert not at.exception
    assert at.number_input(key="S").value == int(frame["problem"].iloc[1].split("S")[1].split()[0])
    assert at.select_slider(key="v05.num_splits").value == frame["num splits"].iloc[1]
    assert "link" not in at.query_params
    at.number_input(key="S").set_value(96).run()
    assert at.number_input(key="S").value == 96  # the link is applied once


def test_failures_are_rows_with_reasons():
    frame = sweep_frame(rows_of(spec()))
    untimed = frames.without_time(frame)
    assert untimed.to_dict("records") == [
        {"points": 1, "status": "CRASHED", "reason": "It crashed."}
    ]
    table = frames.table(frame)
    assert table["status"].iloc[-1] == "CRASHED"
    assert table["reason"].iloc[-1] == "It crashed."


def test_a_correct_result_without_time_has_a_reason():
    note = "Registers, occupancy and latency are unknown: CuPy is not installed."
    row = rows_of(spec())[1]
    for status, why in (("PASSED", note), ("SKIPPED", note), ("CRASHED", "It crashed.")):
        result = {**row.result, "status": status, "notes": [note]}
        assert SweepRow.from_result(row.point, result, 0.1).reason == why


def test_the_axes_are_in_the_url(open_app):
    at = open_app("sweep", gpu="L4", variant="v05")
    at.multiselect(key="sweep_variants").set_value(["v01", "v05"]).run()
    at.text_input(key="sweep_S").set_value("64,128").run()
    at.multiselect(key="sweep_dtypes").set_value(["bfloat16"]).run()
    at.number_input(key="sweep_evaluations").set_value(5).run()
    at.toggle(key="sweep_execute").set_value(False).run()
    assert not at.exception
    link = {name: "".join(value) for name, value in at.query_params.items()}
    again = open_app("sweep", **link)
    assert again.multiselect(key="sweep_variants").value == ["v01", "v05"]
    assert again.text_input(key="sweep_S").value == "64,128"
    assert again.multiselect(key="sweep_dtypes").value == ["bfloat16"]
    assert again.number_input(key="sweep_evaluations").value == 5
    assert not again.toggle(key="sweep_execute").value
    assert "76 points" in texts(again)


class AskedManager(JobManager):
    """Records the sweeps it is asked for and starts none."""

    def __init__(self, folder):
        super().__init__(folder)
        self.asked = []

    def submit_sweep(self, spec, cluster=""):
        self.asked.append((spec, cluster))
        return "job"


@pytest.fixture
def asked(tmp_path):
    made = AskedManager(tmp_path / "asked")
    use_manager(made)
    yield made.asked
    made.close()


def test_backend_and_inputs_of_a_sweep_reach_the_manager(open_app, asked):
    at = open_app("sweep", gpu="L4", variant="v01", inputs="harsh")  # a former name
    at.text_input(key="sweep_on").set_value("tcp://127.0.0.1:8786").run()
    at.button(key="sweep_start").click().run()
    ((wanted, cluster),) = asked
    assert wanted.options.input_kind == "extreme"
    assert cluster == "tcp://127.0.0.1:8786"


def test_a_link_cannot_set_a_cluster(open_app):
    """A link cannot set a scheduler address, as data from a scheduler are unpickled."""
    at = open_app("sweep", gpu="L4", variant="v01", sweep_on="tcp://evil.example:1", link="1")
    assert at.text_input(key="sweep_on").value == ""
    at.text_input(key="sweep_on").set_value("tcp://10.0.0.5:8786").run()
    assert "10.0.0.5" not in str(at.query_params)


@pytest.mark.parametrize("answer", ["sweep_confirm", "sweep_decline"])
def test_a_cluster_on_another_machine_is_confirmed_by_name(open_app, asked, answer):
    at = open_app("sweep", gpu="L4", variant="v01")
    at.text_input(key="sweep_on").set_value("10.0.0.5:8786").run()
    at.button(key="sweep_start").click().run()
    assert not asked
    assert "10.0.0.5" in at.button(key="sweep_confirm").label
    assert "10.0.0.5" in at.warning[0].value
    at.button(key=answer).click().run()
    assert [cluster for _, cluster in asked] == (
        ["tcp://10.0.0.5:8786"] if answer == "sweep_confirm" else []
    )
    assert not [b for b in at.button if b.key == "sweep_confirm"]


class RefusingManager(JobManager):
    why = "No scheduler answers: start one."

    def submit_sweep(self, *_):
        raise StoreError(self.why)


def test_a_sweep_that_cannot_start_gives_a_one_sentence_error(open_app, tmp_path):
    use_manager(RefusingManager(tmp_path / "refusing"))
    at = open_app("sweep", gpu="L4")
    at.button(key="sweep_start").click().run()
    assert RefusingManager.why in at.error[0].value
    assert not at.exception


def test_a_sweep_of_the_command_line_is_displayed(open_app, cache_dir):
    wanted = spec(("v01",), (64,))
    book = SweepJournal(cache_dir / "sweeps" / "looked-at.jsonl")
    with book.claim():
        book.begin(wanted)
        for point, row in zip(wanted.space.points(wanted.options), rows_of(wanted), strict=True):
            book.add(point, row)
        at = open_app("sweep", gpu="L4", sweep="cli-looked-at", sweep_tab="Table")
        assert metric(at, "Done") == "2 of 2"
        assert says(texts(at), "of_command_line", "running")
        assert len(at.dataframe[0].value) == 2
        buttons = [b.key for b in at.button]
        assert "sweep_cancel" not in buttons
        book.end("finished")
    at.run()
    assert says(texts(at), "finished_after")
    assert not at.exception
    book.begin(wanted)  # resumed, then killed
    long_ago = time.time() - 60
    os.utime(book.path, (long_ago, long_ago))
    at = open_app("sweep", gpu="L4", sweep="cli-looked-at")
    assert f"sweep --resume {book.path}" in texts(at)
    assert "sweep_resume" not in [b.key for b in at.button]
    book.path.unlink()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_best_config_is_saved_used_and_deleted(open_app, finished):
    use_manager(finished)
    at = open_app("tune", gpu="L4", variant="v05", S="64")
    at.query_params["sweep_tab"] = "Tuned configs"
    at.switch_page("app_pages/sweep.py").run().run()
    assert not at.exception
    assert says(texts(at), "nothing_kept_yet")
    at.button(key="sweep_keep_all").click().run()
    assert says(at.success[0].value, "kept_for", "v05 on L4")
    kept = next(e for e in load_tuned() if e.problem_class.startswith("D64 fp16 S33-64 "))
    assert kept.origin == "predicted"
    assert says(texts(at), "kept_now_of")
    # Tune's sidebar offers the tuned config and uses it only on a click.
    at.switch_page("app_pages/tune.py").run()
    assert "**tuned**" in texts(at)
    at.button(key="tuned_use").click().run()
    assert at.select_slider(key="v05.num_splits").value == kept.config["num_splits"]
    assert says(texts(at), "tuned_in_use", "**tuned**")
    at.button(key="tuned_forget").click().run()
    assert says(texts(at), "forgotten_for", "v05 on L4")
    assert kept not in load_tuned()
    assert not at.exception


def test_axes_start_at_the_problem_selected_on_tune(open_app):
    at = open_app("tune", gpu="L4", variant="v05", S="128")
    at.number_input(key="S").set_value(96).run()
    at.switch_page("app_pages/sweep.py").run()
    assert not at.exception
    assert at.text_input(key="sweep_S").placeholder == "96"
    assert says(at.multiselect(key="sweep_variants").placeholder, "as_on_tune", "v05")
    drawn = {widget.key for widget in (*at.sidebar.number_input, *at.sidebar.selectbox)}
    assert "gpu" in drawn
    assert not drawn & {"B", "H", "S", "D", "KV", "HKV", "variant"}
    at.switch_page("app_pages/tune.py").run()
    assert at.number_input(key="S").value == 96


def test_a_prediction_does_not_replace_a_measurement(swept):
    at = swept(sweep_tab="Tuned configs", variant="v05", S="64")
    at.button(key="sweep_keep_0").click().run()
    (kept,) = load_tuned()
    save_tuned(replace(kept, origin="measured"))
    at.run()
    button = at.button(key="sweep_keep_0")
    assert button.disabled
    assert says(button.help, "never_replaces_it")
    at.button(key="sweep_forget_0").click().run()
    assert load_tuned() == []


def test_a_damaged_file_of_tuned_configs_gives_a_one_sentence_error(swept):
    at = swept(sweep_tab="Keep", variant="v05")  # the name of the tab in older links
    assert not at.warning
    assert at.query_params["sweep_tab"] == "Tuned configs"
    tuned_path().parent.mkdir(parents=True, exist_ok=True)
    tuned_path().write_text("{")
    at.run()
    assert not at.exception
    assert says(at.error[0].value.replace("\\", ""), "tuned_file_foreign")


def test_the_csv_of_a_large_table_is_made_first(swept, monkeypatch):
    monkeypatch.setattr("app.sweep.results.MAX_LINES", 3)
    at = swept(sweep_tab="Table")
    assert not at.get("download_button")
    at.button(key="sweep_csv_make").click().run()
    assert at.get("download_button")
    assert not at.exception
