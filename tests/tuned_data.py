"""A tuned config for tests."""

from __future__ import annotations

from engine.attention.config import TunedConfig, problem_class
from engine.attention.problem import Problem

PROBLEM = Problem(1, 1, 128, 64)
ENTRY = TunedConfig(
    gpu="L4",
    variant="v05",
    problem_class=problem_class(PROBLEM),
    config={"block_n": 32, "threads_per_row": 8, "num_splits": 2},
    problem=PROBLEM.label(),
    median_us=12.5,
    origin="measured",
    when="2026-01-01T00:00:00+00:00",
    strategy="exhaustive",
    evaluations=36,
)
