"""CSS for what Streamlit's theme has no option for."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

_CSS = Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def apply() -> None:
    """Add the CSS. Call once per run, before anything is drawn."""
    st.html(f"<style>{_CSS}</style>")
