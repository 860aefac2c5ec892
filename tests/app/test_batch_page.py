"""The page "Batch size" without a browser."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from app_driver import charts, metric, plain_texts, texts, until
from test_compare_page import save
from test_known_times_shown import timed
from words import says

from app.batch.charts import batch_ticks
from app.batch.frames import marks
from engine.attention.config import find_variant
from engine.cuda_source.sources import read_sources
from engine.model.measured_points import parse_measurements
from engine.sessions.store import default_store

STUDY = "20261121T000000Z_l4_v01_7-problems.json"
SERIES = """batch,num_heads,seqlen,head_dim,kernel_ms,sdpa_ms
1,1,128,64,0.543,0.026
8,1,128,64,0.560,0.027
32,1,128,64,0.750,0.030
256,1,128,64,3.62,0.12
"""


def ready(at) -> bool:
    """Return True once the kernel is simulated: before that the page recommends nothing."""
    return any(m.label == "Recommended" and m.value != "–" for m in at.metric)


def open_batch(open_app, **params):
    # The first run waits for the C++ compiler.
    return until(open_app("batch", gpu="L4", **params), ready)


def upload(at, text: str):
    at.selectbox(key="points").set_value("csv").run()
    at.file_uploader(key="points_csv").set_value(("series.csv", text.encode(), "text/csv"))
    return at.run()


def cost_per_day(at) -> float:
    return float(at.dataframe[0].value.set_index("").loc["$ per day", "now, predicted"])


def follow(at, **params):
    """Open a link of the app, whose values replace the session state of the tab."""
    for name, value in params.items():
        at.query_params[name] = value
    at.query_params["link"] = "1"
    return at.run()


def test_recommendation_has_interval_gain_and_reason(open_app):
    at = open_batch(open_app)
    assert not at.exception
    batch = int(metric(at, "Recommended").split("= ")[1])
    assert [m.label for m in at.metric] == ["Now", "Recommended"]
    words = texts(at)
    others = [int(n) for n in re.findall(r"B = (\d+)\*\* for", words)]
    assert 1 < min(others) <= batch <= max(others)
    assert says(words, "is_enough_for", "90%")
    assert f"B={batch} reaches" in words
    assert says(words, "fit_on_sm", "2 CTAs")
    assert "Measure B=" in words
    assert says(words, "not_calibrated_select")
    assert len(charts(at)) == 1


def test_recommendation_depends_on_heads_and_length(open_app):
    at = open_batch(open_app)
    before = metric(at, "Recommended")
    until(at.select_slider(key="H").set_value(16).run(), ready)
    assert metric(at, "Recommended") != before
    after = metric(at, "Recommended")
    until(at.select_slider(key="S").set_value(1024).run(), ready)
    assert metric(at, "Recommended") != after
    assert at.query_params["S"] == "1024"
    assert not at.exception


def test_the_slider_has_a_stop_at_a_typed_length(open_app):
    at = open_batch(open_app, S="197")
    assert at.select_slider(key="S").value == 197
    assert not at.exception


@pytest.mark.slow
def test_a_finished_job_keeps_the_input_widgets(open_app, monkeypatch):
    """Widgets keep their id: a new one would lose the focus and the key that is being typed."""
    monkeypatch.setattr("app.shared.runs.COMPILE_WAIT_S", 0.0)
    at = open_app("batch", gpu="L4", variant="v02", dtype="bfloat16", D="32", S="64")
    before = inputs_of(at)
    assert {"B", "D", "H", "S", "variant", "points"} <= {key for key, *_ in before}
    assert inputs_of(until(at, ready)) == before


def inputs_of(at):
    kinds = ("number_input", "select_slider", "selectbox", "toggle", "button_group")
    listed = [(e.key, e.proto) for kind in kinds for e in at.get(kind)]
    return [
        (key, proto.id, proto.disabled, [str(o) for o in getattr(proto, "options", ())])
        for key, proto in listed
    ]


def test_free_heads_count_units(open_app):
    at = open_batch(open_app, H="8", heads_free="true")
    fixed = open_batch(open_app, H="8")
    assert metric(at, "Now") == "B × H = 8"
    free_batch = int(metric(at, "Recommended").split("= ")[1])
    assert free_batch > int(metric(fixed, "Recommended").split("= ")[1])


@pytest.mark.parametrize("tab", ["Table", "Cost", "Validate", "Batch cannot grow"])
def test_each_tab_opens(open_app, tab):
    at = open_batch(open_app, batch_tab=tab)
    assert not at.exception
    assert not at.error


def test_the_table_has_latency_and_time_per_unit(open_app):
    at = open_batch(open_app, batch_tab="Table")
    frame = at.dataframe[0].value
    assert frame["latency µs"].is_monotonic_increasing
    assert frame["per unit µs"].iloc[-1] < frame["per unit µs"].iloc[0]
    at.toggle(key="every_batch").set_value(True).run()
    assert len(at.dataframe[0].value) == 4096


def test_cost_follows_price_and_traffic(open_app):
    at = open_batch(open_app, batch_tab="Cost")
    before = cost_per_day(at)
    at.number_input(key="price.L4").set_value(1.20).run()
    at.number_input(key="traffic").set_value(2000.0).run()
    after = cost_per_day(at)
    assert after == pytest.approx(4 * before)
    assert says(texts(at), "requests_day_tokens")
    # A request of one head and 128 positions is 128 queries.
    at.selectbox(key="traffic_unit").set_value("requests").run()
    assert cost_per_day(at) == pytest.approx(128 * after)
    assert at.query_params["traffic_unit"] == "requests"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_missing_price_is_reported(open_app):
    at = until(open_app("batch", gpu="A30", batch_tab="Cost"), ready)
    assert not at.exception
    assert at.number_input(key="price.A30").value is None
    assert says(texts(at), "no_list_price")


def test_waiting_needs_rate_and_latency_budget(open_app):
    at = open_batch(open_app, batch_tab="Batch cannot grow")
    at.number_input(key="arrivals").set_value(5000.0).run()
    assert says(texts(at), "waiting_incomplete") or at.error
    at.number_input(key="budget").set_value(20.0).run()
    assert not at.exception
    assert says(texts(at), "collecting_adds")
    assert "waiting" in charts(at)


def test_points_of_a_csv_validate_and_calibrate(open_app):
    at = upload(open_batch(open_app, batch_tab="Validate"), SERIES)
    assert not at.exception
    assert says(texts(at), "of_measured_values", "4", "4")
    wide = at.dataframe[0].value
    assert list(wide["measured or recorded µs"]) == [543.0, 560.0, 750.0, 3620.0]
    # First the calibration quality (error on held-out points, interval width), then figures.
    quality = next(m.value for m in at.markdown if "Calibrated on 4 known times" in m.value)
    assert says(quality, "worst_point_predicted", "line")
    assert says(texts(at), "worst_point_predicted")
    until(at.toggle(key="calibrate").set_value(False).run(), ready)
    assert not at.exception
    assert says(texts(at), "not_calibrated_select")
    assert at.query_params["calibrate"] == "false"


@pytest.mark.slow
@pytest.mark.parametrize("calibrate", ["true", "false"])
def test_the_table_has_the_measured_points(open_app, calibrate):
    at = upload(open_batch(open_app, batch_tab="Table", calibrate=calibrate), SERIES)
    table = at.dataframe[0].value.set_index("B")
    assert (table["latency µs"][32], table["origin"][32]) == (750.0, "recorded")
    assert (table["origin"][16], table["predicted µs"][32] != 750.0) == ("predicted", True)


@pytest.mark.parametrize(
    ("text", "name", "facts"),
    [
        (SERIES.replace("0.543", "-1"), "points_value", ("line 2", "-1")),
        ("", "csv_empty", ()),
    ],
)
def test_a_wrong_csv_names_line_and_column(open_app, text, name, facts):
    at = upload(open_batch(open_app, batch_tab="Validate"), text)
    assert not at.exception
    assert says(plain_texts(at), name, *facts)
    assert metric(at, "Recommended")  # the prediction does not depend on it


def test_the_shipped_l4_study_is_offered_for_its_variant(open_app):
    at = open_batch(open_app, batch_tab="Validate")
    assert any("L4 study" in o for o in at.selectbox(key="points").options)
    at.selectbox(key="points").set_value(STUDY).run()
    until(at, lambda page: says(texts(page), "of_measured_values"))
    assert not at.exception
    assert at.query_params["points"] == STUDY


def test_times_of_the_same_source_are_used_by_default(open_app):
    sha = read_sources(find_variant("v01").source).source_sha256
    save("On the L4", timed(800.0, 256, sha), timed(410.0, 128, sha))
    at = open_batch(open_app)
    assert "On the L4" in at.selectbox(key="points").format_func(at.selectbox(key="points").value)
    assert "points" not in at.query_params
    assert says(texts(at), "calibrated_on_known_times", "2")
    hover = [
        text
        for trace in charts(at)["batch_curves"]["data"]
        if trace.get("marker", {}).get("symbol") == "diamond"
        for text in trace["customdata"]
    ]
    assert hover == ["410 µs recorded (406 µs – 414 µs)"] * 2  # of a launch and of a unit
    follow(at, batch_tab="Table")
    row = at.dataframe[0].value.set_index("B").loc[1]
    assert tuple(row[["latency µs", "low µs", "high µs"]]) == pytest.approx((410, 405.9, 414.1))
    assert row["origin"] == "recorded"
    at.selectbox(key="points").set_value("none").run()
    assert at.query_params["points"] == "none"
    follow(at, variant="v02")
    assert at.selectbox(key="points").value == "none"


@pytest.mark.slow
def test_batch_invariance_is_checked_by_a_job(open_app):
    at = open_batch(open_app, S="64", D="32")
    at.button(key="invariance").click().run()
    until(at, lambda page: "is batch-invariant" in texts(page))
    assert not at.exception
    assert any(says(d.value, "elements_that_differ") for d in at.dataframe)


def test_targets_with_the_same_batch_share_one_mark() -> None:
    reached = [SimpleNamespace(batch=b, target=t) for b, t in ((7, 0.7), (7, 0.9), (14, 0.95))]
    labels = ["now: 1", "70%, 90%: 7", "95%: 14"]
    assert marks(reached, 1)["label"].tolist() == labels  # type: ignore[arg-type]


def test_axis_ticks_are_at_the_points() -> None:
    assert batch_ticks(64, []) == [1, 2, 4, 8, 16, 32, 64]
    assert batch_ticks(64, [58, 3, 3, 1]) == [1, 2, 3, 8, 16, 32, 58]
    assert batch_ticks(300, [53, 58]) == [1, 2, 4, 8, 16, 32, 53, 128, 256]


@pytest.mark.slow
def test_points_of_the_study_are_of_another_kernel_and_a_link_restores_this(open_app):
    """The study recorded no source, so a page calibrated on it describes the study's kernel."""
    at = open_batch(open_app, batch_tab="Validate")
    until(follow(at, points=STUDY), ready)
    assert not at.exception
    words = texts(at)
    assert says(words, "points_another_kernel", "v01")
    assert says(words, "calibrated_on_known_times", "8")
    assert says(words, "two_kernels_compared")
    follow(at, points=STUDY, calibrate="false")
    assert says(texts(at), "those_points_prove", "v01")
    assert says(texts(at), "not_calibrated_select")


