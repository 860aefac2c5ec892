"""Compare: snapshots beside each other; what differs first, then what got slower."""

from __future__ import annotations

import streamlit as st

from app.compare import inputs, results
from app.shared.runs import collect
from app.shared.widgets import empty, errors_as_sentences, problem
from engine.errors import AttuneError
from engine.sessions.compare import compare_sessions
from engine.sessions.store.store import default_store


def page() -> None:
    st.markdown("### Compare")
    try:
        store = default_store()
        infos = {info.name: info for info in store.list() if info.summary is not None}
    except AttuneError as error:
        problem(str(error))
        return
    collect()
    choices = inputs.choices(infos)
    selected = inputs.sessions(choices, infos)
    if len(choices) < 2:
        empty(
            "nothing yet",
            "Nothing to compare yet",
            "A comparison needs two sessions: save one on the Tune or Sessions page, or upload one "
            "on the Sessions page.",
        )
        return
    if len(selected) < 2:
        empty("nothing yet", "Select two sessions or more", "Select them in the first field.")
        return
    options = inputs.options(selected, infos)
    opened = {}
    for name in selected:
        try:
            opened[name] = inputs.open_session(store, name)
        except AttuneError as error:
            problem(str(error))
    if options.baseline in opened and len(opened) >= 2:
        with errors_as_sentences():
            results.draw(
                compare_sessions(opened, options.baseline, across=options.across, kind=options.kind)
            )


page()
