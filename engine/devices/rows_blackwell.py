"""Blackwell rows of the device table. See `table.py` for the conventions."""

from __future__ import annotations

from engine.devices.spec import DeviceSpec
from engine.devices.units import GIB, MIB

ROWS: tuple[DeviceSpec, ...] = (
    DeviceSpec(
        name="B200",
        aliases=("NVIDIA B200", "B200 SXM"),
        compute_capability=(10, 0),
        num_sms=148,
        boost_clock_mhz=1965,
        memory_bytes=180 * GIB,
        memory_gb_per_s=7700.0,
        l2_bytes=126 * MIB,
        fp16_tensor_tflops=2250.0,
        bf16_tensor_tflops=2250.0,
        fp32_tflops=75.0,
        power_w=1000,
        price_usd_per_hour=8.64,
        source="NVIDIA HGX B200 datasheet (per GPU, dense); SMs, clock and L2 from the driver",
        price_source="RunPod serverless list price, $0.00240 per second, 2026",
    ),
    DeviceSpec(
        name="RTX 5080",
        aliases=("NVIDIA GeForce RTX 5080", "5080"),
        compute_capability=(12, 0),
        num_sms=84,
        boost_clock_mhz=2617,
        memory_bytes=16 * GIB,
        memory_gb_per_s=960.0,
        l2_bytes=64 * MIB,
        fp16_tensor_tflops=112.6,
        bf16_tensor_tflops=112.6,
        fp32_tflops=56.3,
        power_w=360,
        price_usd_per_hour=None,
        source="NVIDIA RTX Blackwell GPU Architecture whitepaper (FP32 accumulate)",
    ),
    DeviceSpec(
        name="RTX 5090",
        aliases=("NVIDIA GeForce RTX 5090", "5090"),
        compute_capability=(12, 0),
        num_sms=170,
        boost_clock_mhz=2407,
        memory_bytes=32 * GIB,
        memory_gb_per_s=1792.0,
        l2_bytes=96 * MIB,
        fp16_tensor_tflops=209.5,  # 419 is with FP16 accumulation, 838 with sparsity as well
        bf16_tensor_tflops=209.5,
        fp32_tflops=104.8,
        power_w=575,
        price_usd_per_hour=None,
        source="NVIDIA RTX Blackwell GPU Architecture whitepaper (FP32 accumulate)",
    ),
    DeviceSpec(
        name="RTX PRO 6000 Blackwell",
        aliases=(
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000",
        ),
        compute_capability=(12, 0),
        num_sms=188,
        boost_clock_mhz=2617,
        memory_bytes=96 * GIB,
        memory_gb_per_s=1792.0,
        l2_bytes=128 * MIB,
        fp16_tensor_tflops=503.8,
        bf16_tensor_tflops=503.8,
        fp32_tflops=126.0,
        power_w=600,
        price_usd_per_hour=None,
        source="NVIDIA RTX Blackwell PRO GPU Architecture whitepaper (Workstation Edition)",
    ),
)
