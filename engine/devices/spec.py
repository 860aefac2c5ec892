"""GPU models: the device table, the limits of an SM, and the GPU of this machine.

Source of the limits: CUDA C++ Programming Guide, "Compute Capabilities", table "Technical
Specifications per Compute Capability", and `cuda_occupancy.h` of CUDA Toolkit 13 for the allocation
units. A test compiles that header and compares every answer of `engine.model.occupancy` with it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from engine.base.errors import InvalidProblem, UnknownName
from engine.base.files import make_cupy_folder
from engine.base.units import format_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

# "sustained": within the power limit under continuous load; "given": set by the user.
ClockKind: TypeAlias = Literal["boost", "sustained", "given"]
_MIN_CLOCK_MHZ, _MAX_BOOST_SHARE = 100, 1.3

# CUDA programming guide, compute capabilities; the minor version where it makes a difference.
_ARCHITECTURES = {
    **{(7, 0): "Volta", (7, 5): "Turing", (8, 0): "Ampere", (8, 9): "Ada", (9, 0): "Hopper"},
    **{(10, 0): "Blackwell", (11, 0): "Blackwell", (12, 0): "Blackwell"},
}


Amount = TypeVar("Amount", float, "NDArray[np.float64]")


@dataclass(frozen=True, slots=True)
class DramRate:
    """Achieved DRAM bandwidth, reading and writing."""

    bytes_per_us: float  # if all bytes are read, or all are written
    mixing: float  # extra time per byte if reads and writes alternate, as a share of a byte's time

    def us(self, moved: Amount, written: Amount) -> Amount:
        """Return the time in µs of moving `moved` bytes, of which `written` are written.

        Switching between reading and writing takes time, so half of each takes longest.
        """
        # The smaller of bytes written and bytes read, at least 0; works for numbers and arrays.
        twice = moved - abs(moved - 2 * written)
        return (moved + self.mixing * (twice + abs(twice)) / 4) / self.bytes_per_us


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One GPU model. Figures without a source are None, and pages say so.

    Limits are per SM unless the name says otherwise. Rates are dense (no sparsity), with FP32
    accumulation, at the boost clock.
    """

    name: str  # "L4"
    aliases: tuple[str, ...]  # other names, including the driver's: "NVIDIA L4"
    compute_capability: tuple[int, int]
    num_sms: int | None
    boost_clock_mhz: int | None
    memory_bytes: int | None  # memory that programs can use, if known; else the installed memory
    memory_gb_per_s: float | None  # 10^9 bytes per second
    l2_bytes: int | None
    fp16_tensor_tflops: float | None
    bf16_tensor_tflops: float | None
    fp32_tflops: float | None
    power_w: int | None
    price_usd_per_hour: float | None  # a list price, which users can change
    source: str  # source of the row's figures
    price_source: str = ""
    memory_gb: int | None = None  # nominal size
    price_basis: str = ""  # the rented offer: "whole instance", "GPU, per second", …
    read_efficiency: float = 0.85  # achieved share of the bandwidth when only reading
    copy_efficiency: float = 0.8  # the same when reading and writing equal amounts
    # Highest observed clock in MHz, if above the boost clock of the data sheet.
    top_clock_mhz: int | None = None
    # True if products with FP32 sums run at half the rate of the others, as on GeForce.
    halves_fp32_sums: bool = False
    clock: ClockKind = "boost"  # clock of the rates; if not boost, see `at_clock`

    def dram(self, gb_per_s: float) -> DramRate:
        """Return the achieved rates of its memory for a data-sheet bandwidth of `gb_per_s`."""
        more = 2 * (self.read_efficiency / self.copy_efficiency - 1)
        return DramRate(1e3 * gb_per_s * self.read_efficiency, more)

    @property
    def memory(self) -> str:
        """Return the memory as text: `24 GB (24.2 GB usable)`, or `80 GB`; usable memory if the
        nominal size is unknown.

        Usable memory is less than the nominal size in GiB if ECC uses a part of it.
        """
        usable = "" if self.memory_bytes is None else f"{self.memory_bytes / 1e9:.3g} GB usable"
        if self.memory_gb is None:
            return usable or "unknown"
        is_nominal = self.memory_bytes in (None, self.memory_gb << 30)
        return f"{self.memory_gb} GB" if is_nominal else f"{self.memory_gb} GB ({usable})"

    def tensor_tflops(self, dtype: str) -> float | None:
        """Return the peak of the tensor cores for a dtype, in TFLOP/s, to which "% of peak" refers.

        For FP32 it is that of TF32: half the rate of BF16, and only on GPUs with BF16 (NVIDIA's
        architecture papers, Ampere to Blackwell).
        """
        if dtype == "float32":
            return None if self.bf16_tensor_tflops is None else self.bf16_tensor_tflops / 2
        return self.bf16_tensor_tflops if dtype == "bfloat16" else self.fp16_tensor_tflops

    @property
    def clock_label(self) -> str:
        """Return `the boost clock, 1,980 MHz`; empty if it is unknown."""
        if self.boost_clock_mhz is None:
            return ""
        mhz = f"{self.boost_clock_mhz:,} MHz"
        names = {"boost": "the boost clock", "sustained": "the clock that its power limit sustains"}
        return f"{names[self.clock]}, {mhz}" if self.clock in names else f"{mhz}, as given"

    @property
    def architecture(self) -> str:
        """Return NVIDIA's name of the generation, such as `Ada`; empty if unknown."""
        major, minor = self.compute_capability
        return _ARCHITECTURES.get((major, minor), _ARCHITECTURES.get((major, 0), ""))

    @property
    def arch(self) -> str:
        """Return the compute capability as `sm_89`."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"


def at_clock(device: DeviceSpec, clock_mhz: float, kind: ClockKind = "given") -> DeviceSpec:
    """Return the GPU at another SM clock, which scales its peaks but not its memory.

    Raises:
        InvalidProblem: the GPU cannot have this clock.
    """
    boost = device.boost_clock_mhz
    if boost is None:
        raise InvalidProblem(f"The table of GPUs gives no clock for {device.name}: choose another.")
    if not _MIN_CLOCK_MHZ <= clock_mhz <= _MAX_BOOST_SHARE * boost:
        raise InvalidProblem(
            f"{device.name} does not run at {clock_mhz:g} MHz: give --clock a number from "
            f"{_MIN_CLOCK_MHZ} to {_MAX_BOOST_SHARE * boost:,.0f}, boost or sustained.",
            code="clock_range",
        )
    clock_mhz = round(clock_mhz)  # the rates of a cycle stay those at boost
    peaks = _peaks(device, clock_mhz / boost)
    return replace(device, **peaks, boost_clock_mhz=clock_mhz, clock=kind)


def with_sms(device: DeviceSpec, num_sms: int | None) -> DeviceSpec:
    """Return the part of a GPU that has this many SMs, with a name of its own: "L4 (29 SMs)". Its
    peaks are in proportion; price and power limit are unknown. The GPU itself if it has as many SMs
    or if the number is unknown."""
    if num_sms in (None, device.num_sms):
        return device
    peaks = _peaks(device, num_sms / (device.num_sms or num_sms))
    unknown: dict[str, Any] = {"power_w": None, "price_usd_per_hour": None}
    unknown |= {"price_source": "", "price_basis": ""}
    name, source = f"{device.name} ({num_sms} SMs)", f"{device.source}; SMs: see its name"
    named: dict[str, Any] = {"name": name, "aliases": (), "source": source}
    return replace(device, **peaks, **unknown, **named, num_sms=num_sms)


def _peaks(device: DeviceSpec, share: float) -> dict[str, Any]:
    names = ("fp16_tensor_tflops", "bf16_tensor_tflops", "fp32_tflops")
    return {name: (peak := getattr(device, name)) and peak * share for name in names}


@dataclass(frozen=True, slots=True)
class SmLimits:
    """Hardware limits of one compute capability (CUDA programming guide, compute capabilities)."""

    compute_capability: tuple[int, int]
    max_threads_per_sm: int
    max_warps_per_sm: int
    max_ctas_per_sm: int
    smem_per_sm_bytes: int
    smem_per_cta_optin_bytes: int
    # The same for all SMs, the first two since Ampere.
    smem_allocation_unit_bytes: int = 128
    reserved_smem_per_cta_bytes: int = 1024
    max_threads_per_cta: int = 1024
    registers_per_sm: int = 64 * 1024
    max_registers_per_cta: int = 64 * 1024
    max_registers_per_thread: int = 255
    register_allocation_unit: int = 256  # registers, per warp
    # Warps, per CTA: the launch check assumes that they are distributed to all four sub-partitions.
    warp_allocation_granularity: int = 4
    num_sub_partitions: int = 4
    smem_per_cta_bytes: int = 48 * 1024  # without opt-in


# Compute capability: warps per SM, CTAs per SM, KiB of shared memory per SM.
_PER_SM = {
    (7, 5): (32, 16, 64),
    (8, 0): (64, 32, 164),
    (8, 6): (48, 16, 100),
    (8, 7): (48, 16, 164),
    (8, 8): (48, 16, 100),
    (8, 9): (48, 24, 100),
    (9, 0): (64, 32, 228),
    (10, 0): (64, 32, 228),
    (10, 3): (64, 32, 228),
    (11, 0): (48, 24, 228),
    (12, 0): (48, 24, 100),
    (12, 1): (48, 24, 100),
}


def _sm_limits(compute_capability: tuple[int, int]) -> SmLimits:
    max_warps, max_ctas, smem_kib = _PER_SM[compute_capability]
    smem_bytes, max_threads = smem_kib * 1024, 32 * max_warps
    limits = SmLimits(
        compute_capability, max_threads, max_warps, max_ctas, smem_bytes, smem_bytes - 1024
    )
    if compute_capability != (7, 5):
        return limits
    limits = replace(limits, smem_per_cta_optin_bytes=smem_bytes, reserved_smem_per_cta_bytes=0)
    return replace(limits, smem_allocation_unit_bytes=256)


SM_LIMITS: dict[tuple[int, int], SmLimits] = {key: _sm_limits(key) for key in _PER_SM}


def limits_for(compute_capability: tuple[int, int]) -> SmLimits:
    """Return the SM limits of one compute capability, such as `(8, 9)`.

    Raises:
        UnknownName: the compute capability is not in the list.
    """
    major, minor = compute_capability
    if (limits := SM_LIMITS.get((major, minor))) is not None:
        return limits
    known = ", ".join(f"{a}.{b}" for a, b in SM_LIMITS)
    raise UnknownName(
        f"Occupancy rules for compute capability {major}.{minor} are not known: known are {known}.",
        code="capability_unknown",
    )


# The GPUs of `gpus.toml`, found by name or alias.


_TABLE = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))
_MEMORY_TYPE = {name: kind for kind in _TABLE["memory_types"].values() for name in kind["gpus"]}


def _efficiencies(name: str) -> tuple[float, float]:
    """Return the achieved shares of a GPU's memory bandwidth: (reading, copying)."""
    measured = _TABLE["memory_efficiency"].get(name, {})
    alike = _MEMORY_TYPE[name]
    read = float(measured.get("read", alike["read"]))
    return read, float(measured.get("copy", round(read * alike["copy"] / alike["read"], 3)))


