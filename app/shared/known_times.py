"""What is known of times, for every page; what was saved or run since is taken in."""

from __future__ import annotations

import os
from functools import lru_cache

from engine.base.errors import AttuneError
from engine.history import History, KnownTime
from engine.problem import Problem
from engine.sessions.known_times import KnownTimes, open_history
from engine.sessions.session import working_folder
from engine.sessions.store.store import SETTING


@lru_cache(maxsize=4)
def _kept(*_: str) -> History:
    return open_history()


def history() -> History:
    """Of the store and the open sessions. Only looked up: its `missing` are of this call alone."""
    return _kept(os.environ.get(SETTING, ""), str(working_folder())).doing("look up")


def known() -> KnownTimes | None:
    """The times themselves; None where the store cannot be opened."""
    times = history().times
    return times if isinstance(times, KnownTimes) else None


def at(problem: Problem, device: str) -> tuple[KnownTime, ...]:
    """The times of one problem on one GPU."""
    try:
        return history().at(problem, device)
    except AttuneError:
        return ()
