"""The app's server. Start with `streamlit run app/main.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from starlette.middleware import Middleware
from streamlit import App

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `streamlit run` puts only app/ there

# After the path is set:
from app.access import AccessControl, access_token, started  # noqa: E402
from app.run_start import RunStart  # noqa: E402
from app.shared.widgets import show_error  # noqa: E402

# A page's script and the thread that sends its messages share Python's interpreter lock. Each of a
# page's many messages releases it, and with the default switch interval reacquiring it takes 5 ms.
sys.setswitchinterval(0.0005)

TOKEN = access_token(sys.argv[1:])

app = App(
    "page_table.py",
    middleware=[Middleware(AccessControl, token=TOKEN), Middleware(RunStart)],
    lifespan=started(TOKEN),
    on_script_error=show_error,  # errors outside of a tab are shown as sentences, too
)
