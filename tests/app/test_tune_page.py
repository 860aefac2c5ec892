"""The Tune page without a browser: choices, figures, bad input, states of a run."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from app_driver import badge, charts, compiled, metric, simulated, texts, until
from slow_cases import one_in
from verdicts import RIGHT
from words import says

from app.evaluation.frames import error_numbers


def test_every_page_opens_with_a_different_title(open_app):
    titles = []
    for page in ("", "tune", "sessions", "compare", "devices"):
        at = open_app(page)
        assert not at.exception
        assert not at.error
        titles += [m.value for m in at.markdown if m.value.startswith("# ")]
    first, again, *others = titles  # /tune is the default page
    assert first == again
    assert len({first, *others}) == 4


def test_a_change_of_the_problem_changes_occupancy_and_prediction_at_once(open_app):
    at = until(open_app(gpu="L4"), compiled)
    assert badge(at, "GPU fill") == "3% of 58 SMs"
    assert metric(at, "GPU fill") == "0.57%"  # 33 % of 1.7 %, not rounded to 1 %
    before = metric(at, "Latency")
    at.number_input(key="B").set_value(64).run()
    assert badge(at, "GPU fill") == "100% of 58 SMs"
    assert badge(at, "Waves") == "128 CTAs"
    assert metric(at, "Latency") != before
    if not simulated(at):
        assert metric(at, "Latency").startswith("≥ ")
    assert not metric(until(at, simulated), "Latency").startswith("≥ ")


def test_another_gpu_gives_other_figures(open_app):
    at = until(open_app(gpu="L4"), compiled)
    on_l4 = metric(at, "Latency")
    at.selectbox(key="gpu").set_value("H200").run()
    until(at, compiled)
    assert badge(at, "GPU fill").endswith("of 132 SMs")
    assert metric(at, "Latency") != on_l4


@pytest.mark.parametrize(
    ("field", "value"), one_in(5, list(itertools.product("BHSD", (0, -3, 10**12))))
)
def test_an_impossible_size_gives_a_message(open_app, field, value):
    at = open_app()
    at.number_input(key=field).set_value(value).run()
    assert not at.exception
    assert len(at.error) == 1
    name = {"B": "batch", "H": "num_heads", "S": "seqlen", "D": "head_dim"}[field]
    said = "size_too_small" if value < 1 else "size_too_large"
    assert says(at.error[0].value.replace("\\", ""), said, name)
    assert not at.metric


def test_a_problem_too_large_for_memory_is_reported_with_its_size(open_app):
    at = open_app(B="65000", H="64", S="65536", gpu="H200")
    assert not at.exception
    assert "TiB" in at.error[0].value


def test_an_unsupported_head_dim_is_skipped_with_the_constraint_as_reason(open_app):
    at = open_app(variant="v02", D="80")
    assert says(at.info[-1].value.replace("\\", ""), "head_dim_lacking", "v02", "80")
    assert at.button(key="run").disabled


def test_a_link_restores_every_choice(open_app):
    at = open_app(
        variant="v05", gpu="A100 80GB", B="4", H="2", S="197", D="32", causal="true",
        dtype="bfloat16", schedule="random", seed="7", **{"v05.num_splits": "16"},
    )  # fmt: skip
    assert not at.exception
    assert at.query_params["seed"] == "7"  # of a widget that is not drawn yet, and so not dropped
    at.session_state["execution"] = True  # open the expander
    at.run()
    assert at.selectbox(key="variant").value == "v05"
    assert [at.number_input(key=k).value for k in ("B", "H", "S", "D", "seed")] == [
        4,
        2,
        197,
        32,
        7,
    ]
    assert at.toggle(key="causal").value
    assert at.segmented_control(key="dtype").value == "bfloat16"
    assert at.selectbox(key="schedule").value == "random"
    assert at.select_slider(key="v05.num_splits").value == 16


@pytest.mark.slow
def test_how_to_execute_is_kept_while_its_expander_is_closed(open_app):
    at = open_app()
    at.session_state["execution"] = True
    at.run()
    at.toggle(key="check").set_value(True).run()
    at.number_input(key="seed").set_value(3).run()
    at.session_state["execution"] = False
    at.run()
    at.number_input(key="B").set_value(2).run()
    assert "check" not in {toggle.key for toggle in at.toggle}
    assert (at.query_params["check"], at.query_params["seed"]) == ("true", "3")
    at.session_state["execution"] = True
    at.run()
    assert at.toggle(key="check").value
    assert at.number_input(key="seed").value == 3


def test_machine_code_is_a_choice_of_the_execution(open_app):
    at = open_app(backend="machine-code")
    at.session_state["execution"] = True
    at.run()
    choice = at.selectbox(key="backend")
    assert choice.value == "machine-code"
    assert choice.options == ["GPU, else software", "host build", "machine code", "GPU"]
    choice.set_value("cpu").run()
    assert at.query_params["backend"] == "cpu"


def test_choices_with_labels_are_kept_in_the_url_under_their_plain_name(open_app):
    at = open_app()
    at.selectbox(key="variant").set_value("v05").run()
    assert at.query_params["variant"] == "v05"
    at.selectbox(key="variant").set_value("v01").run()
    assert "variant" not in at.query_params


@pytest.mark.parametrize(
    ("params", "name", "fact"),
    [
        ({"gpu": "H2000"}, "gpu_unknown", "H200"),
        ({"gpu": "local"}, "link_asks_local", "GPU"),
        ({"variant": "v99"}, "did_you_mean", "v99"),
    ],
)
def test_a_link_with_an_unknown_name_opens_with_a_note(open_app, params, name, fact):
    at = open_app(**params)
    assert not at.exception
    assert says(at.warning[0].value, name, fact)


def test_unknown_and_malformed_parameters_are_ignored(open_app):
    at = open_app(B="many", S="ten", causal="perhaps", tab="Nowhere", nonsense="<b>x</b>")
    assert not at.exception
    assert at.number_input(key="B").value == 1
    assert not at.error


def test_a_preset_sets_the_problem_and_a_change_deselects_the_preset(open_app):
    at = open_app()
    at.menu_button(key="preset").click("vit-b16").run()
    assert [at.number_input(key=k).value for k in "BHSD"] == [1, 12, 197, 64]
    assert "patches" in texts(at)
    assert at.menu_button(key="preset").label == "Problem: vit-b16"
    at.number_input(key="S").set_value(198).run()
    assert says(at.menu_button(key="preset").label, "problem_your_own")
    at.number_input(key="S").set_value(197).run()
    assert at.menu_button(key="preset").label == "Problem: vit-b16"


def test_config_widgets_are_those_of_the_variant(open_app):
    at = open_app(variant="v05")
    keys = {w.key for w in (*at.segmented_control, *at.select_slider)}
    assert {"v05.block_n", "v05.threads_per_row", "v05.num_splits"} <= keys
    at.selectbox(key="variant").set_value("v01").run()
    keys = {w.key for w in (*at.segmented_control, *at.select_slider)}
    assert not any(k.startswith("v05.") for k in keys)


def test_tunables_show_the_defaults_that_fit_until_they_are_chosen(open_app):
    at = open_app(variant="v14", D="256")
    warps = lambda: at.segmented_control(key="v14.num_warps").value  # noqa: E731
    assert warps() == 2
    at.number_input(key="D").set_value(64).run()
    assert warps() == 4
    at.segmented_control(key="v14.num_warps").set_value(2).run()
    at.number_input(key="D").set_value(128).run()
    assert warps() == 2


def test_the_expander_more_is_open_if_a_link_sets_one_of_its_values(open_app):
    def is_open(at):
        return next(e for e in at.expander if e.label == "More").proto.expanded

    assert not is_open(open_app())
    at = open_app(variant="v08", window="64")
    assert is_open(at)
    at.number_input(key="window").set_value(None).run()
    assert is_open(at)  # only a click closes it


def test_values_in_the_closed_expander_more_are_kept(open_app):
    at = open_app(variant="v08", window="64")
    at.session_state["features"] = False
    at.run()
    at.number_input(key="B").set_value(2).run()
    assert "window" not in {field.key for field in at.number_input}
    assert at.query_params["window"] == "64"


def test_a_chip_says_that_the_machine_has_no_gpu(open_app):
    at = open_app()
    chip = next(m for m in at.markdown if "No NVIDIA GPU on this machine" in m.value)
    assert "predicted" in chip.help
    assert not at.info


def test_each_tab_has_its_content(open_app):
    at = until(open_app(tab="Occupancy"), compiled)
    assert len(charts(at)) in (6, 7)  # one more if another test has read its machine code
    at = until(open_app(tab="Latency", H="3"), simulated)
    assert list(charts(at)) == ["terms"]  # a single time has no bar chart
    assert "predicted" in texts(at)
    at = open_app(tab="Correctness")
    assert says(texts(at), "not_run_yet")
    at = open_app(tab="Source and resources")
    assert any("__global__" in c.value for c in at.code)


def test_each_of_two_passes_can_be_shown(open_app):
    at = until(open_app(tab="Occupancy", variant="v05"), compiled)
    at.segmented_control(key="pass.v05").set_value(1).run()
    assert not at.exception
    assert "4 warps" in texts(at)


def test_the_roofline_follows_the_problem(open_app):
    at = until(open_app(variant="v08", gpu="L4", tab="Roofline"), compiled)
    assert says(texts(at), "nothing_comes_dram")
    table = at.dataframe[0].value.set_index("figure")["value"]
    assert table["K/V loaded from L2"] == "2 times"
    for key, value in (("B", 8), ("H", 32), ("S", 2048)):
        at.number_input(key=key).set_value(value)
    until(at.run(), simulated)
    assert says(texts(at), "order_ctas_start")
    levels = at.dataframe[1].value
    assert levels["level"].tolist() == ["L2", "DRAM"]
    assert all("predicted" in time for time in levels["time"])
    figure = charts(at)["roofline"]
    drawn = [trace for trace in figure["data"] if trace["mode"] == "markers+text"]
    assert sorted(trace["text"][0] for trace in drawn) == ["DRAM, predicted", "L2, predicted"]
    names = " ".join(note["text"] for note in figure["layout"]["annotations"])
    for roof in ("FP16 tensor cores 121 TFLOP/s", "DRAM 300 GB/s", "L2 1,775 GB/s"):
        assert roof in names


def test_the_error_of_fp8_alone_is_shown() -> None:
    row = "largest change by FP8 alone"
    assert row not in set(error_numbers(RIGHT)["figure"])
    table = error_numbers(replace(RIGHT, fp8_err=0.0109)).set_index("figure")
    assert table.loc[row, "value"] == "0.0109"
    assert says(table.loc[row, "note"], "no_fault_of")
