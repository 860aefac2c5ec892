"""A sweep: its spec, journal, run, progress and time estimate."""

from engine.search.sweep.estimate import Estimator
from engine.search.sweep.journal import Budget, Progress, SweepJournal, SweepSpec
from engine.search.sweep.run import SweepEnd, run_sweep

__all__ = [
    "Budget",
    "Estimator",
    "Progress",
    "SweepEnd",
    "SweepJournal",
    "SweepSpec",
    "run_sweep",
]
