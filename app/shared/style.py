"""The little CSS that Streamlit's theme has no option for."""

from __future__ import annotations

import streamlit as st

_CSS = """
<style>
/* Figures stand under each other. */
[data-testid="stMetricValue"], [data-testid="stMetricDelta"], .stNumberInput input {
  font-variant-numeric: tabular-nums;
}
/* Dense: the default margins are made for prose. */
.stMainBlockContainer { padding-left: 2rem; padding-right: 2rem; }
@media (max-width: 640px) {
  .stMainBlockContainer { padding-left: 1rem; padding-right: 1rem; }
}
/* Tiles share a row while each keeps room for its numbers, then wrap. */
[class*="st-key-metrics"] > div { flex: 1 1 150px !important; min-width: 150px; }
[class*="st-key-metrics"] [data-testid="stMetric"] > div { padding: 0.5rem 0.75rem; }
[class*="st-key-metrics"] [data-testid="stMetric"] > div > div:last-child {
  flex-wrap: wrap; row-gap: 2px;
}
[class*="st-key-metrics"] [data-testid="stMetricDeltaDescription"] * { white-space: normal; }
</style>
"""


def apply() -> None:
    """Once per run, before anything is drawn."""
    st.html(_CSS)
