"""The page table. Start with `streamlit run app/main.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `streamlit run` puts only app/ there

from app.shared import style  # noqa: E402  (after the path is set)

TUNE = "app_pages/tune.py"


def to_tune() -> None:
    """The default page has the path /; links to /tune lead there."""
    params = {name: st.query_params.get_all(name) for name in st.query_params}
    st.switch_page(TUNE, query_params=params)


st.set_page_config(
    page_title="Attune",
    page_icon=str(ROOT / "app" / "assets" / "icon.png"),  # a local file: the app works offline
    layout="wide",
    initial_sidebar_state=320,
)
style.apply()
st.logo(
    str(ROOT / "app" / "assets" / "logo.png"),
    icon_image=str(ROOT / "app" / "assets" / "icon.png"),
    size="large",
)
st.navigation(
    [
        st.Page(TUNE, title="Tune", url_path="default", default=True),
        st.Page(to_tune, title="Tune", url_path="tune", visibility="hidden"),
        st.Page("app_pages/batch.py", title="Batch size", url_path="batch"),
        st.Page("app_pages/sweep.py", title="Sweep", url_path="sweep"),
        st.Page("app_pages/sessions.py", title="Sessions", url_path="sessions"),
        st.Page("app_pages/compare.py", title="Compare", url_path="compare"),
        st.Page("app_pages/devices.py", title="Devices", url_path="devices"),
    ],
    position="top",
).run()
