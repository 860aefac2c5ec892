"""Find out whether CuPy can use a GPU, and whether it is the target GPU."""

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

from engine.base.files import make_cupy_folder
from engine.cuda_source.toolkit import INSTALL_HINT
from engine.devices.spec import DeviceSpec, is_software, modelled_name, row_of_driver, with_sms

# cudaError_t, from driver_types.h
_INSUFFICIENT_DRIVER = 35
_NO_DEVICE = 100
_OLDEST_CUDA = 12  # the oldest with a CuPy wheel and an extra in pyproject.toml


def why_not_cuda(device: DeviceSpec | None = None) -> str | None:
    """Return why kernels cannot run on this machine's GPU as a sentence; None if they can.

    Args:
        device: the target GPU; a local GPU of another model, or a part of one, such as a MIG slice,
            cannot be used instead.
    """
    why, driver_name, num_sms = _local_gpu()
    if why is not None or device is None:
        return why
    row = row_of_driver(driver_name)
    local = with_sms(row, num_sms).name if row is not None else modelled_name(driver_name)
    if local == device.name:
        return None
    return (
        f"This machine's GPU is {local} and the target is {device.name}: choose the local GPU as "
        "the target, or the CPU backend."
    )


def is_software_gpu() -> bool:
    """Return True if CUDA's GPU is emulated in software, so that its times mean nothing."""
    return is_software(_local_gpu()[1])


def explain_missing(error_code: int, message: str, driver: int, runtime: int) -> str:
    """Return a sentence that explains why the CUDA runtime does not start.

    Args:
        error_code: the first call's cudaError_t.
        message: the runtime's message.
        driver: CUDA version that the driver supports (1000·major + 10·minor); 0: no driver.
        runtime: CUDA version that CuPy was built for, in the same form.
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
def _local_gpu() -> tuple[str | None, str, int | None]:
    """Return (why there is no GPU, its name, its SMs). Starts the driver without creating a
    context."""
    make_cupy_folder()
    try:
        import cupy
    except ImportError as error:
        return f"CuPy does not import ({error}): {INSTALL_HINT}", "", None
    runtime: Any = cupy.cuda.runtime
    try:
        if runtime.getDeviceCount() == 0:
            return explain_missing(_NO_DEVICE, "", 0, 0), "", None
        found = runtime.getDeviceProperties(0)
        return None, found["name"].decode(), int(found["multiProcessorCount"]) or None
    except runtime.CUDARuntimeError as error:
        driver, built_for = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        return explain_missing(error.status, str(error), driver, built_for), "", None


# How a process exits if it can no longer free its CUDA objects.
#
# While an endless kernel runs, unloading a module, freeing memory, destroying the context, and so
# the interpreter's shutdown, all wait for it. After a sticky error these raise in destructors. Such
# a process keeps its objects and exits without running destructors; the driver then stops the
# kernel and frees everything.


# Much longer than any call takes that waits for finished work.
STUCK_AFTER_S = 120.0

_kept: list[object] = []  # objects that must not be destroyed before the process exits


def keep_until_exit(objects: object, end: Callable[[], object] | None = None) -> None:
    """Keep CUDA objects until the process exits, and exit without running destructors.

    Args:
        end: called at the interpreter's exit; default `end_process`.
    """
    if not _kept:
        atexit.register(end or end_process)
    _kept.append(objects)


def end_process(code: int = 1) -> NoReturn:
    """Exit now, without destructors or other exit handlers. Standard streams are flushed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_stuck_process(what: str) -> NoReturn:
    """Report which CUDA call does not return, and exit."""
    with contextlib.suppress(OSError, ValueError):
        print(
            f"error: The CUDA call {what} has not returned for {STUCK_AFTER_S:g} s, so a kernel "
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
    """End the process if the body, a CUDA call that may block, takes longer than `limit_s` seconds.

    Takes about 0.1 ms, so timed code does not use it.
    """
    timer = threading.Timer(limit_s, on_stuck, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
