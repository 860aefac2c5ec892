"""Which cases of a large table every test run takes, and which are left to slower ones.

`pytest` takes a few of each table, `pytest -m slow` (part of `.ci/run`) more of them, and
`pytest -m exhaustive` the rest: the ladder grows, and the time that people wait does not.
"""

from __future__ import annotations

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


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    if hasattr(case, "marks"):  # a `pytest.param`
        marks: Iterable[Any] = (*case.marks, mark)
        return pytest.param(*case.values, marks=tuple(marks), id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=mark)
