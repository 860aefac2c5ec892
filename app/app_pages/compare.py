"""Compare: kernels side by side for each problem, with what got worse first."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.compare import inputs, results
from app.shared.runs import collect
from app.shared.snapshots import listed
from app.shared.widgets import empty, problem, show_errors
from engine.base.errors import AttuneError
from engine.sessions.compare import compare_sessions
from engine.sessions.store import default_store


def page() -> None:
    st.markdown("# Compare")
    try:
        store = default_store()
        infos = {info.name: info for info in listed(store) if info.summary is not None}
    except AttuneError as error:
        problem(str(error))
        return
    collect()
    choices = inputs.choices(infos)
    selected = inputs.sessions(choices, infos)
    if not choices:
        empty(
            "nothing yet",
            "Nothing to compare yet",
            "Save a session on the Tune or Sessions page, or upload one on the Sessions page. Two "
            "kernels of one session can be compared, or those of several.",
        )
        return
    if not selected:
        empty("nothing yet", "Select a session", "Select it in the first field.")
        return
    options = inputs.options(selected, infos)
    opened = {}
    for name in selected:
        try:
            opened[name] = inputs.open_session(store, name)
        except AttuneError as error:
            problem(str(error))
    if options.baseline not in opened:
        return
    picked = inputs.pairs(opened, options.baseline) if options.picks else []
    if options.picks and not picked:
        empty(
            "nothing yet",
            "There is only one kernel",
            "Select a second session, or a session in which several kernels or configs were run.",
        )
        return
    with show_errors():
        compare = partial(
            compare_sessions,
            baseline=options.baseline,
            pairing=options.pairing,
            pairs=picked,
            across=options.across,
            kind=options.kind,
        )
        comparison = compare(opened)
        counted = inputs.counted(comparison, opened)
        results.draw(comparison if counted is None else compare(counted))


page()
