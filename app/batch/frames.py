"""Results of the batch model as DataFrames. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import numpy as np
import pandas as pd

from engine.attention.problem import Problem
from engine.base.table import Table
from engine.base.units import format_bytes
from engine.choose.batch.alternatives import Option
from engine.choose.batch.batch_table import Recommendation
from engine.choose.batch.cost import Cost, Saving, WaitPlan
from engine.choose.batch.types import BatchResult
from engine.choose.batch.validate import Validation
from engine.model.measured_points import Measurement

_CURVE_POINTS = 300
# Columns of the curve's chart, by those of the table.
_CURVE = {
    "batch": "batch",
    "predicted_us": "latency_us",
    "predicted_low_us": "low_us",
    "predicted_high_us": "high_us",
    "step": "step",
    "binds": "limited_by",
}
_HEADS = {
    "batch": "B",
    "latency_us": "latency µs",
    "origin": "origin",
    "low_us": "low µs",
    "high_us": "high µs",
    "per_unit_us": "per unit µs",
    "sm_fill": "SM fill %",
    "thread_fill": "thread fill %",
    "ctas": "CTAs",
    "useful_ctas": "CTAs with keys",
    "ctas_per_sm": "CTAs per SM",
    "waves": "waves",
    "predicted_us": "predicted µs",
    "recorded_us": "known µs",
    "sdpa_us": "SDPA µs",
    "units": "B·H",
    "per_query_ns": "per query ns",
    "speedup_per_unit": "speed-up per unit",
    "queries_per_us": "million queries/s",
    "tokens_per_us": "million tokens/s",
    "tflops": "TFLOP/s",
    "percent_of_peak": "% of peak",
    "memory": "memory",
    "binds": "limiter",
}


def curve(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table's curve, thinned for a logarithmic axis; every wave step is kept."""
    size = len(table)
    spaced = np.unique(np.geomspace(1, size, min(size, _CURVE_POINTS)).astype(int)) - 1
    steps = np.flatnonzero(table["step"].to_numpy())[:_CURVE_POINTS]
    # The batch before each step is kept, too, so that the step is drawn sharp.
    kept = table.iloc[np.unique(np.concatenate([spaced, steps, np.maximum(steps - 1, 0)]))]
    # The line is the prediction; measured batches are separate points.
    drawn = kept[list(_CURVE)].rename(columns=_CURVE)
    return drawn.assign(
        unit_us=drawn["latency_us"] / kept["units"],
        unit_low_us=drawn["low_us"] / kept["units"],
        unit_high_us=drawn["high_us"] / kept["units"],
    )


def marks(recommendations: Sequence[Recommendation], batch_now: int) -> pd.DataFrame:
    """Return `batch`, `label`: the recommended batches and the present one."""
    rows = [
        (batch, f"{', '.join(f'{r.target:.0%}' for r in those)}: {batch:,}")
        for batch, those in groupby(recommendations, key=lambda r: r.batch)
    ]
    shown = ((batch_now, f"now: {batch_now:,}"), *rows)
    return Table("Batches", ("batch", "label"), shown).frame(dashes=False)


def measured(points: Iterable[Measurement], result: BatchResult, heads_free: bool) -> pd.DataFrame:
    """Return `batch`, `latency_us`, `low_us`, `high_us`, `unit_us`, `unit_low_us`, `unit_high_us`,
    `origin`, `what` of the points on this problem's curve, and of known times at batches without
    such a point. Points that are not times of the table have no interval: its ends are the time."""
    rows: list[tuple[object, ...]] = []
    known = result.table[result.table["measured_us"].notna()].set_index("batch")

    def add(batch: int, units: int, us: float, what: str) -> None:
        low_us, high_us, origin = us, us, "recorded"
        if what == "kernel" and batch in known.index:
            row = known.loc[batch]
            origin = str(row["origin"])
            if us == row["latency_us"]:
                low_us, high_us = row["low_us"], row["high_us"]
        each = (us, low_us, high_us)
        rows.append((batch, *each, *(x / units for x in each), origin, what))

    for point in points:
        if not _is_on_curve(point.problem, result.problem, heads_free):
            continue
        units = point.problem.batch * point.problem.num_heads
        batch = units if heads_free else point.problem.batch
        add(batch, units, point.measured_us, "kernel")
        if point.sdpa_us is not None:
            add(batch, units, point.sdpa_us, "SDPA")
    with_point = {row[0] for row in rows}
    for batch, us, units in known[["latency_us", "units"]].itertuples():
        if batch not in with_point:
            add(batch, units, us, "kernel")
    times = ("latency_us", "low_us", "high_us", "unit_us", "unit_low_us", "unit_high_us")
    columns = ("batch", *times, "origin", "what")
    return Table("Measured times", columns, tuple(rows)).frame(dashes=False)