def _device(line: list[Any]) -> DeviceSpec:
    """Return the GPU of one row of the table."""
    known: list[Any] = [None if cell == "-" else cell for cell in line]
    name, capability, sms, mhz, gib, gb_per_s, l2_mib, fp16, fp32, watts, price, _, rate = known
    major, minor = (int(part) for part in capability.split("."))
    priced = _TABLE["prices"][line[11]]
    read, copy = _efficiencies(name)
    return DeviceSpec(
        name=name,
        aliases=tuple(_TABLE["aliases"].get(name, [f"NVIDIA {name}"])),
        compute_capability=(major, minor),
        num_sms=sms,
        boost_clock_mhz=mhz,
        memory_bytes=_TABLE["usable_mib"].get(name, gib << 10) << 20,
        memory_gb=gib,
        memory_gb_per_s=float(gb_per_s),
        l2_bytes=int(l2_mib * (1 << 20)),
        fp16_tensor_tflops=float(fp16),
        bf16_tensor_tflops=None if (major, minor) == (7, 5) else float(fp16),
        fp32_tflops=float(fp32),
        power_w=watts,
        price_usd_per_hour=price,
        source=_TABLE["sources"][name],
        price_basis=priced["basis"],
        price_source=priced["source"].format(rate),
        read_efficiency=read,
        copy_efficiency=copy,
        top_clock_mhz=_TABLE["top_clock"].get(name, {}).get("mhz"),
        halves_fp32_sums=name in _TABLE["halves_fp32_sums"],
    )


