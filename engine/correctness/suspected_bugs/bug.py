"""What a suspected bug is: a name, words, and the output it would give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.correctness.reference import Float64Array
from engine.correctness.suspected_bugs.case import Case

# `[R, head_dim]` for the case's rows, NaN where the bug gives NaN; None where it cannot occur.
Prediction = Callable[[Case], Float64Array | None]


@dataclass(frozen=True, slots=True)
class SuspectedBug:
    """A bug whose output can be computed."""

    pattern: str  # the finding's name: "causal_diagonal", "fusion_rescale", …
    what: str  # completes "The output matches …"
    look_at: str  # where to look, a whole clause
    predict: Prediction
    # What it must explain of the squared error at least, where another bug looks alike.
    min_explained: float = 0.0
