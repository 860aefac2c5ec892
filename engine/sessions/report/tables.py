"""The tables of a session's report: plain text cells, the same for Markdown and HTML.

Figures are derived here and never stored. Every latency says where it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.devices import find_device
from engine.errors import UnknownName
from engine.evaluation import Evaluation, Latency, Status
from engine.model.batch.cost import usd_per_billion_queries
from engine.records.snapshot import Environment, Snapshot
from engine.sessions.advice import Suggestion, advice_limits
from engine.sessions.goal import describe_target, target_status
from engine.sessions.timeline import timeline_rows
from engine.units import format_bytes, format_us

NONE = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """`numeric` lists the columns that hold figures (set right)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    remark: str = ""


def report_tables(snapshot: Snapshot, advice: Sequence[Suggestion] = ()) -> list[Table]:
    """Every table that has a row, in the order in which a person reads them."""
    evaluations = snapshot.opened()
    tables = [
        setup_table(snapshot, evaluations),
        results_table(evaluations),
        baselines_table(evaluations),
        batch_table(evaluations),
        correctness_table(evaluations),
        occupancy_table(evaluations),
        advice_table(advice, advice_limits(evaluations)),
        timeline_table(snapshot, evaluations),
        environment_table(snapshot.environment),
        sources_table(snapshot),
    ]
    return [table for table in tables if table.rows]


def setup_table(snapshot: Snapshot, evaluations: Sequence[Evaluation]) -> Table:
    """What the session is and where it stands."""
    rows = [
        ("title", snapshot.title),
        ("hypothesis", snapshot.hypothesis),
        ("target", describe_target(snapshot.target) if snapshot.target else "none"),
    ]
    if snapshot.target is not None:
        rows.append(("result", target_status(snapshot.target, evaluations).sentence))
    passed = sum(e.status is Status.PASSED for e in evaluations)
    rows += [
        ("GPU", ", ".join(dict.fromkeys(e.device for e in evaluations))),
        ("evaluations", f"{len(evaluations):,}, of which {passed:,} passed"),
        ("problems", f"{len(snapshot.problems):,}"),
        ("begun", snapshot.created),
        ("saved", snapshot.updated),
        ("source of the figures", snapshot.provenance),
    ]
    return Table("Setup", ("", ""), tuple(row for row in rows if row[1]))


def results_table(evaluations: Sequence[Evaluation]) -> Table:
    rows = tuple(
        (
            str(index),
            e.variant,
            _config(e),
            e.problem.label(),
            e.device,
            str(e.status),
            *_latency(e.latency),
            f"{_tflops(e):.3g}" if e.latency else NONE,
            _speedup(e),
            e.reason,
        )
        for index, e in enumerate(evaluations)
        if e.variant != "sdpa" or e.latency is not None
    )
    return Table(
        "Results",
        (
            "#",
            "variant",
            "config",
            "problem",
            "GPU",
            "status",
            "latency",
            "95 % interval",
            "origin",
            "TFLOP/s",
            "speed-up over the best baseline",
            "reason",
        ),
        rows,
        frozenset({0, 6, 7, 9, 10}),
        "TFLOP/s counts 4·B·H·S²·D operations, half of it when causal. The interval of a "
        "prediction is the model's 90 %.",
    )


def baselines_table(evaluations: Sequence[Evaluation]) -> Table:
    rows = tuple(
        (str(index), e.problem.label(), e.device, b.name, *_latency(b.latency), end, b.reason)
        for index, e in enumerate(evaluations)
        for b in e.baselines
        for end in [_end_to_end(b.other_latencies)]
    )
    columns = ("#", "problem", "GPU", "baseline", "latency", "95 % interval", "origin")
    return Table("Baselines", (*columns, "end to end", "reason"), rows, frozenset({0, 4, 5, 7}))


def batch_table(evaluations: Sequence[Evaluation]) -> Table:
    """Time per (batch, head) and its cost, where a variant was timed at several batches."""
    groups: dict[object, list[Evaluation]] = {}
    for e in evaluations:
        if e.latency is not None and e.status is not Status.INCORRECT:
            p = e.problem
            rest = (p.lengths(), p.head_dim, p.causal, p.dtype)
            key = (e.variant, _config(e), e.device, e.latency.origin, rest)
            groups.setdefault(key, []).append(e)
    rows = []
    for group in groups.values():
        ordered = sorted(group, key=_units)
        if _units(ordered[0]) == _units(ordered[-1]):
            continue
        # Of several times for the smallest batch the last one counts, as for a target.
        start = [e for e in ordered if _units(e) == _units(ordered[0])][-1]
        for e in ordered:
            rows.append(
                (
                    e.variant,
                    e.problem.label(),
                    e.device,
                    str(_units(e)),
                    *_latency(e.latency)[::2],
                    format_us(_per_unit_us(e)),
                    f"{_per_unit_us(start) / _per_unit_us(e):.3g}×",
                    _cost(e),
                )
            )
    return Table(
        "Batch",
        (
            "variant",
            "problem",
            "GPU",
            "batch · heads",
            "latency",
            "origin",
            "per (batch, head)",
            "gain per unit",
            "US$ per 10⁹ queries",
        ),
        tuple(rows),
        frozenset({3, 4, 6, 7, 8}),
        "A query is one row of Q. The price is the device table's list price.",
    )


