"""Device memory of a problem with other keys than queries: every tensor has its own size."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from fake_gpu import FakeGpu
from fake_kernels import gpu_with, make_plan, verdict

from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend
from engine.base.errors import Status
from engine.base.launch import PassLaunch, ScalarArg, TensorArg
from engine.plan import LaunchPlan
from engine.problem import Problem
from engine.tensors import Inputs, make_inputs

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

# One more query than a 256-byte step holds, and keys that do not end on one either.
PROBLEMS = (Problem(1, 2, 1, 32, seqlen_kv=77), Problem(1, 1, 9, 32, seqlen_kv=5))


def mixed(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A function of every bit of Q, K and V that tells K from V."""
    of_k, of_v = (np.bitwise_xor.reduce(x.view(np.uint16), axis=None) for x in (k, v))
    return np.asarray(q.view(np.uint16) ^ of_k ^ (of_v >> 1))


def combine(gpu: FakeGpu, *args: np.generic) -> None:
    q, k, v, out, rows, keys = (int(x) for x in args)
    found = mixed(*(gpu.view(x, 2 * n) for x, n in ((q, rows), (k, keys), (v, keys))))
    gpu.view(out, 2 * rows).view(np.uint16)[:] = found


def expected(inputs: Inputs) -> np.ndarray:
    return mixed(inputs.q, inputs.k, inputs.v)


def plan_of(problem: Problem) -> LaunchPlan:
    rows = ScalarArg("rows", "int32", problem.elements)
    keys = ScalarArg("keys", "int32", problem.k_bytes // 2)
    tensors = map(TensorArg, ("q", "k", "v", "out"))
    one = PassLaunch("produce", (1, 1, 1), 256, 0, (*tensors, rows, keys))
    return dataclasses.replace(make_plan(problem), passes=(one,))


@pytest.mark.parametrize("problem", PROBLEMS, ids=Problem.label)
def test_a_run_reads_all_of_q_k_and_v(problem: Problem) -> None:
    inputs = make_inputs(problem)
    gpu = gpu_with(produce=combine)
    result = CudaBackend(gpu.calls()).run(plan_of(problem), inputs, RunOptions(timeout_s=1.0))
    assert (result.status, result.reason) == (Status.PASSED, "")
    assert result.out is not None
    assert result.out.shape == problem.shape
    np.testing.assert_array_equal(result.out.view(np.uint16), expected(inputs))
    assert (result.inputs_unchanged, result.repeatable, result.guards_intact) == (True,) * 3


@pytest.mark.parametrize("problem", PROBLEMS, ids=Problem.label)
def test_every_copy_of_a_measurement_holds_them_all(problem: Problem) -> None:
    inputs = make_inputs(problem)
    gpu = gpu_with(produce=combine)
    seen: list[tuple[int, ...]] = []

    def notes_its_tensors(gpu: FakeGpu, *args: np.generic) -> None:
        seen.append(tuple(int(x) for x in args[:4]))
        combine(gpu, *args)

    gpu.kernels = {"produce": notes_its_tensors}
    plan = plan_of(problem)
    with CudaBackend(gpu.calls()).timer(plan, inputs, verdict(passed=True)) as timer:
        assert timer.copy_bytes >= problem.io_bytes
        timer.make_copies(3)
        timer.graph(3, 3)()
        timer.verify()
        out = gpu.view(seen[-1][3], problem.tensor_bytes).view(np.uint16)
        np.testing.assert_array_equal(out.reshape(problem.shape), expected(inputs))
    copies = sorted(set(seen))
    assert len(copies) == 3
    assert all(address % 256 == 0 for copy in copies for address in copy)
    sizes = (problem.tensor_bytes, problem.k_bytes, problem.v_bytes, problem.tensor_bytes)
    begins = [(a, size) for copy in copies for a, size in zip(copy, sizes, strict=True)]
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(sorted(begins)))