def _mig_slices(whole: DeviceSpec) -> Iterator[DeviceSpec]:
    """Yield the MIG slices of a GPU, under the names that CUDA gives them.

    They have as large a part of L2 and of the memory's bandwidth as of the memory.
    """
    for profile, (num_sms, eighths) in _TABLE["mig_slices"].get(whole.name, {}).items():
        gigabytes = int(profile.partition(".")[2].removesuffix("gb"))
        yield replace(
            with_sms(whole, num_sms),
            name=f"{whole.name} MIG {profile}",
            aliases=tuple(f"{alias} MIG {profile}" for alias in whole.aliases),
            memory_bytes=gigabytes << 30,
            memory_gb=gigabytes,
            memory_gb_per_s=(whole.memory_gb_per_s or 0.0) * eighths / 8,
            l2_bytes=(whole.l2_bytes or 0) * eighths // 8,
            source=f"{whole.source}; NVIDIA Multi-Instance GPU User Guide",
        )


DEVICES: tuple[DeviceSpec, ...] = tuple(_device(line) for line in _TABLE["figures"])
_NAMED = (*DEVICES, *(part for whole in DEVICES for part in _mig_slices(whole)))


def all_devices() -> tuple[DeviceSpec, ...]:
    """Return all GPUs of the table, by generation."""
    return DEVICES


