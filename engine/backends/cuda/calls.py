"""The few CUDA calls the backend needs: a seam, so that its logic is tested without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.launch import TensorMapArg

# What the implementation hands out and takes back, and nobody else looks into.
Kernel: TypeAlias = Any
Graph: TypeAlias = Any

KernelArgument: TypeAlias = np.generic | npt.NDArray[np.uint8]

# Work that is waited for without a limit of its own: far longer than any sample.
WAIT_S = 60.0


class GpuTimeout(RuntimeError):
    """Queued work did not end in time. It may never end, so the process can use the GPU no more."""


class GpuCalls(Protocol):
    """One GPU and one stream on it. Addresses are device addresses, sizes are bytes.

    CUDA's errors come out as CuPy raises them: a RuntimeError with `status`, or a MemoryError.
    What waits for queued work raises GpuTimeout when that does not end.
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

    def free(self, address: int) -> None:
        """Raises KeyError for an address that `alloc` did not give, or that is free already."""
        ...

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

    def fingerprints(self, areas: Sequence[tuple[int, int]]) -> list[int]:
        """A 64-bit hash of the contents of each `(address, size)`, made on the device."""
        ...

    def load(
        self, cubin: bytes, dynamic_smem: Mapping[str, int], symbols: Mapping[str, str]
    ) -> dict[str, Kernel]:
        """The entries named in `dynamic_smem`, allowed to use so many bytes of it.

        `symbols` has the cubin's name of each. They stay loaded until `unload`.
        """
        ...

    def unload(self, kernels: dict[str, Kernel]) -> None:
        """Give back what `load` returned; `kernels` is empty afterwards."""
        ...

    def ctas_per_sm(self, kernel: Kernel, threads: int, dynamic_smem: int) -> int:
        """How many CTAs of this kernel an SM holds, as the driver says."""
        ...

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic_smem: int,
        args: Sequence[KernelArgument],
        cluster: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        """Queue one launch. An array stands for a structure of its bytes."""
        ...

    def tensor_map(self, tensor_map: TensorMapArg, address: int) -> npt.NDArray[np.uint8]:
        """The 128 bytes that describe a tensor at `address` to TMA."""
        ...

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Wait for all queued work."""
        ...

    def capture(self, queue: Callable[[], None]) -> Graph:
        """A graph of what `queue` launches; it is kept until `discard`."""
        ...

    def discard(self, graph: Graph) -> None:
        """Give back what `capture` returned."""
        ...

    def elapsed_us(self, queue: Callable[[], None]) -> float:
        """Device time between events around what `queue` launches."""
        ...

    def replay_us(self, graph: Graph) -> float:
        """Device time of one replay."""
        ...

    def abandon(self) -> None:
        """The context is lost, or a kernel never ends: from now on nothing is given back.

        Memory and kernels are held until the process ends, which it then does without destructors.
        """
        ...

    def close(self) -> None:
        """Give cached memory back. Safe to call twice."""
        ...
