"""A GPU emulated in software, for programs that use CUDA: see README.md."""
