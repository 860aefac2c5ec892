"""The tables of a session, for the app, reports and the command line.

Figures are computed here and never stored. Every latency has its origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from engine.attention.evaluation import Evaluation, Latency, PassReport
from engine.base.errors import Status, UnknownName
from engine.base.table import Table
from engine.base.units import format_bytes, format_speedup_over, format_thread_fill, format_us
from engine.choose.advice import Suggestion, advice_limits
from engine.choose.batch.cost import usd_per_billion_queries
from engine.devices import find_device
from engine.history import History
from engine.history.known_time import (
    KnownTime,
    are_comparable,
    is_of_this_source,
    known_first,
    name_of,
    not_comparable,
    source_match,
    status_label,
    under_own_names,
    was_recorded_elsewhere,
)
from engine.sessions.goal import TimelineRow, describe_goal, goal_status, timeline_rows
from engine.sessions.importers.nsight_compute import counters_table
from engine.sessions.snapshot import Decision, Environment, Goal, Phase, Snapshot, Source, Spent
from engine.sessions.store import SnapshotInfo
from kernels.variant import Variant


def session_tables(
    snapshot: Snapshot, advice: Sequence[Suggestion] = (), history: History | None = None
) -> list[Table]:
    """Return the non-empty tables, in reading order."""
    evaluations = snapshot.opened()
    named = under_own_names(evaluations, snapshot.title)
    tables = [
        summary_table(snapshot, evaluations),
        phases_table(snapshot.phases, evaluations, snapshot.title),
        setup_table(snapshot),
        results_table(named),
        baselines_table(named),
        batch_table(named),
        counters_table(evaluations, history or History(), snapshot.title),
        correctness_table(named),
        occupancy_table(named),
        advice_table(advice, advice_limits(evaluations)),
        timeline_table(timeline_rows(snapshot.timeline, evaluations, snapshot.title)),
        environment_table(snapshot.environment),
        sources_table(snapshot.sources),
    ]
    return [table for table in tables if table.rows]


def summary_table(snapshot: Snapshot, evaluations: Sequence[Evaluation]) -> Table:
    """Return the summary of a session: target, result, decision and cost."""
    target = snapshot.target
    named = under_own_names(evaluations, snapshot.title)
    rows = {
        "target": describe_goal(target) if target else "none",
        "result": goal_status(target, evaluations, snapshot.title).sentence if target else "",
        "hypothesis": hypothesis_state(target, evaluations, snapshot.title)
        if snapshot.hypothesis
        else "",
        "decision": _decision(snapshot.decision) or "",
        "fastest": _fastest(named),
        **spent_rows(snapshot.spent, [*dict.fromkeys(e.device for e in named)]),
        "evaluations": _count(evaluations),
        "GPU": ", ".join(dict.fromkeys(e.device for e in named)),
    }
    return Table("Summary", ("what", "value"), tuple(row for row in rows.items() if row[1]))


def _count(evaluations: Sequence[Evaluation]) -> str:
    """Return the number of evaluations and of failures; imported times do not count as failures."""
    count = f"{len(evaluations):,}"
    passed = sum(e.status is Status.PASSED for e in evaluations)
    elsewhere = sum(map(was_recorded_elsewhere, evaluations))
    if elsewhere == len(evaluations):
        return f"{count}, recorded elsewhere: Attune neither ran nor checked them"
    also = f" and {elsewhere:,} were recorded elsewhere" if elsewhere else ""
    return f"{count}, of which {passed:,} passed{also}"


def _decision(decision: Decision | None) -> str | None:
    if decision is None:
        return None
    return f"{decision.outcome}: {decision.why}" if decision.why else decision.outcome


def _fastest(evaluations: Sequence[Evaluation]) -> str:
    """Return the fastest kernel if the session has a single problem; else an empty text."""
    timed = [
        (known_first(e.latency), e, e.latency)
        for e in evaluations
        if e.latency is not None and e.status is not Status.INCORRECT
    ]
    if len({(e.problem, e.device) for _, e, _ in timed}) != 1:
        return ""
    _, best, latency = min(timed, key=lambda entry: entry[0])
    text = f"{best.variant} {_config(best) or ''}".strip()
    text += f", {format_us(latency.median_us)} {latency.origin}"
    over = _speedup(best)
    return f"{text}; {over}" if over else text


def spent_rows(spent: Spent | None, devices: Sequence[str]) -> dict[str, str]:
    """Return time, GPU-hours, cost and budget, formatted; unknown values are left out."""
    if spent is None:
        return {}
    rows = {}
    if spent.hours is not None:
        rows["time spent"] = f"{spent.hours:g} h"
    if spent.gpu_hours is not None:
        rows["GPU-hours"] = f"{spent.gpu_hours:g} h"
    cost, basis = cost_of(spent, devices)
    if cost is not None:
        rows["cost"] = f"US$ {cost:,.2f}{basis}"
    if spent.budget_usd is not None:
        rows["budget"] = f"US$ {spent.budget_usd:,.2f}"
        if cost is not None:
            left = spent.budget_usd - cost
            rows["budget"] += f", {abs(left):,.2f} {'left' if left >= 0 else 'over'}"
    return rows


def cost_of(spent: Spent, devices: Sequence[str]) -> tuple[float | None, str]:
    """Return the given cost, else GPU-hours at the list price of the only GPU, and the basis of
    the cost. A part of a GPU has no list price."""
    if spent.cost_usd is not None:
        return spent.cost_usd, ""
    price = _price(devices[0]) if len(devices) == 1 else None
    if spent.gpu_hours is None or price is None:
        return None, ""
    return spent.gpu_hours * price, f" (GPU-hours at the list price of US$ {price:g} an hour)"


def phases_table(phases: Iterable[Phase], evaluations: Sequence[Evaluation], session: str) -> Table:
    """Return the phases with targets, whether these are met, and decisions; `session` is the
    title, as in `goal_status`."""
    return Table.of(
        "Phases",
        (
            {
                "phase": p.name,
                "target": describe_goal(p.target) if p.target else None,
                "result": goal_status(p.target, evaluations, session).sentence
                if p.target
                else None,
                "decision": _decision(p.decision),
            }
            for p in phases
        ),
    )


def hypothesis_state(target: Goal | None, evaluations: Sequence[Evaluation], session: str) -> str:
    """Return `confirmed. …`, `refuted. …` or `open. …`, by whether the session's numbers meet
    its target; `session` is the title, as in `goal_status`."""
    if target is None:
        return "open. The session has no target that its numbers could meet or miss."
    status = goal_status(target, evaluations, session)
    ends = {"met": "confirmed", "missed": "refuted", "undecided": "open"}
    return f"{ends[status.state]}. {status.sentence}"


def best_gain(snapshot: Snapshot) -> tuple[float, str] | None:
    """Return the largest gain in the timeline since the first time of its problem, and the
    origin of both times; None if no problem was timed twice. Measured gains come before
    predicted ones."""
    rows = timeline_rows(snapshot.timeline, snapshot.opened(), snapshot.title)
    gains = [(r.latency.origin, r.gain) for r in rows if r.latency is not None and r.gain]
    if len(gains) < 2:
        return None
    taken = [(gain, origin) for origin, gain in gains if origin != "predicted"]
    best = max(taken if len(taken) > 1 else [(gain, origin) for origin, gain in gains])
    return best[0], best[1]


def spent_table(
    infos: Iterable[SnapshotInfo], opened: Callable[[str], Snapshot] | None = None
) -> Table:
    """Return the costs of sessions, oldest first, with cumulative sums. Sessions without costs are
    left out, and only the last snapshot of a session counts.

    Args:
        opened: returns a snapshot by name, for gains and hypotheses; None leaves these out.
    """
    last, names = {}, {}
    with_costs = [
        info
        for info in infos
        if info.summary is not None and (info.summary.spent or info.summary.decision)
    ]
    for info in sorted(with_costs, key=lambda i: i.updated):
        assert info.summary is not None
        last[info.summary.id], names[info.summary.id] = info.summary, info.name
    hours = gpu_hours = cost_usd = 0.0
    records, over = [], []
    for s in last.values():
        spent = s.spent or Spent()
        cost, _ = cost_of(spent, s.devices)
        hours += spent.hours or 0.0
        gpu_hours += spent.gpu_hours or 0.0
        cost_usd += cost or 0.0
        budget = None if spent.budget_usd is None else f"{spent.budget_usd:,.2f}"
        is_over = spent.budget_usd is not None and cost is not None and cost > spent.budget_usd
        if is_over:
            over.append(f"{s.title} (US$ {cost:,.2f} of {budget})")
        records.append(
            {
                "saved, UTC": s.updated[:10],
                "session": s.title,
                "decision": _decision(s.decision),
                "hours": spent.hours,
                "GPU-hours": spent.gpu_hours,
                "cost, US$": None if cost is None else f"{cost:,.2f}",
                "budget, US$": budget,
                "over its budget": "yes" if is_over else None,
                **(_gained(opened(names[s.id]), spent, cost) if opened is not None else {}),
                "hours so far": hours,
                "GPU-hours so far": gpu_hours,
                "cost so far, US$": f"{cost_usd:,.2f}",
            }
        )
    remark = f"Over their budget: {'; '.join(over)}." if over else ""
    return Table.of("Spent", records, remark)


def _gained(snapshot: Snapshot, spent: Spent, cost: float | None) -> dict[str, object]:
    """Return the gain, the saved share of the time per person-hour and per dollar, and the
    hypothesis."""
    found = best_gain(snapshot)
    saved = 1 - 1 / found[0] if found is not None else None
    state = None
    if snapshot.hypothesis:
        state = hypothesis_state(snapshot.target, snapshot.opened(), snapshot.title)
    return {
        "gain": f"{found[0]:.3g}× {found[1]}" if found is not None else None,
        "saved per hour": _share(saved, spent.hours),
        "saved per US$": _share(saved, cost),
        "hypothesis": state.split(".")[0] if state else None,
    }


def _share(saved: float | None, amount: float | None) -> str | None:
    return None if saved is None or not amount else f"{100 * saved / amount:.3g}%"


def setup_table(snapshot: Snapshot) -> Table:
    """Return title, hypothesis, problems, dates and origin of a session."""
    rows = {
        "title": snapshot.title,
        "hypothesis": snapshot.hypothesis,
        "problems": f"{len(snapshot.problems):,}",
        "begun": snapshot.created,
        "saved": snapshot.updated,
        "source of the figures": snapshot.provenance,
    }
    return Table("Setup", ("what", "value"), tuple(row for row in rows.items() if row[1]))


def results_table(evaluations: Iterable[Evaluation]) -> Table:
    """Return status, latency, TFLOP/s and speed-up of every evaluation."""
    return Table.of(
        "Results",
        (
            {
                "#": index,
                "variant": e.variant,
                "config": _config(e),
                "problem": e.problem.label(),
                "GPU": e.device,
                "status": status_label(e),
                **_latency(e.latency),
                "TFLOP/s": f"{e.problem.flops / e.latency.median_us / 1e6:.3g}"
                if e.latency
                else None,
                "against the best baseline": _speedup(e),
                "reason": e.reason,
            }
            for index, e in enumerate(evaluations)
            if e.variant != "sdpa" or e.latency is not None
        ),
        "TFLOP/s counts 4·B·H·S²·D operations, half of it when causal. The interval of a "
        "prediction is the model's 90 %.",
    )


def holds_baselines_alone(evaluations: Sequence[Evaluation]) -> bool:
    """True if PyTorch's attention was timed but no kernel."""
    return bool(evaluations) and all(e.latency is None and e.baselines for e in evaluations)


