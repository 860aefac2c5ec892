"""Times that sessions hold, for every page; what was saved or run since is taken in."""

from __future__ import annotations

import os
import time
from functools import lru_cache

from app.shared.footprints import CachedFootprints
from app.shared.machine import local_gpu
from engine.auto import Taken
from engine.base.errors import AttuneError
from engine.model.estimate import CalibrationOf
from engine.problem import Problem
from engine.sessions.known_times import KnownTime, KnownTimes
from engine.sessions.session import working_folder
from engine.sessions.store.store import SETTING, default_store

_LEAST_S = 1.0  # between two looks at the folders
_SHARE = 0.05  # of the time that looking may take


class _Kept:
    """One store's times and when its folders were last looked at."""

    def __init__(self) -> None:
        self.times = KnownTimes(default_store(), working_folder())
        self.next_look = time.monotonic() + _LEAST_S

    def look(self) -> KnownTimes:
        begin = time.monotonic()
        if begin > self.next_look:
            self.times.refresh()
            took = time.monotonic() - begin
            self.next_look = begin + max(_LEAST_S, took / _SHARE)
        return self.times


@lru_cache(maxsize=4)
def _kept(*_: str) -> _Kept:
    return _Kept()


def known() -> KnownTimes | None:
    """The times of the store and the open sessions; None where the store cannot be opened."""
    try:
        return _kept(os.environ.get(SETTING, ""), str(working_folder())).look()
    except AttuneError:
        return None


def at(problem: Problem, device: str) -> tuple[KnownTime, ...]:
    """The times of one problem on one GPU."""
    times = known()
    return times.at(problem, device) if times is not None else ()


def taken_at(problem: Problem, device: str) -> tuple[Taken, ...]:
    """The times that `auto` goes by, of kernels as they stand here."""
    times = known()
    return times.taken_at(problem, device) if times is not None else ()


def calibration_of() -> CalibrationOf | None:
    """Calibrations from the compile cache: what is not compiled yet calibrates nothing."""
    times = known()
    if times is None:
        return None
    local = local_gpu().spec
    return times.calibration_of(CachedFootprints(local.name if local is not None else ""))
