"""Small kernels whose counts are known by arithmetic, compiled and counted."""

from __future__ import annotations

import struct
from pathlib import Path

from engine.cuda_source import compile_kernel
from engine.machine_code.analysis import Analysis, analyse
from engine.machine_code.launch import Launch, parse_arguments


def counted(
    folder: Path,
    source: str,
    arguments: str,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    arch: str = "sm_80",
    smem: int = 0,
) -> Analysis:
    """`source` defines an extern "C" kernel `k`; `arguments` are blank-separated."""
    path = folder / "k.cu"
    path.write_text(source)
    cubin = compile_kernel(path, (), arch, ()).cubin
    launch = Launch(grid, block, smem, parse_arguments(arguments.split()))
    return analyse(cubin, None, launch)


def i32(value: int) -> bytes:
    return struct.pack("<i", value)
