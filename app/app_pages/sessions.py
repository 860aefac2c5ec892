"""Sessions: what is being worked on, and the snapshots people keep."""

from __future__ import annotations

import datetime

import streamlit as st

from app.evaluation import frames
from app.sessions import snapshot as snapshot_view
from app.sessions import working as working_view
from app.shared import url_state
from app.shared.opened_snapshots import open_snapshot
from app.shared.runs import collect
from app.shared.widgets import empty, plain_markdown, problem
from engine.errors import AttuneError
from engine.sessions.files import snapshot_of
from engine.sessions.importers import ImportOptions
from engine.sessions.store.store import SnapshotInfo, Store, default_store, search

_PARAM = "session"
_BASELINE = "baseline"
_ROWS = 7  # a longer table scrolls
_SIZES = {"B": "batch", "H": "num_heads", "S": "seqlen", "D": "head_dim"}


def page() -> None:
    if _BASELINE in st.query_params:  # a link to a comparison
        asked = {name: st.query_params.get_all(name) for name in (_PARAM, _BASELINE)}
        st.switch_page("app_pages/compare.py", query_params=asked)
    try:
        store = default_store()
        infos = store.list()
    except AttuneError as error:
        st.markdown("### Sessions")
        problem(str(error))
        return
    collect()
    st.markdown("### Sessions")
    _messages(store)
    working_view.draw(store)
    st.text(f"Snapshots in {store.url}")
    _list(store, infos)
    name = st.query_params.get(_PARAM, "")
    if name:
        _opened(store, name)


def _messages(store: Store) -> None:
    for kind, text in st.session_state.pop("session_messages", []):
        draw = st.success if kind == "done" else st.error
        draw(plain_markdown(text))
    if "session_removed" in st.session_state:
        name, kept = st.session_state["session_removed"]
        with st.container(horizontal=True, vertical_alignment="center"):
            st.success(plain_markdown(f"Moved {name} to the trash folder as {kept}."))
            st.button(
                "Undo",
                key="session_undo",
                icon=":material/undo:",
                on_click=_undo,
                args=(store, name, kept),
            )


def _say(kind: str, text: str) -> None:
    st.session_state.setdefault("session_messages", []).append((kind, text))


def _list(store: Store, infos: list[SnapshotInfo]) -> None:
    filters = _filters(store)
    if not infos:
        empty(
            "nothing yet",
            "No snapshots yet",
            "Run a kernel on the Tune page and press Save, or upload a snapshot somebody sent you.",
        )
        return
    found = search(infos, **filters)
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


def _filters(store: Store) -> dict[str, str]:
    """The search fields and what stands in them."""
    columns = st.columns([4, 2, 2, 3, 2, 2, 3], vertical_alignment="bottom")
    labels = {
        "text": ("Search title, notes and hypothesis", ""),
        "gpu": ("GPU", "L4"),
        "variant": ("Variant", "v05"),
        "problem": ("Problem", "S128 D64"),
    }
    found = {
        name: column.text_input(label, key=f"session_{name}", placeholder=example)
        for column, (name, (label, example)) in zip(columns, labels.items(), strict=False)
    }
    for column, name, label in zip(
        columns[4:], ("since", "until"), ("Saved since", "Until"), strict=False
    ):
        day = column.date_input(label, value=None, key=f"session_{name}", format="YYYY-MM-DD")
        found[name] = day.isoformat() if isinstance(day, datetime.date) else ""
    with columns[6].popover("Upload", icon=":material/upload:", width="stretch"):
        _upload(store)
    return found


def _upload(store: Store) -> None:
    st.file_uploader(
        "A snapshot, or measurements of another tool: CSV or JSON table, Kernel Tuner cache, "
        "NVBench results, Nsight Compute CSV",
        type=["json", "gz", "csv", "txt"],
        key="session_upload",
        on_change=_import,
        args=(store,),
    )
    st.caption("It is validated first; nothing in it is executed, fetched or trusted.")
    with st.expander("What a table may not say"):
        left, right = st.columns(2)
        left.text_input("Variant", key="import_variant", placeholder="v01")
        right.text_input("GPU", key="import_gpu", placeholder="L4")
        for column, (letter, name) in zip(st.columns(4), _SIZES.items(), strict=True):
            column.number_input(letter, min_value=1, value=None, key=f"import_{name}")
        st.button(
            "Import again",
            key="session_import",
            on_click=_import,
            args=(store,),
            disabled=st.session_state.get("session_upload") is None,
        )


def _select(found: list[SnapshotInfo]) -> None:
    _close()
    rows = st.session_state["session_table"]["selection"]["rows"]
    if rows:
        url_state.write(_PARAM, found[rows[0]].name)


def _import(store: Store) -> None:
    upload = st.session_state.get("session_upload")
    if upload is None:
        return
    state = st.session_state
    options = ImportOptions(
        variant=state.get("import_variant", ""),
        device=state.get("import_gpu", ""),
        **{name: state.get(f"import_{name}") for name in _SIZES.values()},
    )
    try:
        name = store.save(snapshot_of(upload.getvalue(), name=upload.name, options=options))
    except AttuneError as error:
        _say("failed", str(error))
        return
    _say("done", f"Uploaded and kept as {name}.")
    url_state.write(_PARAM, name)


def _opened(store: Store, name: str) -> None:
    st.divider()
    try:
        snapshot = open_snapshot(store, name)
    except AttuneError as error:
        problem(str(error))
        st.button("Close", key="session_close", on_click=_close)
        return
    snapshot_view.draw(name, snapshot, on_close=_close, on_remove=lambda: _remove(store, name))


def _close() -> None:
    st.session_state.pop("session_removed", None)
    st.query_params.pop(_PARAM, None)


def _remove(store: Store, name: str) -> None:
    try:
        kept = store.remove(name)
    except AttuneError as error:
        _say("failed", str(error))
        return
    _close()
    st.session_state["session_removed"] = (name, kept)


def _undo(store: Store, name: str, kept: str) -> None:
    del st.session_state["session_removed"]
    try:
        store.restore(kept, name)
    except AttuneError as error:
        _say("failed", str(error))
        return
    _say("done", f"{name} is back.")
    url_state.write(_PARAM, name)


page()
