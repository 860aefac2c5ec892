"""Sessions: the snapshots people keep. List, search, open, upload, download, remove."""

from __future__ import annotations

import streamlit as st

from app.ui import frames, metrics, state
from app.ui.shown import Shown, from_snapshot
from app.ui.views import tabs
from app.ui.widgets import empty, plain_markdown, problem
from engine.errors import AttuneError
from engine.sessions.schema import Snapshot
from engine.sessions.store import SnapshotInfo, Store, default_store, search

_PARAM = "session"
_ROWS = 7  # a longer table scrolls


def page() -> None:
    try:
        store = default_store()
        infos = store.list()
    except AttuneError as error:
        st.markdown("### Sessions")
        problem(str(error))
        return
    st.markdown("### Sessions")
    st.text(f"Kept in {store.url}")
    _messages()
    _list(store, infos)
    name = st.query_params.get(_PARAM, "")
    if name:
        _opened(store, name)


def _messages() -> None:
    for kind, text in st.session_state.pop("session_messages", []):
        draw = st.success if kind == "done" else st.error
        draw(plain_markdown(text))


def _say(kind: str, text: str) -> None:
    st.session_state.setdefault("session_messages", []).append((kind, text))


def _list(store: Store, infos: list[SnapshotInfo]) -> None:
    left, middle, right = st.columns([4, 2, 3], vertical_alignment="bottom")
    text = left.text_input("Search title, notes and hypothesis", key="session_text")
    gpu = middle.text_input("GPU", key="session_gpu", placeholder="L4")
    with right.popover("Upload a snapshot", icon=":material/upload:", width="stretch"):
        st.file_uploader(
            "Snapshot file (.json or .json.gz)",
            type=["json", "gz"],
            key="session_upload",
            on_change=_import,
            args=(store,),
        )
        st.caption("It is validated first; nothing in it is executed, fetched or trusted.")
    if not infos:
        empty(
            "nothing yet",
            "No snapshots yet",
            "Run a kernel on the Tune page and press Save, or upload a snapshot somebody sent you.",
        )
        return
    found = search(infos, text=text, gpu=gpu)
    if not found:
        empty("filtered", f"None of {len(infos):,} snapshots fits", "Clear the search fields.")
        return
    st.dataframe(
        frames.snapshots(found),
        hide_index=True,
        width="stretch",
        height="content" if len(found) <= _ROWS else 300,
        key="session_table",
        on_select=lambda: _select(found),
        selection_mode="single-row",
        placeholder="",
    )


def _select(found: list[SnapshotInfo]) -> None:
    rows = st.session_state["session_table"]["selection"]["rows"]
    if rows:
        st.query_params[_PARAM] = found[rows[0]].name
    else:
        st.query_params.pop(_PARAM, None)


def _import(store: Store) -> None:
    upload = st.session_state.get("session_upload")
    if upload is None:
        return
    try:
        name = store.import_bytes(upload.getvalue(), name=upload.name)
    except AttuneError as error:
        _say("failed", str(error))
        return
    _say("done", f"Uploaded and kept as {name}.")
    st.query_params[_PARAM] = name


def _opened(store: Store, name: str) -> None:
    st.divider()
    try:
        data = store.read(name)
        snapshot = store.open(name)
    except AttuneError as error:
        problem(str(error))
        st.button("Close", key="session_close", on_click=_close)
        return
    _head(store, name, snapshot, data)
    if not snapshot.evaluations:
        empty(
            "nothing yet", "This session holds no evaluation", "It was saved before anything ran."
        )
        return
    index = _choose(snapshot)
    shown = from_snapshot(snapshot, index)
    _coordinates(shown)
    metrics.draw(shown)
    tabs.draw(shown, "session_tab")


def _close() -> None:
    st.query_params.pop(_PARAM, None)


def _head(store: Store, name: str, snapshot: Snapshot, data: bytes) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"#### {plain_markdown(snapshot.title)}")
        st.download_button(
            "Download",
            data,
            file_name=name,
            mime="application/gzip" if name.endswith(".gz") else "application/json",
            icon=":material/download:",
            on_click="ignore",
        )
        with st.popover("Remove", icon=":material/delete:"):
            st.write("It goes to the trash folder beside the sessions.")
            st.button(
                "Remove this snapshot", key="session_remove", on_click=_remove, args=(store, name)
            )
        st.button("Close", key="session_close", on_click=_close, icon=":material/close:")
    st.text(f"{name}, saved {snapshot.updated}")
    for label, text in (
        ("Hypothesis", snapshot.hypothesis),
        ("Notes", snapshot.notes),
        ("Where it comes from", snapshot.provenance),
    ):
        if text:
            left, right = st.columns([1, 6])
            left.caption(label)
            right.text(text)
    with st.expander("Environment it was made in", icon=":material/memory:"):
        st.dataframe(frames.environment(snapshot.environment), hide_index=True, width="stretch")
    if snapshot.log:
        with st.expander("Import log", icon=":material/subject:"):
            st.code(snapshot.log, language=None, wrap_lines=True)


def _remove(store: Store, name: str) -> None:
    try:
        kept = store.remove(name)
    except AttuneError as error:
        _say("failed", str(error))
        return
    _say("done", f"Moved to the trash folder as {kept}.")
    _close()


def _choose(snapshot: Snapshot) -> int:
    """The evaluation to look at."""
    if len(snapshot.evaluations) == 1:
        return 0
    event = st.dataframe(
        frames.evaluations(snapshot.opened()),
        hide_index=True,
        width="stretch",
        height="content" if len(snapshot.evaluations) <= _ROWS else 300,
        key=f"evaluations.{snapshot.id}",
        on_select="rerun",
        selection_mode="single-row-required",
        placeholder="",
    )
    rows = event["selection"]["rows"]
    return int(rows[0]) if rows else 0


def _coordinates(shown: Shown) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(f"{shown.variant}  {shown.problem.label()}  on {shown.device_name}")
        if st.button("Take to Tune", key="session_tune", icon=":material/tune:"):
            state.choose(shown.variant, shown.config, shown.problem, shown.device_name)
            st.switch_page("app_pages/tune.py")


page()
