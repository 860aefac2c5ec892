"""The CUDA calls that the backend needs, as an interface that tests can replace.

`CupyCalls` implements them with CuPy on one stream of the current device.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.backends.cuda.availability import keep_until_exit, watchdog
from engine.base.errors import AttuneError, Status
from engine.base.files import make_cupy_folder
from engine.base.launch_arguments import TensorMapArg
from engine.cuda_source.nvrtc import compile_kernel

# Opaque handles, defined by the implementation.
Kernel: TypeAlias = Any
Graph: TypeAlias = Any

KernelArgument: TypeAlias = np.generic | npt.NDArray[np.uint8]

# Default time limit of waits: far longer than any sample takes.
WAIT_S = 60.0


class GpuTimeout(RuntimeError):
    """Queued work did not end in time. It may never end, so this process must not use the GPU
    again."""


class GpuCalls(Protocol):
    """One GPU and one stream on it. Addresses are device addresses, sizes are bytes.

    CUDA errors are raised as by CuPy: a RuntimeError with `status`, or a MemoryError. Methods that
    wait for queued work raise GpuTimeout if it does not end.
    """

    @property
    def arch(self) -> str:
        """`sm_90`."""
        ...

    @property
    def l2_bytes(self) -> int: ...

    @property
    def max_dynamic_smem_bytes(self) -> int:
        """Return the largest dynamic shared memory of a CTA in bytes, with opt-in."""
        ...

    def free_bytes(self) -> int: ...

    def alloc(self, size: int) -> int:
        """Return the address of new memory, aligned to 256 bytes, with arbitrary contents."""
        ...

    def free(self, address: int) -> None:
        """Raises KeyError if `alloc` did not return the address, or it is already free."""
        ...

    def write(self, address: int, values: npt.NDArray[Any]) -> None:
        """Copy from host to device."""
        ...

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Copy from device to host, after all work queued so far."""
        ...

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy from device to device."""
        ...

    def fill(self, address: int, size: int, pattern: np.uint16) -> None:
        """Set 16-bit words; `size` is even."""
        ...

    def fingerprints(self, areas: Sequence[tuple[int, int]]) -> list[int]:
        """Return a 64-bit hash of each `(address, size)`'s contents, computed on the device."""
        ...

    def load(
        self, cubin: bytes, dynamic_smem: Mapping[str, int], symbols: Mapping[str, str]
    ) -> dict[str, Kernel]:
        """Return the entries in `dynamic_smem`, which gives the dynamic shared memory in bytes.

        `symbols` has their names in the cubin. They stay loaded until `unload`.
        """
        ...

    def unload(self, kernels: dict[str, Kernel]) -> None:
        """Unload what `load` returned; `kernels` is empty afterwards."""
        ...

    def ctas_per_sm(self, kernel: Kernel, threads: int, dynamic_smem: int) -> int:
        """Return how many CTAs of the kernel fit on an SM, according to the driver."""
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
        """Queue one launch. An array is passed as a structure of its bytes."""
        ...

    def tensor_map(self, tensor_map: TensorMapArg, address: int) -> npt.NDArray[np.uint8]:
        """Return the 128-byte descriptor for TMA of a tensor at `address`."""
        ...

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Wait for all queued work."""
        ...

    def capture(self, queue: Callable[[], None]) -> Graph:
        """Return a graph of the launches of `queue`; it is kept until `discard`."""
        ...

    def discard(self, graph: Graph) -> None:
        """Destroy a graph of `capture`."""
        ...

    def elapsed_us(self, queue: Callable[[], None]) -> float:
        """Return the device time between events around the launches of `queue`."""
        ...

    def replay_us(self, graph: Graph) -> float:
        """Return the device time of one replay."""
        ...

    def abandon(self) -> None:
        """Keep everything from now on, because the context is lost or a kernel is endless.

        Memory and kernels are kept until the process exits, which it then does without destructors.
        """
        ...

    def close(self) -> None:
        """Free cached memory. Safe to call twice."""
        ...


# CUDA errors as statuses and sentences.

# Codes shared by cudaError_t and CUresult (driver_types.h, cuda.h): meaning and remedy.
_HINT_CHECK = "run it on the CPU backend's check build, which names the line"
_MEANINGS = {
    1: ("was launched with an invalid argument", "compare its arguments with the pass"),
    9: ("was launched with an invalid grid or CTA size", "use fewer threads per CTA"),
    209: ("was compiled for another GPU", "compile it for this one"),
    214: ("met an uncorrectable memory error", "look at the GPU's ECC counters"),
    700: ("accessed memory outside its buffers", _HINT_CHECK),
    701: ("needs more registers or shared memory than this GPU has", "use fewer threads per CTA"),
    702: ("ran longer than the display driver allows", "use a smaller problem"),
    710: ("failed an assertion", _HINT_CHECK),
    714: ("overflowed or overwrote its stack", _HINT_CHECK),
    715: ("executed an illegal instruction, or one with invalid operands", _HINT_CHECK),
    716: ("used an address that is not aligned to the width of the access", _HINT_CHECK),
    717: ("used an address of the wrong memory space", _HINT_CHECK),
    718: ("jumped to an invalid address", _HINT_CHECK),
    719: ("was stopped by the GPU", _HINT_CHECK),
    721: ("ended without freeing its tensor memory", "free it in the kernel"),
}
_OUT_OF_MEMORY = 2
_ILLEGAL_ADDRESS = 700
# Errors after which only a new process helps. CUDA's header says of the first set that "the process
# must be terminated and relaunched". It does not say so of the second, but measurements after them
# cannot be trusted: ECC (214) and NVLink (220) errors, a destroyed context (709), an internal error
# of the driver (999).
_DOCUMENTED_LOSS = {226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}
LOST_CONTEXT = frozenset(_DOCUMENTED_LOSS | {214, 220, 709, 999})


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on the GPU."""

    status: Status
    reason: str
    context_lost: bool = False


