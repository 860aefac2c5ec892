"""A comparison as tables, as a JSON object, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import pandas as pd

from engine.records.encoding import encode
from engine.sessions.compare.comparison import ComparedRow, SessionComparison, Unmatched
from engine.sessions.compare.environment import Differences
from engine.sessions.compare.times import config_label
from engine.sessions.compare.winners import Winner
from engine.table import Table, csv_text
from engine.units import format_us

_ROW_COLUMNS: dict[str, Callable[[ComparedRow], Any]] = {
    "session": lambda row: row.session,
    "variant": lambda row: row.variant,
    "config": lambda row: config_label(row.config),
    "problem": lambda row: row.problem.label(),
    "device": lambda row: row.device,
    "baseline_status": lambda row: row.baseline_status,
    "status": lambda row: row.status,
    "baseline_us": lambda row: row.baseline_us,
    "time_us": lambda row: row.time_us,
    "origin": lambda row: row.origin,
    "speedup": lambda row: row.speedup,
    "speedup_low": lambda row: row.speedup_low,
    "speedup_high": lambda row: row.speedup_high,
    "verdict": lambda row: _verdict(row) or "",
    "across": lambda row: row.across,
    "regressed": lambda row: row.regressed,
    "reason": lambda row: row.reason,
}
_WINNER_COLUMNS: dict[str, Callable[[Winner], Any]] = {
    "problem": lambda w: w.problem.label(),
    "device": lambda w: w.device,
    "winner": lambda w: w.best.variant,
    "config": lambda w: config_label(w.best.config),
    "session": lambda w: w.best.session,
    "origin": lambda w: w.best.origin,
    "median_us": lambda w: w.best.median_us,
    "tied": lambda w: ", ".join(e.variant for e in w.tied),
    "runner_up": lambda w: w.runner_up.variant if w.runner_up else "",
    "speedup": lambda w: w.speedup,
    "speedup_low": lambda w: w.speedup_low,
    "speedup_high": lambda w: w.speedup_high,
    "sdpa": lambda w: w.best.sdpa_name,
    "speedup_over_sdpa": lambda w: w.speedup_over_sdpa,
}
_UNMATCHED_COLUMNS: dict[str, Callable[[Unmatched], Any]] = {
    "session": lambda u: u.session,
    "missing_in": lambda u: u.missing_in,
    "variant": lambda u: u.variant,
    "config": lambda u: config_label(u.config),
    "problem": lambda u: u.problem.label(),
}


def rows_frame(comparison: SessionComparison) -> pd.DataFrame:
    """One row per compared evaluation, regressions first; columns as in `_ROW_COLUMNS`."""
    return _frame(comparison.rows, _ROW_COLUMNS)


def winners_frame(comparison: SessionComparison) -> pd.DataFrame:
    """The winner map: one row per problem and device; columns as in `_WINNER_COLUMNS`.

    `tied` names the variants that cannot be told from the winner.
    """
    return _frame(comparison.winners, _WINNER_COLUMNS)


def unmatched_frame(comparison: SessionComparison) -> pd.DataFrame:
    """`session, missing_in, variant, config, problem`: what only one session evaluated."""
    return _frame(comparison.unmatched, _UNMATCHED_COLUMNS)


def differences_frame(comparison: SessionComparison) -> pd.DataFrame:
    """`session, field, baseline, other, decisive`: what differs in the environments."""
    rows = [
        (d.session, e.field, _known(e.baseline), _known(e.other), e.decisive)
        for d in comparison.differences
        for e in d.environment
    ]
    return pd.DataFrame(rows, columns=["session", "field", "baseline", "other", "decisive"])


def comparison_tables(comparison: SessionComparison) -> list[Table]:
    """Regressions first, all rows, the winner map, what had no counterpart; without empty ones."""
    tables = [
        Table.of("Regressions", map(_row_record, comparison.regressions)),
        Table.of("Evaluations", map(_row_record, comparison.rows)),
        Table.of("Fastest variant", map(_winner_record, comparison.winners)),
        Table.of(
            "In one session only",
            (
                {name.replace("_", " "): get(u) for name, get in _UNMATCHED_COLUMNS.items()}
                for u in comparison.unmatched
            ),
        ),
    ]
    return [table for table in tables if table.rows]


def environment_table(differences: Differences) -> Table:
    """What differs in the environments of the baseline and one session."""
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
    """The JSON object of `compare --json`; differences first."""
    return {
        "baseline": comparison.baseline,
        "sessions": list(comparison.sessions),
        "across": comparison.across,
        "differences": [asdict(d) for d in comparison.differences],
        "regressions": [_row_dict(row) for row in comparison.regressions],
        "rows": [_row_dict(row) for row in comparison.rows],
        "unmatched": [_with_problem(u) for u in comparison.unmatched],
        "winners": [
            _with_problem(w) | {"speedup_over_sdpa": w.speedup_over_sdpa}
            for w in comparison.winners
        ],
    }


def to_csv(comparison: SessionComparison) -> str:
    """The rows as CSV that no spreadsheet executes anything of."""
    return csv_text(rows_frame(comparison))


def to_markdown(comparison: SessionComparison) -> str:
    """Differences first, then `comparison_tables`."""
    from engine.sessions.report.document import render_markdown

    return render_markdown(
        "comparison.md",
        comparison=comparison,
        environments={d.session: environment_table(d) for d in comparison.differences},
        tables=comparison_tables(comparison),
    )


def _frame(nouns: Iterable[Any], columns: dict[str, Callable[[Any], Any]]) -> pd.DataFrame:
    rows = [[get(noun) for get in columns.values()] for noun in nouns]
    return pd.DataFrame(rows, columns=list(columns))


def _row_dict(row: ComparedRow) -> dict[str, Any]:
    return _with_problem(row) | {
        "verdict": str(row.verdict) if row.verdict else None,
        "broken": row.broken,
        "regressed": row.regressed,
    }


def _with_problem(noun: ComparedRow | Unmatched | Winner) -> dict[str, Any]:
    """The fields, with the problem as snapshots write it."""
    return asdict(noun) | {"problem": encode(noun.problem)}


def _row_record(row: ComparedRow) -> dict[str, object]:
    return {
        "session": row.session,
        "variant": row.variant,
        "config": config_label(row.config),
        "problem": row.problem.label(),
        "time": None if row.time_us is None else f"{format_us(row.time_us)} {row.origin}",
        "speed-up": _speedup(row.speedup, row.speedup_low, row.speedup_high),
        "verdict": _verdict(row),
        "why": row.reason,
    }


def _winner_record(w: Winner) -> dict[str, object]:
    best, over_sdpa = w.best, w.speedup_over_sdpa
    runner_up = None
    if w.runner_up:
        speedup = _speedup(w.speedup, w.speedup_low, w.speedup_high)
        runner_up = f"{w.runner_up.variant} {speedup}"
    return {
        "problem": w.problem.label(),
        "device": w.device,
        "fastest": f"{best.variant} ({config_label(best.config)})",
        "time": f"{format_us(best.median_us)} {best.origin}",
        "tied with": ", ".join(e.variant for e in w.tied) or None,
        "next": runner_up,
        "against SDPA": f"{over_sdpa:.3g}× ({best.sdpa_name})" if over_sdpa else None,
    }


def _verdict(row: ComparedRow) -> str | None:
    return "BROKEN" if row.broken else str(row.verdict) if row.verdict else None


def _speedup(value: float | None, low: float | None, high: float | None) -> str | None:
    if value is None or low is None or high is None:
        return None if value is None else f"{value:.3g}×"
    return f"{value:.3g}× ({low:.3g} to {high:.3g})"


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)
