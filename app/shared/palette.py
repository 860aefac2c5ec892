"""Colours with a meaning: the same in every chart, and safe for colour-blind readers.

A colour identifies a variant or baseline. Line style and a badge show the origin of a number; word
and icon show a status. Neither is shown by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.attention.config import all_variants
from engine.attention.evaluation import Origin
from engine.base.errors import Status
from engine.sessions.palette import CATEGORICAL as CATEGORICAL
from engine.sessions.palette import DARK as DARK
from engine.sessions.palette import LIGHT as LIGHT
from engine.sessions.palette import Theme as Theme
from engine.sessions.palette import reference_color

LINE_STYLE: dict[Origin, str] = {"measured": "solid", "recorded": "dot", "predicted": "dash"}
MARKER: dict[Origin, str] = {
    "measured": "circle",
    "recorded": "diamond",
    "predicted": "circle-open",
}

# Badge colours are names of Streamlit's palette, which adapts to light and dark.
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
    Status.RACE: "red",
    Status.OUT_OF_BOUNDS: "red",
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
    Status.RACE: ":material/sync_problem:",
    Status.OUT_OF_BOUNDS: ":material/wrong_location:",
    Status.CRASHED: ":material/error:",
    Status.TIMEOUT: ":material/timer_off:",
    Status.THROTTLED: ":material/thermostat:",
    Status.CANCELLED: ":material/do_not_disturb_on:",
}


def variant_color(index: int) -> str:
    """Return the colour of the `index`-th variant or other name, the same on every page."""
    return CATEGORICAL[index % len(CATEGORICAL)]


def made_distinct(colors: Sequence[str]) -> list[str]:
    """Return the colours with duplicates replaced by unused colours, while there are any."""
    unused = [color for color in CATEGORICAL if color not in colors]
    seen: set[str] = set()
    result = []
    for color in colors:
        result.append(unused.pop(0) if color in seen and unused else color)
        seen.add(color)
    return result


def color_of(variant: str) -> str:
    """Return the colour of the variant with this id, or that of a reference with this name."""
    ids = [v.id for v in all_variants()]
    return variant_color(ids.index(variant)) if variant in ids else reference_color(variant)


def colors_of(variants: Iterable[str]) -> dict[str, str]:
    """Return different colours for the variants of one chart."""
    names = sorted(variants)
    return dict(zip(names, made_distinct([color_of(name) for name in names]), strict=True))
