"""Own kernels: the registry, and a first description for a kernel without one."""
