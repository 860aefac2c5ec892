"""Sessions beside each other: what differs, what got slower, which variant is the fastest."""

from engine.sessions.compare.comparison import (
    ComparedRow,
    SessionComparison,
    Unmatched,
    compare_sessions,
)
from engine.sessions.compare.environment import Differences
from engine.sessions.compare.winners import Winner

__all__ = [
    "ComparedRow",
    "Differences",
    "SessionComparison",
    "Unmatched",
    "Winner",
    "compare_sessions",
]
