"""Known times for every page, including those saved or measured since the page was last drawn."""

from __future__ import annotations

import os
from functools import lru_cache

from engine.attention.problem import Problem
from engine.base.errors import AttuneError
from engine.history import History, KnownTime
from engine.sessions.known_times import KnownTimes, open_history
from engine.sessions.session import working_folder
from engine.sessions.store import SETTING

_MAX_WAIT_S = 0.5  # that a page waits for session files; its next draw continues reading them


@lru_cache(maxsize=4)
def _kept(*_: str) -> History:
    return open_history(_MAX_WAIT_S)


def history() -> History:
    """Return the history of the store and the open sessions. It looks up and computes nothing.

    Each call returns a history with its own `missing` list.
    """
    return _kept(os.environ.get(SETTING, ""), str(working_folder())).doing("look up")


def known() -> KnownTimes | None:
    """Return the known times; None if the store cannot be opened."""
    times = history().times
    return times if isinstance(times, KnownTimes) else None


def unread() -> str:
    """Return a sentence if sessions hold times that the page does not show yet; else an empty
    string."""
    times = known()
    if times is None or not times.unread:
        return ""
    return (
        f"The times in {times.unread:,} saved sessions are still being read, the newest first; "
        "they appear when the page is drawn again."
    )


def at(problem: Problem, device: str) -> tuple[KnownTime, ...]:
    """Return the known times of one problem on one GPU."""
    try:
        return history().at(problem, device)
    except AttuneError:
        return ()
