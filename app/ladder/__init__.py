"""The Kernels page: the ladder on one problem, rung by rung."""
