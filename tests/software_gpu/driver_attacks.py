"""Load damaged cubins with the software GPU's driver, and launch those that load.

Run by `test_driver_watched.py` with a driver built with sanitizers: `driver_attacks.py CUBIN CASES
SEED`. Errors of loads and launches are expected; the first access out of bounds ends the process.
Prints how many cubins were refused, launched and failed.
"""

from __future__ import annotations

import collections
import ctypes
import mmap
import random
import sys
from pathlib import Path

import numpy as np
from cuda.bindings import driver as cu

EXTREMES = (0, 1, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
SPACE = 1 << 20
OK = cu.CUresult.CUDA_SUCCESS


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """Return the bytes with a few words replaced, or truncated."""
    data = bytearray(whole)
    if chance.random() < 0.1:
        return bytes(data[: chance.randrange(len(data))])
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(data) - 4)
        value = chance.choice((*EXTREMES, chance.randrange(1 << 32)))
        width = chance.choice((1, 2, 4))
        data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return bytes(data)


def alone() -> int:
    """Return an address with `SPACE` bytes of memory, and none for 4 GiB after them.

    The driver takes a cubin's size from its headers, which give more than the allocated bytes.
    """
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_size_t
    libc.mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    at: int = libc.mmap(0, 5 << 30, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert libc.munmap(at + SPACE, (5 << 30) - SPACE) == 0
    return at


def main() -> None:
    place = alone()
    whole, cases, seed = Path(sys.argv[1]).read_bytes(), int(sys.argv[2]), int(sys.argv[3])
    chance, ends = random.Random(seed), collections.Counter[str]()
    assert cu.cuInit(0)[0] == OK
    _, device = cu.cuDeviceGet(0)
    for _ in range(cases):
        # A separate context, which an error of a kernel ends.
        status, context = cu.cuCtxCreate(None, 0, device)
        assert status == OK, status
        ctypes.memmove(place, damaged(whole, chance).ljust(SPACE, b"\0"), SPACE)
        status, module = cu.cuModuleLoadData(place)
        if status != OK:
            ends["refused"] += 1
        else:
            _, here = cu.cuMemAlloc(128)
            values = [np.array(int(here), np.uint64), np.array(5, np.int32)]
            pointers = np.array([v.ctypes.data for v in values], np.uint64)
            for name in (b"add", b"poke"):
                found, kernel = cu.cuModuleGetFunction(module, name)
                if found != OK:
                    ends["no kernel"] += 1
                    continue
                done = cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, 0, pointers.ctypes.data, 0)[
                    0
                ]
                done = done if done != OK else cu.cuCtxSynchronize()[0]
                ends["launched" if done == OK else "failed"] += 1
        cu.cuCtxDestroy(context)
    print(dict(ends))


main()