def test_a_template_of_the_csv_is_offered(open_app):
    at = open_batch(open_app, points="csv")
    assert not at.exception
    assert says(texts(at), "upload_csv_file")
    assert any(b.proto.label == "Template, CSV" for b in at.get("download_button"))


def test_a_saved_recommendation_holds_predictions_points_and_reason(open_app):
    at = upload(open_batch(open_app), SERIES)
    at.button(key="batch_save").click().run()
    assert not at.exception
    assert says(texts(at), "batch_saved_as")
    (info,) = [i for i in default_store().list() if not i.shipped]
    snapshot = default_store().open(info.name)
    origins = [e.latency.origin for e in snapshot.opened()]
    assert origins.count("recorded") == 4
    assert origins.count("predicted") >= 2  # the present batch and the recommended ones
    assert says(snapshot.notes, "of_the_plateau")
    table, points = snapshot.attachments
    assert table.name == "batch.csv"
    assert table.text.startswith("B,latency µs,origin,")
    assert [(p.problem.batch, p.measured_us) for p in parse_measurements(points.text)] == [
        (1, 543.0),
        (8, 560.0),
        (32, 750.0),
        (256, 3620.0),
    ]
    assert says(snapshot.notes, "validation_line", "4 of 4")


@pytest.mark.slow
def test_a_batch_beyond_the_axis_is_reported(open_app):
    at = open_batch(open_app, B="5000")
    assert metric(at, "Now") == "B = 5,000"
    assert says(texts(at), "batches_go_run", "5,000", "4,096")
    beyond = open_batch(open_app, B="70000")
    assert metric(beyond, "Now") == "B = 65,535"
    assert says(texts(beyond), "cannot_run_now", "70,000")
    assert "CUDA allows 65,535" in texts(beyond)


