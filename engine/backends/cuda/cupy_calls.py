"""`GpuCalls` through CuPy. Everything is queued on one stream of the current device."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.backends.cuda.availability import keep_until_exit, watchdog
from engine.backends.cuda.calls import WAIT_S, GpuTimeout, Graph, Kernel, KernelArgument
from engine.base.launch import TensorMapArg
from engine.cuda_source.nvrtc import compile_kernel
from engine.cuda_source.toolkit import make_cupy_folder

_FINGERPRINT = Path(__file__).with_name("fingerprint.cu")
_FINGERPRINT_THREADS = 256
_FILL_CHUNK_BYTES = 1 << 20
# Polls follow each other at once for this long, so that no sleep delays the end of a sample.
_SPIN_S = 0.02
_POLL_S = 0.0005
_NOT_READY = 600  # cudaErrorNotReady
_NO_CLUSTER = (1, 1, 1)
_ENCODE_TILED, _SINCE_CUDA = "cuTensorMapEncodeTiled", 12000
_TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGNMENT = 128, 64  # of a CUtensorMap
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
    """A call of the driver that CuPy does not have failed."""

    def __init__(self, name: str, status: int, error: str) -> None:
        super().__init__(f"{error}: {name}")
        self.status = status


class CupyCalls:
    """Make one only after `why_not_cuda()` found no reason against it.

    Args:
        cupy: the package; tests give a stand-in.
        bindings: `cuda.bindings.driver`, for what CuPy does not have: tensor maps and clusters.
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
        # Non-blocking: work others queue on the legacy default stream does not hold ours up.
        self._stream: Any = cupy.cuda.Stream(non_blocking=True)
        self._start, self._stop = cupy.cuda.Event(), cupy.cuda.Event()
        self._memory: dict[int, Any] = {}  # keeps allocations alive, by address
        self._loaded: list[dict[str, Kernel]] = []  # keeps modules loaded
        self._graphs: list[Graph] = []  # keeps them alive
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
        self.wait()  # freeing waits for whatever runs
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
        # A copy from or to pageable memory waits inside the call for what was queued before it.
        self.wait()
        with watchdog("cudaMemcpyAsync"):
            self._copy_async(address, source.ctypes.data, source.nbytes, "memcpyHostToDevice")
            # The array may be gone before a queued copy has read it.
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
        # CUDA's runtime sets equal bytes only; one chunk goes up and is copied on.
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
            # CuPy takes an array by value only as one element: a structure, as opaque bytes.
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
        # The driver takes a pointer to each argument, and has read them when it returns.
        values = [np.ascontiguousarray(argument) for argument in args]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        status, *_ = cu.cuLaunchKernelEx(
            config, cu.CUfunction(kernel.ptr), ctypes.addressof(pointers), 0
        )
        _require("cuLaunchKernelEx", status)

    def tensor_map(self, tensor_map: TensorMapArg, address: int) -> npt.NDArray[np.uint8]:
        cu = self._bindings
        # The driver wants the map at a multiple of 64 bytes. cuda.bindings' own call allocates it
        # where it comes to lie, so the function is called at its address.
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
        # A query, unlike Stream.done, tells "not yet" from "a kernel failed".
        while self._runtime.streamQuery(self._stream.ptr) == _NOT_READY:
            waited = time.monotonic() - begin
            if waited > timeout_s:
                raise GpuTimeout(f"queued work did not end within {timeout_s:g} s")
            if waited > _SPIN_S:
                time.sleep(_POLL_S)
        self._stream.synchronize()  # raises what the kernel did wrong

    def capture(self, queue: Callable[[], None]) -> Graph:
        self._stream.begin_capture()
        try:
            queue()
        except BaseException:
            # A stream left capturing would refuse everything else.
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
    """Raise what a call of the driver returned, unless it succeeded."""
    if int(status):
        raise DriverError(name, int(status), str(status.name))
