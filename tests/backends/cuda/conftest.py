from __future__ import annotations

import gc
from collections.abc import Iterator

import fake_gpu
import pytest
from fake_kernels import PROBLEM

from engine.backends.cuda import cupy_calls
from engine.tensors import Inputs, make_inputs


@pytest.fixture
def inputs() -> Inputs:
    return make_inputs(PROBLEM)


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What is kept to the end of the process, which here is that of the test; no destructor of a
    fake GPU may have done what CUDA's could not."""
    objects: list[object] = []
    gpus: list[fake_gpu.FakeGpu] = []
    made = fake_gpu.FakeGpu.__post_init__

    def note(gpu: fake_gpu.FakeGpu) -> None:
        made(gpu)
        gpus.append(gpu)

    monkeypatch.setattr(fake_gpu.FakeGpu, "__post_init__", note)
    monkeypatch.setattr(cupy_calls, "keep_until_exit", objects.append)
    yield objects
    gc.collect()
    assert [gpu.violations for gpu in gpus if gpu.violations] == []
