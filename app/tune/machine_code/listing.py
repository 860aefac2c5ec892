"""The component that draws listings: source beside machine code, or two aligned machine codes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import streamlit as st

from engine.base.schema import encode
from engine.machine_code.launch_report import Listing, MachineCode, PassReport, align

# A kernel's code, one of its passes, and its label.
Named: TypeAlias = tuple[str, MachineCode, PassReport]

_HERE = Path(__file__)
_mount = st.components.v2.component(
    "attune.listing",
    js=_HERE.with_suffix(".js").read_text(encoding="utf-8"),
    css=_HERE.with_suffix(".css").read_text(encoding="utf-8"),
)


def draw(code: MachineCode, report: PassReport, key: str) -> None:
    """Draw source and machine code of one pass; a click on either selects the other."""
    _mount(key=key, data={"key": key, **_linked(code, report)})


def draw_aligned(
    first: tuple[str, MachineCode, PassReport],
    second: tuple[str, MachineCode, PassReport],
    key: str,
) -> None:
    """Draw two aligned listings with their differences coloured."""
    _mount(key=key, data={"key": key, **_aligned(first, second)})


@lru_cache(maxsize=4)
def _linked(code: MachineCode, report: PassReport) -> dict[str, Any]:
    listing = encode(report.listing)
    return {
        "stamp": _stamp(code.source, report.listing),
        "listing": listing,
        "source": code.source,
        "source_name": code.source_name,
        "entry": report.entry,
    }


@lru_cache(maxsize=4)
def _aligned(first: Named, second: Named) -> dict[str, Any]:
    (_, a_code, a), (_, b_code, b) = first, second
    pairs = align(a.listing, b.listing, (a_code.source, b_code.source))
    return {
        "stamp": _stamp(first[0], a.listing, second[0], b.listing),
        "pairs": [list(pair) for pair in pairs],
        "first": {"name": first[0], "listing": _columns(a.listing)},
        "second": {"name": second[0], "listing": _columns(b.listing)},
    }


def _columns(listing: Listing) -> dict[str, Sequence[Any]]:
    """Return the columns of the aligned view."""
    return {"text": listing.text, "line": listing.line, "executed": listing.executed}


def _stamp(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
