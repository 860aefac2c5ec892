"""The page table. Start with `streamlit run app/main.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `streamlit run` puts only app/ there

from app.shared import style  # noqa: E402  (after the path is set)

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
        st.Page("app_pages/tune.py", title="Tune", url_path="tune", default=True),
        st.Page("app_pages/batch.py", title="Batch size", url_path="batch"),
        st.Page("app_pages/sweep.py", title="Sweep", url_path="sweep"),
        st.Page("app_pages/sessions.py", title="Sessions", url_path="sessions"),
        st.Page("app_pages/compare.py", title="Compare", url_path="compare"),
        st.Page("app_pages/devices.py", title="Devices", url_path="devices"),
    ],
    position="top",
).run()
