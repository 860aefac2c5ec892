"""Compile kernels for any GPU without one: cubin, resources and log."""

from engine.compile.cache import cache_root
from engine.compile.nvrtc import (
    CompiledKernel,
    cached_kernel,
    compile_kernel,
    compile_plan,
    resources,
    target_arch,
)
from engine.compile.ptxas import PtxasInfo

__all__ = [
    "CompiledKernel",
    "PtxasInfo",
    "cache_root",
    "cached_kernel",
    "compile_kernel",
    "compile_plan",
    "resources",
    "target_arch",
]
