"""Timing kernels on a GPU: sampler, graph replay, statistics, verdicts, the lock of a device."""
