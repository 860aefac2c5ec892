"""The environment of a process that finds the software GPU where NVIDIA's driver would be."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from engine.base.errors import InvalidProblem
from engine.cuda_on_host.build import build_library
from engine.cuda_on_host.client import worker_threads
from engine.devices import find_device, limits_for
from engine.devices.software import SOFTWARE
from engine.devices.spec import DeviceSpec
from engine.software_gpu.build import driver_folder, runtime_module

CHOICE = "ATTUNE_SOFTWARE_GPU"  # names of the device table, with commas
_DEFAULT = "L4"
_MOST_DEVICES = 16
_ROOT = Path(__file__).resolve().parents[2]
_EXECUTE = _ROOT / "engine" / "machine_code" / "native" / "execute.cpp"


def software_environment(
    given: Mapping[str, str], gpus: str = "", *, with_cupy: bool = True
) -> dict[str, str]:
    """`given` with what makes CUDA's users load the software GPU; builds what is not there.

    Args:
        gpus: names of the device table, with commas; else `ATTUNE_SOFTWARE_GPU`, else an L4.
        with_cupy: False: without CuPy's runtime module, whose source is fetched by pip.

    Raises:
        InvalidProblem, UnknownName: a name is not in the table, or there are too many.
        ToolMissing: a compiler, CUDA's headers, CuPy or its source cannot be had.
        CompileError: something of it does not compile.
    """
    table = device_table(gpus or given.get(CHOICE, "") or _DEFAULT)
    driver = driver_folder()
    environment = dict(given)
    environment["ATTUNE_SOFTWARE_GPU_TABLE"] = table
    environment["ATTUNE_SOFTWARE_GPU_EMULATOR"] = str(build_library(_EXECUTE))
    environment["ATTUNE_SOFTWARE_GPU_THREADS"] = str(worker_threads())
    reader = [sys.executable, "-m", "engine.software_gpu.reader"]
    environment["ATTUNE_SOFTWARE_GPU_READER"] = f"cd {shlex.quote(str(_ROOT))} && exec " + (
        shlex.join(reader)
    )
    environment["LD_LIBRARY_PATH"] = _before(str(driver), given.get("LD_LIBRARY_PATH"))
    if with_cupy:
        environment["ATTUNE_SOFTWARE_GPU_RUNTIME"] = str(runtime_module(driver))
        site = str(Path(__file__).with_name("site"))
        environment["PYTHONPATH"] = _before(site, given.get("PYTHONPATH"))
        # CuPy's module for CUB has NVIDIA's runtime in it, which does not start here.
        environment["CUPY_ACCELERATORS"] = ""
    return environment


def _before(first: str, rest: str | None) -> str:
    return first + (os.pathsep + rest if rest else "")


def device_table(names: str) -> str:
    """A line for each device, as native/table.h reads it.

    Raises:
        UnknownName: a name is not in the table of GPUs.
        InvalidProblem: none is given, or too many.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not 1 <= len(wanted) <= _MOST_DEVICES:
        raise InvalidProblem(
            f"{CHOICE} names {len(wanted)} GPUs: give 1 to {_MOST_DEVICES} of the device table, "
            "with commas."
        )
    return "\n".join(_line(find_device(name)) for name in wanted)


def _line(device: DeviceSpec) -> str:
    limits = limits_for(device.compute_capability)
    figures = (
        *device.compute_capability,
        device.num_sms or 1,
        (device.boost_clock_mhz or 1000) * 1000,
        device.memory_bytes or 8 << 30,
        round((device.memory_gb_per_s or 100.0) * 1000),
        device.l2_bytes or 4 << 20,
        device.power_w or 100,
        limits.max_warps_per_sm,
        limits.max_ctas_per_sm,
        limits.max_threads_per_cta,
        limits.registers_per_sm,
        limits.max_registers_per_cta,
        limits.register_allocation_unit,
        limits.warp_allocation_granularity,
        limits.num_sub_partitions,
        limits.smem_per_sm_bytes,
        limits.smem_per_cta_bytes,
        limits.smem_per_cta_optin_bytes,
        limits.smem_allocation_unit_bytes,
        limits.reserved_smem_per_cta_bytes,
    )
    return ";".join((SOFTWARE + device.name, *map(str, figures)))
