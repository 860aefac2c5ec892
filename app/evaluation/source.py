"""The source tab: the kernel's source, compiler flags, log, and resources of each pass."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import streamlit as st

from app.evaluation.editor import editor_link
from app.evaluation.view import EvaluationView
from app.shared import tables
from app.shared.widgets import empty, plain_markdown, show_log
from engine.attention.coverage import LEGEND, LineCoverage, format_ranges, marked_source
from engine.base.errors import AttuneError
from engine.correctness.findings import Place, places_in
from engine.kernel_figures.changes import fork_diff
from engine.sessions.tables import passes_table

TITLE = "Source and resources"
_SHOWN = "source_line"  # in the session
_CODE = "source_code"
_JS = Path(__file__).with_name("source_line.js").read_text(encoding="utf-8")
_MAX_LINKS = 3
_MAX_CHARACTERS = 100

_mark = st.components.v2.component("attune.source_line", js=_JS, isolate_styles=False)


class ShownLine(NamedTuple):
    """The source line that was requested last."""

    file: str
    line: int
    request: int  # counts up, so that the page scrolls there once


def line_links(view: EvaluationView, text: str, key: str, tabs_key: str) -> bool:
    """Draw a button for each line of the source or its headers that a text names (`file.cu:1`).

    The button opens the source tab of the tabs with that key, at the line.

    Returns:
        True if there is at least one button.
    """
    if view.is_stale or not view.source:
        return False
    places = [place for place in dict.fromkeys(places_in(text)) if has_line(view, place)]
    for place in places[:_MAX_LINKS]:
        line = _text_of(view, place.file).splitlines()[place.line - 1]
        words = line.strip().replace("`", "'")[:_MAX_CHARACTERS]
        of_header = "" if place.file == view.source_name else f"_{place.file}"
        label = f"{plain_markdown(place.file)}:{place.line} `{words or ' '}`"
        _button(label, place, f"{key}{of_header}_{place.line}", tabs_key)
    return bool(places)


def _text_of(view: EvaluationView, file: str) -> str:
    """Return the text of the source or of a header; empty for any other file."""
    return view.source if file == view.source_name else view.headers.get(file, "")


def has_line(view: EvaluationView, place: Place) -> bool:
    """True if the place is a line of the shown source or of one of its headers."""
    return not view.is_stale and 0 < place.line <= len(_text_of(view, place.file).splitlines())


def line_button(
    view: EvaluationView, place: Place, key: str, tabs_key: str, words: str = ""
) -> None:
    """Draw a button that opens the source tab at a line, or plain text if the line is not in the
    source."""
    words = words or f"{place.file}:{place.line}"
    if not has_line(view, place):
        st.markdown(plain_markdown(words), width="content")
        return
    _button(plain_markdown(words), place, f"{key}_line", tabs_key)


def _button(label: str, place: Place, key: str, tabs_key: str) -> None:
    st.button(
        label,
        key=key,
        type="tertiary",
        icon=":material/code:",
        help="Open this line of the source.",
        on_click=_open,
        args=(place.file, place.line, tabs_key),
    )


def _open(file: str, line: int, tabs_key: str) -> None:
    """A button's callback."""
    before = st.session_state.get(_SHOWN)
    st.session_state[_SHOWN] = ShownLine(file, line, before.request + 1 if before else 1)
    st.session_state[tabs_key] = TITLE


def draw(view: EvaluationView) -> None:
    if view.passes:
        tables.draw(passes_table(view.passes).frame(), height="content")
    if view.flags:
        st.markdown("**Compile flags**")
        st.code(" ".join(view.flags), language=None, wrap_lines=True)
    show_log(view.log, "Compiler log")
    if not view.source:
        empty("nothing yet", "No source", "This evaluation has no kernel source.")
        return
    st.markdown("**Source**")
    if not view.is_recorded:
        st.caption(
            "Edit this file in your editor. With Rerun on change switched on, every save is "
            "compiled and run."
        )
    shown: ShownLine | None = st.session_state.get(_SHOWN)
    if shown is not None and shown.file in view.headers:
        _header(view, shown)
        return
    if shown is not None and shown.file != view.source_name:
        shown = None
    _path(view, shown.line if shown else 1)
    if view.source_path:
        _against_parent(Path(view.source_path))
    source = view.source
    coverage = view.evaluation.line_coverage if view.evaluation is not None else ()
    if coverage:
        source = marked_source(source, coverage[0])
        st.caption(LEGEND)
        _headers(coverage)
    elif not view.is_recorded:
        st.caption("A run in the check build that ends without a fault shows which lines ran.")
    _code(source, shown)


def _header(view: EvaluationView, shown: ShownLine) -> None:
    """Draw the header whose line was requested, in place of the source."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.code(shown.file, language=None)
        st.button(
            plain_markdown(view.source_name),
            key="source_of_kernel",
            icon=":material/arrow_back:",
            help="Show the kernel, which includes this header.",
            on_click=lambda: st.session_state.pop(_SHOWN),
        )
    _code(view.headers[shown.file], shown)


def _code(source: str, shown: ShownLine | None) -> None:
    with st.container(key=_CODE):
        st.code(source, language="cpp", line_numbers=True, height=620)
    if shown is not None:
        # `source` in the key: another text needs its own layout and marks.
        data = {
            "line": shown.line,
            "request": shown.request,
            "code": _CODE,
            "source": crc32(source.encode()),
        }
        _mark(key="source_line_mark", data=data)


def _against_parent(source: Path) -> None:
    """Draw the diff of a forked kernel against its parent."""
    try:
        found = fork_diff(source)
    except AttuneError:  # the tab shows the previous text
        return
    if found is None:
        return
    parent, diff = found
    if not diff.text:
        st.caption(f":material/fork_right: A copy of {parent}, not changed yet.")
        return
    label = f"Changes from {parent}, the original of this copy: {diff.summary()}"
    with st.expander(plain_markdown(label), icon=":material/fork_right:", expanded=True):
        st.code(diff.text, language="diff", height=min(620, 40 + 22 * diff.text.count("\n")))


def _path(view: EvaluationView, line: int) -> None:
    """Draw the file's path, and a link that opens it in an editor if possible."""
    if not view.source_path:
        st.code(view.source_name, language=None)
        return
    link = editor_link(Path(view.source_path), line)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.code(view.source_path, language=None)
        if link.url:
            st.link_button("Open in editor", link.url, icon=":material/edit_document:")
    if link.error:
        st.caption(f":material/error: {plain_markdown(link.error)}")


def _headers(coverage: tuple[LineCoverage, ...]) -> None:
    for header in coverage[1:]:
        parts = [
            f"{what} {', '.join(format_ranges(ranges))}"
            for what, ranges in (
                ("never ran:", header.not_run),
                ("ran in part:", header.partly_run),
                ("not compiled:", header.not_compiled),
            )
            if ranges
        ]
        if parts:
            st.caption(f"{plain_markdown(header.file)}: {plain_markdown('; '.join(parts))}")
