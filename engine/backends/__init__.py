"""Backends that execute kernels: the interface `base`, the CPU, CUDA, and PyTorch's SDPA."""
