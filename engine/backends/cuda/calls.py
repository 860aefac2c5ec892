"""The few CUDA calls the backend needs: a seam, so that its logic is tested without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

# What the implementation hands out and takes back, and nobody else looks into.
Kernel: TypeAlias = Any
Graph: TypeAlias = Any


class GpuCalls(Protocol):
    """One GPU and one stream on it. Addresses are device addresses, sizes are bytes.

    CUDA's errors come out as CuPy raises them: a RuntimeError with `status`, or a MemoryError.
    """

    @property
    def arch(self) -> str:
        """`sm_90`."""
        ...

    @property
    def l2_bytes(self) -> int: ...

    @property
    def max_dynamic_smem_bytes(self) -> int:
        """Per CTA, with opt-in."""
        ...

    def free_bytes(self) -> int: ...

    def alloc(self, size: int) -> int:
        """Address of new memory, aligned to 256 bytes, contents arbitrary."""
        ...

    def free(self, address: int) -> None: ...

    def write(self, address: int, values: npt.NDArray[Any]) -> None:
        """Host to device."""
        ...

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Device to host, after all work queued so far."""
        ...

    def copy(self, target: int, source: int, size: int) -> None:
        """Device to device."""
        ...

    def fill(self, address: int, size: int, pattern: np.uint16) -> None:
        """Set 16-bit words; `size` is even."""
        ...

    def fingerprint(self, address: int, size: int) -> int:
        """A 64-bit hash of the contents, made on the device."""
        ...

    def load(self, cubin: bytes, dynamic_smem: Mapping[str, int]) -> dict[str, Kernel]:
        """The entries named in `dynamic_smem`, allowed to use so many bytes of it."""
        ...

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        threads: int,
        dynamic_smem: int,
        args: Sequence[np.generic],
    ) -> None:
        """Queue one launch."""
        ...

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for all queued work; False when it is not done after `timeout_s`."""
        ...

    def capture(self, queue: Callable[[], None]) -> Graph:
        """A graph of what `queue` launches."""
        ...

    def elapsed_us(self, queue: Callable[[], None]) -> float:
        """Device time between events around what `queue` launches."""
        ...

    def replay_us(self, graph: Graph) -> float:
        """Device time of one replay."""
        ...

    def close(self) -> None:
        """Give cached memory back. Safe to call twice."""
        ...
