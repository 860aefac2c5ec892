"""Small kernels whose counts are known by arithmetic, compiled and counted or executed."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.cuda_source import compile_kernel
from engine.machine_code.analysis import Analysis, analyse, program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.execution import GlobalBuffer, execute, load_module
from engine.machine_code.launch import Launch, buffer_address, parse_arguments


def counted(
    folder: Path,
    source: str,
    arguments: str,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    arch: str = "sm_80",
    smem: int = 0,
) -> Analysis:
    """Count an extern "C" kernel `k` of `source`; `arguments` are separated by blanks."""
    path = folder / "k.cu"
    path.write_text(source)
    cubin = compile_kernel(path, (), arch, ()).cubin
    launch = Launch(grid, block, smem, parse_arguments(arguments.split()))
    return analyse(cubin, None, launch)


def i32(value: int) -> bytes:
    return struct.pack("<i", value)


def executed(
    folder: Path,
    body: str,
    *,
    arch: str = "sm_80",
    threads: int = 32,
    grid: int = 1,
    timeout_s: float = 20.0,
    top: str = "",
    reverse: bool = False,
    host_threads: int = 2,
    data: NDArray[np.int32] | None = None,
) -> NDArray[np.int32]:
    """Run `k(int* data, int n)` on 64 words and n = 64; return the words afterwards.

    Given words are not changed; the default is 0 to 63.
    """
    path = folder / "k.cu"
    path.write_text(f'{top}\nextern "C" __global__ void k(int* data, int n) {{\n{body}\n}}\n')
    cubin = read_cubin(compile_kernel(path, (), arch, ("k",)).cubin)
    kept = data is not None
    data = np.arange(64, dtype=np.int32) if data is None else data
    arguments = (struct.pack("<Q", buffer_address(0)), struct.pack("<i", 64))
    module = load_module(cubin)
    execute(
        program_of(cubin, "k"),
        module.entries["k"],
        Launch((grid, 1, 1), (threads, 1, 1), 0, arguments),
        [GlobalBuffer("data", buffer_address(0), data.view(np.uint8), kept), *module.buffers],
        timeout_s=timeout_s,
        reverse=reverse,
        threads=host_threads,
    )
    return data
