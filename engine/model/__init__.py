"""Occupancy and latency of kernels, predicted without running them."""
