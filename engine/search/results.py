"""The rows of a sweep as DataFrames for tables and charts, for one GPU and one origin of times.

`sweep_frame` has all rows, including failures; the others are views of its timed rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.attention.config import find_variant
from engine.attention.evaluation import figures_of
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, Status
from engine.base.table import Table
from engine.base.units import format_us
from engine.devices import find_device
from engine.history.known_time import NOT_COMPARABLE, are_comparable
from engine.measure.statistics import Verdict
from engine.model.kernel import Kernel
from engine.model.roofline import Roofs, launch_work, roofline_points, roofs_of
from engine.search.autotune import ProblemResult
from engine.search.ranking import SweepRow, comparable, compare_rows, problem_columns
from engine.search.space import Location

if TYPE_CHECKING:
    import pandas as pd

# A point is an outlier when another with at least this much less occupancy …
OUTLIER_OCCUPANCY = 0.10
# … is faster by at least this share.
OUTLIER_TIME = 0.05

# Columns of `sweep_frame`; the columns of tunables follow, with this prefix.
_CONFIG = "config."
COLUMNS = (
    *("point", "status", "reason", "device", "variant", "problem"),
    *("batch", "num_heads", "seqlen", "head_dim", "causal", "dtype"),
    *("seqlen_kv", "num_heads_kv", "window", "softcap", "alibi", "sinks", "seqlens"),
    *("direction", "head_dim_v", "kv_dtype", "lse", "label"),
    *("origin", "method", "basis", "median_us", "low_us", "high_us", "tflops"),
    *("occupancy", "limiter", "ctas", "waves", "wave_efficiency"),
    *("registers_per_thread", "smem_bytes", "spill_bytes"),
    *("max_abs_err", "tolerance", "cpu_execution_ms", "evaluated_in_s", "host", "gpu"),
)


def sweep_frame(rows: Iterable[SweepRow]) -> pd.DataFrame:
    """Return one line per point: coordinates, status, resources, occupancy, time and error.

    Tunables are columns `config.NAME` (missing for variants without the tunable). Times and figures
    derived from them are NaN for points without a valid time. `gpu` is the GPU of the model
    `device` that executed it; empty if none did.
    """
    import pandas as pd

    rows = list(rows)
    tunables = dict.fromkeys(name for row in rows for name in row.config)
    columns = [*COLUMNS, *(_CONFIG + name for name in tunables)]
    return pd.DataFrame([row_dict(row) for row in rows], columns=columns)


class SweepFrame:
    """A sweep's rows and their `sweep_frame`, which `update` extends.

    Converting 10,000 rows takes 0.35 s, one more a few ms.
    """

    def __init__(self) -> None:
        self.rows: tuple[SweepRow, ...] = ()
        self.frame = sweep_frame(())
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._series: dict[str, pd.Series] = {}  # the columns at the last update

    def update(self, rows: Sequence[SweepRow]) -> bool:
        """Take these rows. Return whether there are new ones, or others in their place."""
        is_shorter = len(rows) < len(self.rows)
        if is_shorter:
            self._columns = {name: [] for name in COLUMNS}
            self._series.clear()
            self.rows = ()
        known = len(self.rows)
        changed = [i for i in range(known) if rows[i] is not self.rows[i]]  # evaluated again
        if not is_shorter and not changed and len(rows) == known:
            return False
        for i in (*changed, *range(known, len(rows))):
            self._put(i, row_dict(rows[i]))
        if changed:
            self._series.clear()
        self.rows = tuple(rows)
        self.frame = self._frame()
        return True

    def _put(self, index: int, line: Mapping[str, Any]) -> None:
        for name in line:
            if name not in self._columns:
                self._columns[name] = [None] * index
        for name, values in self._columns.items():
            values[index : index + 1] = [line.get(name)]

    def _frame(self) -> pd.DataFrame:
        """Return the frame; columns that pandas has converted before are only extended."""
        import pandas as pd

        for name, values in self._columns.items():
            known = self._series.get(name)
            if known is None or known.empty:
                self._series[name] = pd.Series(values, name=name)
                continue
            new = values[len(known) :]
            if not new:
                continue
            # A series with only None would get dtype object; it also fits these dtypes.
            nothing = known.dtype.kind in "fO" and all(value is None for value in new)
            added = pd.Series(new, dtype=known.dtype if nothing else None)
            if known.dtype != added.dtype:  # combined they may have a third dtype
                self._series[name] = pd.Series(values, name=name)
            else:
                self._series[name] = pd.concat([known, added], ignore_index=True)
        return pd.DataFrame({name: series.array for name, series in self._series.items()})


def row_dict(row: SweepRow) -> dict[str, Any]:
    """Return one line of `sweep_frame`; None for missing values."""
    interval = row.interval
    return {
        "point": row.point,
        "status": str(row.status),
        "reason": row.reason,
        "device": row.device,
        "variant": row.variant,
        **problem_columns(row.problem),
        "label": row.label(),
        **{_CONFIG + name: value for name, value in row.config.items()},
        "origin": row.origin,
        "method": row.method,
        "basis": row.basis,
        "median_us": interval.median if interval else None,
        "low_us": interval.low if interval else None,
        "high_us": interval.high if interval else None,
        "tflops": row.problem.flops / interval.median / 1e6 if interval else None,
        **figures_of(row.result),
        "evaluated_in_s": row.elapsed_s,
        "host": row.location.host,
        "gpu": row.location.gpu,
    }


def winner_line(device: str, problem: Problem, rows: Sequence[SweepRow]) -> dict[str, Any] | None:
    """Return the fastest variant of one group of `by_problem`, or None without times.

    `margin` is the best time of any other variant divided by the winner's (1.2: 20 % slower), None
    if no other variant has a time or the two are not comparable; `tied_with` names variants with
    indistinguishable times.
    """
    best: dict[str, SweepRow] = {}
    for row in sorted(comparable(rows), key=lambda r: r.median_us or 0.0):
        best.setdefault(row.variant, row)
    ranked = list(best.values())
    if not ranked:
        return None
    winner, others = ranked[0], ranked[1:]
    tied = [r.variant for r in others if compare_rows(r, winner) is not Verdict.SLOWER]
    return {
        "device": device,
        **problem_columns(problem),
        "batch_heads": problem.batch * problem.num_heads,
        "winner": winner.variant,
        "label": winner.label(),
        "point": winner.point,
        "median_us": winner.median_us,
        "origin": winner.origin,
        "runner_up": others[0].variant if others else None,
        "margin": _margin(winner, others[0]) if others else None,
        "tied_with": ", ".join(tied),
    }


def _margin(winner: SweepRow, other: SweepRow) -> float | None:
    if not winner.median_us or not other.median_us:
        return None
    comparable = are_comparable(winner.basis, other.basis)
    return other.median_us / winner.median_us if comparable else None


def tunable_importance(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the share of the variance of times that each tunable explains by itself, by variant.

    `importance` is the share of the variance of ln(time) within problems that lies between the
    means of the tunable's values (η² of a one-way analysis of variance); what is left belongs to
    combinations of tunables. `best_value` has the lowest mean, `gain` is the worst mean over it. In
    a searched (not exhaustive) sweep the values were not tried equally often: then read it as a
    hint.
    """
    import numpy as np
    import pandas as pd

    lines = []
    groups = _timed(frame).groupby(["device", "origin", "method", "basis", "variant"], sort=False)
    for (device, origin, *_, variant), group in groups:
        logs = np.log(group["median_us"])
        centred = logs - logs.groupby(group["problem"]).transform("mean")
        total = float((centred**2).sum())
        for column in (c for c in group.columns if c.startswith(_CONFIG)):
            values = group[column].dropna()
            if values.nunique() < 2:
                continue
            means = centred.loc[values.index].groupby(values).mean()
            between = float((means.loc[values].to_numpy() ** 2).sum())
            lines.append(
                {
                    **{"device": device, "origin": origin, "variant": variant},
                    "tunable": column.removeprefix(_CONFIG),
                    "importance": between / total if total > 0 else 0.0,
                    "best_value": int(means.idxmin()),
                    "gain": float(np.exp(means.max() - means.min())),
                    "points": len(values),
                }
            )
    return pd.DataFrame(
        lines,
        columns=[
            *("device", "origin", "variant", "tunable"),
            *("importance", "best_value", "gain", "points"),
        ],
    )


