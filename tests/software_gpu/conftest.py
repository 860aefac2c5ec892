"""Fixtures for the GPU in software: its settings, and CUDA backends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest

from engine.backends.cuda import CudaBackend, why_not_cuda
from engine.backends.cuda.availability import is_software_gpu


@pytest.fixture
def set_gpu() -> Iterator[Callable[[str], None]]:
    """Return `softwareGpuSet` of native/virtual_clock.h; settings are reset afterwards."""
    if (why := why_not_cuda()) is not None or not is_software_gpu():
        pytest.skip(why or "This GPU is none in software: nothing can be planted in it.")
    library = ctypes.CDLL("libcuda.so.1")

    def put(text: str) -> None:
        assert library.softwareGpuSet(text.encode()) == 0, text

    put("")
    yield put
    put("")


@pytest.fixture
def backend(set_gpu: Callable[[str], None]) -> Iterator[CudaBackend]:
    """Return a backend with separate calls, which times kernels as on any GPU."""
    from engine.backends.cuda.calls import CupyCalls

    del set_gpu  # its skip
    made = CudaBackend(CupyCalls())
    assert not made.is_software
    yield made
    made.close()


@pytest.fixture
def backend_with(set_gpu: Callable[[str], None]) -> Iterator[Callable[..., CudaBackend]]:
    """Return a function that makes a backend with some calls or GPU properties replaced."""
    from engine.backends.cuda.calls import CupyCalls

    del set_gpu  # its skip
    made: list[CudaBackend] = []

    def make(**others: object) -> CudaBackend:
        made.append(CudaBackend(type("Calls", (CupyCalls,), others)()))
        return made[-1]

    yield make
    for backend in made:
        backend.close()
