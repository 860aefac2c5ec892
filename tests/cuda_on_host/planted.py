"""Launching the small kernels that all take (in, out, scratch, counter, n)."""

from __future__ import annotations

from typing import Any

import numpy as np
from host_kernels import KERNELS

from engine.base.launch_arguments import ScalarArg, TensorArg
from engine.cuda_on_host.build import DEFAULT_ARCH, HostLibrary, build_kernels
from engine.cuda_on_host.client import Buffer, Client, Job, KernelLaunch, RunResult

WORDS = 256
INPUT = np.linspace(1, 2, WORDS, dtype=np.float32)
ARGS = (
    *(TensorArg(name) for name in ("in", "out", "scratch", "counter")),
    ScalarArg("n", "int32", WORDS),
)


def entries_of(file: str) -> list[str]:
    """Return the kernels of `file`, in order."""
    lines = (KERNELS / file).read_text().splitlines()
    return [line[7 : line.index(")")] for line in lines if line.startswith("KERNEL(")]


def library(file: str, check: bool, arch: str = DEFAULT_ARCH) -> HostLibrary:
    return build_kernels(KERNELS / file, entries_of(file), [("IS_BF16", "0")], check, arch)


def job(
    host_library: HostLibrary, entry: str, dynamic_smem_bytes: int = 1024, **options: Any
) -> Job:
    """Return a job of 2 CTAs of 64 threads."""
    return Job(
        library=host_library,
        buffers=(
            Buffer("in", data=INPUT, read_only=True),
            Buffer("out", size_bytes=4 * WORDS, returned=True),
            Buffer("scratch", size_bytes=4 * WORDS),
            Buffer("counter", size_bytes=4 * WORDS, fill="zero"),
        ),
        launches=(KernelLaunch(entry, (2, 1, 1), (64, 1, 1), ARGS, dynamic_smem_bytes),),
        **options,
    )


def run(
    client: Client,
    host_library: HostLibrary,
    entry: str,
    timeout_s: float = 30.0,
    dynamic_smem_bytes: int = 1024,
    **options: Any,
) -> RunResult:
    return client.run(job(host_library, entry, dynamic_smem_bytes, **options), timeout_s)