def best_so_far(frame: pd.DataFrame) -> pd.DataFrame:
    """Return each point that was faster than all earlier points of its problem.

    Returns:
        Columns `problem`, `label`, `point`, `median_us`; `evaluated`, how many of the sweep's
        points were done by then, and `spent_s`, how long their evaluations took together.
    """
    done = frame.assign(
        evaluated=range(1, len(frame) + 1),
        spent_s=frame["evaluated_in_s"].fillna(0.0).cumsum(),
    )
    timed = _timed(done)
    by_problem = timed["problem"]
    until = timed.groupby(by_problem)["median_us"].cummin().groupby(by_problem).shift()
    is_new = until.isna() | (timed["median_us"] < until)
    columns = ["problem", "label", "point", "median_us", "evaluated", "spent_s"]
    return timed.loc[is_new, columns].reset_index(drop=True)


def tunable_slices(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the best time at each value of each tunable, over all values of the others, of one
    problem.

    Returns:
        Columns `variant`, `tunable`, `value`, `best_us`, `point` (of that time), `points`; tunables
        that take one value are left out.
    """
    import pandas as pd

    lines = []
    for variant, group in _timed(frame).groupby("variant", sort=True):
        for column in (c for c in group.columns if c.startswith(_CONFIG)):
            by_value = group.dropna(subset=[column]).groupby(column)
            if by_value.ngroups < 2:
                continue
            for _, own in by_value:
                best = own.sort_values("median_us", kind="stable").iloc[0]
                name = column.removeprefix(_CONFIG)
                found = (
                    variant,
                    name,
                    int(own[column].iloc[0]),
                    best["median_us"],
                    best["point"],
                    len(own),
                )
                lines.append(found)
    columns = ["variant", "tunable", "value", "best_us", "point", "points"]
    return pd.DataFrame(lines, columns=columns)


def occupancy_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return latency and occupancy; `outlier` marks points for which occupancy is misleading.

    A point is an outlier if another of the same problem is at least 5 % faster with at least 10
    percentage points less occupancy; `sentence` explains it and `beaten_by` names the fastest such
    point.
    """
    import numpy as np

    timed = _timed(frame).dropna(subset=["occupancy"]).reset_index(drop=True)
    beaten_by = np.full(len(timed), -1)
    for _, group in timed.groupby(["device", "origin", "method", "basis", "problem"], sort=False):
        # From low to high occupancy: the fastest point so far.
        order = group["occupancy"].to_numpy().argsort(kind="stable")
        occupancy = group["occupancy"].to_numpy()[order]
        time_us = group["median_us"].to_numpy()[order]
        where = group.index.to_numpy()[order]
        fastest = np.minimum.accumulate(time_us)
        holder = np.maximum.accumulate(np.where(time_us == fastest, np.arange(len(order)), 0))
        lower = np.searchsorted(occupancy, occupancy - OUTLIER_OCCUPANCY + 1e-9, side="left") - 1
        beaten = (lower >= 0) & (fastest[lower] * (1 + OUTLIER_TIME) <= time_us)
        beaten_by[where[beaten]] = where[holder[lower[beaten]]]
    timed["outlier"] = beaten_by >= 0
    points = timed["point"].astype(str).to_list()
    timed["beaten_by"] = [points[other] if other >= 0 else "" for other in beaten_by]
    timed["sentence"] = [
        _outlier_sentence(timed, point, other) if other >= 0 else ""
        for point, other in enumerate(beaten_by)
    ]
    return timed


def _outlier_sentence(timed: pd.DataFrame, point: int, other: int) -> str:
    label, occupancy, time_us = (timed[c] for c in ("label", "occupancy", "median_us"))
    return (
        f"{label[point]} has the higher occupancy ({occupancy[point]:.0%}), but {label[other]} "
        f"({occupancy[other]:.0%}) is {time_us[point] / time_us[other]:.2f}× faster."
    )


def parallel_coordinates(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Return every varying axis as numbers, `median_us` last, and the labels of coded axes.

    Returns:
        The frame (one line per timed point; a tunable that a variant lacks is NaN) and, for axes
        that are names, the name of each code.
    """
    import pandas as pd

    timed = _timed(frame)
    names = ["variant", "batch", "num_heads", "num_heads_kv", "seqlen", "seqlen_kv", "head_dim"]
    names += ["causal", "dtype"]
    names += [c for c in timed.columns if c.startswith(_CONFIG)]
    shown: dict[str, Any] = {}
    labels: dict[str, list[str]] = {}
    for name in names:
        column = timed[name]
        if column.nunique(dropna=True) < 2:
            continue
        title = name.removeprefix(_CONFIG)
        if column.dtype == bool or not pd.api.types.is_numeric_dtype(column):
            codes, known = pd.factorize(column.astype(str), sort=True)
            shown[title], labels[title] = codes, [str(k) for k in known]
        else:
            shown[title] = column.to_numpy()
    shown["median_us"] = timed["median_us"].to_numpy()
    return pd.DataFrame(shown, index=timed.index), labels


def _timed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the lines with a valid time; `device` distinguishes GPUs of one model."""
    timed = frame.dropna(subset=["median_us"])
    measured = timed[timed["origin"] == "measured"]
    several = measured.groupby("device")["gpu"].transform("nunique") > 1
    apart = measured[several]
    names = [
        Location(host, gpu).label(device)
        for host, gpu, device in zip(apart["host"], apart["gpu"], apart["device"], strict=True)
    ]
    device = timed["device"].astype(object)
    device[apart.index] = names
    return timed.assign(device=device)


SHOWN_PLACES = 5
_SHOWN_REASONS = 12


def result_tables(rows: Sequence[SweepRow], results: Sequence[ProblemResult]) -> list[Table]:
    """Return tables of the best points of every problem, and of untimed points with reasons."""
    by_point = {row.point: row for row in rows}
    tables = []
    for result in results:
        ties = result.ties
        places = [
            {
                "place": f"{p.place}{' (tie)' if p.place in ties else ''}",
                "variant and config": by_point[p.point].label(),
                f"µs, {result.origin}": p.interval.median,
                "interval": f"{p.interval.low:.4g} – {p.interval.high:.4g}",
                "ratio": NOT_COMPARABLE if p.ratio is None else f"{p.ratio:.3f}",
            }
            for p in result.places[:SHOWN_PLACES]
        ]
        title = f"{result.problem.label()} on {result.device}"
        tables.append(Table.of(title, places, result.reason))
    failures = Counter(
        (str(r.status), r.reason)
        for r in rows
        if r.interval is None and r.status is not Status.PASSED
    )
    lines = (
        {"points": count, "status": status, "reason": reason}
        for (status, reason), count in failures.most_common(_SHOWN_REASONS)
    )
    return [*tables, Table.of("Not timed", lines)]


# All timed points of a sweep on rooflines: a row for each point and memory level.


ROOFLINE_COLUMNS = (
    *("point", "device", "variant", "label", "problem", "level", "intensity", "tflops"),
    *("roof_tflops", "share", "time_us", "origin", "flops", "bytes", "kv_loads"),
    *("computing_share", "by_order"),
)


def sweep_roofs(rows: Iterable[SweepRow]) -> tuple[Roofs, ...]:
    """Return the roofs of a sweep's points, for each GPU, math unit and number format."""
    roofs: dict[Roofs, None] = {}
    for device, name, dtype in dict.fromkeys(
        (row.device, row.variant, row.problem.dtype) for row in rows
    ):
        try:
            roofs[roofs_of(find_device(device), find_variant(name), dtype)] = None
        except AttuneError:  # an unknown kernel, or a GPU without figures
            continue
    return tuple(roofs)


def roofline_frame(rows: Iterable[SweepRow]) -> pd.DataFrame:
    """Return a DataFrame with `ROOFLINE_COLUMNS`: time in µs, intensity in FLOP/B, bytes of the
    level, shares 0..1.

    Points without a time, with an unknown kernel or GPU, or that do not fit on an SM have no line,
    and neither have levels without bytes.
    """
    import pandas as pd

    lines = [line for row in rows for line in roofline_lines(row)]
    return pd.DataFrame(lines, columns=list(ROOFLINE_COLUMNS))


def roofline_lines(row: SweepRow) -> list[dict[str, Any]]:
    """Return one point's lines of `roofline_frame`."""
    passes = row.result["passes"]
    resident = passes[0]["occupancy"]["ctas_per_sm"] if passes else 0
    if row.interval is None or row.origin is None or not resident:
        return []
    try:
        kernel = Kernel.of(row.variant, row.device, row.config)
        plan = make_plan(kernel.variant, row.problem, kernel.config)
        roofs = roofs_of(kernel.device, kernel.variant, row.problem.dtype)
        work = launch_work(kernel, plan, resident)
    except AttuneError:
        return []
    return [
        {
            "point": row.point,
            "device": row.device,
            "variant": row.variant,
            "label": row.label(),
            "problem": row.problem.label(),
            "level": p.level,
            "intensity": p.intensity,
            "tflops": p.tflops,
            "roof_tflops": p.roof_tflops,
            "share": p.share,
            "time_us": p.time_us,
            "origin": p.origin,
            "flops": work.flops,
            "bytes": work.bytes_from(p.level),
            "kv_loads": work.kv_l2_loads if p.level == "L2" else work.kv_dram_loads,
            "computing_share": work.computing_share,
            "by_order": work.by_order,
        }
        for p in roofline_points(roofs, work, [(row.interval.median, row.origin)])
    ]


def roofline_table(frame: pd.DataFrame) -> Table:
    """Return lines of `roofline_frame` as a table."""
    return Table.of(
        "Points against the roofs",
        (
            {
                "kernel": r["label"],
                "problem": r["problem"],
                "GPU": r["device"],
                "level": r["level"],
                "FLOP/B": f"{r['intensity']:,.3g}",
                "time": f"{format_us(r['time_us'])} {r['origin']}",
                "TFLOP/s": f"{r['tflops']:.3g}",
                "of the roof": f"{r['share']:.1%}",
                "K/V loaded": f"{r['kv_loads']:,.3g} times",
                "computing threads": f"{r['computing_share']:.0%}",
                "DRAM's bytes": ""
                if r["level"] == "L2"
                else "by the order of CTAs"
                if r["by_order"]
                else "every byte once",
            }
            for r in frame.to_dict("records")
        ),
        "" if len(frame) else "No point has a time on a GPU whose figures are known.",
    )
