"""Downloads of a session: the snapshot itself, the report, the table of its evaluations."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.batch.footprints import CachedFootprints
from app.evaluation import frames
from engine.records.codec import dumps
from engine.records.snapshot import Snapshot
from engine.sessions.advice import advise
from engine.sessions.report.document import to_html, to_markdown


def downloads(snapshot_of: Callable[[], Snapshot], name: str, key: str) -> None:
    """A menu of files, each made when it is asked for. `name` is the snapshot's file name."""
    stem = name.removesuffix(".gz").removesuffix(".json")

    def snapshot() -> bytes:
        return dumps(snapshot_of())

    def html() -> bytes:
        found = snapshot_of()
        return to_html(found, advise(found.opened(), CachedFootprints())).encode()

    def markdown() -> bytes:
        found = snapshot_of()
        return to_markdown(found, advise(found.opened(), CachedFootprints())).encode()

    def table() -> bytes:
        return csv(frames.evaluations(snapshot_of().opened()))

    with st.popover("Download", icon=":material/download:", key=f"{key}_share"):
        for what, made, file_name, mime in (
            ("Snapshot", snapshot, f"{stem}.json.gz", "application/gzip"),
            ("Report, HTML", html, f"{stem}.html", "text/html"),
            ("Report, Markdown", markdown, f"{stem}.md", "text/markdown"),
            ("Evaluations, CSV", table, f"{stem}.csv", "text/csv"),
        ):
            st.download_button(
                what,
                made,
                file_name=file_name,
                mime=mime,
                key=f"{key}_{file_name.rpartition('.')[2]}",
                on_click="ignore",
                width="stretch",
            )


def csv(frame: object) -> bytes:
    """A table as CSV; a cell that a spreadsheet would take for a formula is set off by a quote."""
    import pandas as pd

    assert isinstance(frame, pd.DataFrame)
    safe = frame.map(
        lambda x: f"'{x}" if isinstance(x, str) and x[:1] in ("=", "+", "-", "@") else x
    )
    return safe.to_csv(index=False, lineterminator="\n").encode()
