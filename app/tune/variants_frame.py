"""Rows of the table and chart of all variants on one problem. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from app.evaluation.frames import latency_frame
from app.shared.palette import color_of
from engine.attention.evaluation import Latency
from engine.base.table import Table
from engine.base.units import format_bytes, format_speedup, format_us
from engine.history.known_time import (
    KnownTime,
    Reference,
    known_time_of,
    not_comparable,
    preferred,
    references_in,
)
from engine.pipeline.request import Preview
from engine.search.ranking import SweepRow
from engine.versions.figures import order_of
from kernels.variant import Variant


@dataclass(frozen=True, slots=True)
class Line:
    """What is known of one variant: its preview, its best point in sweeps, a known time."""

    variant: str
    config: str
    reason: str  # why it cannot run; empty when it can
    seen: Preview | None
    swept: SweepRow | None
    known: KnownTime | None  # measured or recorded with the present file
    sdpa: KnownTime | None  # the fastest known time of SDPA for the problem and GPU
    references: tuple[Reference, ...] = ()  # other kernels with the same launch
    is_auto: bool = False  # with the config that `auto` takes, besides the variant's own line

    @property
    def name(self) -> str:
        return f"{self.variant} (auto)" if self.is_auto else self.variant

    @property
    def latency(self) -> Latency | None:
        """Return the variant's measured or recorded time, else the prediction."""
        return preferred(self.known, self.seen.predicted if self.seen is not None else None)


def best_row(rows: Iterable[SweepRow], variant: str) -> SweepRow | None:
    """Return the fastest point of a variant; a prediction only if it has no other time."""
    timed = [row for row in rows if row.variant == variant and row.median_us is not None]
    return min(
        timed, key=lambda row: (row.origin == "predicted", row.median_us or 0.0), default=None
    )


def without_preview(variant: Variant, reason: str) -> Line:
    """Return the line of a variant that cannot run, with the reason."""
    return Line(variant.id, "", reason, None, None, None, None)


def line(seen: Preview, swept: SweepRow | None, times: Sequence[KnownTime]) -> Line:
    """Return one variant's line; `times` are known times of the problem and GPU."""
    of_name = [t for t in times if t.name == seen.variant.id and dict(t.config) == seen.config]
    sdpa = [t for t in times if t.is_sdpa and t.latency.kind == "device_warm"]
    return Line(
        variant=seen.variant.id,
        config=" ".join(f"{name}={value}" for name, value in sorted(seen.config.items())),
        reason=seen.unsupported or "",
        seen=seen,
        swept=swept,
        known=known_time_of(times, seen.variant, seen.config),
        references=references_in(of_name),
        sdpa=min(sdpa, key=lambda t: t.latency.median_us, default=None),
    )


def frame(lines: Iterable[Line], *, is_complete: bool = True) -> pd.DataFrame:
    """Return one row per line that can run; empty columns are left out.

    Args:
        is_complete: False while some are not simulated yet, so that another may be the fastest.
    """
    possible = [each for each in lines if not each.reason]
    table = Table.of("Variants", map(_record, possible)).frame(dashes=False)
    if possible:
        table.insert(2, "order", _orders(possible, "fastest" if is_complete else "fastest so far"))
    optional = [n for n in ("order", "known", "against SDPA", "correctness") if n in table]
    empty = [name for name in optional if not table[name].any()]
    return table.drop(columns=empty)


def _orders(lines: Sequence[Line], best: str) -> list[str]:
    """Return for each variant whether its order relative to the fastest simulated variant is
    reliable."""
    simulated = {
        each.name: x.median_us
        for each in lines
        if each.seen is not None and (x := each.seen.predicted) is not None and x.is_simulated
    }
    if len(simulated) < 2:
        return [""] * len(lines)
    fastest = min(simulated, key=simulated.__getitem__)
    return [
        ""
        if each.name not in simulated
        else best
        if each.name == fastest
        else order_of(simulated[each.name], simulated[fastest])
        for each in lines
    ]


def chart_frame(lines: Sequence[Line]) -> pd.DataFrame:
    """Return the times for `app.evaluation.charts.latencies`, the fastest first."""
    rows = [
        (each.name, each.latency, color_of(each.variant))
        for each in lines
        if each.latency is not None
    ]
    rows += [
        (reference.name, reference.time.latency, color_of(reference.name))
        for each in lines
        for reference in each.references
    ]
    return latency_frame(rows).sort_values("median_us", kind="stable")


def _predicted(seen: Preview | None) -> str:
    if seen is None:
        return ""
    if seen.bound_us is not None:
        return f"at least {format_us(seen.bound_us)}"
    if (x := seen.predicted) is None:
        return ""
    return f"{format_us(x.median_us)} {x.method}".strip()


def _against(sdpa: KnownTime, known: KnownTime) -> str:
    a, b = sdpa.latency, known.latency
    if not (sdpa.checked and known.checked):  # imported times: their method is unknown
        return not_comparable(a.origin, b.origin)
    return format_speedup(a.median_us / b.median_us)


def _record(each: Line) -> dict[str, object]:
    main = None
    if each.seen is not None and each.seen.passes and each.seen.plan is not None:
        main = each.seen.plan.problem.main_of(each.seen.passes)
    r, o = (main.resources, main.occupancy) if main is not None else (None, None)
    return {
        "variant": each.name,
        "predicted": _predicted(each.seen),
        "known": f"{format_us(each.known.latency.median_us)} {each.known.latency.origin}"
        if each.known is not None
        else "",
        "against SDPA": _against(each.sdpa, each.known)
        if each.sdpa is not None and each.known is not None
        else "",
        "correctness": str(each.swept.status) if each.swept is not None else "",
        "registers": str(r.registers_per_thread) if r is not None else "",
        "spills": format_bytes(r.spill_bytes) if r is not None else "",
        "smem": format_bytes(r.smem_bytes) if r is not None else "",
        "occupancy": f"{o.occupancy:.0%}" if o is not None else "",
        "limiter": o.limited_by() if o is not None else "",
        "waves": f"{o.waves:.3g}" if o is not None and o.waves is not None else "",
        "config": each.config,  # last because it is the widest
    }
