"""Detection with the NVML of GPUs in software, so that no GPU is needed."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from software_nvml import SoftwareNvml, described
from words import says

from engine.attention.problem import Problem
from engine.devices import find_device, nvml, spec
from engine.devices.spec import DetectedDevice, detect_local
from engine.pipeline.request import EvaluationRequest, resolve

THROTTLED = "reasons=69"  # power cap, hardware thermal slowdown, and idle, which does not slow


@pytest.fixture(autouse=True)
def _without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect without CUDA; tests/software_gpu covers it with the installed CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", None)  # `import cupy` fails


def detected() -> DetectedDevice:
    local = detect_local()
    assert isinstance(local, DetectedDevice), local
    return local


def test_a_gpu_of_the_table(software_nvml: SoftwareNvml) -> None:
    software_nvml.has(described("L4"))
    local = detected()
    assert local.spec is find_device("L4")
    assert local.in_table
    assert (local.uuid, local.driver_version) == (software_nvml.uuid(0), "software")
    assert not software_nvml.is_open


def test_sms_of_the_driver_override_the_table(software_nvml: SoftwareNvml) -> None:
    software_nvml.has(described("L4", num_sms=60))
    local = detected()
    assert local.spec.num_sms == 60
    assert "driver" in local.spec.source
    # It has times of its own, so it has a name of its own, and the L4 keeps the table's figures.
    assert local.spec.name == "L4 (60 SMs)"
    assert local.spec.fp16_tensor_tflops == pytest.approx(121 * 60 / 58)
    request = EvaluationRequest("v01", Problem(1, 1, 128, 64), gpu="L4 (60 SMs)")
    assert resolve(request).device == local.spec
    assert resolve(replace(request, gpu="L4")).device == find_device("L4")


def test_the_highest_clock_of_the_driver_beside_the_table(software_nvml: SoftwareNvml) -> None:
    """Rates refer to the table's boost clock, which therefore is not replaced."""
    software_nvml.has(described("H200", clock_khz=1_830_000))
    local = detected()
    assert local.spec is find_device("H200")
    (difference,) = local.differences
    assert says(difference, "driver_and_table_differ", "1,830 MHz", "1,980 MHz")


def test_unknown_figures_of_an_unknown_gpu_are_empty(software_nvml: SoftwareNvml) -> None:
    software_nvml.has(described("L4", name="NVIDIA Wonder 9", clock_khz=2_400_000, power_w=250))
    software_nvml.says("max_memory_clock_mhz=10000 memory_bus_bits=256")
    local = detected()
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


def test_a_gpu_with_missing_driver_values_is_described(software_nvml: SoftwareNvml) -> None:
    software_nvml.has(described("L4", name="Odd GPU"))
    software_nvml.says("*=3 nvmlDeviceGetName=0 nvmlDeviceGetCudaComputeCapability=0")
    local = detected()
    assert local.spec.num_sms is None
    assert local.spec.memory_bytes is None
    software_nvml.says("*=3")
    assert says(str(detect_local()), "does_say_compute")


