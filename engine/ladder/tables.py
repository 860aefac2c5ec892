"""The ladder's figures as a table, for the command line, the Kernels page and the README."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.ladder.rung import Rung
from engine.table import Table
from engine.units import format_bytes, format_us

REMARK = (
    "Registers, shared memory and spills are the compiler's, occupancy the calculator's. "
    "Instructions and conflicts are counted in the machine code, for 64 query rows and 64 keys: a "
    "warp's instructions, and shared-memory wavefronts for each that is needed. Simulated times "
    "come from that machine code, with a 90 % interval; nothing was measured unless it says so."
)


def ladder_table(rungs: Iterable[Rung], title: str) -> Table:
    """One row for each rung; what is not known is a dash."""
    return Table.of(title, (_record(rung) for rung in rungs), REMARK)


def reasons(why_not: Mapping[str, str]) -> list[str]:
    """Why rungs cannot run here: sentences that differ in the rung's id alone stand once.

    Args:
        why_not: a sentence by the rung's id; empty where it can run.
    """
    alike: dict[str, list[str]] = {}
    for rung, why in why_not.items():
        if why:
            alike.setdefault(why.replace(rung, ""), []).append(rung)
    sentences = []
    for first, *others in alike.values():
        same = f" The same holds for {', '.join(others)}." if others else ""
        sentences.append(why_not[first] + same)
    return sentences


def _record(rung: Rung) -> dict[str, object]:
    r = rung.main.resources if rung.main is not None else None
    o = rung.main.occupancy if rung.main is not None else None
    c = rung.counts
    latency = rung.latency if rung.is_simulated else None
    return {
        "rung": rung.variant.id,
        "title": rung.variant.title,
        "config": rung.describe_config or None,
        "registers": r.registers_per_thread if r is not None else None,
        "shared memory": format_bytes(r.smem_bytes) if r is not None else None,
        "spills": format_bytes(rung.spill_bytes) if r is not None else None,
        "occupancy": f"{o.occupancy:.0%}" if o is not None else None,
        "instructions": round(c.instructions) if c is not None else None,
        "conflicts": f"{c.conflicts:.2f}×" if c is not None else None,
        "simulated": format_us(latency.median_us) if latency is not None else None,
        "90 % interval": f"{format_us(latency.low_us)} to {format_us(latency.high_us)}"
        if latency is not None
        else None,
        "known": _known(rung),
        "not here, because": rung.why_not or None,
    }


def _known(rung: Rung) -> str | None:
    if rung.known is None:
        return None
    source = "" if rung.of_this_source else ", another source"
    return f"{format_us(rung.known.latency.median_us)} {rung.known.latency.origin}{source}"


def without_empty(table: Table) -> Table:
    """Without the columns that say nothing anywhere."""
    kept = [n for n, _ in enumerate(table.columns) if any(row[n] is not None for row in table.rows)]
    return Table(
        table.title,
        tuple(table.columns[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in table.rows),
        table.remark,
    )
