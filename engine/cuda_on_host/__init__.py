"""Execute CUDA C++ on the CPU: translated, built by the C++ compiler, run in a child process.

`build_kernels` builds a library from a source, `Client.run` runs a `Job` with it. Both are imported
on first access, because the child process imports this package and must not wait for NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.cuda_on_host.build import build_kernels
    from engine.cuda_on_host.client import Buffer, Client, Job, KernelLaunch, RunResult

__all__ = ["Buffer", "Client", "Job", "KernelLaunch", "RunResult", "build_kernels"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in __all__:
        module = "build" if name == "build_kernels" else "client"
        return getattr(import_module(f"engine.cuda_on_host.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
