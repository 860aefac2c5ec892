"""The app's server. Start with `streamlit run app/main.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from starlette.middleware import Middleware
from streamlit import App

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `streamlit run` puts only app/ there

from app.access import AccessControl, access_token, announce  # noqa: E402  (after the path is set)

TOKEN = access_token(sys.argv[1:])

app = App(
    "page_table.py",
    middleware=[Middleware(AccessControl, token=TOKEN)],
    lifespan=announce(TOKEN),
)