L4_AND_A_SLICE = (described("L4"), described("H200 MIG 1g.18gb"))


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        ("0", "L4"),
        ("1,0", "H200 (16 SMs)"),
        ("GPU-b", "H200 (16 SMs)"),
        ("GPU-a,GPU-b", "L4"),
        ("MIG-b", "H200 (16 SMs)"),
        ("MIG-GPU-b/1/0", "H200 (16 SMs)"),
        ("GPU-nosuch", ""),
        ("7", ""),
    ],
)
def test_names_in_cuda_visible_devices(
    software_nvml: SoftwareNvml, monkeypatch: pytest.MonkeyPatch, visible: str, name: str
) -> None:
    """Whole UUIDs, and their beginnings, which CUDA accepts as well. Only CUDA names the slice."""
    software_nvml.has(*L4_AND_A_SLICE)
    for length in (12, 40):
        whole = visible
        for number, letter in enumerate("ab"):
            uuid = software_nvml.uuid(number).removeprefix("GPU-")[:length]
            whole = re.sub(rf"(GPU|MIG)-{letter}\b", rf"\1-{uuid}", whole)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", whole)
        if name:
            assert detected().spec.name == name
        else:
            assert says(str(detect_local()), "driver_finds_no_gpu", f"CUDA_VISIBLE_DEVICES={whole}")


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus(
    software_nvml: SoftwareNvml, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    software_nvml.has(described("L4"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    reason = detect_local()
    assert isinstance(reason, str)
    assert "CUDA_VISIBLE_DEVICES" in reason


@pytest.mark.parametrize("said", ["", "nvmlInit=9", "nvmlInit=18"])
def test_a_missing_driver_gives_a_message(software_nvml: SoftwareNvml, said: str) -> None:
    if said:
        software_nvml.has(described("L4"))
    software_nvml.says(said)
    reason = detect_local()
    assert isinstance(reason, str)
    assert says(reason, "no_nvidia_gpu_2")
    assert reason.endswith(".")


def test_a_missing_package_gives_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert says(str(detect_local()), "pip_install_nvidia")


def test_no_such_device(software_nvml: SoftwareNvml) -> None:
    software_nvml.has(described("L4"))
    software_nvml.says("nvmlDeviceGetHandleByIndex=15")
    assert says(str(detect_local()), "driver_finds_no_gpu", "GPU is lost")


@pytest.mark.parametrize("older", ["", "nvmlDeviceGetCurrentClocksEventReasons=13 "])
def test_the_state_of_a_gpu_is_read_from_its_driver(
    software_nvml: SoftwareNvml, older: str
) -> None:
    """Drivers before 535 have the reasons under another name."""
    software_nvml.has(described("T4"), described("L4"))
    figures = "1:sm_clock_mhz=1815 1:memory_clock_mhz=6251 1:power_w=71 1:temperature_c=63"
    silent = "1:nvmlDeviceGetPowerManagementLimit=3"
    software_nvml.says(f"{older}{figures} {silent} 1:{THROTTLED}")
    with nvml.session() as api:
        other, state = (
            nvml.read_state(api, api.nvmlDeviceGetHandleByIndex(number)) for number in (0, 1)
        )
    assert (state.sm_clock_mhz, state.memory_clock_mhz) == (1815, 6251)
    assert (state.power_w, state.power_limit_w) == (71.0, None)
    assert state.temperature_c == 63
    cap, slowdown = state.throttle_reasons
    assert says(cap, "power_cap")
    assert says(slowdown, "hardware_thermal_slowdown")
    assert (other.temperature_c, other.power_limit_w, other.throttle_reasons) == (40, 70.0, ())


class Counting:
    """`pynvml`, which also records the queries."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(pynvml, name)
        if not name.startswith("nvmlDevice"):
            return found

        def query(*args: Any) -> Any:
            self.asked.append(name)
            return found(*args)

        return query


def test_a_reading_queries_the_clock_first_and_few_values(
    software_nvml: SoftwareNvml,
) -> None:
    """With eight queries, the clock last, the clock was that of a later moment. Two queries of some
    tens of µs each keep a reading under 0.2 ms."""
    software_nvml.has(described("L4"))
    software_nvml.says("sm_clock_mhz=1815 memory_clock_mhz=6251 power_w=71")
    counting, now, states = Counting(), 0.0, []
    with nvml.session() as api:
        handle = api.nvmlDeviceGetHandleByIndex(0)
        read = nvml.StateReader(counting, handle, lambda: now)
        counting.asked.clear()
        for _ in range(100):
            states.append(read())
            now += 0.005
    each = ["nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons"]
    assert counting.asked[:2] == each
    assert counting.asked[-2:] == each
    counts = Counter(counting.asked)
    assert counts["nvmlDeviceGetCurrentClocksEventReasons"] == 100
    assert counts["nvmlDeviceGetPowerUsage"] == counts["nvmlDeviceGetTemperature"] == 5
    assert counts["nvmlDeviceGetMaxClockInfo"] == 0
    assert len(counting.asked) < 2.3 * 100
    assert {(s.sm_clock_mhz, s.power_w, s.power_limit_w, s.max_sm_clock_mhz) for s in states} == {
        (1815, 71.0, 72.0, 2040)
    }


def test_memory_errors_are_distinguished(software_nvml: SoftwareNvml) -> None:
    """The counters that CUDA's error 214 refers to."""
    software_nvml.has(described("H200"))
    software_nvml.says("ecc_corrected=5 ecc_uncorrected=1")
    with nvml.session() as api:
        handle = api.nvmlDeviceGetHandleByIndex(0)
        kinds = (api.NVML_MEMORY_ERROR_TYPE_CORRECTED, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        counts = [
            api.nvmlDeviceGetTotalEccErrors(handle, kind, api.NVML_VOLATILE_ECC) for kind in kinds
        ]
        software_nvml.says("ecc=0")
        off = api.nvmlDeviceGetEccMode(handle)
        none = spec.query_nvml(
            api, api.nvmlDeviceGetTotalEccErrors, handle, kinds[0], api.NVML_VOLATILE_ECC
        )
    assert (counts, off, none) == ([5, 1], [0, 0], None)


def test_a_process_of_another_user_is_reported(software_nvml: SoftwareNvml) -> None:
    software_nvml.has(described("H200"), described("L4"))
    software_nvml.says("1:foreign_pid=4321 1:memory_used_bytes=1000 1:utilization=97")
    with nvml.session() as api:
        gpus = [api.nvmlDeviceGetHandleByIndex(number) for number in (0, 1)]
        running = [api.nvmlDeviceGetComputeRunningProcesses(gpu) for gpu in gpus]
        busy = [api.nvmlDeviceGetUtilizationRates(gpu).gpu for gpu in gpus]
        used = nvml.read_state(api, gpus[1]).memory_used_bytes
    assert [[(p.pid, p.usedGpuMemory) for p in found] for found in running] == [[], [(4321, 1000)]]
    assert (busy, used) == ([0, 97], 1000)


def test_nvml_has_every_function_that_dask_calls(software_nvml: SoftwareNvml) -> None:
    """Scheduler and workers query at every heartbeat, and end if NVML lacks a function."""
    del software_nvml  # used only to load the library
    diagnostics = pytest.importorskip("distributed.diagnostics", reason="Dask is not installed")
    text = Path(diagnostics.__path__[0], "nvml.py").read_text(encoding="utf-8")
    names = {name.partition("_v")[0] for name in re.findall(r"pynvml\.(nvml[A-Z]\w+)", text)}
    assert len(names) > 10
    versions = ("", "_v2", "_v3")
    lacking = [n for n in names if not any(hasattr(pynvml.nvmlLib, n + v) for v in versions)]
    assert lacking == []


def test_throttle_reasons_of_an_idle_gpu() -> None:
    assert nvml.throttle_reasons(0x1) == ()
    assert nvml.throttle_reasons(None) == ()


def test_detection_on_this_machine() -> None:
    local = detect_local()
    if isinstance(local, str):
        assert local.endswith(".")
    else:
        assert local.spec.compute_capability >= (3, 5)


def test_the_real_package_has_every_function_used() -> None:
    pynvml = pytest.importorskip("pynvml")
    text = "".join(Path(m.__file__).read_text(encoding="utf-8") for m in (nvml, spec))
    names = set(re.findall(r"\b(?:nvml\.|api\.)(nvml[A-Z]\w+|NVML_\w+)", text))
    assert len(names) > 10
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []
