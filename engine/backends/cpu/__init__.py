"""Kernels executed on the host's CPU, for correctness where there is no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]


def __getattr__(name: str) -> Any:
    # On first use: the child process imports this package and must not wait for NumPy.
    if name == "CpuBackend":
        from engine.backends.cpu.backend import CpuBackend

        return CpuBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
