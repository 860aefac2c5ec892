"""The known times for every page, including those saved or measured since the last draw."""

from __future__ import annotations

import os
from functools import lru_cache

from engine.attention.problem import Problem
from engine.base.errors import AttuneError
from engine.history import History, KnownTime
from engine.sessions.known_times import KnownTimes, open_history
from engine.sessions.session import working_folder
from engine.sessions.store import SETTING

_MOST_S = 0.5  # that a page waits for the files of sessions; the next time it draws goes on


@lru_cache(maxsize=4)
def _kept(*_: str) -> History:
    return open_history(_MOST_S)


def history() -> History:
    """The history of the store and the open sessions, which only looks up.

    Each call gives one with a `missing` list of its own.
    """
    return _kept(os.environ.get(SETTING, ""), str(working_folder())).doing("look up")


def known() -> KnownTimes | None:
    """The times themselves; None where the store cannot be opened."""
    times = history().times
    return times if isinstance(times, KnownTimes) else None


def unread() -> str:
    """A sentence where sessions hold times that the page does not show yet; else empty."""
    times = known()
    if times is None or not times.unread:
        return ""
    return (
        f"The times in {times.unread:,} saved sessions are still being read, the newest first; "
        "they appear when the page is drawn again."
    )


def at(problem: Problem, device: str) -> tuple[KnownTime, ...]:
    """The times of one problem on one GPU."""
    try:
        return history().at(problem, device)
    except AttuneError:
        return ()
