"""A comparison as DataFrames, as a JSON object, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from engine.sessions.compare.comparison import ComparedRow, SessionComparison
from engine.sessions.compare.environment import Differences
from engine.sessions.compare.times import config_label, problem_label
from engine.sessions.compare.winners import Winner
from engine.units import format_us

NONE = "–"


def rows_frame(comparison: SessionComparison) -> pd.DataFrame:
    """One row per compared evaluation, regressions first.

    Columns: `session, variant, config, problem, device, baseline_status, status, baseline_us,
    time_us, origin, speedup, speedup_low, speedup_high, verdict, across, regressed, reason`.
    """
    columns = (
        *("session", "variant", "config", "problem", "device", "baseline_status", "status"),
        *("baseline_us", "time_us", "origin", "speedup", "speedup_low", "speedup_high"),
        *("verdict", "across", "regressed", "reason"),
    )
    return pd.DataFrame([_flat_row(row) for row in comparison.rows], columns=list(columns))


def differences_frame(comparison: SessionComparison) -> pd.DataFrame:
    """`session, field, baseline, other, decisive`: what differs in the environments."""
    rows = [
        (d.session, e.field, _text(e.baseline), _text(e.other), e.decisive)
        for d in comparison.differences
        for e in d.environment
    ]
    return pd.DataFrame(rows, columns=["session", "field", "baseline", "other", "decisive"])


def winners_frame(comparison: SessionComparison) -> pd.DataFrame:
    """The winner map: one row per problem and device.

    Columns: `problem, device, winner, config, session, origin, median_us, tied, runner_up,
    speedup, speedup_low, speedup_high, sdpa, speedup_over_sdpa`. `tied` names the variants that
    cannot be told from the winner.
    """
    columns = (
        *("problem", "device", "winner", "config", "session", "origin", "median_us", "tied"),
        *("runner_up", "speedup", "speedup_low", "speedup_high", "sdpa", "speedup_over_sdpa"),
    )
    return pd.DataFrame([_flat_winner(w) for w in comparison.winners], columns=list(columns))


def unmatched_frame(comparison: SessionComparison) -> pd.DataFrame:
    """`session, missing_in, variant, config, problem`: what only one session evaluated."""
    rows = [
        (u.session, u.missing_in, u.variant, config_label(u.config), problem_label(u.problem))
        for u in comparison.unmatched
    ]
    return pd.DataFrame(rows, columns=["session", "missing_in", "variant", "config", "problem"])


def to_dict(comparison: SessionComparison) -> dict[str, Any]:
    """The JSON object of `compare --json`; differences first."""
    return {
        "baseline": comparison.baseline,
        "sessions": list(comparison.sessions),
        "across": comparison.across,
        "differences": [asdict(d) for d in comparison.differences],
        "regressions": [_row_dict(row) for row in comparison.regressions],
        "rows": [_row_dict(row) for row in comparison.rows],
        "unmatched": [asdict(u) for u in comparison.unmatched],
        "winners": [
            asdict(w) | {"speedup_over_sdpa": w.speedup_over_sdpa} for w in comparison.winners
        ],
    }


def to_csv(comparison: SessionComparison) -> str:
    """The rows as CSV. A cell that a spreadsheet would take for a formula is set off by a quote."""
    frame = rows_frame(comparison)
    for name in ("session", "variant", "config", "problem", "device", "reason"):
        frame[name] = [f"'{x}" if x[:1] in ("=", "+", "-", "@") else x for x in frame[name]]
    return frame.to_csv(index=False, lineterminator="\n")


def to_markdown(comparison: SessionComparison) -> str:
    """Differences, regressions, all rows, the winner map and what had no counterpart."""
    from engine.sessions.report.document import escape_markdown

    def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        head = [list(columns), ["---"] * len(columns)]
        body = [[escape_markdown(cell) for cell in row] for row in rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in [*head, *body])

    names = ", ".join(escape_markdown(name) for name in comparison.sessions)
    parts = [f"# {names}{' against ' if names else ''}{escape_markdown(comparison.baseline)}"]
    for found in comparison.differences:
        parts.append(f"## What differs: {escape_markdown(found.session)}")
        parts += _difference_parts(found, table, escape_markdown)
    headings = ("session", "variant", "config", "problem", "time", "speed-up", "verdict", "why")
    if comparison.regressions:
        parts += ["## Regressions", table(headings, [_cells(r) for r in comparison.regressions])]
    if comparison.rows:
        parts += ["## Evaluations", table(headings, [_cells(r) for r in comparison.rows])]
    if comparison.winners:
        columns = ("problem", "device", "fastest", "time", "tied with", "next", "against SDPA")
        parts += [
            "## Fastest variant",
            table(columns, [_winner_cells(w) for w in comparison.winners]),
        ]
    if comparison.unmatched:
        frame = unmatched_frame(comparison)
        cells = frame.astype(str).to_numpy().tolist()
        parts += ["## In one session only", table([str(c).replace("_", " ") for c in frame], cells)]
    return "\n\n".join(parts) + "\n"


def _difference_parts(found: Differences, table: Any, escape: Any) -> list[str]:
    if found.nothing:
        return ["Nothing in environment, flags and sources."]
    parts = []
    if found.environment:
        rows = [
            (e.field, _text(e.baseline), _text(e.other), "no verdict" if e.decisive else "")
            for e in found.environment
        ]
        parts.append(table(("field", "baseline", "here", ""), rows))
    parts += [
        f"Flags of {escape(f.source)}: without {escape(' '.join(f.removed)) or 'none'}, with "
        f"{escape(' '.join(f.added)) or 'none'}."
        for f in found.flags
    ]
    for source in found.sources:
        parts.append(f"{escape(source.name)}: +{source.added_lines} −{source.removed_lines} lines")
        # An indented block: no text can close it, as it could close a fence.
        parts.append("\n".join(f"    {line}" for line in source.diff.splitlines()))
    parts += [escape(remark) for remark in found.remarks]
    return parts


def _flat_row(row: ComparedRow) -> tuple[Any, ...]:
    return (
        *(row.session, row.variant, row.config_label, row.problem_label, row.device),
        *(row.baseline_status, row.status, row.baseline_us, row.time_us, row.origin),
        *(row.speedup, row.speedup_low, row.speedup_high),
        *(_verdict(row), row.across, row.regressed, row.reason),
    )


def _flat_winner(w: Winner) -> tuple[Any, ...]:
    best = w.best
    return (
        *(problem_label(w.problem), w.device, best.variant, config_label(best.config)),
        *(best.session, best.origin, best.median_us, ", ".join(e.variant for e in w.tied)),
        *(w.runner_up.variant if w.runner_up else "", w.speedup, w.speedup_low, w.speedup_high),
        *(best.sdpa_name, w.speedup_over_sdpa),
    )


def _row_dict(row: ComparedRow) -> dict[str, Any]:
    return asdict(row) | {
        "verdict": str(row.verdict) if row.verdict else None,
        "broken": row.broken,
        "regressed": row.regressed,
    }


def _verdict(row: ComparedRow) -> str:
    return "BROKEN" if row.broken else str(row.verdict or "")


def _cells(row: ComparedRow) -> tuple[str, ...]:
    return (
        *(row.session, row.variant, row.config_label, row.problem_label),
        _time(row.time_us, row.origin),
        _speedup(row.speedup, row.speedup_low, row.speedup_high),
        _verdict(row) or NONE,
        row.reason,
    )


def _winner_cells(w: Winner) -> tuple[str, ...]:
    best = w.best
    over_sdpa = f"{w.speedup_over_sdpa:.3g}× ({best.sdpa_name})" if w.speedup_over_sdpa else NONE
    runner_up = (
        f"{w.runner_up.variant} {_speedup(w.speedup, w.speedup_low, w.speedup_high)}"
        if w.runner_up
        else NONE
    )
    return (
        *(problem_label(w.problem), w.device, f"{best.variant} ({config_label(best.config)})"),
        _time(best.median_us, best.origin),
        *(", ".join(e.variant for e in w.tied) or NONE, runner_up, over_sdpa),
    )


def _time(time_us: float | None, origin: str) -> str:
    return NONE if time_us is None else f"{format_us(time_us)} {origin}"


def _speedup(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return NONE
    return (
        f"{value:.3g}×" if low is None or high is None else f"{value:.3g}× ({low:.3g}–{high:.3g})"
    )


def _text(value: Any) -> str:
    return "unknown" if value is None else str(value)
