"""The table of GPUs, the only list, and finding a GPU in it by any of its names.

Conventions: tensor peaks are dense (no sparsity) with FP32 accumulation, which on GeForce cards is
half the advertised figure; the clock is the boost clock; memory is what the vendor calls GB,
counted in GiB as drivers do; prices are list prices of one GPU-hour at the time named, meant to be
edited where they are used, and what is rented for them differs (`price_basis`). `-` stands for a
figure that no source gives.
"""

from __future__ import annotations

import difflib
import re

from engine.devices.spec import DeviceSpec
from engine.errors import UnknownName

# Columns: GPU, compute capability, SMs, boost clock in MHz, memory in GiB, memory bandwidth in GB/s
# (10⁹ bytes), L2 in MiB, FP16 tensor peak and FP32 peak in TFLOP/s, power in W, dollars per hour,
# and where that price comes from (`_PRICE_SOURCES`). Lines in order of generation.
#
# The BF16 tensor peak is the FP16 one, except on Turing, whose tensor cores have no BF16.
# FP16 peaks that data sheets quote differently: with sparsity they are doubled (L4 242, L40S 733,
# A10 250, A10G 140), and with FP16 accumulation too (RTX 3090 142, RTX 4090 330.3, RTX 5090 419).
# A10G and L40 have half the rate per SM of A10 and L40S. Hopper's tensor peaks are given at a lower
# clock (1,830 MHz SXM, 1,620 MHz PCIe, 1,545 MHz NVL) than the boost clock that its FP32 peak uses.
_FIGURES = """
T4                      7.5   40  1590   16   320     4      65     8.1    70  0.526  aws g4dn
RTX 2080 Ti             7.5   68  1545   11   616     5.5    53.8  13.4   250  -      -
A100 40GB PCIe          8.0  108  1410   40  1555    40     312    19.5   250  -      -
A100 40GB SXM           8.0  108  1410   40  1555    40     312    19.5   400  1.48   lambda
A100 80GB PCIe          8.0  108  1410   80  1935    40     312    19.5   300  -      -
A100 80GB SXM           8.0  108  1410   80  2039    40     312    19.5   400  2.74   runpod 0.00076
A30                     8.0   56  1440   24   933    24     165    10.3   165  -      -
A10                     8.6   72  1695   24   600     6     125    31.2   150  0.86   lambda
A10G                    8.6   80  1710   24   600     6      70    35.0   300  1.006  aws g5
A40                     8.6   84  1740   48   696     6     149.7  37.4   300  1.22   runpod 0.00034
RTX A6000               8.6   84  1800   48   768     6     154.8  38.7   300  1.22   runpod 0.00034
RTX 3080                8.6   68  1710   10   760     5      59.5  29.8   320  -      -
RTX 3090                8.6   82  1695   24   936     6      71    35.6   350  0.68   runpod 0.00019
L4                      8.9   58  2040   24   300    48     121    30.3    72  0.60   study
L40                     8.9  142  2490   48   864    96     181    90.5   300  1.91   runpod 0.00053
L40S                    8.9  142  2520   48   864    96     362    91.6   350  1.91   runpod 0.00053
RTX 6000 Ada            8.9  142  2505   48   960    96     364.2  91.1   300  1.91   runpod 0.00053
RTX 4080                8.9   76  2505   16   716.8  64      97.5  48.7   320  -      -
RTX 4090                8.9  128  2520   24  1008    72     165.2  82.6   450  1.12   runpod 0.00031
H100 PCIe               9.0  114  1755   80  2000    50     756    51.2   350  2.86   lambda
H100 SXM                9.0  132  1980   80  3350    50     989.4  66.9   700  3.78   lambda
H100 NVL                9.0  132  1785   94  3938    50     835.5  60.3   400  -      -
GH200                   9.0  132  1980   96  4000    50     989.4  66.9     -  -      -
H200                    9.0  132  1980  141  4800    50     989.4  66.9   700  5.58   runpod 0.00155
H200 NVL                9.0  132  1785  141  4800    50     835.5  60.3   600  -      -
B200                   10.0  148  1965  180  7700   126    2250    75.0  1000  8.64   runpod 0.00240
RTX 5080               12.0   84  2617   16   960    64     112.6  56.3   360  -      -
RTX 5090               12.0  170  2407   32  1792    96     209.5  104.8  575  -      -
RTX PRO 6000 Blackwell  12.0  188  2617   96  1792   128     503.8  126.0  600  -      -
"""

