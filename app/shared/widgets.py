"""Small pieces that look the same on every page."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import streamlit as st
from streamlit import runtime
from streamlit.delta_generator import DeltaGenerator

from app.shared import message_batch
from app.shared.palette import (
    DARK,
    LIGHT,
    ORIGIN_COLOR,
    ORIGIN_ICON,
    STATUS_ICON,
    Theme,
)
from engine.attention.evaluation import Execution, Origin
from engine.base.errors import AttuneError, Status
from engine.pipeline.verdict import next_step

_PAINT_S = 0.06

_LOG = logging.getLogger(__name__)


def theme() -> Theme:
    """Return the chart theme for the browser's light or dark mode."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def origin_badge(origin: Origin) -> str:
    """Return the badge of a latency's origin as Markdown."""
    return f":{ORIGIN_COLOR[origin]}-badge[{ORIGIN_ICON[origin]} {origin}]"


def tile(
    label: str,
    value: str,
    badge: str = "",
    note: str = "",
    *,
    term: str | None = None,
    color: str = "gray",
    icon: str | None = None,
) -> None:
    """Draw a figure with a badge and a note below it; `term` explains its label."""
    st.metric(
        label,
        plain_markdown(value),
        plain_markdown(badge) or None,
        delta_color=color,
        delta_arrow="off",
        delta_description=plain_markdown(note) or None,
        help=term,
        icon=icon,
        border=True,
        height="stretch",
    )


def tile_row(key: str = "metrics") -> DeltaGenerator:
    """Return a row for tiles, which wraps in a narrow window. `style.css` names the keys."""
    return st.container(horizontal=True, gap="small", key=key)


def let_paint() -> None:
    """Let the browser paint what the page has sent so far, before more arrives.

    The browser lays out everything that arrives while it is busy in one pass, so the tiles would
    wait for the whole page. The pause is about the time that it takes to process the start of a
    run.
    """
    message_batch.send()
    if runtime.exists():
        time.sleep(_PAINT_S)


def busy(text: str) -> None:
    """Draw a progress line. The text is Markdown."""
    st.markdown(f":material/progress_activity: {text}", width="content")


def empty(kind: Literal["nothing yet", "filtered"], title: str, remedy: str) -> None:
    """Draw, in place of content, why there is none and what to do. Failures use `failure`."""
    icon = {"nothing yet": ":material/hourglass_empty:", "filtered": ":material/filter_alt_off:"}
    with st.container(border=True):
        st.markdown(f"{icon[kind]} **{title}**")
        st.caption(remedy)


def failure(
    status: Status,
    reason: str,
    log: str = "",
    *,
    says_next: bool = True,
    run: Execution | None = None,
) -> None:
    """Draw a failed evaluation: cause, next step, and the folded log.

    Args:
        run: how it was executed, if it was.
        says_next: False if the page shows the next step elsewhere.
    """
    draw = st.info if status in (Status.SKIPPED, Status.CANCELLED) else st.error
    draw(f"**{status}.** {plain_markdown(reason)}", icon=STATUS_ICON[status])
    if says_next:
        st.caption(f"Next: {next_step(status, reason, run)}")
    show_log(log)


def problem(sentence: str, log: str = "") -> None:
    """Draw a failure that is not an evaluation's: bad input, a folder that cannot be written."""
    st.error(plain_markdown(sentence), icon=":material/error:")
    show_log(log)


@contextmanager
def show_errors() -> Iterator[None]:
    """Show an error inside as a sentence, and draw the rest of the page."""
    try:
        yield
    except Exception as error:
        show_error(error)


def show_error(error: Exception) -> bool:
    """Show an error as a sentence, and log an unexpected one.

    Returns:
        True: the error is handled (Streamlit asks its error handlers for this).
    """
    if isinstance(error, AttuneError):
        problem(str(error))
    else:
        _LOG.exception("a view failed")  # called in an `except` block
        problem(
            f"This part cannot be shown ({type(error).__name__}): its file may contain impossible "
            "figures. The server's log has the details."
        )
    return True


def show_log(log: str, label: str = "Full log") -> None:
    """Draw a folded log; nothing for an empty one."""
    if log.strip():
        with st.expander(label, icon=":material/subject:"):
            st.code(log, language=None, wrap_lines=True, height=260)


# What Markdown or Streamlit interprets even when escaped: bare URLs, :icons: and :emoji:.
_ACTIVE = re.compile(
    r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)|(?<=:)(?=[a-z0-9_+-]+[:/\[])", re.IGNORECASE
)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
_LIST = re.compile(r"^(?:[-+](?=\s|$)|-(?=--)|\d+(?=[.)](?:\s|$)))")  # or a horizontal rule: ---


def plain_markdown(text: str) -> str:
    """Escape text of unknown content for Markdown, on one line.

    Nothing in it becomes a link, image, icon, formula, list or other formatting. Use it for all
    text of files, journals and other processes that Streamlit shows as Markdown.
    """
    line = _SPECIAL.sub(r"\\\1", _ACTIVE.sub("\u200b", " ".join(text.split())))
    return _LIST.sub(lambda m: f"\\{m[0]}" if m[0] in "-+" else f"{m[0]}\u200b", line)
