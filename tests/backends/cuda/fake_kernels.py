"""A plan of two passes and the Python functions that stand for its kernels on the fake GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fake_gpu import FakeGpu
from verdicts import RIGHT

from engine.base.launch import PassLaunch, ScalarArg, TensorArg
from engine.evaluation import Correctness
from engine.plan import LaunchPlan, ScratchBuffer
from engine.problem import Problem

PROBLEM = Problem(1, 2, 8, 32)
COUNT = PROBLEM.elements


def make_plan(problem: Problem = PROBLEM, **changes: object) -> LaunchPlan:
    """Two passes over a poisoned scratch buffer, and a counter that starts at zero."""
    count = ScalarArg("count", "int32", problem.elements)
    scale = ScalarArg("scale", "float32", 1.0)
    q, partial, counter, out = map(TensorArg, ("q", "partial", "counter", "out"))
    plan = LaunchPlan(
        variant="t01",
        problem=problem,
        config={},
        source=Path(__file__).with_name("copy_kernels.cu"),
        defines=(),
        scratch=(
            ScratchBuffer("partial", "float32", (problem.elements,), "poison"),
            ScratchBuffer("counter", "int32", (1,), "zero"),
        ),
        passes=(
            PassLaunch("produce", (2, 1, 1), 256, 1024, (q, partial, count)),
            PassLaunch("finish", (2, 1, 1), 256, 0, (partial, counter, out, count, scale)),
        ),
    )
    return dataclasses.replace(plan, **changes)


def produce(gpu: FakeGpu, q: np.uint64, partial: np.uint64, count: np.int32) -> None:
    assert (type(q), type(count)) == (np.uint64, np.int32)
    values = gpu.view(int(q), 2 * int(count)).view(np.uint16)
    gpu.view(int(partial), 4 * int(count)).view(np.float32)[:] = values


def finish(
    gpu: FakeGpu,
    partial: np.uint64,
    counter: np.uint64,
    out: np.uint64,
    count: np.int32,
    scale: np.float32,
) -> None:
    assert type(scale) is np.float32
    gpu.view(int(counter), 4).view(np.int32)[0] += 1
    values = gpu.view(int(partial), 4 * int(count)).view(np.float32)
    gpu.view(int(out), 2 * int(count)).view(np.uint16)[:] = scale * values


def gpu_with(**replaced: Callable[..., None]) -> FakeGpu:
    return FakeGpu({"produce": produce, "finish": finish, **replaced})


def verdict(*, passed: bool) -> Correctness:
    return dataclasses.replace(RIGHT, passed=passed)
