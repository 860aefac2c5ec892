"""A GPU on a NumPy heap, with Python functions as kernels.

`FakeGpu(...).cupy` (fake_cupy.py) stands in for the package, so that `CupyCalls` itself is what
runs. It is strict where CUDA is:

* work is queued, and only waiting for it shows what it did; queries do not raise;
* an address outside every allocation is an illegal address, after which every call fails;
* memory is not cleared, and cannot be freed twice;
* nothing that waits or copies from or to the host is allowed while a stream captures, and doing so
  spoils the capture;
* a graph does not keep its kernels loaded, and replays what was captured;
* what would wait for a kernel that never ends, or raise from a destructor, is a `violation`, which
  fails the test (conftest.py).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.backends.cuda.cupy_calls import CupyCalls

NOT_READY = 600
ILLEGAL_ADDRESS = 700
CAPTURE_UNSUPPORTED = 900
_BASE = 0x7F00_0000_0000


class CudaError(RuntimeError):
    """Like CuPy's CUDARuntimeError and CUDADriverError."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text or f"cudaError {status}")
        self.status = status


class OutOfMemory(MemoryError):
    """Like CuPy's OutOfMemoryError."""


Kernel = Callable[..., None]
Operation = Callable[[], None]


def fingerprint(gpu: FakeGpu, words: np.uint64, count: np.uint64, total: np.uint64) -> None:
    """What fingerprint.cu computes."""
    data = gpu.view(int(words), 4 * int(count)).tobytes()
    gpu.view(int(total), 8).view(np.uint64)[0] += np.uint64(murmur_sum(data))


def murmur_sum(data: bytes) -> int:
    words = np.frombuffer(data, np.uint32).astype(np.uint64)
    with np.errstate(over="ignore"):
        index = np.arange(1, words.size + 1, dtype=np.uint64)
        x = index * np.uint64(0x9E3779B97F4A7C15) ^ words
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            x = (x ^ (x >> np.uint64(33))) * np.uint64(factor)
        return int((x ^ (x >> np.uint64(33))).sum(dtype=np.uint64))


@dataclass
class FakeGpu:
    """`kernels` maps entries to functions `(gpu, *args)`."""

    kernels: Mapping[str, Kernel]
    capability: tuple[int, int] = (8, 9)
    l2_bytes: int = 1 << 20
    num_sms: int = 58
    pci_bus: int = 1
    smem_optin_bytes: int = 99 * 1024
    memory_bytes: int = 1 << 28
    ctas_per_sm: int = 99  # what the driver says of any kernel
    launch_us: float = 20.0
    hang: bool = False  # kernels that are launched never end
    launches: list[tuple[str, tuple[int, int, int], int, int]] = field(default_factory=list)
    allowed_smem: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    modules: int = 0  # loaded now
    freed_blocks: int = 0  # calls of free_all_blocks
    out_of_memory_at: int | None = None  # this capture fails for want of memory
    _heap: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)
    _pooled: dict[int, int] = field(default_factory=dict)  # free blocks of the pool: size
    _handles: Any = field(default_factory=lambda: itertools.count(1))
    _next: int = _BASE
    _queued: list[Operation] = field(default_factory=list)
    _capturing: list[Operation] | None = None
    _spoilt: bool = False
    _dead: int = 0  # the sticky error
    _pending: CudaError | None = None
    _running: bool = False  # a kernel that never ends
    _clock_us: float = 0.0

    def __post_init__(self) -> None:
        from fake_cupy import cupy_on

        self.cupy = cupy_on(self)

    def calls(self) -> CupyCalls:
        return CupyCalls(self.cupy)

    @property
    def allocations(self) -> int:
        return len(self._heap)

    def view(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """The bytes at a device address, for kernels and copies."""
        self.check()
        for base, memory in self._heap.items():
            if base <= address and address + size <= base + memory.size:
                return memory[address - base : address - base + size]
        self._dead = ILLEGAL_ADDRESS
        raise CudaError(ILLEGAL_ADDRESS, "cudaErrorIllegalAddress: illegal memory access")

    def check(self) -> None:
        """Every call fails after a sticky error."""
        if self._dead:
            raise CudaError(self._dead, "cudaErrorIllegalAddress: an earlier kernel's")

    def enqueue(self, operation: Operation) -> None:
        self.check()
        (self._queued if self._capturing is None else self._capturing).append(operation)

    def wait(self, what: str) -> None:
        """What every waiting call does."""
        self.check()
        if self._capturing is not None:
            self._spoilt = True
            raise CudaError(CAPTURE_UNSUPPORTED, f"cudaErrorStreamCaptureUnsupported: {what}")
        if self._running:
            self.violations.append(f"{what} waits for a kernel that never ends")
            raise AssertionError(self.violations[-1])
        queued, self._queued = self._queued, []
        for operation in queued:
            operation()
        if self._pending is not None:
            pending, self._pending = self._pending, None
            raise pending

    def query(self) -> int:
        """Like cudaStreamQuery: a status, never an exception of CUDA's."""
        if self._dead:
            return self._dead
        if self._running:
            return NOT_READY
        try:
            self.wait("streamQuery")
        except CudaError as error:
            if not self._dead and error.status != CAPTURE_UNSUPPORTED:
                self._pending = error  # for the call that waits
            return error.status
        return 0

    def launch(self, entry: str, module: object, args: Sequence[np.generic]) -> None:
        alive = weakref.ref(module)

        def execute() -> None:
            if alive() is None:
                self._dead = ILLEGAL_ADDRESS
                raise CudaError(ILLEGAL_ADDRESS, f"{entry} is not loaded any more")
            self._clock_us += self.launch_us
            ENGINE_KERNELS.get(entry, self.kernels.get(entry))(self, *args)

        if self.hang and entry not in ENGINE_KERNELS:
            self.check()
            self._running = True
        self.enqueue(execute)

    def destroy(self, what: str) -> None:
        """A destructor that calls CUDA."""
        if self._running:
            self.violations.append(f"{what} waits for a kernel that never ends")
        elif self._dead:
            self.violations.append(f"{what} raises from a destructor")


ENGINE_KERNELS: dict[str, Kernel] = {"fingerprint": fingerprint}
