"""A comparison as tables, JSON, Markdown and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

import pandas as pd

from engine.attention.evaluation import Origin, baseline_label
from engine.base.schema import encode
from engine.base.table import Table, csv_text
from engine.base.units import format_speedup, format_speedup_over, format_us
from engine.history.known_time import are_comparable, not_comparable, with_source
from engine.sessions.compare.comparison import ComparedRow, Regression, SessionComparison, Unmatched
from engine.sessions.compare.differences import (
    FIGURES,
    ORIGINS,
    Change,
    Differences,
    changes,
)
from engine.sessions.compare.pairing import Entry, Winner, config_label
from engine.versions.figures import default_threshold

_FEW = 3  # up to this many rows get their own table


def _same(*names: str) -> dict[str, Callable[[Any], Any]]:
    """Return columns whose attributes have the same names."""
    return {name: attrgetter(name) for name in names}


def _figures(side: str) -> dict[str, Callable[[ComparedRow], Any]]:
    """Return the columns of one side: the kernel `before` or `after`."""

    def time_us(origin: Origin) -> Callable[[ComparedRow], Any]:
        return lambda row: getattr(row, side).time_us(origin)

    names = ["status", "max_abs_err", "error_share", "registers", "spill_bytes", "smem_bytes"]
    names += ["occupancy", "limiter", "waves"]
    figures = {f"{name}_{side}": attrgetter(f"{side}.{name}") for name in names}
    return figures | {f"{origin}_us_{side}": time_us(origin) for origin in ORIGINS}


_ROW_COLUMNS: dict[str, Callable[[ComparedRow], Any]] = {
    "session": attrgetter("session"),
    "variant": lambda row: with_source(row.variant, row.source),
    "config": lambda row: config_label(row.config),
    "problem": lambda row: row.problem.label(),
    **_same("device", "baseline_session"),
    "baseline_variant": lambda row: with_source(row.baseline_variant, row.baseline_source),
    "baseline_config": lambda row: config_label(row.baseline_config),
    **_same("baseline_us", "time_us", "baseline_origin", "origin"),
    **_same("speedup", "speedup_low", "speedup_high"),
    "verdict": lambda row: _verdict(row) or "",
    **_same("across", "regressed"),
    **_figures("before"),
    **_figures("after"),
    "findings": lambda row: " ".join(f.sentence for f in row.findings),
    "reason": attrgetter("reason"),
}
_WINNER_COLUMNS: dict[str, Callable[[Winner], Any]] = {
    "problem": lambda w: w.problem.label(),
    "device": attrgetter("device"),
    "winner": attrgetter("best.variant"),
    "config": lambda w: config_label(w.best.config),
    **{name: attrgetter(f"best.{name}") for name in ("session", "origin", "median_us")},
    "tied": lambda w: ", ".join(_rival(w, e) for e in w.tied),
    "runner_up": lambda w: _rival(w, w.runner_up) if w.runner_up else "",
    **_same("speedup", "speedup_low", "speedup_high"),
    "sdpa": attrgetter("best.sdpa_name"),
    **_same("speedup_over_sdpa", "caveat"),
}
_UNMATCHED_COLUMNS: dict[str, Callable[[Unmatched], Any]] = {
    **_same("session", "missing_in"),
    "variant": lambda u: with_source(u.variant, u.source),
    "config": lambda u: config_label(u.config),
    "problem": lambda u: u.problem.label(),
}


def rows_frame(comparison: SessionComparison) -> pd.DataFrame:
    """Return one row per compared evaluation, regressions first; columns as in `_ROW_COLUMNS`."""
    return _frame(comparison.rows, _ROW_COLUMNS)


def winners_frame(comparison: SessionComparison) -> pd.DataFrame:
    """Return the winner map: one row per problem and device; columns as in `_WINNER_COLUMNS`.

    `tied` names the variants that cannot be distinguished from the winner.
    """
    return _frame(comparison.winners, _WINNER_COLUMNS)


def unmatched_frame(comparison: SessionComparison) -> pd.DataFrame:
    """Return `session, missing_in, variant, config, problem` of evaluations without a
    counterpart."""
    return _frame(comparison.unmatched, _UNMATCHED_COLUMNS)


def comparison_tables(comparison: SessionComparison) -> list[Table]:
    """Return the non-empty tables: regressions, kernels side by side, winners, evaluations
    without a counterpart. If there are only a few rows, each gets its own table of figures."""
    rows = comparison.rows
    few = len(rows) <= _FEW
    tables = [
        findings_table(comparison),
        Table.of("Evaluations", map(_row_record, rows)),
        *(changes_table(row) for row in rows if few),
        Table.of("Before → after", () if few else figure_records(rows)),
        winners_table(comparison),
        Table.of(
            "In one session only",
            (
                {name.replace("_", " "): get(u) for name, get in _UNMATCHED_COLUMNS.items()}
                for u in comparison.unmatched
            ),
        ),
    ]
    return [table for table in tables if table.rows]


def findings_table(comparison: SessionComparison) -> Table:
    """Return all regressions, failures first."""
    return Table.of("What got worse", (_finding_record(*pair) for pair in comparison.findings))


def winners_table(comparison: SessionComparison) -> Table:
    """Return the fastest kernel of every problem and GPU, with the runner-up and SDPA."""
    return Table.of("Fastest kernel", map(_winner_record, comparison.winners))


def changes_table(row: ComparedRow) -> Table:
    """Return every figure of one row: before, after, change."""
    return Table(
        f"{row.problem.label()} on {row.device}",
        ("figure", f"before: {before_label(row)}", f"after: {after_label(row)}", "change"),
        tuple(
            (c.figure, c.before or None, c.after or None, c.change)
            for c in changes(row.before, row.after)
        ),
    )


def before_label(row: ComparedRow) -> str:
    """Return `v01 block_n=64`; for two configs of one variant, the tunables that differ. Another
    source than the variant's present one is named: `v01 (source 3f2a91ab) block_n=64`."""
    name = with_source(row.baseline_variant, row.baseline_source)
    return _kernel(name, _own(row, row.baseline_config, row.config))


