from __future__ import annotations

import pytest
from fake_kernels import PROBLEM

from engine.tensors import Inputs, make_inputs


@pytest.fixture
def inputs() -> Inputs:
    return make_inputs(PROBLEM)
