"""Compare sessions: differences, regressions, and the fastest variants."""

from engine.sessions.compare.comparison import (
    ComparedRow,
    Regression,
    SessionComparison,
    Unmatched,
    compare_sessions,
)
from engine.sessions.compare.differences import Change, Differences, KernelFigures, changes
from engine.sessions.compare.pairing import Pairing, Pick, Winner, newest_that_share, parse_pick

__all__ = [
    "Change",
    "ComparedRow",
    "Differences",
    "KernelFigures",
    "Pairing",
    "Pick",
    "Regression",
    "SessionComparison",
    "Unmatched",
    "Winner",
    "changes",
    "compare_sessions",
    "newest_that_share",
    "parse_pick",
]
