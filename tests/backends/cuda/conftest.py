from __future__ import annotations

import pytest
from fake_kernels import PROBLEM

from engine.tensors import Inputs, make_inputs


@pytest.fixture
def inputs() -> Inputs:
    return make_inputs(PROBLEM)


@pytest.fixture(autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "cuda-cache"  # shared: these compiles are all alike
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(folder))
