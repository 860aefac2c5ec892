"""The final round on a GPU with made-up timers: which rows enter, their names, and the lock."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from search_data import SMALL, row
from words import says

from engine.attention.evaluation import Correctness
from engine.attention.plan import LaunchPlan
from engine.attention.tensors import Inputs
from engine.backends.base import Backend
from engine.base.errors import MeasureError
from engine.measure.sampler import SamplerSettings
from engine.pipeline.evaluate import Evaluator
from engine.search.autotune import gpu_candidates, problem_results


class MadeUpTimer:
    """A `Launchable` that takes a known time, with noise."""

    copy_bytes, l2_bytes = 1 << 20, 1 << 20

    def __init__(self, time_us: float) -> None:
        self._time_us = time_us
        self._rng = np.random.default_rng(1)

    def free_bytes(self) -> int:
        return 1 << 30

    def make_copies(self, count: int) -> None:
        assert count > 0

    def once_us(self) -> float:
        return self._time_us

    def graph(self, launches: int, copies: int) -> Callable[[], float]:
        assert launches % copies == 0
        return lambda: launches * self._time_us * float(np.exp(0.002 * self._rng.normal()))

    def flush_l2(self, size: int) -> None:
        assert size > 0

    def call_us(self, calls: int) -> float:
        assert calls > 0
        return self._time_us

    def verify(self) -> None:
        """Its output is always the same."""

    def failed(self, error: Exception) -> MeasureError:
        raise error


class MadeUpCuda:
    """The part of the CUDA backend that a final round needs; num_splits=8 does not launch."""

    def __init__(self) -> None:
        self.plans: list[LaunchPlan] = []
        self.open = 0

    @contextmanager
    def timer(
        self, plan: LaunchPlan, inputs: Inputs, correctness: Correctness
    ) -> Iterator[MadeUpTimer]:
        assert correctness.passed
        assert inputs.problem == plan.problem
        if plan.config["num_splits"] == 8:
            raise MeasureError("Made up not to launch.")
        self.plans.append(plan)
        self.open += 1
        yield MadeUpTimer({1: 5.0, 2: 5.0, 4: 7.0}[plan.config["num_splits"]])
        self.open -= 1


class MadeUpEvaluator(Evaluator):
    def __init__(self, cuda: MadeUpCuda) -> None:
        super().__init__()
        self.cuda = cuda

    def backend(self, name: str) -> Backend:
        assert name == "cuda"
        return self.cuda  # type: ignore[return-value]


def test_the_best_rows_are_timed_side_by_side_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    seen = {1: 5.1, 2: 5.0, 4: 5.05, 8: 4.9}
    rows = [row("v05", t, config={"num_splits": s}) for s, t in seen.items()]
    cuda = MadeUpCuda()
    settings = SamplerSettings(kinds=("device_warm",), max_s=5.0)
    (result,) = problem_results(rows, gpu_candidates(MadeUpEvaluator(cuda)), settings)
    by_point = {r.point: r.config["num_splits"] for r in rows}
    assert {by_point[w] for w in result.winners} == {1, 2}
    assert [by_point[p.point] for p in result.places][2:] == [4]
    assert list(dict.fromkeys(plan.config["num_splits"] for plan in cuda.plans)) == [2, 4, 1]
    assert all(plan.problem == SMALL for plan in cuda.plans)
    assert cuda.open == 0  # device memory is given back
    assert says(result.reason, "measured_side_by_side")


def test_rows_of_another_gpu_are_excluded_from_the_final_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # without a driver, the name of the GPU
    at_hand = f"{platform.node()}:7"
    rows = [
        row("v05", t, config={"num_splits": s}, gpu=gpu)
        for s, t, gpu in ((1, 5.1, at_hand), (2, 5.0, at_hand), (4, 4.0, "GPU-there"))
    ]
    cuda = MadeUpCuda()
    settings = SamplerSettings(kinds=("device_warm",), max_s=5.0)
    here, there = problem_results(rows, gpu_candidates(MadeUpEvaluator(cuda)), settings)
    assert {plan.config["num_splits"] for plan in cuda.plans} == {1, 2}
    assert says(here.reason, "measured_side_by_side")
    assert says(there.reason, "one_after_another")
    assert [p.point for p in there.places] == [rows[2].point]
