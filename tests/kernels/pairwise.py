"""Test cases in which every pair of values of two axes occurs, in far fewer than the product."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

TRIES_PER_CASE = 10

Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs_of(case: Mapping[str, Any]) -> set[Pair]:
    return set(itertools.combinations(sorted(case.items(), key=lambda item: item[0]), 2))


def pairwise(axes: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Return cases, chosen greedily: the best of a few that contain a pair not covered yet."""
    rng = random.Random(seed)
    missing = set().union(
        *(
            {((a, x), (b, y)) for x in axes[a] for y in axes[b]}
            for a, b in itertools.combinations(sorted(axes), 2)
        )
    )
    cases = []
    for pair in sorted(missing, key=repr):
        if pair not in missing:
            continue
        candidates = [
            {name: rng.choice(values) for name, values in axes.items()} | dict(pair)
            for _ in range(TRIES_PER_CASE)
        ]
        best = max(candidates, key=lambda case: len(pairs_of(case) & missing))
        missing -= pairs_of(best)
        cases.append(best)
    return cases
