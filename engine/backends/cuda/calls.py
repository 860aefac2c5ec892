"""The few CUDA calls the backend needs: a seam, so that its logic is tested without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.errors import AttuneError, Status
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


# CUDA's errors as statuses and sentences.

# Codes shared by cudaError_t and CUresult (driver_types.h, cuda.h): what it means, what to do.
_HINT_CHECK = "run it on the CPU backend's check build, which names the line"
_MEANINGS = {
    1: ("was launched with an argument that CUDA refuses", "compare its arguments with the pass"),
    9: ("was launched with a grid or CTA this GPU does not take", "use fewer threads per CTA"),
    209: ("was compiled for another GPU", "compile it for this one"),
    214: ("met memory whose contents the GPU could not correct", "look at the GPU's ECC counters"),
    700: ("read or wrote memory that is not its own", _HINT_CHECK),
    701: ("needs more registers or shared memory than this GPU has", "use fewer threads per CTA"),
    702: ("ran longer than the display driver allows", "use a smaller problem"),
    710: ("failed an assertion", _HINT_CHECK),
    714: ("ran out of stack or wrote over it", _HINT_CHECK),
    715: ("met an illegal instruction or wrong operands of one", _HINT_CHECK),
    716: ("used an address that is not aligned to the width of the access", _HINT_CHECK),
    717: ("used an address of the wrong memory space", _HINT_CHECK),
    718: ("jumped to an invalid address", _HINT_CHECK),
    719: ("was stopped by the GPU", _HINT_CHECK),
    721: ("left tensor memory allocated at its end", "free it in the kernel"),
}
_OUT_OF_MEMORY = 2
_ILLEGAL_ADDRESS = 700
# After these every later CUDA call of the process fails; only a new process helps. CUDA's header
# says of the first set that "the process must be terminated and relaunched". Of the second it does
# not, but nothing that is measured after them can be trusted: errors of memory (214) and links
# (220), a context that is gone (709), an internal error of the driver (999).
_DOCUMENTED_LOSS = {226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}
LOST_CONTEXT = frozenset(_DOCUMENTED_LOSS | {214, 220, 709, 999})


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong on the GPU."""

    status: Status
    reason: str
    context_lost: bool = False


def explain(error: Exception, entry: str) -> Failure:
    """The failure that an exception stands for: CUDA's by its status, any other by its words.

    Args:
        entry: the kernel that was running.
    """
    code = getattr(error, "status", None)
    if isinstance(error, MemoryError) or code == _OUT_OF_MEMORY:
        return Failure(
            Status.OUT_OF_MEMORY,
            f"The GPU ran out of memory ({error}): choose a smaller batch, fewer heads or a "
            "shorter sequence.",
        )
    if isinstance(error, AttuneError):
        return Failure(Status.LAUNCH_ERROR, str(error))
    if not isinstance(code, int):
        said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")
        return Failure(
            Status.LAUNCH_ERROR,
            f"{entry} could not be launched ({said}): Attune and this CuPy do not fit together. "
            "Send what `attune selfcheck --json` prints.",
        )
    lost = code in LOST_CONTEXT
    if code in _MEANINGS:
        what, advice = _MEANINGS[code]
        status = Status.OUT_OF_BOUNDS if code == _ILLEGAL_ADDRESS else Status.LAUNCH_ERROR
        return Failure(status, f"{entry} {what}: {advice}. CUDA says {error}.", lost)
    return Failure(Status.LAUNCH_ERROR, f"{entry} failed on the GPU: {error}.", lost)
