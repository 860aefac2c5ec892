"""The page table: runs for each visitor, before the open page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.preparation import wait_for_imports
from app.shared import style

ASSETS = Path(__file__).resolve().parent / "assets"
TUNE = "app_pages/tune.py"


def to_tune() -> None:
    """Redirect /tune to /, the path of the default page."""
    params = {name: st.query_params.get_all(name) for name in st.query_params}
    st.switch_page(TUNE, query_params=params)


wait_for_imports()

# After the wait:
from app.shared import links, message_batch, runs  # noqa: E402

with message_batch.batched():
    style.apply()
    st.logo(str(ASSETS / "logo.png"), icon_image=str(ASSETS / "icon.png"), size="large")
    page = st.navigation(
        [
            st.Page(TUNE, title="Tune", url_path="default", default=True),
            st.Page(to_tune, title="Tune", url_path="tune", visibility="hidden"),
            st.Page("app_pages/ladder.py", title="Kernels", url_path="kernels"),
            st.Page("app_pages/batch.py", title="Batch size", url_path="batch"),
            st.Page("app_pages/sweep.py", title="Sweep", url_path="sweep"),
            st.Page("app_pages/sessions.py", title="Sessions", url_path="sessions"),
            st.Page("app_pages/compare.py", title="Compare", url_path="compare"),
            st.Page("app_pages/devices.py", title="Devices", url_path="devices"),
        ],
        position="top",
    )
    st.set_page_config(
        page_title=f"{page.title} · Attune",
        page_icon=str(ASSETS / "icon.png"),  # a local file: the app works offline
        layout="wide",
        initial_sidebar_state=320,
    )
    if page.title != "Tune":  # left by the browser's back button while the dialog was open
        st.session_state.pop(runs.DIALOG_OPEN, None)
    links.begin(page.title)
    notes = st.container()  # above the page; filled after the page's widgets have read the link
    page.run()
    with notes:
        links.draw()
