"""Search for the fastest variant and config: spaces, strategies, rankings and results."""

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