def baselines_table(evaluations: Iterable[Evaluation]) -> Table:
    """Return the times of PyTorch's attention beside each evaluation."""
    return Table.of(
        "Baselines",
        (
            {
                "#": index,
                "problem": e.problem.label(),
                "GPU": e.device,
                "baseline": b.name,
                **_latency(b.latency),
                "end to end": next(
                    (format_us(x.median_us) for x in b.other_latencies if x.kind == "end_to_end"),
                    None,
                ),
                "reason": b.reason,
            }
            for index, e in enumerate(evaluations)
            for b in e.baselines
        ),
    )


def batch_table(evaluations: Iterable[Evaluation]) -> Table:
    """Return time per (batch, head) and its cost, for variants timed at several batches."""
    groups: dict[object, list[tuple[int, float, Evaluation]]] = {}
    for e in evaluations:
        if e.latency is not None and e.status is not Status.INCORRECT:
            p = e.problem
            rest = (p.head_group, p.rest)
            key = (e.variant, _config(e), e.device, e.latency.basis, rest)
            units = p.batch * p.num_heads
            groups.setdefault(key, []).append((units, e.latency.median_us / units, e))
    return Table.of(
        "Batch",
        (row for group in groups.values() for row in _batch_rows(group)),
        "A query is one row of Q. The price is the device table's list price.",
    )


