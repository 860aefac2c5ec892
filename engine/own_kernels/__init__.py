"""Kernels of a person's own: which there are, and a first description for one that has none."""
