"""Which cases of a large table every test run takes, and which are left to `pytest -m slow`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def one_in(every: int, cases: Sequence[Any], offset: int = 0) -> list[Any]:
    """The cases with all but each `every`-th marked slow. A case that is a tuple is unpacked."""
    return [
        case if index % every == offset % every else _slow(case) for index, case in enumerate(cases)
    ]


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):  # a `pytest.param`
        marks: Iterable[Any] = (*case.marks, pytest.mark.slow)
        return pytest.param(*case.values, marks=tuple(marks), id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
