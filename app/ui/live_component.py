"""A chart that grows: `Plotly.react` in a component, so that zoom and pan outlive every update.

`st.plotly_chart` mounts a new chart whenever its data change. plotly.js comes from the installed
plotly package, served by Streamlit from where it lies: no copy, no network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly
import plotly.graph_objects as go
import streamlit as st
from streamlit.components.v1 import declare_component

# Resolved, because an installer may have put links here, and Streamlit serves no link's target.
_PLOTLY_JS = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").resolve()

# Declared for nothing but the address of its folder.
_SERVED = declare_component("plotly_js", path=str(_PLOTLY_JS.parent))

_JS = """
function plotly(src) {
  window.attunePlotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = src;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      delete window.attunePlotly;  // the next update tries again
      script.remove();
      reject();
    };
    document.head.append(script);
  });
  return window.attunePlotly;
}

// Named one by one: among the others is one that would send the data away.
const BUTTONS = ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"];
const OPTIONS = {displaylogo: false, modeBarButtons: [BUTTONS]};

// Under load Streamlit may take an element away and put it back: the chart is kept, and its zoom.
const charts = new Map();  // by key

export default function ({data, parentElement, setStateValue}) {
  const {figure, src, key} = data;
  let chart = charts.get(key);
  if (!chart) {
    chart = document.createElement("div");
    charts.set(key, chart);
    chart.className = "attune-live-chart";
    // The page's width also changes without the window's: its sidebar opens and closes.
    new ResizeObserver(() => {
      if (chart.data && chart.offsetWidth) window.Plotly.Plots.resize(chart);
    }).observe(chart);
  }
  if (chart.parentNode !== parentElement) parentElement.append(chart);
  chart.pick = (point) => setStateValue("picked", point);
  chart.style.height = `${figure.layout.height}px`;
  chart.wanted = figure;
  plotly(src).then(
    (Plotly) => {
      // A newer one has come in, or a box is being drawn: an update would take it away.
      if (chart.wanted !== figure || chart._dragging) return;
      figure.layout.font.family = getComputedStyle(parentElement).fontFamily;
      Plotly.react(chart, figure.data, figure.layout, OPTIONS);
      if (chart.listens) return;
      chart.listens = true;
      chart.on("plotly_click", ({points}) => {
        const point = points.find((p) => typeof p.customdata === "string");
        if (point) chart.pick(point.customdata);
      });
    },
    () => {
      chart.textContent = "The chart cannot be drawn: plotly.js did not load. Reload the page.";
    },
  );
}
"""

_mount = st.components.v2.component("attune.live_chart", js=_JS, isolate_styles=False)


def draw(figure: go.Figure, key: str) -> str | None:
    """Draw the figure, or bring the one that is there up to date.

    The view stays as long as the figure's `layout.uirevision` does.

    Returns:
        The `customdata` of the point that was clicked last, where that is a text.
    """
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    folder = f"/{base}/component" if base else "/component"
    src = f"{folder}/{_SERVED.name}/{_PLOTLY_JS.name}"
    data: dict[str, Any] = {"figure": figure.to_dict(), "src": src, "key": key}
    state = _mount(key=key, data=data, default={"picked": None}, on_picked_change=lambda: None)
    picked = state.get("picked")
    return picked if isinstance(picked, str) else None
