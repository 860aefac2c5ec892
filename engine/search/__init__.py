"""Searching for the fastest variant and config: what to try, in which order, and what is best."""

from engine.search.autotune import ProblemResult, problem_results
from engine.search.ranking import SweepRow
from engine.search.space import ProblemAxes, Space, SweepOptions, SweepPoint, parse_values
from engine.search.strategies import STRATEGIES, StrategyName

__all__ = [
    "STRATEGIES",
    "ProblemAxes",
    "ProblemResult",
    "Space",
    "StrategyName",
    "SweepOptions",
    "SweepPoint",
    "SweepRow",
    "parse_values",
    "problem_results",
]