def find_device(name: str) -> DeviceSpec:
    """Return the GPU with this name or alias; case, spaces and the vendor's name are ignored.

    A part of a GPU has its own times, so it has its own name: a MIG slice that of CUDA ("H200 MIG
    1g.18gb"), another part, as under MPS, that of `with_sms`.

    Raises:
        UnknownName: no such GPU; the message offers the nearest names.
    """
    if (device := _BY_KEY.get(_key(name))) is not None:
        return device
    if (part := re.fullmatch(r"(.+) \(([1-9]\d{0,2}) SMs\)", name)) is not None:
        return with_sms(find_device(part[1]), int(part[2]))
    keys = difflib.get_close_matches(_key(name), _BY_KEY, n=6, cutoff=0.5)
    near = list(dict.fromkeys(_BY_KEY[key].name for key in keys))[:3]
    if not near:
        near = [device.name for device in DEVICES]
    raise UnknownName(
        f"There is no GPU named {name!r} in the table: try {', '.join(near)}.", code="gpu_unknown"
    )


def _key(name: str) -> str:
    """Return letters and digits only, in lower case, without the vendor's name: `NVIDIA L4` →
    `l4`."""
    key = re.sub(r"[^a-z0-9]+", "", name.lower())
    for vendor in ("nvidia", "geforce", "tesla"):
        key = key.removeprefix(vendor)
    return key


_BY_KEY = {_key(alias): device for device in _NAMED for alias in (device.name, *device.aliases)}


# Prefix of a software GPU's name, so that its results are not mistaken for measurements.

SOFTWARE = "software "


def is_software(driver_name: str) -> bool:
    """True if the driver's name is that of a GPU of engine/software_gpu: "software L4"."""
    return driver_name.startswith(SOFTWARE)


def modelled_name(driver_name: str) -> str:
    """Return the modelled GPU: "L4" for "software L4"; other names unchanged."""
    return driver_name.removeprefix(SOFTWARE)


# The GPU of this machine, if there is one.
#
# A GPU of the table has the table's figures, except for SMs and L2 if the driver reports them. The
# boost clock is the table's, because the rates refer to it. A GPU that is not in the table has the
# driver's figures (SMs, clock, memory, bandwidth, L2); the others are None.
#
# NVML numbers GPUs by PCI address and CUDA by speed (`CUDA_DEVICE_ORDER`), so the local GPU is
# CUDA's device 0 if CuPy is installed to find it.


def initialised_nvml() -> Any:
    """Return the initialised module `pynvml`, or a sentence (a `str`) why it is not available."""
    try:
        import pynvml
    except ImportError:
        return "No GPU can be found without the package nvidia-ml-py: pip install nvidia-ml-py."
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (
            f"This machine has no NVIDIA GPU that its driver can reach ({error}): choose a target "
            f"GPU by name."
        )
    return pynvml


def query_nvml(nvml: Any, query: Callable[..., T], *args: Any) -> T | None:
    """Return the result of a query; None if the board or driver does not support it."""
    try:
        return query(*args)
    except nvml.NVMLError:
        return None


@dataclass(frozen=True, slots=True)
class DetectedDevice:
    """The local GPU that CUDA would use first."""

    spec: DeviceSpec
    in_table: bool
    driver_name: str
    uuid: str
    driver_version: str
    differences: tuple[str, ...] = ()  # one sentence for each difference from the table


