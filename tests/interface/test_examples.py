"""Runs all examples in the docstrings of the public interface."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType

import pytest

import engine
import engine.testing
from engine.interface import attention_kernel, functions

MODULES = (engine, attention_kernel, functions, engine.testing)
_FUNCTIONS = (
    "kernel",
    "AttentionKernel.check",
    "AttentionKernel.occupancy",
    "AttentionKernel.predict",
    "AttentionKernel.machine_code",
    "AttentionKernel.run",
    "recommend_batch",
    "recommend_mix",
    "compare",
    "sweep",
    "assert_correct",
)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_examples(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.attempted > 0
    assert done.failed == 0


def test_every_public_function_has_an_example() -> None:
    found = {
        test.name.removeprefix(f"{module.__name__}.")
        for module in MODULES
        for test in doctest.DocTestFinder(exclude_empty=True).find(module)
        if test.examples
    }
    assert set(_FUNCTIONS) <= found
    public = [n for n in engine.__all__ if inspect.isfunction(getattr(engine, n))]
    assert set(public) <= set(_FUNCTIONS)
