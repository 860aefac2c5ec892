"""A button that copies the page's URL, with everything that is selected on the page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

_HTML = """
<button type="button" class="attune-copy-link">Copy link</button>
<p class="attune-copied" role="status"></p>
"""
_JS = Path(__file__).with_name("copy_link.js").read_text(encoding="utf-8")

_mount = st.components.v2.component("attune.copy_link", html=_HTML, js=_JS, isolate_styles=False)


def button() -> None:
    """Draw the button. The browser copies the URL, because Python does not know it."""
    _mount(key="copy_link")
