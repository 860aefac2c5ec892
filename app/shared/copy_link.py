"""A button that copies the address of the page, with all that is chosen on it."""

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
    """The browser knows the address, which Python writes; so the browser copies it."""
    _mount(key="copy_link")
