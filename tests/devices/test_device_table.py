"""The GPU table: every row is physically possible, sourced and findable."""

from __future__ import annotations

import dataclasses

import pytest
from words import raises

from engine.base.errors import AttuneError, UnknownName
from engine.devices import all_devices, find_device, limits_for
from engine.devices.spec import SM_LIMITS, DeviceSpec, _key

# FP16 FMAs per SM and cycle with FP32 accumulation, if not halved (architecture
# whitepapers), and FP32 lanes per SM.
TENSOR_FMAS = {
    (7, 5): 512,
    (8, 0): 1024,
    (8, 6): 512,
    (8, 9): 512,
    (9, 0): 2048,
    (10, 0): 4096,
    (12, 0): 512,
}
FP32_LANES = {(7, 5): 64, (8, 0): 64}
# Cards that NVIDIA runs at half rate with FP32 accumulation.
HALF_RATE = {"RTX 2080 Ti", "RTX 3080", "RTX 3090", "RTX 4080", "RTX 4090", "RTX 5080", "RTX 5090"}
HALF_RATE |= {"A10G", "L40"}
# Tensor peaks quoted below the boost clock: whitepaper clocks, and B200's from its peak.
TENSOR_CLOCK_MHZ = {"H100 SXM": 1830, "H200": 1830, "H100 PCIe": 1620, "B200": 1856}
TENSOR_CLOCK_MHZ |= {"H100 NVL": 1545, "H200 NVL": 1545, "GH200": 1830}

DEVICES = all_devices()


def ids(device: DeviceSpec) -> str:
    return device.name


@pytest.mark.parametrize("device", DEVICES, ids=ids)
def test_tensor_peak_follows_from_sms_clock_and_rate(device: DeviceSpec) -> None:
    assert device.num_sms is not None
    clock = TENSOR_CLOCK_MHZ.get(device.name, device.boost_clock_mhz)
    fmas = TENSOR_FMAS[device.compute_capability] / (2 if device.name in HALF_RATE else 1)
    expected = 2 * fmas * device.num_sms * clock * 1e6 / 1e12
    assert device.fp16_tensor_tflops == pytest.approx(expected, rel=0.02)
    if device.compute_capability == (7, 5):
        assert device.bf16_tensor_tflops is None
    else:
        assert device.bf16_tensor_tflops == device.fp16_tensor_tflops


@pytest.mark.parametrize("device", DEVICES, ids=ids)
def test_fp32_peak_follows_from_sms_and_clock(device: DeviceSpec) -> None:
    lanes = FP32_LANES.get(device.compute_capability, 128)
    expected = 2 * lanes * device.num_sms * device.boost_clock_mhz * 1e6 / 1e12
    assert device.fp32_tflops == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("device", DEVICES, ids=ids)
def test_figures_are_plausible(device: DeviceSpec) -> None:
    assert 200 < device.memory_gb_per_s < 10_000
    assert 8 * 2**30 <= device.memory_bytes <= 200 * 2**30
    assert 3 * 2**20 < device.l2_bytes < 256 * 2**20
    if device.name == "GH200":
        assert device.power_w is None  # the data sheet includes the CPU
    else:
        assert 50 < device.power_w < 1500
    # A GPU reads its whole memory in 5 ms (bandwidth-rich) to 100 ms (capacity-rich).
    assert 0.005 < device.memory_bytes / (device.memory_gb_per_s * 1e9) < 0.1
    # Machine balance: FLOPs per byte at the FP16 peak.
    assert 50 < device.fp16_tensor_tflops * 1e3 / device.memory_gb_per_s < 500


@pytest.mark.parametrize("device", DEVICES, ids=ids)
def test_copying_is_slower_than_reading(device: DeviceSpec) -> None:
    assert 0.7 < device.copy_efficiency < device.read_efficiency < 1


@pytest.mark.parametrize(
    ("gpu", "gb_per_s"),
    [
        ("A100 40GB SXM", 1360),
        ("A100 80GB SXM", 1759),
        ("A40", 653),
        ("H100 PCIe", 1832),
        ("L40", 768),
    ],
)
def test_a_triad_takes_its_published_time(gpu: str, gb_per_s: float) -> None:
    """gpu-benches' triad, which was not fitted; the table uses its read and scale."""
    device = find_device(gpu)
    dram = device.dram(device.memory_gb_per_s or 0.0)
    assert 1e3 * gb_per_s == pytest.approx(3e6 / dram.us(3e6, 1e6), rel=0.045)
    assert dram.us(3e6, 0.0) == dram.us(3e6, 3e6) < dram.us(3e6, 1e6) < dram.us(3e6, 1.5e6)


