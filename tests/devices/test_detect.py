"""Detection against a stand-in for NVML: no GPU is needed to test what is said about one."""

from __future__ import annotations

import re
import sys
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeNvml

from engine.devices import detect, find_device
from engine.devices.detect import DetectedDevice, detect_local
from engine.pipeline.request import EvaluationRequest, resolve
from engine.problem import Problem

MEMORY = types.SimpleNamespace(total=23034 * 2**20, used=2**20, free=0)
L4 = {
    "nvmlDeviceGetHandleByIndex": lambda index: ("gpu", index),
    "nvmlDeviceGetHandleByUUID": lambda uuid: ("gpu", uuid),
    "nvmlDeviceGetName": "NVIDIA L4",
    "nvmlDeviceGetCudaComputeCapability": (8, 9),
    "nvmlDeviceGetMemoryInfo": MEMORY,
    "nvmlDeviceGetNumGpuCores": 58 * 128,
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlSystemGetDriverVersion": "570.1",
}


def install(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], **kwargs: Any) -> FakeNvml:
    fake = FakeNvml(answers, **kwargs)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_a_gpu_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, L4)
    local = detect_local()
    assert isinstance(local, DetectedDevice)
    assert local.spec is find_device("L4")
    assert local.in_table
    assert (local.uuid, local.driver_version) == ("GPU-1", "570.1")
    assert local.memory_bytes == MEMORY.total
    assert fake.open == 0


def test_the_driver_counts_sms_better_than_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {**L4, "nvmlDeviceGetNumGpuCores": 60 * 128})
    local = detect_local()
    assert isinstance(local, DetectedDevice)
    assert local.spec.num_sms == 60
    assert "driver" in local.spec.source
    # Naming this machine's own GPU makes no other GPU of it; naming another one does.
    request = EvaluationRequest("v01", Problem(1, 1, 128, 64), gpu="L4")
    assert resolve(request).device == local.spec
    assert resolve(replace(request, gpu="T4")).device == find_device("T4")


def test_an_unknown_gpu_keeps_what_nobody_knows_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {pynvml.NVML_CLOCK_SM: 2400, pynvml.NVML_CLOCK_MEM: 10_000}
    install(
        monkeypatch,
        {
            **L4,
            "nvmlDeviceGetName": "NVIDIA Wonder 9",
            "nvmlDeviceGetMaxClockInfo": lambda _handle, kind: clocks[kind],
            "nvmlDeviceGetMemoryBusWidth": 256,
            "nvmlDeviceGetPowerManagementDefaultLimit": 250_000,
        },
    )
    monkeypatch.setitem(sys.modules, "cupy", None)  # `import cupy` fails
    local = detect_local()
    assert isinstance(local, DetectedDevice)
    spec = local.spec
    assert not local.in_table
    assert (spec.name, spec.num_sms, spec.boost_clock_mhz) == ("NVIDIA Wonder 9", 58, 2400)
    assert spec.memory_gb_per_s == pytest.approx(640.0)
    assert spec.fp32_tflops == pytest.approx(35.6, abs=0.1)
    assert spec.power_w == 250
    assert spec.fp16_tensor_tflops is None
    assert spec.bf16_tensor_tflops is None
    assert spec.l2_bytes is None
    assert spec.price_usd_per_hour is None
    assert "not in" in spec.source


def test_a_silent_board_is_described_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {k: L4[k] for k in ("nvmlDeviceGetHandleByIndex",)}
    answers |= {
        "nvmlDeviceGetName": "Odd GPU",
        "nvmlDeviceGetCudaComputeCapability": (8, 6),
    }
    install(monkeypatch, answers)
    monkeypatch.setitem(sys.modules, "cupy", None)
    local = detect_local()
    assert isinstance(local, DetectedDevice)
    assert local.spec.num_sms is None
    assert local.spec.memory_bytes is None


@pytest.mark.parametrize(
    ("visible", "handle"), [("1", ("gpu", 1)), ("GPU-abc,GPU-def", ("gpu", "GPU-abc"))]
)
def test_cuda_visible_devices_chooses(
    monkeypatch: pytest.MonkeyPatch, visible: str, handle: tuple[str, Any]
) -> None:
    seen = []
    answers = {**L4, "nvmlDeviceGetUUID": lambda h: seen.append(h) or "GPU-1"}
    install(monkeypatch, answers)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert isinstance(detect_local(), DetectedDevice)
    assert seen == [handle]


def two_gpus(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> FakeNvml:
    """An L4 in front of an H200 on the bus, so that CUDA, which orders by speed, swaps them."""
    by_uuid = {f"GPU-{letter * 8}-0000": index for index, letter in enumerate("ab")}
    by_uuid["MIG-cccccccc-0000"] = 2  # a slice of the second
    addresses = ["00000000:01:00.0", "00000000:02:00.0"]

    def by_address(address: str) -> int:
        return addresses.index(address)

    def uuid_handle(uuid: str) -> int:
        if uuid not in by_uuid:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return by_uuid[uuid]

    both: dict[str, Any] = {
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByPciBusId": by_address,
        "nvmlDeviceGetHandleByUUID": uuid_handle,
        "nvmlDeviceGetUUID": list(by_uuid).__getitem__,
        "nvmlDeviceGetName": ["NVIDIA L4", "NVIDIA H200"].__getitem__,
        "nvmlDeviceGetCudaComputeCapability": [(8, 9), (9, 0)].__getitem__,
        "nvmlDeviceGetNumGpuCores": [58 * 128, 132 * 128].__getitem__,
        "nvmlDeviceGetMaxMigDeviceCount": [0, 7].__getitem__,
        ("nvmlDeviceGetMigDeviceHandleByIndex", 0): 2,
    }
    monkeypatch.setitem(sys.modules, "cupy", None)
    return install(monkeypatch, {**both, **answers})


def cuda_finds(monkeypatch: pytest.MonkeyPatch, **figures: int) -> None:
    """What CuPy says of CUDA's device 0."""
    properties = {
        "name": b"NVIDIA L4",
        "major": 9,
        "minor": 0,
        "pciDomainID": 0,
        "pciBusID": figures.get("pci_bus", 1),
        "pciDeviceID": 0,
        "multiProcessorCount": figures.get("num_sms", 58),
        "l2CacheSize": figures.get("l2_bytes", 1 << 20),
    }
    runtime = types.SimpleNamespace(
        CUDARuntimeError=RuntimeError,
        getDeviceProperties=lambda device: properties if device == 0 else {},
        cudaDevAttrClockRate=13,
        deviceGetAttribute=lambda _attribute, _device: 2_040_000,
    )
    cupy: Any = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", cupy)


def test_the_gpu_is_the_one_that_cuda_takes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    two_gpus(monkeypatch)
    cuda_finds(monkeypatch, pci_bus=2, num_sms=132, l2_bytes=60 << 20)
    local = detect_local()
    assert isinstance(local, DetectedDevice)
    assert local.spec is find_device("H200")
    assert local.uuid == "GPU-bbbbbbbb-0000"
    assert local.differences == ()


def test_sms_l2_and_clock_of_the_driver_beside_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates refer to the table's boost clock, which therefore stays."""
    two_gpus(monkeypatch, nvmlDeviceGetMaxClockInfo=1830)
    cuda_finds(monkeypatch, pci_bus=2, num_sms=114, l2_bytes=50 << 20)
    local = detect_local()
    assert isinstance(local, DetectedDevice)
    assert (local.spec.num_sms, local.spec.l2_bytes) == (114, 50 << 20)
    assert local.spec.boost_clock_mhz == find_device("H200").boost_clock_mhz == 1980
    assert local.differences == (
        "SMs: 114 as the driver reports it, 132 in Attune's table.",
        "L2: 50 MiB as the driver reports it, 60 MiB in Attune's table.",
        "Highest SM clock: 1,830 MHz as the driver reports it, 1,980 MHz in Attune's table.",
    )
    assert "L2 as the driver reports it" in local.spec.source


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        ("0", "L4"),
        ("1,0", "H200"),
        ("GPU-bbbb", "H200"),
        ("GPU-aaaaaaaa-0000", "L4"),
        ("MIG-cccc", "H200"),
        ("MIG-cccccccc-0000", "H200"),
        ("MIG-GPU-bbbbbbbb-0000/1/0", "H200"),
        ("GPU-nosuch", ""),
    ],
)
def test_names_in_cuda_visible_devices(
    monkeypatch: pytest.MonkeyPatch, visible: str, name: str
) -> None:
    """Without CuPy. CUDA takes the beginning of a UUID too."""
    two_gpus(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    local = detect_local()
    if name:
        assert isinstance(local, DetectedDevice)
        assert local.spec is find_device(name)
    else:
        assert f"does not find CUDA_VISIBLE_DEVICES={visible}" in str(local)


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    install(monkeypatch, L4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    reason = detect_local()
    assert isinstance(reason, str)
    assert "CUDA_VISIBLE_DEVICES" in reason


def test_no_driver_gives_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {}, init_error="NVML Shared Library Not Found")
    reason = detect_local()
    assert isinstance(reason, str)
    assert "no NVIDIA GPU" in reason
    assert reason.endswith(".")


def test_no_package_gives_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "pip install nvidia-ml-py" in str(detect_local())


def test_no_such_device(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {k: v for k, v in L4.items() if k != "nvmlDeviceGetHandleByIndex"}
    install(monkeypatch, answers)
    assert "does not find the first GPU" in str(detect_local())


@pytest.mark.parametrize(
    "reasons",
    ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"],
)
def test_state(reasons: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {pynvml.NVML_CLOCK_SM: 1815, pynvml.NVML_CLOCK_MEM: 6251}
    install(
        monkeypatch,
        {
            **L4,
            "nvmlDeviceGetClockInfo": lambda _handle, kind: clocks[kind],
            "nvmlDeviceGetPowerUsage": 71_500,
            "nvmlDeviceGetTemperature": 63,
            reasons: 0x4 | 0x40 | 0x1,
        },
    )
    with detect.session() as api:
        state = detect.read_state(api, "handle")
    assert (state.sm_clock_mhz, state.memory_clock_mhz) == (1815, 6251)
    assert (state.power_w, state.power_limit_w) == (71.5, None)
    assert state.temperature_c == 63
    assert state.throttle_reasons == ("power cap", "hardware thermal slowdown")


def test_a_reading_asks_for_the_clock_first_and_for_little_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight questions, the clock last, took the GPU's answer of another moment. Two of some tens of
    µs each leave a reading under 0.2 ms."""
    answers = {
        "nvmlDeviceGetClockInfo": 1815,
        "nvmlDeviceGetMaxClockInfo": 2040,
        "nvmlDeviceGetPowerUsage": 71_500,
        "nvmlDeviceGetPowerManagementLimit": 72_000,
        "nvmlDeviceGetTemperature": 63,
        "nvmlDeviceGetMemoryInfo": MEMORY,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
    }
    fake = install(monkeypatch, answers)
    now = 0.0
    read = detect.StateReader(fake, "handle", lambda: now)
    fake.asked.clear()
    states = []
    for _ in range(100):
        states.append(read())
        now += 0.005
    each = ["nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons"]
    assert fake.asked[:2] == each
    assert fake.asked[-2:] == each
    counts = Counter(fake.asked)
    assert counts["nvmlDeviceGetCurrentClocksEventReasons"] == 100
    assert counts["nvmlDeviceGetPowerUsage"] == counts["nvmlDeviceGetTemperature"] == 5
    assert counts["nvmlDeviceGetMaxClockInfo"] == 0
    assert len(fake.asked) < 2.3 * 100
    assert {(s.sm_clock_mhz, s.power_w, s.power_limit_w, s.max_sm_clock_mhz) for s in states} == {
        (1815, 71.5, 72.0, 2040)
    }


def test_throttle_reasons_of_an_idle_gpu() -> None:
    assert detect.throttle_reasons(0x1) == ()
    assert detect.throttle_reasons(None) == ()


def test_this_machine_answers_either_way() -> None:
    local = detect_local()
    if isinstance(local, str):
        assert local.endswith(".")
    else:
        assert local.spec.compute_capability >= (3, 5)


def test_the_real_package_has_every_function_used() -> None:
    pynvml = pytest.importorskip("pynvml")
    from engine.devices import detect

    text = "".join(Path(m.__file__).read_text(encoding="utf-8") for m in (detect, detect))
    names = set(re.findall(r"\b(?:nvml\.|api\.)(nvml[A-Z]\w+|NVML_\w+)", text))
    assert len(names) > 10
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []
