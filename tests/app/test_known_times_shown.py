"""Tune shows what sessions hold of the same problem and GPU, and calibrates on what it may."""

from __future__ import annotations

from dataclasses import replace

from app_driver import badge, compiled, metric, texts, until
from sweep_data import rows_of, spec
from test_compare_page import save
from test_run_states import BASE
from words import says

from app.sweep import frames
from engine.cuda_source.sources import read_sources
from engine.evaluation import Evaluation
from engine.history.known_time import times_of
from engine.latency import BaselineTiming, Latency
from engine.names import find_variant
from engine.problem import Problem
from engine.search.results import sweep_frame


def taken(us: float, seqlen: int, source_sha256: str) -> Evaluation:
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


def tables(at) -> list:
    return [d.value for d in at.dataframe if "kept in" in d.value]


def test_the_shipped_study_stands_beside_the_prediction(open_app):
    at = until(open_app(variant="v01", S="128", gpu="L4"), compiled)
    assert not at.exception
    assert badge(at, "Latency") == "predicted"
    # Another kernel's time stands in no tile of this one: it has a name and a row of its own.
    note = next(m for m in at.metric if m.label == "Latency").proto.delta_description
    assert "recorded" not in note
    (known,) = tables(at)
    study = "L4 study kernel (series: {})"
    assert list(known["kernel"]) == [study.format("length"), "SDPA", study.format("batch")]
    assert list(known["launched like"]) == ["v01", "–", "v01"]
    assert known["source"][0] == "source not recorded"
    assert "nothing of this kernel was measured" not in texts(at)


def test_a_time_of_this_very_source_is_not_overruled_and_calibrates(open_app):
    sha = read_sources(find_variant("v01").source).source_sha256
    save("On the L4", taken(800.0, 256, sha), taken(410.0, 128, sha))
    at = until(open_app(variant="v01", S="128", gpu="L4"), compiled)
    assert (metric(at, "Latency"), badge(at, "Latency")) == ("410 µs", "recorded")
    assert says(texts(at), "calibrated_measured_points", "2")
    other = until(open_app(variant="v01", S="64", gpu="L4"), compiled)
    assert badge(other, "Latency") == "predicted"
    assert says(texts(other), "calibrated_measured_points", "2")


def test_a_time_of_another_source_calibrates_nothing(open_app):
    save("Elsewhere", taken(410.0, 256, "ab" * 32))
    at = until(open_app(variant="v01", S="256", gpu="L4"), compiled)
    assert badge(at, "Latency") == "predicted"
    assert not says(texts(at), "calibrated_on")
    assert says(set(tables(at)[0]["source"]), "another_source")


def test_a_sweeps_points_stand_beside_what_is_known_of_them():
    rows = rows_of(spec(variants=("v01",), seqlens=(128,)))
    sha = read_sources(find_variant("v01").source).source_sha256
    known = times_of([taken(410.0, 128, sha), taken(543.0, 128, "ab" * 32)], session="s")
    flash = BaselineTiming("flash", Latency("recorded", 5.0, 5.0, 5.0, "test data"))
    known += times_of([replace(taken(1.0, 128, ""), latency=None, baselines=(flash,))], session="s")
    table = frames.table(sweep_frame(rows))
    table = frames.beside_known(table, {r.point: r for r in rows}, known, "latency µs")
    columns = list(table.columns)
    # The points are predicted, and no ratio is given of those to a time that was taken.
    assert columns[columns.index("latency µs") + 1 :][:2] == ["known µs", "SDPA µs"]
    assert not says(columns, "against_sdpa")
    mine = [dict(row.config) == {"block_n": 64} for row in rows]
    assert list(table["known µs"].notna()) == [m for _, m in zip(table.index, mine, strict=True)]
    assert set(table["known µs"].dropna()) == {410.0}
    assert set(table["SDPA µs"]) == {5.0}
    plain = frames.table(sweep_frame(rows))
    assert "known µs" not in frames.beside_known(
        plain, {r.point: r for r in rows}, (), "latency µs"
    )
