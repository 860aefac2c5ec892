"""`GpuCalls` on a NumPy heap, with Python functions as kernels and a simulated clock.

It is strict where CUDA is: an address outside every allocation is an illegal address, after which
every call fails; memory is not cleared; a graph replays what was captured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

EVENT_OVERHEAD_US = 5.0
ILLEGAL_ADDRESS = 700
_BASE = 0x7F00_0000_0000


class CudaError(RuntimeError):
    """Like CuPy's CUDARuntimeError and CUDADriverError."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class OutOfMemory(MemoryError):
    """Like CuPy's OutOfMemoryError."""


Kernel = Callable[..., None]


@dataclass
class FakeGpu:
    """`kernels` maps entries to functions `(gpu, *args)`."""

    kernels: Mapping[str, Kernel]
    arch: str = "sm_89"
    l2_bytes: int = 1 << 20
    max_dynamic_smem_bytes: int = 99 * 1024
    memory_bytes: int = 1 << 28
    launch_us: float = 20.0
    hang: bool = False
    launches: list[tuple[str, tuple[int, int, int], int, int]] = field(default_factory=list)
    allowed_smem: dict[str, int] = field(default_factory=dict)
    closed: int = 0
    _heap: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)
    _next: int = _BASE
    _queued: list[Callable[[], None]] = field(default_factory=list)
    _capturing: list[Callable[[], None]] | None = None
    _dead: bool = False

    def _alive(self) -> None:
        if self._dead:
            raise CudaError(ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS")

    def view(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """The bytes at an address, for kernels and for the calls below."""
        self._alive()
        for base, memory in self._heap.items():
            if base <= address and address + size <= base + memory.size:
                return memory[address - base : address - base + size]
        self._dead = True
        raise CudaError(ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS: illegal memory access")

    @property
    def allocations(self) -> int:
        return len(self._heap)

    def free_bytes(self) -> int:
        self._alive()
        return self.memory_bytes - sum(m.size for m in self._heap.values())

    def alloc(self, size: int) -> int:
        if size > self.free_bytes():
            raise OutOfMemory(f"Out of memory allocating {size:,} bytes")
        address = self._next
        self._heap[address] = np.full(size, 0xEE, np.uint8)  # whatever was there before
        self._next += -(-size // 256) * 256 + 256
        return address

    def free(self, address: int) -> None:
        del self._heap[address]

    def write(self, address: int, values: npt.NDArray[Any]) -> None:
        self._run()
        self.view(address, values.nbytes)[:] = np.ascontiguousarray(values).view(np.uint8).ravel()

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        self._run()
        return self.view(address, size).copy()

    def copy(self, target: int, source: int, size: int) -> None:
        self._run()
        self.view(target, size)[:] = self.view(source, size)

    def fill(self, address: int, size: int, pattern: np.uint16) -> None:
        self._run()
        self.view(address, size).view(np.uint16)[:] = pattern

    def fingerprint(self, address: int, size: int) -> int:
        digest = hashlib.sha256(self.read(address, size).tobytes()).digest()
        return int.from_bytes(digest[:8], "little")

    def load(self, cubin: bytes, dynamic_smem: Mapping[str, int]) -> dict[str, str]:
        self._alive()
        assert cubin.startswith(b"\x7fELF")
        self.allowed_smem.update(dynamic_smem)
        return {entry: entry for entry in dynamic_smem}

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        threads: int,
        dynamic_smem: int,
        args: Sequence[np.generic],
    ) -> None:
        self._alive()
        if dynamic_smem > self.allowed_smem[kernel]:
            raise CudaError(1, "CUDA_ERROR_INVALID_VALUE: invalid argument")
        self.launches.append((kernel, grid, threads, dynamic_smem))

        def execute() -> None:
            self.kernels[kernel](self, *args)

        (self._queued if self._capturing is None else self._capturing).append(execute)

    def wait(self, timeout_s: float | None = None) -> bool:
        if self.hang:
            assert timeout_s is not None, "this would wait for ever"
            return False
        self._run()
        return True

    def _run(self) -> None:
        self._alive()
        queued, self._queued = self._queued, []
        for execute in queued:
            execute()

    def capture(self, queue: Callable[[], None]) -> list[Callable[[], None]]:
        self._run()
        self._capturing = graph = []
        try:
            queue()
        finally:
            self._capturing = None
        return graph

    def elapsed_us(self, queue: Callable[[], None]) -> float:
        queue()
        count = len(self._queued)
        self._run()
        return EVENT_OVERHEAD_US + count * self.launch_us

    def replay_us(self, graph: list[Callable[[], None]]) -> float:
        return self.elapsed_us(lambda: self._queued.extend(graph))

    def close(self) -> None:
        self.closed += 1