def _batch_rows(group: list[tuple[int, float, Evaluation]]) -> Iterator[dict[str, object]]:
    """Return rows of one group: (batch · heads, time per (batch, head), evaluation)."""
    ordered = sorted(group, key=lambda entry: entry[0])
    smallest = ordered[0][0]
    if smallest == ordered[-1][0]:
        return
    # Of several times at the smallest batch, the last counts, as for a target.
    start_us = [unit_us for units, unit_us, _ in ordered if units == smallest][-1]
    for units, unit_us, e in ordered:
        latency = _latency(e.latency)
        yield {
            "variant": e.variant,
            "problem": e.problem.label(),
            "GPU": e.device,
            "batch · heads": units,
            "latency": latency["latency"],
            "origin": latency["origin"],
            "per (batch, head)": format_us(unit_us),
            "gain per unit": f"{start_us / unit_us:.3g}×",
            "US$ per 10⁹ queries": _cost(e.device, unit_us / e.problem.seqlen),
        }


def correctness_table(evaluations: Iterable[Evaluation]) -> Table:
    """Return the error figures of every checked evaluation."""
    return Table.of(
        "Correctness",
        (
            {
                "#": index,
                "variant": e.variant,
                "problem": e.problem.label(),
                "verdict": "passed" if c.passed else "failed",
                "max |error|": f"{c.max_abs_err:.3g}",
                "allowed": f"{c.tolerance:.3g}",
                "SDPA's error": f"{c.baseline_err:.3g} ({c.baseline_name})",
                "wrong": c.bad_count,
                "why": " ".join([c.reason, *(f.sentence for f in c.findings)]),
            }
            for index, e in enumerate(evaluations)
            if (c := e.correctness) is not None
        ),
    )


