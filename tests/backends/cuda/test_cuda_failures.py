from __future__ import annotations

import pytest
from fake_gpu import CudaError, OutOfMemory

from engine.backends.cuda.failures import explain
from engine.evaluation import Status

LOST = (214, 700, 702, 710, 714, 715, 716, 717, 718, 719)


@pytest.mark.parametrize("code", [1, 9, 98, 209, 701, *LOST])
def test_every_code_is_one_sentence_with_the_kernels_name(code: int) -> None:
    failure = explain(CudaError(code, f"cudaError{code}: cuda's words"), "attention_v01")
    assert failure is not None
    assert failure.status is Status.LAUNCH_ERROR
    assert failure.reason.startswith("attention_v01 ")
    assert f"cudaError{code}: cuda's words" in failure.reason
    assert failure.reason.endswith(".")
    assert "\n" not in failure.reason
    assert failure.context_lost == (code in LOST)


@pytest.mark.parametrize("error", [OutOfMemory("need 5 GB"), CudaError(2, "cudaErrorMemory")])
def test_both_ways_to_run_out_of_memory(error: Exception) -> None:
    failure = explain(error, "attention_v01")
    assert failure is not None
    assert failure.status is Status.OUT_OF_MEMORY
    assert not failure.context_lost


def test_other_errors_are_not_cudas() -> None:
    assert explain(RuntimeError("a bug"), "k") is None
    strange = RuntimeError("a bug")
    strange.status = "text"  # type: ignore[attr-defined]
    assert explain(strange, "k") is None


def test_cupys_own_exceptions_carry_what_is_read_here() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    error = cupy.cuda.runtime.CUDARuntimeError(35)
    failure = explain(error, "k")
    assert failure is not None
    assert "cudaErrorInsufficientDriver" in failure.reason
    assert issubclass(cupy.cuda.driver.CUDADriverError, RuntimeError)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
