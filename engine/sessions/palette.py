"""Colours with a meaning, in the app and in reports; safe for colour-blind readers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

# Distinct under deuteranopia and protanopia, and legible on both backgrounds.
CATEGORICAL = (
    "#3b7dd8",
    "#d9822b",
    "#2b9a74",
    "#9467bd",
    "#d1495b",
    "#4aa8d8",
    "#99922a",
    "#c46aa0",
)
# Colours of references (kernels of another source): never the variant's own colour.
_REFERENCES = ("#8c6d5a", "#5f7482", "#a5893a", "#7d6490", "#5d7f57", "#996666")


def reference_color(name: str) -> str:
    """Return the colour of a reference, derived from its name, so that it is the same in every
    chart."""
    return _REFERENCES[zlib.adler32(name.encode()) % len(_REFERENCES)]


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a chart for a light or dark page."""

    paper: str  # the page's background
    accent: str
    muted: str  # bars that are not highlighted
    line: str  # curves that are not highlighted
    text: str
    grid: str
    good: str
    bad: str
    within: tuple[str, str]  # error maps: no error, to the tolerance
    beyond: tuple[str, str]  # the tolerance, to the largest error


LIGHT = Theme(
    paper="#ffffff",
    accent="#0b6e8a",
    muted="#c3ced4",
    line="#7c8a93",
    text="#1c2429",
    grid="#e4e9ec",
    good="#2b9a74",
    bad="#c2374b",
    within=("#f3f6f8", "#7fb2c3"),
    beyond=("#e8a35c", "#8e1b2e"),
)
DARK = Theme(
    paper="#12171a",
    accent="#3aa9c8",
    muted="#46545c",
    line="#8b99a1",
    text="#e4eaed",
    grid="#273036",
    good="#4cbf95",
    bad="#e8697c",
    within=("#1b2226", "#2c7084"),
    beyond=("#c2641f", "#ffd9a0"),
)