def after_label(row: ComparedRow) -> str:
    """Return the same label of the kernel after."""
    name = with_source(row.variant, row.source)
    return _kernel(name, _own(row, row.config, row.baseline_config))


def _own(
    row: ComparedRow, config: Mapping[str, int], other: Mapping[str, int]
) -> Mapping[str, int]:
    if row.variant != row.baseline_variant or row.same_kernel:
        return config
    return {name: value for name, value in config.items() if other.get(name) != value}


def environment_table(differences: Differences) -> Table:
    """Return differences of the environments of the baseline and one session."""
    return Table.of(
        "Environment",
        (
            {
                "field": e.field,
                "baseline": _known(e.baseline),
                "here": _known(e.other),
                "effect": "no verdict" if e.decisive else "",
            }
            for e in differences.environment
        ),
    )


def to_dict(comparison: SessionComparison) -> dict[str, Any]:
    """Return the JSON object of `compare --json`."""
    return {
        "baseline": comparison.baseline,
        "sessions": list(comparison.sessions),
        "across": comparison.across,
        "differences": [asdict(d) for d in comparison.differences],
        "findings": [
            asdict(finding)
            | {"session": row.session, "variant": row.variant, "problem": encode(row.problem)}
            for row, finding in comparison.findings
        ],
        "regressions": [_row_dict(row) for row in comparison.regressions],
        "rows": [_row_dict(row) for row in comparison.rows],
        "verdicts": [entry for row in comparison.rows for entry in _verdict_dicts(row)],
        "unmatched": [_with_problem(u) for u in comparison.unmatched],
        "winners": [
            _with_problem(w) | {"speedup_over_sdpa": w.speedup_over_sdpa}
            for w in comparison.winners
        ],
    }


def to_csv(comparison: SessionComparison) -> str:
    """Return the rows as CSV in which spreadsheets find no formulas to execute."""
    return csv_text(rows_frame(comparison))


def to_markdown(comparison: SessionComparison) -> str:
    """Return the differences, then `comparison_tables`, as Markdown."""
    from engine.sessions.report import render_markdown

    return render_markdown(
        "comparison.md",
        comparison=comparison,
        environments={d.session: environment_table(d) for d in comparison.differences},
        tables=comparison_tables(comparison),
    )


def _frame(nouns: Iterable[Any], columns: dict[str, Callable[[Any], Any]]) -> pd.DataFrame:
    rows = [[get(noun) for get in columns.values()] for noun in nouns]
    return pd.DataFrame(rows, columns=list(columns))


def _verdict_dicts(row: ComparedRow) -> Iterable[dict[str, Any]]:
    """Return the verdicts in the gate's format: on the row, then on its code."""
    whole = (_verdict(row) or "NOT JUDGED", row.reason, row.regressed)
    of_code = [(str(f.verdict), f.what, f.is_regression) for f in row.code]
    for verdict, what, regression in (whole, *(x for x in of_code if x[0] != whole[0])):
        yield {
            "kernel": with_source(row.variant, row.source),
            "problem": row.problem.label(),
            "gpu": row.device,
            "verdict": verdict,
            "what": what,
            "regression": regression,
        }


