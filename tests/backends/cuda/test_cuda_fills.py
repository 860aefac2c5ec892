"""Buffers that are filled before each launch on a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeGpu
from fake_kernels import PROBLEM, gpu_with, make_plan, produce

from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend
from engine.backends.cuda.cupy_calls import CupyCalls
from engine.base.errors import Status
from engine.base.launch import TensorArg
from engine.plan import ScratchBuffer
from engine.tensors import Inputs

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

HIGHEST = ScratchBuffer("highest", "float32", (7,), "-inf", each_launch=True)


def test_fills_are_there_again_before_a_second_run(inputs: Inputs) -> None:
    plan = make_plan()
    first = dataclasses.replace(
        plan.passes[0], args=(*plan.passes[0].args, TensorArg("highest"), TensorArg("out"))
    )
    seen: list[tuple[set[float], int]] = []

    def running(gpu: FakeGpu, *args: Any) -> None:
        highest = gpu.view(int(args[3]), HIGHEST.size_bytes).view(np.float32)
        out = gpu.view(int(args[4]), PROBLEM.tensor_bytes)
        seen.append((set(highest.tolist()), int(np.count_nonzero(out))))
        produce(gpu, *args[:3])
        highest[:] = 3.0

    plan = dataclasses.replace(
        plan,
        passes=(first, plan.passes[1]),
        scratch=(*plan.scratch, HIGHEST),
        out_fill="zero",
    )
    backend = CudaBackend(CupyCalls(gpu_with(produce=running).cupy))
    result = backend.run(plan, inputs, RunOptions(repeat=True))
    assert (result.status, result.reason, result.repeatable) == (Status.PASSED, "", True)
    assert seen == [({-np.inf}, 0)] * 2
