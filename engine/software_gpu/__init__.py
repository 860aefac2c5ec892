"""A GPU in software for programs that are written for CUDA: see README.md."""
