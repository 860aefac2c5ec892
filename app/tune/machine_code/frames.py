"""Figures of a launch's machine code as DataFrames, for its charts and tables. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from engine.base.table import Table
from engine.machine_code.launch_report import Count, CountPair, HotLine, PassReport, Share, own_line
from engine.machine_code.overlap import Overlap

HOTTEST = 10


def shares(items: Iterable[Share]) -> pd.DataFrame:
    """Return `name`, `percent`, `limits`."""
    rows = [(s.name, 100 * s.share, s.binds) for s in items]
    return Table("Shares", ("name", "percent", "limits"), tuple(rows)).frame(dashes=False)


def hottest(lines: Sequence[HotLine], source: str, source_name: str) -> pd.DataFrame:
    """Return the lines that execute most, formatted; empty columns are left out."""
    texts = ["", *source.splitlines()]
    own = [own_line(each.file, source_name, each.line) for each in lines[:HOTTEST]]
    records = (
        {
            "line": f"{each.file}:{each.line}",
            "source": texts[line].strip() if line < len(texts) else "",
            "instructions": f"{each.executed:,}",
            "of all": f"{each.share:.1%}",
            "warps' cycles": "" if each.stall_share is None else f"{each.stall_share:.1%}",
            "wavefronts": _against(each.wavefronts, each.ideal_wavefronts),
            "sectors": _against(each.sectors, each.ideal_sectors),
        }
        for each, line in zip(lines, own, strict=False)
    )
    frame = Table.of("Hottest lines", records).frame()
    optional = ("source", "warps' cycles", "wavefronts", "sectors")
    return frame.drop(columns=[c for c in optional if c in frame and not frame[c].any()])


def counts(items: Iterable[Count]) -> pd.DataFrame:
    """Return `figure`, `counted`, `ideal`."""
    rows = [
        (c.name, f"{c.count:,}", "" if not c.ideal else f"{c.ideal:,}") for c in items if c.count
    ]
    return Table("Counts", ("figure", "counted", "ideal"), tuple(rows)).frame()


def overlaps(items: Iterable[Overlap]) -> pd.DataFrame:
    """Return `overlap`, `instructions`, `loop`."""
    rows = [
        (o.what, f"{o.beside} of {o.of}", f"{o.file}:{o.line}" if o.line else "none") for o in items
    ]
    return Table("Overlap", ("overlap", "instructions", "loop at"), tuple(rows)).frame()


def count_pairs(pairs: Iterable[CountPair], names: tuple[str, str]) -> pd.DataFrame:
    """Return the counts of two launches and the ratio of the second to the first."""
    rows = [
        (p.name, _count(p.first), _count(p.second), f"{p.second / p.first:.2f}×")
        if p.first and p.second is not None
        else (p.name, _count(p.first), _count(p.second), "")
        for p in pairs
    ]
    # Names may be equal; columns of a DataFrame may not.
    first, second = names if names[0] != names[1] else (f"{names[0]} (1)", f"{names[1]} (2)")
    return Table("Counts of two launches", ("figure", first, second, "ratio"), tuple(rows)).frame()


def live(report: PassReport) -> pd.DataFrame:
    """Return `instruction` (its number), `live`, `text`."""
    listing = report.listing
    rows = zip(range(len(listing.live)), listing.live, listing.text, strict=True)
    columns = ("instruction", "live", "text")
    return Table("Live registers", columns, tuple(rows)).frame(dashes=False)


def loops(report: PassReport) -> list[tuple[int, int]]:
    """Return first and last instruction of the outermost loops; overlapping loops are merged.

    A barrier wait whose polling code is placed elsewhere branches back and therefore looks like a
    loop.
    """
    joined: list[tuple[int, int]] = []
    for loop in sorted(report.listing.loops, key=lambda x: x.first):
        if joined and loop.first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], loop.last)
        else:
            joined.append((loop.first, loop.last))
    return joined


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _against(actual: int, ideal: int) -> str:
    if not actual:
        return ""
    return f"{actual:,}" if actual == ideal or not ideal else f"{actual:,} ({actual / ideal:.1f}×)"
