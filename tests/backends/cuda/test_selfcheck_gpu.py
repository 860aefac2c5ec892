"""A check of `selfcheck` that reports a missing CUDA device; checks that need a GPU
are tested in software_gpu/test_cuda_flow.py."""

from __future__ import annotations

import pytest
from words import says

from engine.pipeline.selfcheck import State, perform, sdpa_backends


def test_torch_without_cuda_is_noted_once_without_failure() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this PyTorch finds a GPU")
    found = perform("SDPA", sdpa_backends)
    assert found.state is State.NOT_POSSIBLE
    assert says(found.sentence, "torch_without_cuda_baseline")
    assert found.sentence.count(torch.__version__) == 1
