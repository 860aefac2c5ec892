"""K and V in pages on a GPU: what is uploaded, and that the table counts as an input."""

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
from engine.paged_kv import Pages
from engine.tensors import Inputs

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

PAGES = Pages(PROBLEM, 4)


@pytest.mark.parametrize("spoils", [False, True])
def test_a_kernel_gets_the_pages_and_may_not_write_the_table(inputs: Inputs, spoils: bool) -> None:
    plan = make_plan(pages=PAGES)
    named = (TensorArg("block_table"), TensorArg("k"))
    first = dataclasses.replace(plan.passes[0], args=(*plan.passes[0].args, *named))
    seen: list[bool] = []

    def paged(gpu: FakeGpu, *args: Any) -> None:
        table = gpu.view(int(args[3]), PAGES.table_bytes).view(np.int32)
        keys = gpu.view(int(args[4]), PAGES.kv_bytes).view(np.float16).reshape(PAGES.shape)
        found = keys[table].transpose(1, 0, 2, 3).reshape(inputs.k[0].shape)
        seen.append(np.array_equal(found, inputs.k[0]))
        produce(gpu, *args[:3])
        if spoils:
            table[0] = 0

    gpu = gpu_with(produce=paged)
    plan = dataclasses.replace(plan, passes=(first, plan.passes[1]))
    result = CudaBackend(CupyCalls(gpu.cupy)).run(plan, inputs, RunOptions(repeat=False))
    assert (result.status, result.reason) == (Status.PASSED, "")
    assert seen == [True]
    assert result.inputs_unchanged is not spoils
