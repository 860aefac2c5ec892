"""Reasons why CUDA is not available, from CuPy, the driver and the GPU's name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from words import raises, says

from engine.backends.cuda import CudaBackend, availability, why_not_cuda
from engine.backends.cuda.availability import explain_missing
from engine.backends.cuda.calls import GpuCalls
from engine.base.errors import ToolMissing
from engine.devices import find_device


@pytest.fixture
def fresh() -> Iterator[None]:
    availability._local_gpu.cache_clear()
    yield
    availability._local_gpu.cache_clear()


@pytest.mark.parametrize(
    ("code", "driver", "name", "facts"),
    [
        (35, 0, "driver_not_installed", ()),
        (35, 12020, "driver_too_old", ("12.2", "13.0", "pip install -e '.[cuda12]'")),
        (35, 11080, "driver_too_old", ("11.8", "13.0")),  # no CuPy of these versions supports it
        (100, 13000, "driver_without_gpu", ()),
        (999, 13000, "cuda_does_not_start", ("cudaErrorUnknown",)),
    ],
)
def test_each_reason_has_its_message(
    code: int, driver: int, name: str, facts: tuple[str, ...]
) -> None:
    why = explain_missing(code, "cudaErrorUnknown", driver, 13000)
    assert says(why, name, *facts)
    assert ("pip install" in why) == (driver == 12020)


@pytest.mark.usefixtures("fresh")
def test_missing_cupy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    why = why_not_cuda()
    assert why is not None
    assert says(why, "cupy_does_not_import", "pip install -e '.[cuda13]'")
    with raises(ToolMissing, "cuda_unavailable", "CuPy"):
        CudaBackend()


@pytest.mark.usefixtures("fresh")
def test_cupy_reports_a_missing_driver() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if cupy.cuda.runtime.driverGetVersion() != 0:
        pytest.skip("this machine has an NVIDIA driver")
    assert why_not_cuda() == explain_missing(35, "", 0, 13000)


@pytest.mark.parametrize(
    ("driver_name", "num_sms", "device", "same"),
    [
        ("NVIDIA L4", 58, "L4", True),
        ("NVIDIA L4", 58, "L40S", False),
        ("NVIDIA L4", 29, "L4", False),
        ("NVIDIA L4", 29, "L4 (29 SMs)", True),
        ("Tesla T4", None, "T4", True),
        ("NVIDIA H200", 132, "H200", True),
        ("NVIDIA H200", 132, "H200 MIG 1g.18gb", False),
        ("NVIDIA H200 MIG 1g.18gb", 16, "H200", False),
        ("NVIDIA H200 MIG 1g.18gb", 16, "H200 MIG 1g.18gb", True),
        ("NVIDIA H200 MIG 1g.18gb", 16, "H100 SXM", False),
        ("NVIDIA B200 MIG 1g.23gb", 18, "B200 (18 SMs)", True),
        ("NVIDIA Nonesuch 9000", 18, "L4", False),
        ("software L4", 58, "L4", True),
        ("software L4", 58, "H200", False),
    ],
)
def test_the_drivers_gpu_name_and_sms_must_match_the_target(
    set_local_gpu: Callable[..., None],
    driver_name: str,
    num_sms: int | None,
    device: str,
    same: bool,
) -> None:
    set_local_gpu(name=driver_name, num_sms=num_sms)
    assert (why_not_cuda(find_device(device)) is None) == same


def test_a_gpu_other_than_the_target_is_refused(set_local_gpu: Callable[..., None]) -> None:
    set_local_gpu(name="NVIDIA L4")
    assert why_not_cuda() is None
    assert why_not_cuda(find_device("L4")) is None
    why = why_not_cuda(find_device("H200"))
    assert why is not None
    assert says(why, "other_gpu_than_target", "L4", "H200")


def test_importing_the_backend_imports_no_cupy() -> None:
    code = "import sys, engine.backends.cuda; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_gpu_held_by_other_processes_gives_a_message(set_local_gpu: Callable[..., None]) -> None:
    def held() -> GpuCalls:
        raise RuntimeError("cudaErrorDevicesUnavailable: busy")

    pytest.importorskip("cupy", reason="CuPy is not installed")
    set_local_gpu()
    with raises(ToolMissing, "gpu_busy", "cudaErrorDevicesUnavailable: busy"):
        CudaBackend(connect=held)
