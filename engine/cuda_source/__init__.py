"""Compile kernels for any GPU without one: cubin, resources and log."""

from engine.base.files import cache_root
from engine.cuda_source.nvrtc import CompiledKernel, CompileReport, compile_kernel
from engine.cuda_source.ptxas import PtxasInfo

__all__ = [
    "CompileReport",
    "CompiledKernel",
    "PtxasInfo",
    "cache_root",
    "compile_kernel",
]
