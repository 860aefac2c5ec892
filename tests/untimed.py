"""An evaluator for tests that need no latency."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from engine.backends.base import Backend, BackendName
from engine.pipeline.evaluate import Evaluator


def untimed(backends: Mapping[BackendName, Backend] | None = None) -> Evaluator:
    """Return an evaluator that simulates no machine code, which is most of an evaluation's time."""
    evaluator = Evaluator(backends=backends)
    evaluator.evaluate = functools.partial(  # type: ignore[method-assign]
        evaluator.evaluate, simulates=False, counts=False
    )
    return evaluator
