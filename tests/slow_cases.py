"""Marks for the cases of large tables: which run always, which are slow, which exhaustive.

`pytest` runs a few of each table, `pytest -m slow` (part of `.ci/run`) more of them, and
`pytest -m exhaustive` the rest, so that a longer ladder does not make the usual run longer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def one_in(every: int, cases: Sequence[Any], offset: int = 0, slow: int = 1) -> list[Any]:
    """Return the cases with marks: each `every`-th has none, of the others each `slow`-th is slow.

    All others are exhaustive. A case that is a tuple is unpacked. `every` and the number of cases
    of a kernel should have no common divisor, so that kernels run different cases.
    """
    marked, others = [], 0
    for index, case in enumerate(cases):
        if index % every == offset % every:
            marked.append(case)
            continue
        is_slow = others % slow == 0
        others += 1
        marked.append(_marked(case, pytest.mark.slow if is_slow else pytest.mark.exhaustive))
    return marked


def slow_ones(every: int, cases: Sequence[Any]) -> list[Any]:
    """Return the cases with marks: each `every`-th is slow, the others are exhaustive."""
    return [
        _marked(case, pytest.mark.exhaustive if index % every else pytest.mark.slow)
        for index, case in enumerate(cases)
    ]


def of_each(cases: Sequence[Any], most: int = 1, every: int = 3, slow: int = 1) -> list[Any]:
    """Return marked cases of a table over the ladder, at most `most` of each variant.

    The first value of a case is the variant or its id. Each `every`-th variant has one case without
    a mark. Its other `most` cases are slow for each `slow`-th variant; all others are exhaustive.
    Variants start at different cases, so that together they cover the table.
    """
    numbers: dict[Any, list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        numbers[(case.values if hasattr(case, "marks") else case)[0]].append(index)
    marks: dict[int, pytest.MarkDecorator | None] = {}
    for turn, indices in enumerate(numbers.values()):
        step = next(s for s in (7, 5, 3, 1) if math.gcd(s, len(indices)) == 1)
        order = [indices[(2 * turn + step * i) % len(indices)] for i in range(len(indices))]
        for place, index in enumerate(order):
            if turn % every == 0 and place == 0:
                marks[index] = None
            elif place < most and turn % slow == 0:
                marks[index] = pytest.mark.slow
            else:
                marks[index] = pytest.mark.exhaustive
    return [
        case if (mark := marks[index]) is None else _marked(case, mark)
        for index, case in enumerate(cases)
    ]


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    if hasattr(case, "marks"):  # a `pytest.param`
        marks: Iterable[Any] = (*case.marks, mark)
        return pytest.param(*case.values, marks=tuple(marks), id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=mark)
