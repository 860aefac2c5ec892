"""Is there a GPU that CuPy can use, and is it the one that was asked for?"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from engine.base.errors import UnknownName
from engine.base.files import make_cupy_folder
from engine.cuda_source.toolkit import INSTALL_HINT
from engine.devices import find_device
from engine.devices.spec import DeviceSpec, is_software, modelled_name

# cudaError_t, from driver_types.h
_INSUFFICIENT_DRIVER = 35
_NO_DEVICE = 100
_OLDEST_CUDA = 12  # that CuPy and an extra of pyproject.toml are for
_MIG = " MIG "  # "NVIDIA H200 MIG 1g.18gb", as CUDA calls a slice; NVML names the whole GPU


def why_not_cuda(device: DeviceSpec | None = None) -> str | None:
    """Why kernels cannot run on this machine's GPU: one sentence, or None when they can.

    Args:
        device: the target GPU; a local GPU of another model does not serve for it.
    """
    why, local = _local_gpu()
    if why is not None or device is None or is_same_model(local, device):
        return why
    return (
        f"This machine's GPU is {local} and the target is {device.name}: choose the local GPU as "
        "the target, or the CPU backend."
    )


def is_software_gpu() -> bool:
    """Whether CUDA's GPU here is one in software, whose times say nothing."""
    return is_software(_local_gpu()[1])


def is_same_model(driver_name: str, device: DeviceSpec) -> bool:
    """Whether the driver's name for a GPU, a MIG slice of it or one in software means this row of
    the device table."""
    whole = modelled_name(driver_name).partition(_MIG)[0]
    try:
        return find_device(whole).name == device.name
    except UnknownName:
        return device.name in (whole, driver_name) or whole in device.aliases


def explain_missing(error_code: int, message: str, driver: int, runtime: int) -> str:
    """The sentence for a CUDA runtime that does not start.

    Args:
        error_code: cudaError_t of the first call.
        message: the runtime's own words.
        driver: CUDA version the driver supports (1000·major + 10·minor), 0 when there is none.
        runtime: CUDA version CuPy was built for, likewise.
    """
    if error_code == _INSUFFICIENT_DRIVER and driver == 0:
        return "No NVIDIA driver is installed on this machine, so there is no GPU to run on."
    if error_code == _INSUFFICIENT_DRIVER:
        major = driver // 1000
        other = f", or pip install -e '.[cuda{major}]'" if major >= _OLDEST_CUDA else ""
        return (
            f"The NVIDIA driver supports CUDA {_version(driver)} and CuPy needs "
            f"{_version(runtime)}: update the driver{other}."
        )
    if error_code == _NO_DEVICE:
        return (
            "The NVIDIA driver finds no GPU: check nvidia-smi and the variable "
            "CUDA_VISIBLE_DEVICES."
        )
    return f"CUDA does not start on this machine: {message}."


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.cache
def _local_gpu() -> tuple[str | None, str]:
    """(why there is none, its name). Starts the driver but makes no context."""
    make_cupy_folder()
    try:
        import cupy
    except ImportError as error:
        return f"CuPy does not import ({error}): {INSTALL_HINT}", ""
    runtime: Any = cupy.cuda.runtime
    try:
        if runtime.getDeviceCount() == 0:
            return explain_missing(_NO_DEVICE, "", 0, 0), ""
        return None, runtime.getDeviceProperties(0)["name"].decode()
    except runtime.CUDARuntimeError as error:
        driver, built_for = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        return explain_missing(error.status, str(error), driver, built_for), ""


# How a process ends that can no longer give its CUDA objects back.
#
# While a kernel runs that never ends, unloading a module, freeing memory and destroying the
# context all wait for it, and so would the interpreter's own shutdown. After a sticky error they
# raise from destructors. Such a process keeps its objects and leaves without running destructors;
# the driver then stops the kernel and takes everything back.


# A call that only waits for work that was already seen to end returns in far less.
STUCK_AFTER_S = 120.0

_kept: list[object] = []  # what must not be destroyed before the process ends


def keep_until_exit(objects: object, end: Callable[[], object] | None = None) -> None:
    """Hold on to CUDA objects for the rest of the process, and leave it without destructors.

    Args:
        end: called at the interpreter's exit; `end_process` where not given.
    """
    if not _kept:
        atexit.register(end or end_process)
    _kept.append(objects)


def end_process(code: int = 1) -> NoReturn:
    """Leave now, without destructors and other exit handlers. Standard streams are flushed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_stuck_process(what: str) -> NoReturn:
    """Say which CUDA call does not come back, and leave."""
    with contextlib.suppress(OSError, ValueError):
        print(
            f"error: The CUDA call {what} has not come back for {STUCK_AFTER_S:g} s, so a kernel "
            "probably runs for ever: this process ends, and the driver stops the kernel with it.",
            file=sys.stderr,
        )
    end_process()


@contextmanager
def watchdog(
    what: str,
    limit_s: float = STUCK_AFTER_S,
    on_stuck: Callable[[str], object] = end_stuck_process,
) -> Iterator[None]:
    """End the process when the body, one CUDA call that may block, takes longer than `limit_s`.

    Costs about 0.1 ms, so it does not stand around what is timed.
    """
    timer = threading.Timer(limit_s, on_stuck, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
