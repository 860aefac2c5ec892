"""Executes and times launch plans on an NVIDIA GPU through CuPy."""

from engine.backends.cuda.availability import why_not_cuda
from engine.backends.cuda.backend import CudaBackend

__all__ = ["CudaBackend", "why_not_cuda"]
