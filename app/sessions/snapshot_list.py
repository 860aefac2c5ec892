"""The snapshots of the store: search, select, upload, remove."""

from __future__ import annotations

import datetime

import streamlit as st

from app.sessions import frames, snapshot
from app.sessions.goal import SIZES
from app.shared import notices, tables, url_state
from app.shared.snapshots import open_snapshot
from app.shared.widgets import empty, plain_markdown, problem
from engine.base.errors import AttuneError
from engine.sessions.importers import ImportOptions
from engine.sessions.lookup import snapshot_of
from engine.sessions.store import SnapshotInfo, Store, search
from kernels.variant import ceil_div

SESSION = "session"  # the URL parameter that names the opened snapshot
_ROWS = 7  # a longer table scrolls
_PAGE_ROWS = 200
_PAGE = "session_page"
_NOTICES = "sessions.store"
_REMOVED = "session_removed"  # (name, name in the trash folder)


def draw_notices(store: Store) -> None:
    """Draw the outcome of the last upload or removal."""
    notices.draw(_NOTICES)
    if _REMOVED in st.session_state:
        name, trashed = st.session_state[_REMOVED]
        with st.container(horizontal=True, vertical_alignment="center"):
            st.success(plain_markdown(f"Moved {name} to the trash folder as {trashed}."))
            st.button(
                "Undo",
                key="session_undo",
                icon=":material/undo:",
                on_click=_undo,
                args=(store, name, trashed),
            )


def draw(store: Store, infos: list[SnapshotInfo]) -> None:
    """Draw the search fields and the matching snapshots."""
    st.text(f"Snapshots in {store.url}")
    filters = _filters(store)
    if not infos:
        empty(
            "nothing yet",
            "No snapshots yet",
            "Run a kernel on the Tune page and press Save, or upload a snapshot that you were "
            "sent.",
        )
        return
    matches = search(infos, **filters)
    if not matches:
        empty("filtered", f"None of {len(infos):,} snapshots matches", "Clear the search fields.")
        return
    shown = _page_of(matches)
    tables.draw(
        frames.snapshots(shown),
        rows=_ROWS,
        key="session_table",
        on_select=lambda: _select(shown),
        selection_mode="single-row",
    )


def _page_of(matches: list[SnapshotInfo]) -> list[SnapshotInfo]:
    """Return the rows of the chosen page, because drawing thousands at every rerun is slow."""
    pages = ceil_div(len(matches), _PAGE_ROWS)
    if pages <= 1:
        return matches
    state = st.session_state
    # A search may have reduced the number of pages.
    state[_PAGE] = min(max(1, state.get(_PAGE, 1)), pages)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        page = st.number_input(f"Page, of {pages:,}", 1, pages, key=_PAGE, width=140)
        first = (page - 1) * _PAGE_ROWS
        shown = matches[first : first + _PAGE_ROWS]
        st.caption(f"Snapshots {first + 1:,} to {first + len(shown):,} of {len(matches):,}")
    return shown


def draw_opened(store: Store) -> None:
    """Draw the snapshot that the URL names, if any."""
    name = st.query_params.get(SESSION, "")
    if not name:
        return
    try:
        opened = open_snapshot(store, name)
    except AttuneError as error:
        problem(str(error))
        st.button("Close", key="session_close", on_click=_close)
        return
    with st.container(border=True, key="opened"):
        snapshot.draw(name, opened, on_close=_close, on_remove=lambda: _remove(store, name))


def _filters(store: Store) -> dict[str, str]:
    """Draw the search fields; return their values."""
    columns = st.columns([2.8, 1.4, 1.4, 2, 2.6, 2.6, 2.2], vertical_alignment="bottom")
    labels = {
        "text": ("Search title, notes and hypothesis", ""),
        "gpu": ("GPU", "L4"),
        "variant": ("Variant", "v05"),
        "problem": ("Problem", "S128 D64"),
    }
    values = {
        name: column.text_input(label, key=f"session_{name}", placeholder=example)
        for column, (name, (label, example)) in zip(columns, labels.items(), strict=False)
    }
    for column, name, label in zip(
        columns[4:], ("since", "until"), ("Saved since", "Saved until"), strict=False
    ):
        day = column.date_input(label, value=None, key=f"session_{name}", format="YYYY-MM-DD")
        values[name] = day.isoformat() if isinstance(day, datetime.date) else ""
    with columns[6].popover("Upload", icon=":material/upload:", width="stretch"):
        _upload(store)
    return values


def _upload(store: Store) -> None:
    st.file_uploader(
        "A snapshot, or measurements of another tool: CSV or JSON table, Kernel Tuner cache, "
        "NVBench results, Nsight Compute CSV",
        type=["json", "gz", "csv", "txt"],
        key="session_upload",
        on_change=_import,
        args=(store,),
    )
    st.caption("The file is validated first; nothing in it is executed or fetched.")
    with st.expander("Columns that a table lacks"):
        left, right = st.columns(2)
        left.text_input("Variant", key="import_variant", placeholder="v01")
        right.text_input("GPU", key="import_gpu", placeholder="L4")
        for column, (letter, name) in zip(st.columns(4), SIZES.items(), strict=True):
            column.number_input(letter, min_value=1, value=None, key=f"import_{name}")
        st.button(
            "Import again",
            key="session_import",
            on_click=_import,
            args=(store,),
            disabled=st.session_state.get("session_upload") is None,
        )


def _select(matches: list[SnapshotInfo]) -> None:
    _close()
    rows = st.session_state["session_table"]["selection"]["rows"]
    if rows:
        url_state.write(SESSION, matches[rows[0]].name)


def _import(store: Store) -> None:
    state = st.session_state
    upload = state.get("session_upload")
    if upload is None:
        return
    options = ImportOptions(
        variant=state.get("import_variant", ""),
        device=state.get("import_gpu", ""),
        **{name: state.get(f"import_{name}") for name in SIZES.values()},
    )
    with notices.errors_to(_NOTICES):
        name = store.save(snapshot_of(upload.getvalue(), name=upload.name, options=options))
        notices.add(_NOTICES, f"Uploaded and saved as {name}.")
        url_state.write(SESSION, name)


def _close() -> None:
    st.session_state.pop(_REMOVED, None)
    st.query_params.pop(SESSION, None)


def _remove(store: Store, name: str) -> None:
    with notices.errors_to(_NOTICES):
        trashed = store.remove(name)
        _close()
        st.session_state[_REMOVED] = (name, trashed)


def _undo(store: Store, name: str, trashed: str) -> None:
    del st.session_state[_REMOVED]
    with notices.errors_to(_NOTICES):
        store.restore(trashed, name)
        notices.add(_NOTICES, f"Restored {name}.")
        url_state.write(SESSION, name)
