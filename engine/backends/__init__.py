"""What executes kernels: `base` is the seam, then the CPU, CUDA, and PyTorch's SDPA."""
