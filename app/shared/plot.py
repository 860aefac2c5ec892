"""Every chart of the app: plotly.js in a component that draws after the figures beside it.

`st.plotly_chart` draws before the browser paints, which delays the tiles above the charts, and
mounts a new chart whenever data change. Here the page is painted first, unchanged charts are not
redrawn, and `Plotly.react` keeps zoom and pan. Streamlit serves plotly.js from the installed plotly
package, without a copy or the network.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import plotly
import plotly.graph_objects as go
import streamlit as st
from streamlit.components.v1 import declare_component
from streamlit.components.v1.custom_component import CustomComponent

from app.shared.palette import DARK, LIGHT
from app.shared.widgets import theme

# Resolved, because an installer may use symbolic links, whose targets Streamlit does not serve.
_PLOTLY_JS = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").resolve()

# Colours that differ between the two themes.
_LIGHT_AND_DARK = [
    list(chain.from_iterable(c if isinstance(c, tuple) else (c,) for c in astuple(one)))
    for one in (LIGHT, DARK)
]

_JS = Path(__file__).with_name("chart.js").read_text(encoding="utf-8")

_mount = st.components.v2.component("attune.chart", js=_JS, isolate_styles=False)


@lru_cache(maxsize=1)
def _served() -> CustomComponent:
    """Return a component that is declared only for the URL of its folder.

    Call it while a page is drawn: Streamlit only serves components declared in a script run.
    """
    return declare_component("plotly_js", path=str(_PLOTLY_JS.parent))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure as sent to the browser; its unchanged parts are serialized once and cached."""

    json: str
    height_px: int

    @classmethod
    def of(cls, figure: go.Figure) -> Drawn:
        return cls(figure.to_json(), figure.layout.height)


def draw(figure: go.Figure | Drawn, key: str, *, tools: bool = True) -> str | None:
    """Draw the figure, or update the existing one.

    Zoom and pan are kept as long as the figure's `layout.uirevision`. `tools` adds buttons to zoom,
    pan and save a picture.

    Returns:
        The `customdata` of the point that was clicked last, if it is a string.
    """
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    folder = f"/{base}/component" if base else "/component"
    drawn = figure if isinstance(figure, Drawn) else Drawn.of(figure)
    data: dict[str, Any] = {
        "figure": drawn.json,
        "height": drawn.height_px,
        "src": f"{folder}/{_served().name}/{_PLOTLY_JS.name}",
        "key": key,
        "tools": tools,
        "isDark": theme() is DARK,
        "themes": _LIGHT_AND_DARK,
    }
    state = _mount(key=key, data=data, default={"picked": None}, on_picked_change=lambda: None)
    picked = state.get("picked")
    return picked if isinstance(picked, str) else None
