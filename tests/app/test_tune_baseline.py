"""Tune with a pinned baseline, and the tab with all variants."""

from __future__ import annotations

import pytest
from app_driver import charts, compiled, metric, simulated, texts, until
from sessions_data import evaluation_maker
from words import says

from engine.sessions.goal import pin


def note(at, label: str) -> str:
    return next(m for m in at.metric if m.label == label).proto.delta_description


def test_the_six_figures_show_deltas_to_the_pinned_run(open_app):
    at = until(open_app(gpu="L4", variant="v01", S="64"), simulated)
    before = metric(at, "Registers")
    at.button(key="pin").click().run()
    assert not at.exception
    assert "Pinned: v01" in texts(at)
    assert says(note(at, "Registers"), "as_pinned")
    at.selectbox(key="variant").set_value("v05").run()
    at = until(at, compiled)
    change = int(metric(at, "Registers")) - int(before)
    assert note(at, "Registers") == f"{'+' if change > 0 else '−'}{abs(change)}, was {before}"
    until(at, lambda page: "faster, was" in note(page, "Latency"))  # after the simulation
    at.number_input(key="S").set_value(128).run()
    at = until(at, compiled)
    assert says(note(at, "Latency"), "another_problem")
    again = until(open_app(gpu="L4", variant="v01", S="64"), compiled)  # a reload in another tab
    assert says(note(again, "Registers"), "as_pinned")
    again.button(key="unpin").click().run()
    assert "Pinned:" not in texts(again)
    assert "smem" in note(again, "Registers")


def test_a_pinned_run_of_another_source_names_it(open_app):
    pin(evaluation_maker(variant="v01", source_sha256="3f2a91ab" * 8))
    at = until(open_app(gpu="L4", variant="v01", S="64"), compiled)
    assert "Pinned: v01 (source 3f2a91ab)" in texts(at)


@pytest.mark.exhaustive
def test_all_variants_are_in_one_table_with_a_link_to_the_sweep(open_app, ladder_of):
    """Uses a short ladder, which is compiled and simulated sooner."""
    rungs = ("v01", "v02", "v05", "v08", "v12", "v15")
    ladder_of(*rungs)
    at = open_app(gpu="L4", variant="v01", S="128", tab="Variants")

    def all_there(at) -> bool:
        (table,) = [d.value for d in at.dataframe if "predicted" in d.value]
        simulated = table["predicted"].str.contains("machine code")
        return bool(simulated.sum() == len(rungs) - 1)

    at = until(at, all_there)
    assert not at.exception
    (table,) = [d.value for d in at.dataframe if "predicted" in d.value]
    assert list(table["variant"]) == ["v01", "v02", "v05", "v08", "v12"]
    assert list(table.columns)[-1] == "config"
    assert says(texts(at), "needs_compute_capability", "v15", "9", "0")
    row = table.set_index("variant").loc["v01"]
    assert row["predicted"]  # times of the study are of another kernel, in other rows
    assert "known" not in table.columns
    assert len(charts(at)["variants_chart"]["data"]) > 4
    (link,) = [x for x in at.get("page_link") if "Sweep all" in x.proto.label]
    assert "sweep_variants" in link.proto.query_string