@pytest.mark.parametrize("device", DEVICES, ids=ids)
def test_every_row_is_sourced(device: DeviceSpec) -> None:
    assert "NVIDIA" in device.source
    assert (device.price_usd_per_hour is None) == (device.price_source == "")
    if device.price_usd_per_hour is not None:
        assert 0.05 < device.price_usd_per_hour < 20


@pytest.mark.parametrize("device", DEVICES, ids=ids)
def test_every_name_finds_its_row(device: DeviceSpec) -> None:
    for name in (device.name, *device.aliases):
        assert find_device(name) is device
        assert find_device(f"  {name.upper()} ") is device
        assert find_device(name.replace(" ", "-").lower()) is device


def test_names_are_unambiguous() -> None:
    keys = [key for d in DEVICES for key in {_key(n) for n in (d.name, *d.aliases)}]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("driver_name", "row"),
    [
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB PCIe"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
    ],
)
def test_driver_names(driver_name: str, row: str) -> None:
    assert find_device(driver_name).name == row


def test_the_study_case_is_in_the_table() -> None:
    l4 = find_device("L4")
    assert (l4.num_sms, l4.arch, l4.price_usd_per_hour) == (58, "sm_89", 0.60)
    assert l4.num_sms * limits_for(l4.compute_capability).max_threads_per_sm == 58 * 1536


@pytest.mark.parametrize(
    ("wrong", "offered"),
    [
        ("RTX 4099", "RTX 4090"),
        ("H10O", "H100 SXM"),
        ("L4O", "L40"),
        ("a100-80", "A100 80GB"),
        ("L4 (0 SMs)", "L4"),
        (f"L4 ({10**20} SMs)", "L4"),
    ],
)
def test_unknown_name_offers_the_nearest(wrong: str, offered: str) -> None:
    with raises(UnknownName, "gpu_unknown", offered) as caught:
        find_device(wrong)
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize("name", ["", "   ", "Radeon", "ф" * 300, "nvidia"])
def test_names_without_match_list_all_gpus(name: str) -> None:
    with raises(UnknownName, "gpu_unknown", "L4"):
        find_device(name)


def test_rows_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEVICES[0].num_sms = 1  # type: ignore[misc]


# Warps, CTAs, shared memory per SM and most per CTA in KiB: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability". Repeated here to find typing errors.
@pytest.mark.parametrize(
    ("capability", "warps", "ctas", "smem_kib", "optin_kib"),
    [
        ((7, 5), 32, 16, 64, 64),
        ((8, 0), 64, 32, 164, 163),
        ((8, 6), 48, 16, 100, 99),
        ((8, 7), 48, 16, 164, 163),
        ((8, 8), 48, 16, 100, 99),
        ((8, 9), 48, 24, 100, 99),
        ((9, 0), 64, 32, 228, 227),
        ((10, 0), 64, 32, 228, 227),
        ((10, 3), 64, 32, 228, 227),
        ((11, 0), 48, 24, 228, 227),
        ((12, 0), 48, 24, 100, 99),
        ((12, 1), 48, 24, 100, 99),
    ],
)
def test_sm_limits(
    capability: tuple[int, int], warps: int, ctas: int, smem_kib: int, optin_kib: int
) -> None:
    limits = limits_for(capability)
    assert limits.max_warps_per_sm == warps
    assert limits.max_threads_per_sm == 32 * warps
    assert limits.max_ctas_per_sm == ctas
    assert limits.smem_per_sm_bytes == 1024 * smem_kib
    assert limits.smem_per_cta_optin_bytes == 1024 * optin_kib
    assert limits.registers_per_sm == limits.max_registers_per_cta == 65536
    assert limits.max_registers_per_thread == 255


def test_every_row_has_limits() -> None:
    assert {d.compute_capability for d in DEVICES} <= set(SM_LIMITS)


@pytest.mark.parametrize("capability", [(7, 0), (6, 1), (13, 0), (0, 0)])
def test_unknown_compute_capability(capability: tuple[int, int]) -> None:
    with raises(AttuneError, "capability_unknown", "7.5"):
        limits_for(capability)