def _row_dict(row: ComparedRow) -> dict[str, Any]:
    return _with_problem(row) | {
        "baseline_status": row.before.status,
        "status": row.after.status,
        "verdict": str(row.verdict) if row.verdict else None,
        "broken": row.broken,
        "regressed": row.regressed,
        "findings": [asdict(f) for f in row.findings],
    }


def _with_problem(noun: ComparedRow | Unmatched | Winner) -> dict[str, Any]:
    """Return the fields, with the problem as in snapshots."""
    return asdict(noun) | {"problem": encode(noun.problem)}


def _finding_record(row: ComparedRow, finding: Regression) -> dict[str, object]:
    return {
        "what": finding.kind,
        "session": row.session,
        "kernel": after_label(row),
        "problem": row.problem.label(),
        "finding": finding.sentence,
    }


def _row_record(row: ComparedRow) -> dict[str, object]:
    return {
        "session": row.session,
        "problem": row.problem.label(),
        "before": before_label(row),
        "after": after_label(row),
        "time before": _time(row.baseline_us, row.baseline_origin),
        "time after": _time(row.time_us, row.origin),
        "change": change_of(row),
        "verdict": _verdict(row),
        "why": row.reason,
    }


def figure_records(rows: Sequence[ComparedRow]) -> list[dict[str, object]]:
    """Return a record per row with figures as `before → after`; figures that no row has are left
    out."""
    figures = [{c.figure: c for c in changes(row.before, row.after)} for row in rows]
    names = [name for name in FIGURES if any(name in known for known in figures)]
    return [
        {
            "problem": row.problem.label(),
            "before": before_label(row),
            "after": after_label(row),
            **{name: arrow(known[name]) if name in known else None for name in names},
        }
        for row, known in zip(rows, figures, strict=True)
    ]


def arrow(change: Change) -> str:
    """Return `64 → 71 (+7)`, or one value if both are equal."""
    if change.before == change.after:
        return change.before
    text = f"{change.before or '–'} → {change.after or '–'}"
    return f"{text} ({change.change})" if change.change and "→" not in change.change else text


def _winner_record(w: Winner) -> dict[str, object]:
    best = w.best
    runner_up = None
    if w.runner_up and w.speedup:
        runner_up = f"{_rival(w, w.runner_up)}, {_change(1 / w.speedup, w.speedup_low, None)}"
    return {
        "problem": w.problem.label(),
        "GPU": w.device,
        "fastest": _kernel(best.variant, best.config),
        "time": _time(best.median_us, best.origin),
        "tied with": ", ".join(_rival(w, e) for e in w.tied) or None,
        "runner-up": runner_up,
        "against SDPA": _against_sdpa(w),
        "no verdict, because": w.caveat or None,
    }


def _against_sdpa(w: Winner) -> str | None:
    if w.speedup_over_sdpa is not None:
        return format_speedup_over(w.speedup_over_sdpa, baseline_label(w.best.sdpa_name))
    if w.best.sdpa_us is None:
        return None
    return not_comparable(w.best.sdpa_origin, w.best.origin)


def _rival(winner: Winner, entry: Entry) -> str:
    """Return the variant's name, or the config if it is the winner's variant."""
    if entry.variant != winner.best.variant:
        return entry.variant
    return _kernel(entry.variant, entry.config)


def _kernel(variant: str, config: Mapping[str, int]) -> str:
    return f"{variant} {config_label(config)}" if config else variant


def _time(time_us: float | None, origin: str) -> str | None:
    return None if time_us is None else f"{format_us(time_us)} {origin}"


def _verdict(row: ComparedRow) -> str | None:
    return "BROKEN" if row.broken else str(row.verdict) if row.verdict else None


def change_of(row: ComparedRow) -> str | None:
    """Return the speed-up with its interval, or why there is none: the times are not comparable,
    or two simulated times are too close for a verdict."""
    both = row.baseline_us is not None and row.time_us is not None
    if both and not are_comparable(row.baseline_origin, row.origin):
        return not_comparable(row.baseline_origin, row.origin)
    words = _change(row.speedup, row.speedup_low, row.speedup_high)
    if row.is_too_near and words != "as fast":
        share = default_threshold().share
        return f"no verdict on times ({words}, within {share:.0%})"
    return words


def _change(speedup: float | None, low: float | None, high: float | None) -> str | None:
    """Return `1.31× faster (1.28 to 1.33)`, with the interval of time before / time after."""
    if speedup is None:
        return None
    words = format_speedup(speedup)
    if low is None or high is None:
        return words
    ends = (low, high) if speedup >= 1 else (1 / high, 1 / low)
    return f"{words} ({ends[0]:.3g} to {ends[1]:.3g})"


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)
