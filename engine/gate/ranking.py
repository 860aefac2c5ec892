"""How far apart two simulated times of one kernel must be to say which version is faster.

Read off pairs of neighbours: versions of one kernel that followed each other, measured and
simulated on one GPU. `tests/bench/bench_sass_validation.py --pairs FILE` renews them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PAIRS = Path(__file__).with_name("neighbour_pairs.json")
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class NeighbourPair:
    """Two versions that followed each other on one GPU; ratios are times, after / before."""

    group: str
    before: str
    after: str
    measured: float
    simulated: float
    chosen_on: bool  # the simulation's constants were chosen with a look at one of the two

    @property
    def apart(self) -> float:
        """|ln simulated ratio|."""
        return abs(math.log(self.simulated))

    @property
    def is_right(self) -> bool:
        """The simulation names the faster one."""
        return (self.simulated < 1) == (self.measured < 1)


@dataclass(frozen=True, slots=True)
class Threshold:
    """The least difference with a verdict, and what it rests on."""

    share: float  # 0.14: times that differ by more than 14 % have a verdict
    pairs: int  # that are at least so far apart
    wrong: int  # of these; 0 as it is chosen
    error_bound: float  # of the share of wrong verdicts, at most so much with 95 % confidence

    def __str__(self) -> str:
        return (
            f"Times simulated {self.share:.0%} apart or more are put in the right order in "
            f"{self.pairs - self.wrong} of {self.pairs} recorded pairs of neighbours (so wrongly "
            f"in at most {self.error_bound:.0%} with {_CONFIDENCE:.0%} confidence)."
        )


def order_of(us: float, other_us: float) -> str:
    """Whether the order of two simulated times of one GPU holds.

    Returns:
        "✓ faster" or "✓ slower" where they are as far apart as `default_threshold` asks, else
        "? too near".
    """
    if abs(math.log(us / other_us)) < math.log1p(default_threshold().share):
        return "? too near"
    return "✓ faster" if us < other_us else "✓ slower"


@cache
def neighbour_pairs() -> tuple[NeighbourPair, ...]:
    """The recorded pairs."""
    return tuple(NeighbourPair(**raw) for raw in json.loads(_PAIRS.read_text(encoding="utf-8")))


def threshold_of(pairs: Sequence[NeighbourPair]) -> Threshold:
    """The least simulated difference from which on all pairs are named rightly.

    Pairs that the simulation was made to fit are left out. The bound is Clopper and Pearson's for
    no failure in n: 1 - 0.05^(1/n).

    Raises:
        ValueError: there is no pair beyond the furthest one that is named wrongly.
    """
    counted = sorted((p for p in pairs if not p.chosen_on), key=lambda p: p.apart)
    wrong = max((p.apart for p in counted if not p.is_right), default=0.0)
    beyond = [p for p in counted if p.apart > wrong]
    if not beyond:
        raise ValueError("every recorded pair is nearer than one that is named wrongly")
    share = math.expm1(beyond[0].apart)
    return Threshold(share, len(beyond), 0, 1 - (1 - _CONFIDENCE) ** (1 / len(beyond)))


@cache
def default_threshold() -> Threshold:
    """Of the recorded pairs."""
    return threshold_of(neighbour_pairs())
