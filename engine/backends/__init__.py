"""Backends that execute kernels: the interface (`base`), the CPU, CUDA, machine code and PyTorch's
SDPA."""