_PRICE_SOURCES = {
    "-": "",
    "study": "the price of the L4 study that this project starts from",
    "lambda": "Lambda on-demand list price, May 2026",
    "aws g4dn": "AWS g4dn.xlarge on demand, us-east-1",
    "aws g5": "AWS g5.xlarge on demand, us-east-1, June 2026",
}
# What is rented for the price: prices of different bases do not compare.
_PRICE_BASES = {
    "-": "",
    "study": "GPU, as the study counts it",
    "lambda": "instance's share of one GPU, by the minute",
    "aws": "whole instance with CPU and memory, on demand",
    "runpod": "serverless GPU, by the second of use",
}
_RUNPOD = "RunPod serverless list price, ${} per second, 2026"

_TURING = "NVIDIA Turing GPU Architecture whitepaper"
_A100 = "NVIDIA A100 datasheet"
_A100_CHIP = "NVIDIA A100 Tensor Core GPU Architecture whitepaper"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper"
_ADA = "NVIDIA Ada GPU Architecture whitepaper"
_H100_CHIP = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture whitepaper (FP32 accumulate)"
_SOURCES = {
    "T4": f"NVIDIA T4 datasheet; {_TURING}",
    "RTX 2080 Ti": f"{_TURING}, table 1 (reference card)",
    "A100 40GB PCIe": f"{_A100}; {_A100_CHIP}",
    "A100 40GB SXM": f"{_A100}; {_A100_CHIP}",
    "A100 80GB PCIe": _A100,
    "A100 80GB SXM": _A100,
    "A30": "NVIDIA A30 datasheet",
    "A10": "NVIDIA A10 datasheet",
    "A10G": "NVIDIA A10G datasheet (AWS G5)",
    "A40": "NVIDIA A40 datasheet",
    "RTX A6000": f"{_GA102}, RTX A6000 table",
    "RTX 3080": f"{_GA102} (10 GB card, FP32 accumulate)",
    "RTX 3090": f"{_GA102} (FP32 accumulate)",
    "L4": f"NVIDIA L4 datasheet; {_ADA}; SMs from the driver",
    "L40": "NVIDIA L40 datasheet",
    "L40S": "NVIDIA L40S datasheet",
    "RTX 6000 Ada": f"NVIDIA RTX 6000 Ada Generation datasheet; {_ADA}",
    "RTX 4080": f"{_ADA} (FP32 accumulate)",
    "RTX 4090": f"{_ADA} (FP32 accumulate)",
    "H100 PCIe": f"NVIDIA H100 datasheet; {_H100_CHIP}",
    "H100 SXM": f"NVIDIA H100 datasheet; {_H100_CHIP}",
    "H200": "NVIDIA H200 datasheet; L2 as the same GH100 chip in the H100 whitepaper",
    "H100 NVL": f"NVIDIA H100 NVL data sheet; SMs, L2 and clock as the same chip: {_H100_CHIP}",
    "H200 NVL": f"NVIDIA H200 NVL data sheet; SMs, L2 and clock as the H100 NVL: {_H100_CHIP}",
    "GH200": (
        "NVIDIA GH200 Grace Hopper Superchip data sheet (96 GB of HBM3; its power is given with "
        f"the CPU's); SMs, L2 and clock as the same chip: {_H100_CHIP}"
    ),
    "B200": "NVIDIA HGX B200 datasheet (per GPU, dense); SMs, clock and L2 from the driver",
    "RTX 5080": _BLACKWELL,
    "RTX 5090": _BLACKWELL,
    "RTX PRO 6000 Blackwell": (
        "NVIDIA RTX Blackwell PRO GPU Architecture whitepaper (Workstation Edition)"
    ),
}

# Memory that the driver reports, where ECC takes some of what is built in.
_USABLE_MIB = {"L4": 23_034}

