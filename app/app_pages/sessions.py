"""Sessions: the opened snapshot, the working session, and the list of snapshots."""

from __future__ import annotations

import streamlit as st

from app.sessions import decision, ledger, snapshot_list, working_session
from app.sessions.snapshot_list import SESSION
from app.shared.runs import collect
from app.shared.snapshots import listed
from app.shared.widgets import problem, show_errors
from engine.base.errors import AttuneError
from engine.sessions.store import default_store

_BASELINE = "baseline"  # a URL parameter of the Compare page


def page() -> None:
    if _BASELINE in st.query_params:
        params = {name: st.query_params.get_all(name) for name in (SESSION, _BASELINE)}
        st.switch_page("app_pages/compare.py", query_params=params)
    st.markdown("# Sessions")
    try:
        store = default_store()
        infos = listed(store)
    except AttuneError as error:
        problem(str(error))
        return
    collect()
    snapshot_list.draw_notices(store)
    snapshot_list.draw_opened(store)
    working_session.draw(store)
    snapshot_list.draw(store, infos)
    with show_errors():
        decision.draw_spent(infos, store)
        ledger.draw()


page()