def _is_on_curve(point: Problem, problem: Problem, heads_free: bool) -> bool:
    """True if point and problem differ only in batch, or with `heads_free` in batch and heads."""

    def shape(p: Problem) -> tuple[object, ...]:
        return p.num_heads_kv, p.rest

    return shape(point) == shape(problem) and (heads_free or point.num_heads == problem.num_heads)


def selected_rows(result: BatchResult, batch_now: int) -> pd.DataFrame:
    """Return powers of two, the recommended batches, the present one and the last."""
    table = result.table
    wanted = {2**k for k in range(20)} | {r.batch for r in result.recommendations}
    wanted |= {batch_now, int(table["batch"].iloc[-1])}
    return table[table["batch"].isin(wanted)]


def table(rows: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Return the batch table for display. Cells are numbers; column names have the units."""
    sdpa = points[points["what"] == "SDPA"].groupby("batch")["latency_us"].min()
    kernel = points[points["what"] == "kernel"].groupby("batch")["latency_us"].min()
    all_useful = bool((rows["useful_ctas"] == rows["ctas"]).all())
    shown = rows.assign(
        sm_fill=100 * rows["sm_fill"],
        thread_fill=100 * rows["thread_fill"],
        recorded_us=rows["batch"].map(kernel),
        sdpa_us=rows["batch"].map(sdpa),
        per_query_ns=1e3 * rows["per_query_us"],
        queries_per_us=rows["queries_per_s"] / 1e6,
        tokens_per_us=rows["tokens_per_s"] / 1e6,
        memory=[format_bytes(int(n)) for n in rows["device_bytes"]],
    )
    shown = shown[list(_HEADS)].rename(columns=_HEADS)
    return shown.drop(columns="CTAs with keys") if all_useful else shown


def costs(saving: Saving) -> pd.DataFrame:
    """Return costs now and at the recommended batch, with the origin of their times in the
    columns' names; NaN without a price."""
    figures: dict[str, Callable[[Cost], float | None]] = {
        "µs per query": lambda c: c.per_query_us,
        "GPU-hours per day": lambda c: c.gpu_hours_per_day,
        "$ per 10⁶ requests": lambda c: c.usd_per_million_requests,
        "$ per 10⁶ tokens": lambda c: c.usd_per_million_tokens,
        "$ per 10⁹ queries": lambda c: c.usd_per_billion_queries,
        "$ per day": lambda c: c.usd_per_day,
        "$ per year": lambda c: c.usd_per_year,
        "GPUs needed": lambda c: c.gpus_needed,
    }
    rows = [(name, of(saving.now), of(saving.then)) for name, of in figures.items()]
    heads = (f"now, {saving.now.origin}", f"recommended, {saving.then.origin}")
    table = Table("Cost", ("", *heads), tuple(rows))
    return table.frame(dashes=False).astype(dict.fromkeys(heads, float))


def waiting(plan: WaitPlan) -> pd.DataFrame:
    """Return `batch`, `added_ms`, `per_request_us`, `origin`, `what` of each batch that requests
    can be collected into."""
    rows = (
        {
            "batch": p.batch,
            "added_ms": p.added_p95_us / 1e3,
            "per_request_us": p.per_request_us,
            "origin": p.origin,
            "what": "too slow to keep up"
            if not p.keeps_up
            else ("within the budget" if p.in_budget else "over the budget"),
        }
        for p in plan.curve
    )
    return Table.of("Waiting for a batch", rows).frame(dashes=False)


def options(ranked: Sequence[Option]) -> pd.DataFrame:
    """Return the options if the batch cannot grow, the cheapest query first."""
    rows = [
        {
            "option": o.title,
            "GPU": o.device,
            "B": o.batch,
            "latency µs": o.latency_us,
            "low µs": o.low_us,
            "high µs": o.high_us,
            "origin": o.basis,
            "speed-up per query": o.speedup,
            "$ per 10⁹ queries": o.usd_per_billion_queries,
            "why": o.reason,
        }
        for o in ranked
    ]
    return Table.of("When the batch cannot grow", rows).frame(dashes=False)


def validation(result: Validation) -> pd.DataFrame:
    """Return predicted and measured times of each point."""
    records = (
        {
            "name": r.name,
            "CTAs": r.ctas,
            "predicted_us": r.predicted_us,
            "low_us": r.low_us,
            "high_us": r.high_us,
            "measured_us": r.measured_us,
            "difference %": 100 * r.difference,
            "verdict": r.verdict,
            "inside": r.verdict == "as predicted",
        }
        for r in result.rows
    )
    return Table.of("Predicted and measured", records).frame(dashes=False)


_VALIDATION_HEADS = {
    "predicted_us": "predicted µs",
    "measured_us": "measured or recorded µs",
    "difference %": "difference %",
    "low_us": "low µs",
    "high_us": "high µs",
}


def validation_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `validation` formatted for people: verdict first, then figures."""
    return frame[["name", "verdict", *_VALIDATION_HEADS, "CTAs"]].rename(
        columns={"name": "problem", **_VALIDATION_HEADS}
    )
