"""Colours with a meaning: the same in every chart, told apart by colour-blind readers too.

Hues name things (variants, baselines). Where a number comes from is said by line style and a badge,
never by hue alone, and status by word and icon as well as colour.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.evaluation import Origin, Status
from engine.own_kernels.registry import all_variants

# Told apart under deuteranopia and protanopia, and legible on both backgrounds.
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

LINE_STYLE: dict[Origin, str] = {"measured": "solid", "recorded": "dot", "predicted": "dash"}
MARKER: dict[Origin, str] = {
    "measured": "circle",
    "recorded": "diamond",
    "predicted": "circle-open",
}

# Badge colours are names of Streamlit's own palette, which adapts to light and dark.
ORIGIN_COLOR: dict[Origin, str] = {"measured": "blue", "recorded": "gray", "predicted": "violet"}
ORIGIN_ICON: dict[Origin, str] = {
    "measured": ":material/straighten:",
    "recorded": ":material/history:",
    "predicted": ":material/function:",
}

STATUS_COLOR: dict[Status, str] = {
    Status.PASSED: "green",
    Status.SKIPPED: "gray",
    Status.COMPILE_ERROR: "red",
    Status.LAUNCH_ERROR: "red",
    Status.OUT_OF_MEMORY: "orange",
    Status.INCORRECT: "red",
    Status.CRASHED: "red",
    Status.TIMEOUT: "orange",
    Status.THROTTLED: "orange",
    Status.CANCELLED: "gray",
}
STATUS_ICON: dict[Status, str] = {
    Status.PASSED: ":material/check_circle:",
    Status.SKIPPED: ":material/block:",
    Status.COMPILE_ERROR: ":material/code_off:",
    Status.LAUNCH_ERROR: ":material/error:",
    Status.OUT_OF_MEMORY: ":material/memory:",
    Status.INCORRECT: ":material/cancel:",
    Status.CRASHED: ":material/error:",
    Status.TIMEOUT: ":material/timer_off:",
    Status.THROTTLED: ":material/thermostat:",
    Status.CANCELLED: ":material/do_not_disturb_on:",
}


@dataclass(frozen=True, slots=True)
class Theme:
    """What a chart needs to sit on the page's background."""

    paper: str  # the page's background
    accent: str
    muted: str  # bars that are context, not message
    line: str  # curves that are context
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


def variant_color(index: int) -> str:
    """The colour of the `index`-th variant, the same on every page."""
    return CATEGORICAL[index % len(CATEGORICAL)]


def color_of(variant: str) -> str:
    """The colour of the variant with this id, or of one that this machine lacks."""
    ids = [v.id for v in all_variants()]
    return variant_color(ids.index(variant) if variant in ids else len(ids))