def target_gpu(name: str) -> DeviceSpec:
    """Return the GPU to predict and compile for: this machine's if it has the name, with the
    driver's figures, else the table's. Raises as `find_device`."""
    named, local = find_device(name), detect_local()
    return named if isinstance(local, str) or local.spec.name != named.name else local.spec


@dataclass(slots=True)
class _Driver:
    """What the driver says of CUDA's device 0."""

    name: str  # of a MIG slice: "NVIDIA H200 MIG 1g.18gb", where NVML has the whole GPU's name
    memory_bytes: int | None
    num_sms: int | None = None
    l2_bytes: int | None = None
    clock_mhz: int | None = None
    compute_capability: tuple[int, int] = (0, 0)


def detect_local() -> DetectedDevice | str:
    """Return the first GPU that CUDA can use here, or a sentence why there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = None if visible is None else visible.split(",")[0].strip()
    if first is not None and first in ("", "-1", "NoDevFiles"):
        return "CUDA_VISIBLE_DEVICES hides every GPU of this machine: unset it, or choose a target."
    nvml = initialised_nvml()
    if isinstance(nvml, str):  # common, as on a laptop, so not an exception
        return nvml
    try:
        return _describe(nvml, first)
    finally:
        nvml.nvmlShutdown()


def _describe(api: Any, first: str | None) -> DetectedDevice | str:
    driver, address = _cuda_device() or (None, "")
    try:
        handle = _handle(api, first, address)
    except api.NVMLError as error:
        wanted = "the first GPU" if first is None else f"CUDA_VISIBLE_DEVICES={first}"
        return f"The driver does not find {wanted} ({error}): choose a target GPU by name."
    if driver is None:
        memory = query_nvml(api, api.nvmlDeviceGetMemoryInfo, handle)
        name = str(query_nvml(api, api.nvmlDeviceGetName, handle) or "unknown GPU")
        driver = _Driver(name, None if memory is None else int(memory.total))
    name, capability = driver.name, query_nvml(api, api.nvmlDeviceGetCudaComputeCapability, handle)
    if capability is None:
        return f"The driver does not say which compute capability {name} has: choose a target GPU."
    driver.compute_capability = (int(capability[0]), int(capability[1]))
    if driver.num_sms is None:
        lanes = query_nvml(api, api.nvmlDeviceGetNumGpuCores, handle)
        driver.num_sms = int(lanes) // _lanes_per_sm(driver) if lanes else None
    driver.clock_mhz = query_nvml(api, api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_SM)
    row = row_of_driver(name)
    in_table = row is not None and row.compute_capability == driver.compute_capability
    return DetectedDevice(
        spec=_with_driver_figures(row, driver) if row and in_table else _row(api, handle, driver),
        in_table=in_table,
        driver_name=name,
        uuid=str(query_nvml(api, api.nvmlDeviceGetUUID, handle) or ""),
        driver_version=str(query_nvml(api, api.nvmlSystemGetDriverVersion) or ""),
        differences=_differences(row, driver) if row and in_table else (),
    )


def _with_driver_figures(row: DeviceSpec, driver: _Driver) -> DeviceSpec:
    """Return the row with SMs and L2 from the driver; the row itself if they are equal."""
    spec = with_sms(row, driver.num_sms)
    if " MIG " in driver.name or spec.name != row.name:
        spec = replace(spec, memory_bytes=driver.memory_bytes or row.memory_bytes)
    if driver.l2_bytes in (None, row.l2_bytes):
        return spec
    source = f"{spec.source}; L2 as the driver reports it"
    return replace(spec, l2_bytes=driver.l2_bytes, source=source)


def row_of_driver(name: str) -> DeviceSpec | None:
    """Return the GPU or MIG slice of this driver's name; None if the table lacks it. Of a slice
    that the table lacks, the whole GPU."""
    whole = modelled_name(name)
    keys = map(_key, (whole, whole.partition(" MIG ")[0]))
    return next((_BY_KEY[key] for key in keys if key in _BY_KEY), None)


def _differences(row: DeviceSpec, driver: _Driver) -> tuple[str, ...]:
    """Return a sentence for each difference between the driver's figures and the table's."""
    figures = (
        ("SMs", driver.num_sms, row.num_sms, str),
        ("L2", driver.l2_bytes, row.l2_bytes, format_bytes),
        ("Highest SM clock", driver.clock_mhz, row.boost_clock_mhz, "{:,} MHz".format),
    )
    return tuple(
        f"{name}: {shown(figure)} as the driver reports it, {shown(table)} in Attune's table."
        for name, figure, table, shown in figures
        if figure is not None and table is not None and figure != table
    )


def _handle(api: Any, first: str | None, address: str) -> Any:
    """Return NVML's handle of CUDA's device 0, at this address; the whole GPU's for a MIG slice.

    Without CuPy, CUDA's order is unknown, so CUDA_VISIBLE_DEVICES is applied to NVML's order.
    """
    if address and (handle := query_nvml(api, api.nvmlDeviceGetHandleByPciBusId, address)):
        return handle
    if first is None or first.isdigit():
        return api.nvmlDeviceGetHandleByIndex(int(first or 0))
    # CUDA accepts a prefix of a UUID, NVML only the whole one.
    wanted = first.partition("/")[0].removeprefix("MIG-") if "MIG-GPU-" in first else first
    handles = [gpu for uuid, gpu in _uuids(api) if uuid.startswith(wanted)]
    return handles[0] if handles else api.nvmlDeviceGetHandleByUUID(first)


def _uuids(api: Any) -> Iterator[tuple[str, Any]]:
    """Return the UUIDs of all GPUs and MIG slices, each with the handle of the whole GPU."""
    for index in range(query_nvml(api, api.nvmlDeviceGetCount) or 0):
        gpu = query_nvml(api, api.nvmlDeviceGetHandleByIndex, index)
        if gpu is None:
            continue
        yield str(query_nvml(api, api.nvmlDeviceGetUUID, gpu) or ""), gpu
        for each in range(query_nvml(api, api.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
            mig = query_nvml(api, api.nvmlDeviceGetMigDeviceHandleByIndex, gpu, each)
            if mig is not None:
                yield str(query_nvml(api, api.nvmlDeviceGetUUID, mig) or ""), gpu


def _lanes_per_sm(driver: _Driver) -> int:
    """Return FP32 lanes per SM, because NVML reports lanes ("GPU cores")."""
    return 64 if driver.compute_capability in ((7, 5), (8, 0)) else 128


def _row(api: Any, handle: Any, driver: _Driver) -> DeviceSpec:
    """Return a row for a GPU that is not in the table; peaks are None, because the driver does not
    report them."""
    memory_clock = query_nvml(api, api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_MEM)
    bus_bits = query_nvml(api, api.nvmlDeviceGetMemoryBusWidth, handle)
    limit_mw = query_nvml(api, api.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    bandwidth = fp32 = None
    if memory_clock and bus_bits:
        bandwidth = 2 * memory_clock * 1e6 * bus_bits / 8 / 1e9  # two transfers per clock
    if driver.num_sms and driver.clock_mhz:
        lanes = driver.num_sms * _lanes_per_sm(driver)
        fp32 = round(2 * lanes * driver.clock_mhz * 1e6 / 1e12, 1)
    return DeviceSpec(
        name=driver.name,
        aliases=(),
        compute_capability=driver.compute_capability,
        num_sms=driver.num_sms,
        boost_clock_mhz=driver.clock_mhz,
        memory_bytes=driver.memory_bytes,
        memory_gb_per_s=bandwidth,
        l2_bytes=driver.l2_bytes,
        fp16_tensor_tflops=None,
        bf16_tensor_tflops=None,
        fp32_tflops=fp32,
        power_w=None if limit_mw is None else round(limit_mw / 1000),
        price_usd_per_hour=None,
        source="the driver of this machine; this GPU is not in Attune's table",
    )


def _cuda_device() -> tuple[_Driver, str] | None:
    """Return CUDA's device 0 (in CUDA's order, after CUDA_VISIBLE_DEVICES) and its PCI address as
    NVML writes it, without creating a context; None without CuPy."""
    make_cupy_folder()
    try:
        import cupy

        found = cupy.cuda.runtime.getDeviceProperties(0)
        address = (found["pciDomainID"], found["pciBusID"], found["pciDeviceID"])
        driver = _Driver(found["name"].decode(), int(found["totalGlobalMem"]))
        driver.num_sms = int(found["multiProcessorCount"]) or None
        driver.l2_bytes = int(found["l2CacheSize"]) or None
        return driver, "{:08X}:{:02X}:{:02X}.0".format(*address)
    except Exception:
        # CuPy raises various exceptions if the CUDA installation is incomplete.
        return None
