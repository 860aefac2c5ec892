"""Downloads of a session: the snapshot, reports, and the table of evaluations."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.sessions import frames
from app.shared import known_times, tables
from engine.choose.advice import advise
from engine.sessions.report import to_html, to_markdown
from engine.sessions.snapshot import Snapshot, dumps


def draw(snapshot_of: Callable[[], Snapshot], name: str, key: str) -> None:
    """Draw a menu of files, each created when it is requested. `name` is the snapshot's file
    name."""
    stem = name.removesuffix(".gz").removesuffix(".json")

    def snapshot() -> bytes:
        return dumps(snapshot_of())

    def report(write: Callable[..., str]) -> bytes:
        snapshot = snapshot_of()
        history = known_times.history()
        return write(snapshot, advise(snapshot.opened(), history), history).encode()

    def table() -> bytes:
        snapshot = snapshot_of()
        return tables.csv(frames.evaluations(snapshot.opened(), snapshot.title))

    with st.popover("Download", icon=":material/download:", key=f"{key}_share"):
        for label, make, file_name, mime in (
            ("Snapshot", snapshot, f"{stem}.json.gz", "application/gzip"),
            ("Report, HTML", lambda: report(to_html), f"{stem}.html", "text/html"),
            ("Report, Markdown", lambda: report(to_markdown), f"{stem}.md", "text/markdown"),
            ("Evaluations, CSV", table, f"{stem}.csv", "text/csv"),
        ):
            tables.download(
                label,
                make,
                file_name,
                mime=mime,
                key=f"{key}_{file_name.rpartition('.')[2]}",
                icon=None,
                type="secondary",
                width="stretch",
            )