def test_no_feasible_batch_gives_a_message(open_app):
    at = open_app("batch", gpu="L4", H="4096", S="4000000")
    until(at, lambda page: bool(page.error))
    assert not at.exception
    assert len(at.error) == 1


def test_an_unsupported_head_dim_gives_a_message(open_app):
    at = open_app("batch", gpu="L4", variant="v02", D="80")
    assert not at.exception
    assert says(plain_texts(at), "head_dim_lacking", "v02", "80")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranking_compiles_and_ranks(open_app, monkeypatch, ladder_of):
    """Uses a short ladder and two GPUs; tests/choose ranks all of them."""
    from engine.choose.batch import recommend
    from engine.devices import all_devices

    ladder_of("v01", "v02")
    monkeypatch.setattr(
        recommend, "all_devices", lambda: [d for d in all_devices() if d.name in ("L4", "T4")]
    )
    at = open_batch(open_app, batch_tab="Batch cannot grow")
    assert says(texts(at), "not_ranked_yet")
    at.toggle(key="rank").set_value(True).run()
    until(
        at,
        lambda page: (
            "still to be compiled" not in texts(page)
            and len(page.dataframe) > 0  # between two runs of the script there is none
            and any(o.startswith("Use v02") for o in page.dataframe[0].value.get("option", ()))
        ),
    )
    assert not at.exception
    frame = at.dataframe[0].value
    assert says(frame["option"], "accept_it")
    assert any(option.endswith(" T4") for option in frame["option"])
    assert any(option.startswith("Use v02") for option in frame["option"])
    # Only options predicted by the same method are ranked.
    cost = frame["$ per 10⁹ queries"][frame["option"].str.startswith(("Accept", "Use a "))]
    assert cost.dropna().is_monotonic_increasing


