"""Sessions beside each other: what differs, what got slower, which variant is the fastest."""

from engine.sessions.compare.comparison import (
    ComparedRow,
    Regression,
    SessionComparison,
    Unmatched,
    compare_sessions,
)
from engine.sessions.compare.environment import Differences
from engine.sessions.compare.kernel_figures import Change, KernelFigures, changes
from engine.sessions.compare.pairing import Pairing, Pick, newest_that_share, parse_pick
from engine.sessions.compare.winners import Winner

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