def occupancy_table(evaluations: Iterable[Evaluation]) -> Table:
    """Return the occupancy of the passes of every evaluation."""
    return Table.of(
        "Occupancy",
        (
            {"#": index, "variant": e.variant, **_pass_row(p), "reason": p.occupancy.reason}
            for index, e in enumerate(evaluations)
            for p in e.passes
        ),
    )


def passes_table(reports: Iterable[PassReport]) -> Table:
    """Return a column per pass of a kernel: resources from the compiler, and occupancy."""
    rows = [_pass_row(report) for report in reports]
    names = [str(row.pop("pass")) for row in rows]
    # Passes may have the same entry, so column names are made unique.
    named = [f"{n} ({i})" if names.count(n) > 1 else n for i, n in enumerate(names, 1)]
    return Table.of(
        "Passes",
        (
            # All cells are text, because Arrow has no type for mixed columns.
            {"figure": figure}
            | {
                name: None if row[figure] is None else str(row[figure])
                for name, row in zip(named, rows, strict=True)
            }
            for figure in (rows[0] if rows else ())
        ),
    )


def _pass_row(report: PassReport) -> dict[str, object]:
    r, o = report.resources, report.occupancy
    return {
        "pass": r.entry,
        "arch": r.arch,
        "threads per CTA": r.threads_per_cta,
        "registers per thread": r.registers_per_thread,
        "static smem": format_bytes(r.static_smem_bytes),
        "dynamic smem": format_bytes(r.dynamic_smem_bytes),
        "spill stores": format_bytes(r.spill_store_bytes),
        "spill loads": format_bytes(r.spill_load_bytes),
        "stack": format_bytes(r.stack_bytes),
        "CTAs": o.ctas,
        "useful CTAs": o.useful_ctas,
        "CTAs per SM": o.ctas_per_sm,
        "occupancy": f"{o.occupancy:.0%}",
        "limiter": o.limited_by(),
        "waves": None if o.waves is None else f"{o.waves:.3g}",
        "wave efficiency": _percent(o.wave_efficiency),
        "SM fill": _percent(o.sm_fill),
        "GPU fill": _percent(o.gpu_fill),
    }


def advice_table(advice: Iterable[Suggestion], limits: str = "") -> Table:
    """Return what to try next (`engine.choose.advice`), the largest expected gain first."""
    return Table.of(
        "What to try next",
        (
            {
                "what": s.title,
                "problem": s.problem.label(),
                "GPU": s.device,
                "expected gain": _gain(s.gain),
                "latency then": _latency(s.latency)["latency"],
                "origin": _latency(s.latency)["origin"],
                "90 % interval": _latency(s.latency)["95 % interval"],
                "why": s.reason,
            }
            for s in advice
        ),
        "A gain is the present kernel's time divided by that of the suggestion, both predicted by "
        "the same method or both measured or recorded. The error of predictions is larger for "
        f"kernels that were never measured. {limits}".strip(),
    )


