"""The environment of a measurement: GPU, driver, clocks, libraries, system, commit.

A field that cannot be determined is None; nothing here raises. Library versions come from package
metadata, so that neither CuPy nor torch is imported.
"""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from engine.base.errors import ToolMissing
from engine.devices import nvml
from engine.devices.spec import query_nvml

CHECKOUT = Path(__file__).resolve().parents[2]
GIT_TIMEOUT_S = 5.0


def collect_environment(
    checkout: Path = CHECKOUT, git_timeout_s: float = GIT_TIMEOUT_S
) -> dict[str, Any]:
    """Return the environment as a JSON object: `engine.sessions.snapshot.Environment`.

    Args:
        checkout: repository whose commit is included, if it is one.
        git_timeout_s: time limit of each git command, in seconds.
    """
    gpus, driver, cuda_driver = _gpus()
    commit, dirty = _git(checkout, git_timeout_s)
    return {
        "collected": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpus": gpus,
        "driver": driver,
        "cuda_driver": cuda_driver,
        "cuda_runtime": _version("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
        "nvrtc": _version("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
        "cupy": _version("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "attune": _version("attune"),
        "python": platform.python_version(),
        "os": _os_name(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "commit": commit,
        "dirty": dirty,
    }


def _version(*distributions: str) -> str | None:
    """Return the version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _os_name() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.platform(terse=True)
    return f"{release.get('PRETTY_NAME', 'Linux')}, kernel {platform.release()}"


def _cpu_name() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or None


def _git(checkout: Path, timeout_s: float) -> tuple[str | None, bool | None]:
    """Return (commit, dirty) of the checkout that contains this package; (None, None) without
    one."""
    if not (checkout / ".git").exists():  # an installed package may be inside another repository
        return None, None
    commit = _git_output(checkout, timeout_s, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    changes = _git_output(checkout, timeout_s, "status", "--porcelain")
    return commit, None if changes is None else changes != ""


def _git_output(checkout: Path, timeout_s: float, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(checkout), *args],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def _gpus() -> tuple[list[dict[str, Any]], str | None, str | None]:
    """Return (GPUs, driver version, newest CUDA version that the driver supports), from NVML."""
    try:
        with nvml.session() as api:
            count = query_nvml(api, api.nvmlDeviceGetCount) or 0
            handles = [query_nvml(api, api.nvmlDeviceGetHandleByIndex, i) for i in range(count)]
            version = query_nvml(api, api.nvmlSystemGetCudaDriverVersion_v2)
            return (
                [_gpu(api, handle) for handle in handles if handle is not None],
                query_nvml(api, api.nvmlSystemGetDriverVersion),
                f"{version // 1000}.{version % 1000 // 10}" if version else None,
            )
    except ToolMissing:
        return [], None, None


def _gpu(api: Any, handle: Any) -> dict[str, Any]:
    capability = query_nvml(api, api.nvmlDeviceGetCudaComputeCapability, handle)
    memory = query_nvml(api, api.nvmlDeviceGetMemoryInfo, handle)
    state = nvml.read_state(api, handle)
    clock = api.NVML_CLOCK_MEM
    return {
        "name": query_nvml(api, api.nvmlDeviceGetName, handle),
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "memory_bytes": int(memory.total) if memory else None,
        "sm_clock_mhz": state.sm_clock_mhz,
        "max_sm_clock_mhz": state.max_sm_clock_mhz,
        "memory_clock_mhz": state.memory_clock_mhz,
        "max_memory_clock_mhz": query_nvml(api, api.nvmlDeviceGetMaxClockInfo, handle, clock),
        "power_limit_w": state.power_limit_w,
    }
