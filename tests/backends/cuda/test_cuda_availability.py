from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from words import raises

from engine.backends.cuda import CudaBackend, availability, why_not_cuda
from engine.backends.cuda.availability import explain_missing, is_same_model
from engine.base.errors import ToolMissing
from engine.devices import find_device


@pytest.fixture
def fresh() -> Iterator[None]:
    availability._local_gpu.cache_clear()
    yield
    availability._local_gpu.cache_clear()


@pytest.mark.parametrize(
    ("code", "driver", "sentence"),
    [
        (35, 0, "No NVIDIA driver is installed on this machine, so there is no GPU to run on."),
        (
            35,
            12020,
            "The NVIDIA driver supports CUDA 12.2 and CuPy needs 13.0: update the driver, or "
            "pip install -e '.[cuda12]'.",
        ),
        (  # for which there is no CuPy of these versions
            35,
            11080,
            "The NVIDIA driver supports CUDA 11.8 and CuPy needs 13.0: update the driver.",
        ),
        (
            100,
            13000,
            "The NVIDIA driver finds no GPU: check nvidia-smi and the variable "
            "CUDA_VISIBLE_DEVICES.",
        ),
        (999, 13000, "CUDA does not start on this machine: cudaErrorUnknown."),
    ],
)
def test_each_reason_is_a_sentence(code: int, driver: int, sentence: str) -> None:
    assert explain_missing(code, "cudaErrorUnknown", driver, 13000) == sentence


@pytest.mark.usefixtures("fresh")
def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    why = why_not_cuda()
    assert why is not None
    assert why.startswith("CuPy does not import")
    assert why.endswith("pip install -e '.[cuda13]'")
    with raises(ToolMissing, "cuda_unavailable", "CuPy"):
        CudaBackend()


@pytest.mark.usefixtures("fresh")
def test_without_a_driver_the_real_cupy_says_so() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if cupy.cuda.runtime.driverGetVersion() != 0:
        pytest.skip("this machine has an NVIDIA driver")
    assert why_not_cuda() == explain_missing(35, "", 0, 13000)


@pytest.mark.parametrize(
    ("driver_name", "device", "same"),
    [
        ("NVIDIA L4", "L4", True),
        ("NVIDIA L4", "L40S", False),
        ("Tesla T4", "T4", True),
        ("NVIDIA H200", "H200", True),
        ("NVIDIA H200 MIG 1g.18gb", "H200", True),
        ("NVIDIA H200 MIG 1g.18gb", "H100 SXM", False),
        ("NVIDIA Nonesuch 9000", "L4", False),
    ],
)
def test_the_drivers_name_against_the_table(driver_name: str, device: str, same: bool) -> None:
    assert is_same_model(driver_name, find_device(device)) == same


def test_another_gpu_than_the_target_does_not_serve(set_local_gpu: Callable[..., None]) -> None:
    set_local_gpu(name="NVIDIA L4")
    assert why_not_cuda() is None
    assert why_not_cuda(find_device("L4")) is None
    why = why_not_cuda(find_device("H200"))
    assert why is not None
    assert why.startswith("This machine's GPU is NVIDIA L4 and the target is H200: ")


def test_importing_the_backend_imports_no_cupy() -> None:
    code = "import sys, engine.backends.cuda; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_gpu_that_others_hold_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, set_local_gpu: Callable[..., None]
) -> None:
    def held() -> None:
        raise RuntimeError("cudaErrorDevicesUnavailable: busy")

    pytest.importorskip("cupy", reason="CuPy is not installed")
    set_local_gpu()
    monkeypatch.setattr("engine.backends.cuda.backend.CupyCalls", held)
    with raises(ToolMissing, "gpu_busy", "cudaErrorDevicesUnavailable: busy"):
        CudaBackend()
