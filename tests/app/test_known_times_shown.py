"""Tune shows known times of the problem and GPU, and calibrates on those of this source."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
from app_driver import badge, compiled, metric, simulated, texts, until
from made_up_history import Times
from sessions_data import evaluation_maker, make_latency
from sweep_data import rows_of, spec
from test_compare_page import save
from test_run_states import BASE
from words import says

from app.evaluation.frames import latencies
from app.shared import known_times, tables
from app.sweep import frames
from app.tune import variants_frame
from engine.attention.config import find_variant
from engine.attention.evaluation import BaselineTiming, Evaluation, Latency
from engine.attention.problem import Problem
from engine.cuda_source.sources import read_sources
from engine.history import History
from engine.history.known_time import KnownTime, not_comparable, times_of
from engine.search.results import sweep_frame


def timed(us: float, seqlen: int, source_sha256: str) -> Evaluation:
    latency = Latency("measured", us, us * 0.99, us * 1.01, "test data")
    return replace(
        BASE,
        variant="v01",
        config={"block_n": 64},
        problem=Problem(1, 1, seqlen, 64),
        device="L4",
        latency=latency,
        source_sha256=source_sha256,
    )


def shown(at) -> bool:
    """Return True once the kernel is compiled and all saved sessions are read."""
    return compiled(at) and not known_times.unread()


def drawn(at, done=shown):
    """Return the page once `done(page)` is true."""
    return until(at, done).run()


def predicted(at) -> bool:
    return shown(at) and simulated(at)


def history_of(*times: KnownTime) -> History:
    return History(Times({"L4": times}))


def known_tables(at) -> list:
    return [d.value for d in at.dataframe if "stored in" in d.value]


def test_shipped_study_is_shown_with_the_prediction(open_app):
    at = drawn(open_app(variant="v01", S="128", gpu="L4"), predicted)
    assert not at.exception
    # A time of another kernel is in no tile of this one: it has its own name and row.
    note = next(m for m in at.metric if m.label == "Latency").proto.delta_description
    assert "recorded" not in note
    (known,) = known_tables(at)
    study = "L4 study kernel (series: {})"
    assert list(known["kernel"]) == [study.format("length"), "SDPA", study.format("batch")]
    assert list(known["launched like"]) == ["v01", "–", "v01"]
    assert says(known["source"][0], "source_not_recorded")


def test_a_time_of_the_same_source_is_used_and_calibrates(open_app):
    sha = read_sources(find_variant("v01").source).source_sha256
    save("On the L4", timed(800.0, 256, sha), timed(410.0, 128, sha))
    at = drawn(open_app(variant="v01", S="128", gpu="L4"))
    assert (metric(at, "Latency"), badge(at, "Latency")) == ("410 µs", "recorded")
    assert says(texts(at), "calibrated_on_known_times", "2")
    other = drawn(open_app(variant="v01", S="64", gpu="L4"), predicted)
    assert says(texts(other), "calibrated_on_known_times", "2")


def test_a_time_of_another_source_calibrates_nothing(open_app):
    save("Elsewhere", timed(410.0, 256, "ab" * 32))
    at = drawn(open_app(variant="v01", S="256", gpu="L4"), predicted)
    assert not says(texts(at), "calibrated_on_known_times")
    assert says(known_tables(at)[0]["source"], "another_source")


def test_sweep_points_are_shown_with_known_times():
    rows = rows_of(spec(variants=("v01",), seqlens=(128,)))
    sha = read_sources(find_variant("v01").source).source_sha256
    known = times_of([timed(410.0, 128, sha), timed(543.0, 128, "ab" * 32)], session="s")
    flash = BaselineTiming("flash", Latency("recorded", 5.0, 5.0, 5.0, "test data"))
    known += times_of([replace(timed(1.0, 128, ""), latency=None, baselines=(flash,))], session="s")
    table = frames.table(sweep_frame(rows))
    by_point = {r.point: r for r in rows}
    table = frames.beside_known(table, by_point, history_of(*known), "latency µs")
    columns = list(table.columns)
    # The points are predicted, so there is no ratio to a measured or recorded time.
    known_head, sdpa_head = columns[columns.index("latency µs") + 1 :][:2]
    assert says(known_head, "known_us_column", "measured")
    assert sdpa_head == "SDPA µs, recorded"
    assert not says(columns, "against_sdpa")
    mine = [dict(row.config) == {"block_n": 64} for row in rows]
    assert list(table[known_head].notna()) == [m for _, m in zip(table.index, mine, strict=True)]
    assert set(table[known_head].dropna()) == {410.0}
    assert set(table["SDPA µs, recorded"]) == {5.0}
    plain = frames.table(sweep_frame(rows))
    nothing_known = frames.beside_known(plain, by_point, history_of(), "latency µs")
    assert list(nothing_known) == list(plain)


def test_sweep_ratios_compare_only_measured_times():
    rows = [replace(rows_of(spec())[0], origin="measured")]
    assert rows[0].median_us == 10
    at = rows[0].problem
    flash = BaselineTiming("flash", Latency("recorded", 5.0, 5.0, 5.0, "test data"))
    sdpa_times = times_of(
        [replace(timed(1.0, 1, ""), problem=at, latency=None, baselines=(flash,))],
        session="s",
    )
    for checked, ratios in ((True, {"2× slower"}), (False, None)):
        known = history_of(*(replace(t, checked=checked) for t in sdpa_times))
        table = frames.table(sweep_frame(rows))
        table = frames.beside_known(table, {r.point: r for r in rows}, known, "latency µs")
        assert set(table["SDPA µs, recorded"].dropna()) == {5.0}
        assert (set(table["against SDPA"].dropna()) if "against SDPA" in table else None) == ratios


def test_variant_ratios_compare_only_measured_times():
    flash = BaselineTiming("flash", Latency("recorded", 5.0, 5.0, 5.0, "test data"))
    mine, sdpa = times_of([replace(timed(20.0, 128, ""), baselines=(flash,))], session="s")
    each = variants_frame.Line("v01", "", "", None, None, mine, sdpa)
    assert variants_frame.frame([each])["against SDPA"][0] == "4× slower"
    for one in (
        replace(each, known=replace(mine, checked=False)),
        replace(each, sdpa=replace(sdpa, checked=False)),
    ):
        against = variants_frame.frame([one])["against SDPA"][0]
        assert against == not_comparable("recorded", "measured")


def test_the_config_that_auto_takes_has_a_line_of_its_own():
    def line(us: float, is_auto: bool) -> variants_frame.Line:
        latency = Latency("predicted", us, us, us, "By machine code.")
        seen: Any = SimpleNamespace(predicted=latency, bound_us=None, passes=(), plan=None)
        return variants_frame.Line("v11", "", "", seen, None, None, None, is_auto=is_auto)

    lines = [line(21.2, False), line(16.7, True)]
    table = variants_frame.frame(lines, is_complete=False)
    assert list(table["variant"]) == ["v11", "v11 (auto)"]
    assert list(table["order"]) == ["✓ slower", "fastest so far"]
    assert variants_frame.frame(lines)["order"][1] == "fastest"
    assert list(variants_frame.chart_frame(lines)["name"]) == ["v11 (auto)", "v11"]


def test_incomparable_ratios_are_grey():
    frame = pd.DataFrame({"against SDPA": ["2.0×", not_comparable("recorded", "recorded")]})
    html = tables.styled(frame).to_html()
    assert html.count("color: gray") == 1
    plain = frame.head(1)
    assert tables.styled(plain) is plain


def test_two_configs_of_another_kernel_are_two_bars() -> None:
    made = evaluation_maker(other_latencies=(), baselines=(), source_sha256="cd" * 32)
    times = times_of(
        [
            replace(made, config={"num_splits": splits, "block_n": 64}, latency=make_latency(us, 5))
            for splits, us in ((2, 30.0), (4, 40.0))
        ],
        session="Mine: test data",
    )
    shown = latencies("v05", "#000000", (), (), times)
    names = [name.partition(",")[0] for name in shown["name"]]
    assert dict(zip(names, shown["median_us"], strict=True)) == {
        "v05 (source cdcdcdcd) num_splits=2": 30.0,
        "v05 (source cdcdcdcd) num_splits=4": 40.0,
    }
    (alone,) = latencies("v05", "#000000", (), (), times[:1])["name"]
    assert alone.startswith("v05 (source cdcdcdcd), ")
