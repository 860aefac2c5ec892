"""Which cases of a large table every test run takes, and which are left to slower ones.

`pytest` takes a few of each table, `pytest -m slow` (part of `.ci/run`) more of them, and
`pytest -m exhaustive` the rest: the ladder grows, and the time that people wait does not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def one_in(every: int, cases: Sequence[Any], offset: int = 0, slow: int = 1) -> list[Any]:
    """The cases with marks: each `every`-th has none, of the others each `slow`-th is slow.

    A case that is a tuple is unpacked; what is left is exhaustive. `every` and the number of cases
    a kernel has should have no common divisor, so that kernels do not all show the same ones.
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
    """The cases with marks: each `every`-th is slow, the others are exhaustive."""
    return [
        _marked(case, pytest.mark.exhaustive if index % every else pytest.mark.slow)
        for index, case in enumerate(cases)
    ]


def of_each(cases: Sequence[Any], most: int = 1, every: int = 3, slow: int = 1) -> list[Any]:
    """The cases of a table over the ladder with marks: `most` of each variant and no more.

    A case's first value is the variant or its id. Each `every`-th variant has one case without a
    mark. What else there is of the `most` cases is slow, but of each `slow`-th variant alone; what
    is left is exhaustive. Variants begin at different places of their cases, so that together they
    show all of the table.
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