# How drivers and people name it.
_ALIASES = {
    "T4": ("Tesla T4", "NVIDIA T4"),
    "RTX 2080 Ti": ("NVIDIA GeForce RTX 2080 Ti", "2080 Ti"),
    "A100 40GB PCIe": ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB", "A100-PCIE-40GB"),
    "A100 40GB SXM": (
        *("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "A100 SXM 40GB", "A100 SXM4 40GB"),
        "A100 40GB",
    ),
    "A100 80GB PCIe": ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
    "A100 80GB SXM": (
        *("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", "A100 SXM 80GB", "A100 SXM4 80GB"),
        *("A100 80GB", "A100"),
    ),
    "RTX A6000": ("NVIDIA RTX A6000", "A6000"),
    "RTX 3080": ("NVIDIA GeForce RTX 3080", "3080"),
    "RTX 3090": ("NVIDIA GeForce RTX 3090", "3090"),
    "RTX 6000 Ada": ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
    "RTX 4080": ("NVIDIA GeForce RTX 4080", "4080"),
    "RTX 4090": ("NVIDIA GeForce RTX 4090", "4090"),
    "H100 PCIe": ("NVIDIA H100 PCIe", "H100 80GB PCIe"),
    "H100 SXM": (
        *("NVIDIA H100 80GB HBM3", "H100 80GB HBM3", "H100 SXM5", "H100 80GB SXM", "H100"),
    ),
    "H200": ("NVIDIA H200", "H200 SXM", "H200 141GB"),
    "GH200": ("NVIDIA GH200 480GB", "NVIDIA GH200", "GH200 96GB"),
    "B200": ("NVIDIA B200", "B200 SXM"),
    "RTX 5080": ("NVIDIA GeForce RTX 5080", "5080"),
    "RTX 5090": ("NVIDIA GeForce RTX 5090", "5090"),
    "RTX PRO 6000 Blackwell": (
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "RTX PRO 6000 Blackwell Workstation Edition",
        "RTX PRO 6000",
    ),
}


def _device(line: str) -> DeviceSpec:
    """One line of the table; columns are two or more spaces apart."""
    name, capability, sms, mhz, gib, gb_per_s, l2_mib, fp16, fp32, watts, price, price_from = (
        re.split(r"\s{2,}", line.strip())
    )
    major, minor = (int(part) for part in capability.split("."))
    seller, _, rate = price_from.partition(" ")
    return DeviceSpec(
        name=name,
        aliases=_ALIASES.get(name, (f"NVIDIA {name}",)),
        compute_capability=(major, minor),
        num_sms=int(sms),
        boost_clock_mhz=int(mhz),
        memory_bytes=_USABLE_MIB.get(name, int(gib) << 10) << 20,
        memory_gb=int(gib),
        memory_gb_per_s=float(gb_per_s),
        l2_bytes=int(float(l2_mib) * (1 << 20)),
        fp16_tensor_tflops=float(fp16),
        bf16_tensor_tflops=None if (major, minor) == (7, 5) else float(fp16),
        fp32_tflops=float(fp32),
        power_w=None if watts == "-" else int(watts),
        price_usd_per_hour=None if price == "-" else float(price),
        source=_SOURCES[name],
        price_basis=_PRICE_BASES[seller],
        price_source=_RUNPOD.format(rate) if seller == "runpod" else _PRICE_SOURCES[price_from],
    )


DEVICES: tuple[DeviceSpec, ...] = tuple(_device(line) for line in _FIGURES.strip().splitlines())


def all_devices() -> tuple[DeviceSpec, ...]:
    """Every GPU of the table, in order of generation."""
    return DEVICES


def find_device(name: str) -> DeviceSpec:
    """The GPU with this name or alias; case, spaces and the vendor's name do not matter.

    Raises:
        UnknownName: no such GPU; the text offers the nearest names.
    """
    if (device := _BY_KEY.get(_key(name))) is not None:
        return device
    keys = difflib.get_close_matches(_key(name), _BY_KEY, n=6, cutoff=0.5)
    near = list(dict.fromkeys(_BY_KEY[key].name for key in keys))[:3]
    if not near:
        near = [device.name for device in DEVICES]
    raise UnknownName(f"There is no GPU named {name!r} in the table: try {', '.join(near)}.")


def _key(name: str) -> str:
    """Letters and digits only, lower case, without the vendor's name: `NVIDIA L4` → `l4`."""
    key = re.sub(r"[^a-z0-9]+", "", name.lower())
    for vendor in ("nvidia", "geforce", "tesla"):
        key = key.removeprefix(vendor)
    return key


_BY_KEY = {_key(alias): device for device in DEVICES for alias in (device.name, *device.aliases)}