def timeline_table(rows: Iterable[TimelineRow]) -> Table:
    """Return the timeline, oldest entry first."""
    return Table.of(
        "Timeline",
        (
            {
                "when, UTC": row.when[:19].replace("T", " "),
                "what": row.what,
                "latency": _latency(row.latency)["latency"],
                "origin": _latency(row.latency)["origin"],
                "gain since the start": _gain(row.gain),
                "outcome": row.outcome,
            }
            for row in rows
        ),
    )


def environment_table(environment: Environment) -> Table:
    """Return the environment that was recorded when the session was saved."""
    fields = dict(environment)
    gpus = fields.pop("gpus")
    for index, gpu in enumerate(gpus):
        figures = dict(gpu)
        if figures["memory_bytes"] is not None:
            figures["memory_bytes"] = format_bytes(figures["memory_bytes"])
        fields |= {f"GPU {index} {name}": value for name, value in figures.items()}
    return Table(
        "Environment",
        ("what", "value"),
        tuple(
            (name.replace("_", " "), str(value))
            for name, value in fields.items()
            if value not in (None, "")
        ),
    )


def sources_table(sources: Iterable[Source]) -> Table:
    """Return the stored source files with hashes and compiler flags."""
    return Table.of(
        "Sources",
        (
            {
                "file": s.name,
                "lines": len(s.text.splitlines()),
                "SHA-256": s.sha256,
                "flags": " ".join(s.flags),
            }
            for s in sources
        ),
    )


def known_times_table(times: Iterable[KnownTime], variant: Variant | None = None) -> Table:
    """Return times in sessions, with their place.

    Args:
        variant: the variant whose source is compared with the times' sources.
    """
    words = {"device_warm": "warm", "device_cold": "cold L2", "end_to_end": "end to end"}
    return Table.of(
        "Known times",
        (
            {
                "kernel": name_of(t),
                "config": " ".join(f"{k}={v}" for k, v in sorted(t.config.items())) or None,
                **_latency(t.latency),
                "time": words[t.latency.kind],
                "source": source_match(t, variant)
                if variant is not None and t.name == variant.id
                else None,
                "launched like": None if t.is_sdpa or is_of_this_source(t) else t.name,
                "session": t.session,
                "stored in": t.stored_in,
            }
            for t in times
        ),
        "Times of the same problem and GPU. A kernel with another source than the variant's, or "
        "with an unrecorded one, has its own name and is only launched like the variant: its time "
        "calibrates no prediction and is compared with none.",
    )


def _latency(latency: Latency | None) -> dict[str, str | None]:
    """Return median, interval and origin by column name."""
    if latency is None:
        return {"latency": None, "95 % interval": None, "origin": None}
    interval = None
    if latency.low_us < latency.high_us:
        interval = f"{format_us(latency.low_us)} to {format_us(latency.high_us)}"
    return {
        "latency": format_us(latency.median_us),
        "95 % interval": interval,
        "origin": latency.origin,
    }


def _config(e: Evaluation) -> str | None:
    return " ".join(f"{name}={value}" for name, value in sorted(e.config.items())) or None


def _speedup(e: Evaluation) -> str | None:
    timed = [(b.latency, b.name) for b in e.baselines if b.latency is not None]
    if e.latency is None or not timed or e.status is Status.INCORRECT:
        return None
    best, name = min(timed, key=lambda pair: pair[0].median_us)
    # it is unknown how an imported time was taken
    if was_recorded_elsewhere(e) or not are_comparable(e.latency.basis, best.basis):
        return not_comparable(best.basis, e.latency.basis)
    return format_speedup_over(best.median_us / e.latency.median_us, name)


def _price(device: str) -> float | None:
    try:
        return find_device(device).price_usd_per_hour
    except UnknownName:
        return None


def _cost(device: str, per_query_us: float) -> str | None:
    price = _price(device)
    return None if price is None else f"{usd_per_billion_queries(per_query_us, price):.3g}"


def _gain(gain: float | None) -> str | None:
    return None if gain is None else f"{gain:.3g}×"


def _percent(share: float | None) -> str | None:
    return None if share is None else format_thread_fill(share)
