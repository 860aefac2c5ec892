"""Errors of CUDA and CuPy as statuses, with one sentence for each."""

from __future__ import annotations

import re

import pytest
from words import says

from engine.backends.cuda.calls import LOST_CONTEXT, explain
from engine.base.errors import Status, ToolMissing


class CudaError(RuntimeError):
    """Like CuPy's CUDARuntimeError and CUDADriverError."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class OutOfMemory(MemoryError):
    """Like CuPy's OutOfMemoryError."""


LOST = (214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999)


@pytest.mark.parametrize("code", [1, 9, 98, 209, 701, *LOST])
def test_every_cuda_error_gives_one_sentence_with_the_kernels_name(code: int) -> None:
    failure = explain(CudaError(code, f"cudaError{code}: cuda's words"), "attention_v01")
    expected = Status.OUT_OF_BOUNDS if code == 700 else Status.LAUNCH_ERROR
    assert failure.status is expected
    assert failure.reason.startswith("attention_v01 ")
    assert f"cudaError{code}: cuda's words" in failure.reason
    assert failure.reason.endswith(".")
    assert "\n" not in failure.reason
    assert failure.context_lost == (code in LOST)


@pytest.mark.parametrize("error", [OutOfMemory("need 5 GB"), CudaError(2, "cudaErrorMemory")])
def test_both_kinds_of_out_of_memory_errors(error: Exception) -> None:
    failure = explain(error, "attention_v01")
    assert failure.status is Status.OUT_OF_MEMORY
    assert not failure.context_lost


@pytest.mark.parametrize("error", [TypeError("Unsupported type\n<class>"), RuntimeError("a bug")])
def test_other_errors_keep_their_message(error: Exception) -> None:
    error.status = "text"  # type: ignore[attr-defined]
    failure = explain(error, "k")
    assert failure.status is Status.LAUNCH_ERROR
    assert says(failure.reason, "launch_of_other_cupy", "k", f"({type(error).__name__}: ")
    assert "\n" not in failure.reason
    assert not failure.context_lost


def test_attune_errors_keep_their_message() -> None:
    assert explain(ToolMissing("There is none: install it."), "k").reason == (
        "There is none: install it."
    )


@pytest.mark.slow
def test_every_error_after_which_cuda_wants_a_new_process_loses_the_context() -> None:
    """CUDA's header documents it for each error; new errors must not be missed."""
    from engine.cuda_source.nvrtc import toolchain

    header = (toolchain().include_dir / "driver_types.h").read_text(encoding="utf-8")
    documented = {
        int(number)
        for text, number in re.findall(r"/\*\*(.*?)\*/\s*cudaError\w+\s*=\s*(\d+)", header, re.S)
        if "be terminated and relaunched" in re.sub(r"[\s*]+", " ", text)
    }
    assert {700, 719} <= documented
    assert documented <= LOST_CONTEXT
    assert set(LOST) <= LOST_CONTEXT


def test_cupy_exceptions_have_the_fields_that_are_read() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    error = cupy.cuda.runtime.CUDARuntimeError(35)
    failure = explain(error, "k")
    assert "cudaErrorInsufficientDriver" in failure.reason
    assert issubclass(cupy.cuda.driver.CUDADriverError, RuntimeError)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