def correctness_table(evaluations: Sequence[Evaluation]) -> Table:
    rows = tuple(
        (
            str(index),
            e.variant,
            e.problem.label(),
            "passed" if c.passed else "failed",
            f"{c.max_abs_err:.3g}",
            f"{c.tolerance:.3g}",
            f"{c.baseline_err:.3g} ({c.baseline_name})",
            f"{c.bad_count:,}",
            " ".join([c.reason, *(f.sentence for f in c.findings)]),
        )
        for index, e in enumerate(evaluations)
        if (c := e.correctness) is not None
    )
    return Table(
        "Correctness",
        ("#", "variant", "problem", "", "max |error|", "allowed", "SDPA's error", "wrong", "why"),
        rows,
        frozenset({0, 4, 5, 6, 7}),
    )


def occupancy_table(evaluations: Sequence[Evaluation]) -> Table:
    rows = tuple(
        (
            str(index),
            e.variant,
            p.resources.entry,
            p.resources.arch,
            str(p.resources.registers_per_thread),
            format_bytes(p.resources.smem_bytes),
            format_bytes(p.resources.spill_bytes),
            f"{p.occupancy.ctas:,}",
            str(p.occupancy.ctas_per_sm),
            f"{100 * p.occupancy.occupancy:.0f} %",
            p.occupancy.limiter,
            _number(p.occupancy.waves),
            _share(p.occupancy.wave_efficiency),
            _share(p.occupancy.sm_fill),
            p.occupancy.reason,
        )
        for index, e in enumerate(evaluations)
        for p in e.passes
    )
    return Table(
        "Occupancy",
        (
            "#",
            "variant",
            "pass",
            "arch",
            "registers",
            "shared memory",
            "spills",
            "CTAs",
            "CTAs per SM",
            "occupancy",
            "limiter",
            "waves",
            "wave efficiency",
            "SM fill",
            "reason",
        ),
        rows,
        frozenset({0, 4, 5, 6, 7, 8, 9, 11, 12, 13}),
    )


def advice_table(advice: Sequence[Suggestion], limits: str = "") -> Table:
    """What to try next (`engine.sessions.advice`), the largest expected gain first."""
    rows = tuple(
        (
            s.title,
            s.problem.label(),
            s.device,
            f"{s.gain:.3g}×" if s.gain is not None else NONE,
            *_latency(s.latency)[:2],
            s.reason,
        )
        for s in advice
    )
    return Table(
        "What to try next",
        ("what", "problem", "GPU", "expected gain", "latency then", "90 % interval", "why"),
        rows,
        frozenset({3, 4, 5}),
        "Gains are predictions: the model's time of the kernel as it is over that of what is "
        f"suggested. The model errs by more on kernels that were never measured. {limits}".strip(),
    )


def timeline_table(snapshot: Snapshot, evaluations: Sequence[Evaluation]) -> Table:
    rows = tuple(
        (
            row.when,
            row.what,
            row.outcome,
            f"{row.gain:.3g}×" if row.gain is not None else NONE,
        )
        for row in timeline_rows(snapshot.timeline, evaluations)
    )
    columns = ("when", "what", "outcome", "gain since the start")
    return Table("Timeline", columns, rows, frozenset({3}))


def environment_table(environment: Environment) -> Table:
    fields = dict(environment)
    gpus = fields.pop("gpus")
    rows = []
    for index, gpu in enumerate(gpus):
        known = {k: v for k, v in dict(gpu).items() if v is not None}
        if "memory_bytes" in known:
            known["memory_bytes"] = format_bytes(known["memory_bytes"])
        said = ", ".join(f"{_words(k)} {v}" for k, v in known.items())
        rows.append((f"GPU {index}", said))
    rows += [(_words(k), str(v)) for k, v in fields.items() if v not in (None, "")]
    return Table("Environment", ("", ""), tuple(rows))


def sources_table(snapshot: Snapshot) -> Table:
    rows = tuple(
        (s.name, f"{len(s.text.splitlines()):,}", s.sha256, " ".join(s.flags))
        for s in snapshot.sources
    )
    return Table("Sources", ("file", "lines", "SHA-256", "flags"), rows, frozenset({1}))


def _words(field_name: str) -> str:
    return field_name.replace("_", " ")


def _latency(latency: Latency | None) -> tuple[str, str, str]:
    """(median, interval, origin)."""
    if latency is None:
        return NONE, NONE, NONE
    interval = NONE
    if latency.low_us < latency.high_us:
        interval = f"{format_us(latency.low_us)} to {format_us(latency.high_us)}"
    return format_us(latency.median_us), interval, latency.origin


def _end_to_end(latencies: Iterable[Latency]) -> str:
    found = [x for x in latencies if x.kind == "end_to_end"]
    return format_us(found[0].median_us) if found else NONE


def _config(e: Evaluation) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(e.config.items())) or NONE


def _units(e: Evaluation) -> int:
    return e.problem.batch * e.problem.num_heads


def _median_us(e: Evaluation) -> float:
    assert e.latency is not None
    return e.latency.median_us


def _per_unit_us(e: Evaluation) -> float:
    return _median_us(e) / _units(e)


def _tflops(e: Evaluation) -> float:
    return e.problem.flops / _median_us(e) / 1e6


def _speedup(e: Evaluation) -> str:
    timed = [(b.latency.median_us, b) for b in e.baselines if b.latency is not None]
    if e.latency is None or not timed or e.status is Status.INCORRECT:
        return NONE
    best_us, best = min(timed, key=lambda pair: pair[0])
    predicted = "predicted" in (e.latency.origin, best.latency.origin if best.latency else "")
    mark = " (predicted)" if predicted else ""
    return f"{best_us / e.latency.median_us:.3g}× over {best.name}{mark}"


def _cost(e: Evaluation) -> str:
    try:
        price = find_device(e.device).price_usd_per_hour
    except UnknownName:
        price = None
    if price is None:
        return NONE
    per_query_us = _median_us(e) / (_units(e) * e.problem.seqlen)
    return f"{usd_per_billion_queries(per_query_us, price):.3g}"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"
