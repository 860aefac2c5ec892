"""Tables of the Sweep page. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from engine.base.errors import AttuneError
from engine.base.table import NONE, Table
from engine.base.units import format_speedup, format_us
from engine.history import History
from engine.history.known_time import NOT_COMPARABLE, KnownTime, are_comparable
from engine.jobs.layout import JobProgress
from engine.model.kernel import Kernel
from engine.search.autotune import ProblemResult
from engine.search.ranking import SweepRow

_MAX_PLACES = 5
MAX_LINES = 1000  # of a table: more lines would slow down the browser
_HEADS = {
    "status": "status",
    "variant": "variant",
    "problem": "problem",
    "median_us": "latency µs",
    "origin": "origin",
    "method": "by",
    "tflops": "TFLOP/s",
    "occupancy": "occupancy %",
    "limiter": "limiter",
    "waves": "waves",
    "registers_per_thread": "registers",
    "smem_bytes": "smem B",
    "spill_bytes": "spills B",
    "max_abs_err": "max |error|",
    "device": "device",
    "reason": "reason",
}


def filtered(frame: pd.DataFrame, problem: str | None, variants: Sequence[str]) -> pd.DataFrame:
    """Return the rows of one problem (None: all) and of some variants (empty: all)."""
    keep = pd.Series(True, index=frame.index)
    if problem is not None:
        keep &= frame["problem"] == problem
    if variants:
        keep &= frame["variant"].isin(variants)
    return frame[keep]


def fastest(timed: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the fastest points of one problem, in the frame's order."""
    return timed.loc[timed["median_us"].nsmallest(count).index.sort_values()]


def winners_by_config(
    winners: pd.DataFrame, rows: Mapping[str, SweepRow]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the winners of one variant, named and ordered by their configs.

    Args:
        winners: lines of `engine.search.results.winner_line`, all of one variant.
        rows: by point.

    Returns:
        The lines, in which `winner` has the values of the tunables that differ, and the names of
        these tunables; if all configs are the same, the lines unchanged and no names.
    """
    configs = [rows[point].config for point in winners["point"]]
    tunables = dict.fromkeys(name for config in configs for name in config)
    differ = [name for name in tunables if len({config.get(name) for config in configs}) > 1]
    if not differ:
        return winners, []
    order = sorted(range(len(configs)), key=lambda i: [configs[i].get(name, 0) for name in differ])
    names = [" · ".join(str(configs[i].get(name, NONE)) for name in differ) for i in order]
    return winners.iloc[order].assign(winner=names), differ


def nearest_to_roof(lines: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the lines of a roofline with the largest `share`, in the frame's order."""
    return lines.loc[lines["share"].nlargest(count).index.sort_values()]


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the first MAX_LINES rows, failures included: the fastest first, untimed rows last."""
    ordered = frame.sort_values("median_us", na_position="last", kind="stable").head(MAX_LINES)
    tunables = [c for c in frame.columns if c.startswith("config.")]
    names = list(_HEADS)
    heads = {c: c.removeprefix("config.").replace("_", " ") for c in tunables}
    table = ordered[[*names[:3], *tunables, *names[3:]]].rename(columns={**_HEADS, **heads})
    # Also says which predictions are calibrated.
    table["by"] = [basis.partition(" by ")[2] for basis in ordered["basis"]]
    table["occupancy %"] = 100 * pd.to_numeric(table["occupancy %"])
    return table.set_index(ordered["point"])


def _against(sdpa: KnownTime, row: SweepRow) -> str | None:
    taken = sdpa.checked and are_comparable(row.origin or "", sdpa.latency.origin)
    if not taken or not row.median_us:
        return None
    return format_speedup(sdpa.latency.median_us / row.median_us)


def _taken(row: SweepRow, history: History) -> KnownTime | None:
    """Return the history's time of a point; None also for a kernel that this machine lacks."""
    try:
        kernel = Kernel.of(row.variant, row.device, row.config)
    except AttuneError:
        return None
    return history.known_time(kernel, row.problem)


def _fastest_sdpa(times: Sequence[KnownTime]) -> KnownTime | None:
    warm = (t for t in times if t.is_sdpa and t.latency.kind == "device_warm")
    return min(warm, key=lambda t: t.latency.median_us, default=None)


def beside_known(
    table: pd.DataFrame, rows: Mapping[str, SweepRow], history: History, after: str
) -> pd.DataFrame:
    """Return `table` with the columns `known µs`, `SDPA µs` and `against SDPA`, if any is known.

    The first two column names include the origin: `SDPA µs, recorded`. A known time is that of
    `History.known_time`. A ratio needs two measured or recorded times that were not imported,
    because the method of imported times is not known.

    Args:
        table: by point.
        rows: by point.
    """
    sdpa: dict[tuple[object, ...], KnownTime | None] = {}  # by problem and GPU
    names: dict[tuple[object, ...], set[str]] = {}  # of timed kernels: most points have no time
    known, baseline, against = [], [], []
    origins: tuple[set[str], set[str]] = (set(), set())  # origins of known times and of SDPA's
    for point in table.index:
        row = rows[point]
        at = (row.problem, row.device)
        if at not in sdpa:
            times = history.at(*at)
            sdpa[at], names[at] = _fastest_sdpa(times), {t.name for t in times}
        time = _taken(row, history) if row.variant in names[at] else None
        torch = sdpa[at]
        for found, of in zip((time, torch), origins, strict=True):
            if found is not None:
                of.add(found.latency.origin)
        known.append(time.latency.median_us if time is not None else None)
        baseline.append(torch.latency.median_us if torch is not None else None)
        against.append(_against(torch, row) if torch is not None else None)
    place = table.columns.get_loc(after) + 1
    of_known, of_sdpa = (" and ".join(sorted(of)) for of in origins)
    columns = {
        f"known µs, {of_known}": known,
        f"SDPA µs, {of_sdpa}": baseline,
        "against SDPA": against,
    }
    for name, values in reversed(columns.items()):
        if any(value is not None for value in values):
            table.insert(place, name, values)
    return table


def without_time(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `points`, `status`, `reason` of untimed points, the most frequent first."""
    untimed = frame[frame["median_us"].isna()]
    counts = untimed.groupby(["status", "reason"], sort=False).size().rename("points")
    return counts.reset_index().sort_values("points", ascending=False, kind="stable")[
        ["points", "status", "reason"]
    ]


def best(result: ProblemResult, rows: Sequence[SweepRow]) -> list[dict[str, Any]]:
    """Return the first places of one problem, one per line; equal places are ties.

    `rows` are the problem's rows that match the filters.
    """
    by_point, ties = {row.point: row for row in rows}, result.ties
    return [
        {
            "problem": result.problem.label(),
            "place": f"{place.place}{' (tie)' if place.place in ties else ''}",
            "variant and config": by_point[place.point].label(),
            "latency": format_us(place.interval.median),
            "interval": f"{format_us(place.interval.low)} – {format_us(place.interval.high)}",
            "against the best": NOT_COMPARABLE if place.ratio is None else f"{place.ratio:.3g}×",
            "origin": result.origin,
            "device": result.device,
            "point": place.point,
        }
        for place in result.places[:_MAX_PLACES]
        if place.point in by_point
    ]


def best_so_far(progress: JobProgress) -> pd.DataFrame:
    """Return the fastest point of every problem while the sweep runs."""
    records = (
        {
            "problem": b.problem,
            "variant and config": b.name,
            "latency": format_us(b.median_us),
            "origin": b.origin,
        }
        for b in progress.best
    )
    return Table.of("Best so far", records).frame()