def explain(error: Exception, entry: str) -> Failure:
    """Return the failure for an exception: a CUDA error by its status, others by their message.

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
            f"{entry} could not be launched ({said}): Attune does not support this version of "
            "CuPy. Report it with the output of `attune selfcheck --json`.",
        )
    lost = code in LOST_CONTEXT
    if code in _MEANINGS:
        what, advice = _MEANINGS[code]
        status = Status.OUT_OF_BOUNDS if code == _ILLEGAL_ADDRESS else Status.LAUNCH_ERROR
        return Failure(status, f"{entry} {what}: {advice}. CUDA says {error}.", lost)
    return Failure(Status.LAUNCH_ERROR, f"{entry} failed on the GPU: {error}.", lost)


_FINGERPRINT = Path(__file__).with_name("fingerprint.cu")
_FINGERPRINT_THREADS = 256
_FILL_CHUNK_BYTES = 1 << 20
# Busy-wait for this long, so that no sleep delays the end of a sample.
_SPIN_S = 0.02
_POLL_S = 0.0005
_NOT_READY = 600  # cudaErrorNotReady
_NO_CLUSTER = (1, 1, 1)
_ENCODE_TILED, _SINCE_CUDA = "cuTensorMapEncodeTiled", 12000
_TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGNMENT = 128, 64  # of a CUtensorMap, in bytes
# CUresult cuTensorMapEncodeTiled(map, type, rank, address, dims, strides, box, element strides,
# interleave, swizzle, L2 promotion, out-of-bounds fill)
_EncodeTiled = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p),
    *(ctypes.POINTER(ctypes.c_uint64),) * 2,
    *(ctypes.POINTER(ctypes.c_uint32),) * 2,
    *(ctypes.c_int,) * 4,
)


class DriverError(RuntimeError):
    """A driver call that CuPy does not offer failed."""

    def __init__(self, name: str, status: int, error: str) -> None:
        super().__init__(f"{error}: {name}")
        self.status = status


class CupyCalls:
    """CUDA calls through CuPy. Create one only if `why_not_cuda()` returns None.

    Args:
        cupy: the package, or a replacement in tests.
        bindings: `cuda.bindings.driver`, for tensor maps and clusters, which CuPy lacks.
    """

    def __init__(self, cupy: Any = None, bindings: Any = None) -> None:
        self._given_bindings = bindings
        if cupy is None:
            make_cupy_folder()
            cupy = importlib.import_module("cupy")
        self._cuda: Any = cupy.cuda
        self._runtime: Any = cupy.cuda.runtime
        self._driver: Any = cupy.cuda.driver
        self._pool: Any = cupy.get_default_memory_pool()
        self._device = self._runtime.getDevice()
        # Non-blocking, so that it does not wait for the legacy default stream.
        self._stream: Any = cupy.cuda.Stream(non_blocking=True)
        self._start, self._stop = cupy.cuda.Event(), cupy.cuda.Event()
        self._memory: dict[int, Any] = {}  # keeps allocations alive, by address
        self._loaded: list[dict[str, Kernel]] = []  # keeps modules loaded
        self._graphs: list[Graph] = []  # keeps graphs alive
        self._fingerprint: Kernel | None = None
        self._abandoned = False

    def _attribute(self, name: str) -> int:
        attribute = getattr(self._runtime, f"cudaDevAttr{name}")
        return int(self._runtime.deviceGetAttribute(attribute, self._device))

    @property
    def arch(self) -> str:
        properties = self._runtime.getDeviceProperties(self._device)
        return f"sm_{properties['major']}{properties['minor']}"

    @property
    def l2_bytes(self) -> int:
        return self._attribute("L2CacheSize")

    @property
    def max_dynamic_smem_bytes(self) -> int:
        return self._attribute("MaxSharedMemoryPerBlockOptin")

    def free_bytes(self) -> int:
        self.wait()  # freeing would wait for running work
        with watchdog("cudaFree"):
            self._pool.free_all_blocks()
        return int(self._runtime.memGetInfo()[0])

    def alloc(self, size: int) -> int:
        with watchdog("cudaMalloc"):
            memory = self._cuda.alloc(size)
        self._memory[memory.ptr] = memory
        return int(memory.ptr)

    def free(self, address: int) -> None:
        if not self._abandoned:
            del self._memory[address]  # into CuPy's pool: no CUDA call

    def write(self, address: int, values: npt.NDArray[Any]) -> None:
        source = np.ascontiguousarray(values)
        # A copy from or to pageable memory blocks until earlier queued work has ended.
        self.wait()
        with watchdog("cudaMemcpyAsync"):
            self._copy_async(address, source.ctypes.data, source.nbytes, "memcpyHostToDevice")
            # The array might be freed before a queued copy has read it.
            self._stream.synchronize()

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        target = np.empty(size, np.uint8)
        self.wait()
        with watchdog("cudaMemcpyAsync"):
            self._copy_async(target.ctypes.data, address, size, "memcpyDeviceToHost")
            self._stream.synchronize()
        return target

    def copy(self, target: int, source: int, size: int) -> None:
        self._copy_async(target, source, size, "memcpyDeviceToDevice")

    def _copy_async(self, target: int, source: int, size: int, kind: str) -> None:
        if size:
            direction = getattr(self._runtime, kind)
            self._runtime.memcpyAsync(target, source, size, direction, self._stream.ptr)

    def fill(self, address: int, size: int, pattern: np.uint16) -> None:
        if not size:
            return
        low, high = int(pattern) & 0xFF, int(pattern) >> 8
        if low == high:
            self._runtime.memsetAsync(address, low, size, self._stream.ptr)
            return
        # CUDA's runtime can only set equal bytes, so one chunk is uploaded and copied.
        first = min(size, _FILL_CHUNK_BYTES)
        self.write(address, np.full(first // 2, pattern))
        for offset in range(first, size, first):
            self.copy(address + offset, address, min(first, size - offset))

    def fingerprints(self, areas: Sequence[tuple[int, int]]) -> list[int]:
        if self._fingerprint is None:
            compiled = compile_kernel(_FINGERPRINT, (), self.arch, ("fingerprint",))
            self._fingerprint = self.load(compiled.cubin, {"fingerprint": 0}, compiled.symbols)[
                "fingerprint"
            ]
        if not areas:
            return []
        totals = self.alloc(8 * len(areas))
        try:
            self.write(totals, np.zeros(len(areas), np.uint64))
            for i, (address, size) in enumerate(areas):
                words = -(-size // 4)
                ctas = min(-(-words // _FINGERPRINT_THREADS), 4096)
                args = (np.uint64(address), np.uint64(words), np.uint64(totals + 8 * i))
                block = (_FINGERPRINT_THREADS, 1, 1)
                self.launch(self._fingerprint, (ctas, 1, 1), block, 0, args)
            counts: list[int] = self.read(totals, 8 * len(areas)).view(np.uint64).tolist()
            return counts
        finally:
            self.free(totals)

    def load(
        self, cubin: bytes, dynamic_smem: Mapping[str, int], symbols: Mapping[str, str]
    ) -> dict[str, Kernel]:
        with watchdog("cuModuleLoadData"):
            module = self._cuda.function.Module()
            module.load(cubin)
        kernels = {}
        for entry, size in dynamic_smem.items():
            kernel = kernels[entry] = module.get_function(symbols[entry])
            attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._driver.funcSetAttribute(kernel.ptr, attribute, size)
        self._loaded.append(kernels)
        return kernels

    def unload(self, kernels: dict[str, Kernel]) -> None:
        if self._abandoned:
            return
        self._loaded = [each for each in self._loaded if each is not kernels]
        with watchdog("cuModuleUnload"):
            kernels.clear()  # CuPy unloads a module with the last function that refers to it

    def ctas_per_sm(self, kernel: Kernel, threads: int, dynamic_smem: int) -> int:
        query = self._driver.occupancyMaxActiveBlocksPerMultiprocessor
        return int(query(kernel.ptr, threads, dynamic_smem))

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic_smem: int,
        args: Sequence[KernelArgument],
        cluster: tuple[int, int, int] = _NO_CLUSTER,
    ) -> None:
        if cluster == _NO_CLUSTER:
            # CuPy passes an array by value only as one element: a structure of opaque bytes.
            by_value = [
                each.view(f"V{each.nbytes}") if isinstance(each, np.ndarray) else each
                for each in args
            ]
            kernel(grid, block, by_value, dynamic_smem, stream=self._stream)
            return
        cu = self._bindings
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = dynamic_smem
        config.hStream = cu.CUstream(self._stream.ptr)
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = cluster
        config.attrs, config.numAttrs = [attribute], 1
        # The driver takes a pointer to each argument, and reads them before it returns.
        values = [np.ascontiguousarray(argument) for argument in args]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        status, *_ = cu.cuLaunchKernelEx(
            config, cu.CUfunction(kernel.ptr), ctypes.addressof(pointers), 0
        )
        _require("cuLaunchKernelEx", status)

    def tensor_map(self, tensor_map: TensorMapArg, address: int) -> npt.NDArray[np.uint8]:
        cu = self._bindings
        # The driver needs a map aligned to 64 bytes, which cuda.bindings' own call does not ensure,
        # so the function is called by its address.
        flags = cu.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
        status, function, _ = cu.cuGetProcAddress(_ENCODE_TILED.encode(), _SINCE_CUDA, flags)
        _require("cuGetProcAddress", status)
        rank = len(tensor_map.dims)
        swizzle = f"{tensor_map.swizzle_bytes}B" if tensor_map.swizzle_bytes else "NONE"
        space = np.zeros(_TENSOR_MAP_BYTES + _TENSOR_MAP_ALIGNMENT, np.uint8)
        begin = -space.ctypes.data % _TENSOR_MAP_ALIGNMENT
        encoded = space[begin : begin + _TENSOR_MAP_BYTES]
        found = _EncodeTiled(int(function))(
            encoded.ctypes.data,
            cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16,
            rank,
            address,
            (ctypes.c_uint64 * rank)(*tensor_map.dims),
            (ctypes.c_uint64 * rank)(*tensor_map.strides_bytes),
            (ctypes.c_uint32 * rank)(*tensor_map.box),
            (ctypes.c_uint32 * rank)(*[1] * rank),  # of the box's elements
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        _require(_ENCODE_TILED, cu.CUresult(found))
        return encoded.copy()

    @property
    def _bindings(self) -> Any:
        return self._given_bindings or importlib.import_module("cuda.bindings.driver")

    def wait(self, timeout_s: float = WAIT_S) -> None:
        begin = time.monotonic()
        # Unlike Stream.done, a query distinguishes unfinished work from a failed kernel.
        while self._runtime.streamQuery(self._stream.ptr) == _NOT_READY:
            waited = time.monotonic() - begin
            if waited > timeout_s:
                raise GpuTimeout(f"queued work did not end within {timeout_s:g} s")
            if waited > _SPIN_S:
                time.sleep(_POLL_S)
        self._stream.synchronize()  # raises the kernel's error

    def capture(self, queue: Callable[[], None]) -> Graph:
        self._stream.begin_capture()
        try:
            queue()
        except BaseException:
            # A stream that is still capturing would refuse all other work.
            with contextlib.suppress(RuntimeError):
                self._stream.end_capture()
            raise
        with watchdog("cudaGraphInstantiate"):
            graph = self._stream.end_capture()
        graph.upload(self._stream)
        self._graphs.append(graph)
        return graph

    def discard(self, graph: Graph) -> None:
        if not self._abandoned:
            self._graphs = [each for each in self._graphs if each is not graph]

    def elapsed_us(self, queue: Callable[[], None]) -> float:
        self._start.record(self._stream)
        queue()
        self._stop.record(self._stream)
        self.wait()
        return float(self._cuda.get_elapsed_time(self._start, self._stop)) * 1000

    def replay_us(self, graph: Graph) -> float:
        return self.elapsed_us(lambda: graph.launch(self._stream))

    def abandon(self) -> None:
        self._abandoned = True
        keep_until_exit(self)

    def close(self) -> None:
        if self._abandoned:
            return
        self._memory.clear()
        with watchdog("cudaFree"):
            self._pool.free_all_blocks()


def _require(name: str, status: Any) -> None:
    """Raise DriverError unless a driver call succeeded."""
    if int(status):
        raise DriverError(name, int(status), str(status.name))