@pytest.mark.slow
def test_a_link_carries_the_uploaded_points(open_app):
    at = upload(open_batch(open_app), SERIES)
    until(at, ready)
    assert says(texts(at), "link_page_opens")
    link = at.query_params["points_file"]
    opened = open_batch(open_app, points="csv", points_file=link)
    assert says(texts(opened), "calibrated_on_known_times", "4")
    assert metric(opened, "Recommended") == metric(at, "Recommended")
    opened.button(key="points_forget").click().run()
    until(opened, ready)
    assert says(texts(opened), "upload_csv_file")
    assert "points_file" not in opened.query_params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [("0" * 16, "csv_not_kept"), ("../secret", "link_value_unused")],
)
def test_a_link_to_missing_points_is_reported(open_app, name, said):
    at = open_batch(open_app, points="csv", points_file=name)
    assert says(plain_texts(at), said, name)
    assert not at.exception


@pytest.mark.slow
def test_a_mix_of_problems_gets_one_kernel_and_batch(open_app):
    mix = "1000,1,1,128\n10,8,4,128"
    at = open_app("batch", gpu="L4", variant="v01", mix=mix, mix_of="selected", batch_tab="Mix")
    until(at, lambda at: "answers the mix in" in texts(at))
    assert not at.exception
    lines = next(d.value for d in at.dataframe if "problem now" in d.value.columns)
    assert list(lines["launches a day now"]) == ["1,000", "10"]
    assert "mix_curve" in charts(at)
    at.text_area(key="mix").set_value("1000,1,1").run()
    assert says(plain_texts(at), "mix_line_form", "'seqlen'")


@pytest.mark.exhaustive
def test_a_batch_of_the_backward_pass(open_app) -> None:
    at = open_batch(open_app, variant="v24", backward="1", max_batch="8")
    assert not at.exception
    assert says(texts(at), "the_passes_are")
