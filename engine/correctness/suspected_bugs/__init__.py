"""Suspected bugs: compute the output that each would give, and find the one that matches."""

from engine.correctness.suspected_bugs.case import (
    MAX_CASES,
    Case,
    SuspectedBug,
    choose_cases,
    in_wrong_columns,
    spread_cases,
)
from engine.correctness.suspected_bugs.match import (
    MIN_EXPLAINED,
    Match,
    best_match,
    lost_precision,
    small_bugs,
)

__all__ = [
    "MAX_CASES",
    "MIN_EXPLAINED",
    "Case",
    "Match",
    "SuspectedBug",
    "best_match",
    "choose_cases",
    "in_wrong_columns",
    "lost_precision",
    "small_bugs",
    "spread_cases",
]
