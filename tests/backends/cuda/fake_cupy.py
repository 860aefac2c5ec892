"""The part of CuPy that the engine uses, on a fake GPU.

`test_fake_cupy.py` compares every signature here with CuPy's own.
"""

from __future__ import annotations

import ctypes
import inspect
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_gpu import (
    CAPTURE_UNSUPPORTED,
    ENGINE_KERNELS,
    NOT_READY,
    CudaError,
    FakeGpu,
    Operation,
    OutOfMemory,
)

EVENT_OVERHEAD_US = 5.0
INVALID_VALUE = 1
CAPTURE_INVALIDATED = 901
_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = 1, 2, 3
_MAX_DYNAMIC_SMEM = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class FakeModule:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._cubin = b""

    def load(self, cubin: bytes) -> None:
        self._gpu.check()
        assert type(cubin) is bytes
        assert cubin.startswith(b"\x7fELF")
        self._cubin = cubin
        self._gpu.modules += 1
        weakref.finalize(self, _unload, self._gpu).atexit = False

    def get_function(self, name: str) -> FakeFunction:
        if name.encode() not in self._cubin:
            raise CudaError(500, f"CUDA_ERROR_NOT_FOUND: {name}")
        return FakeFunction(self._gpu, self, name)


def _unload(gpu: FakeGpu) -> None:
    gpu.modules -= 1
    gpu.destroy("cuModuleUnload")


class FakeFunction:
    """Keeps its module loaded, as CuPy's does."""

    def __init__(self, gpu: FakeGpu, module: FakeModule, name: str) -> None:
        self._gpu, self._module, self.name = gpu, module, name
        self.ptr = next(gpu._handles)
        _FUNCTIONS[self.ptr] = self

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[np.generic],
        shared_mem: int = 0,
        stream: FakeStream | None = None,
    ) -> None:
        gpu = self._gpu
        gpu.check()
        assert stream is not None, "work on the default stream is not ordered with ours"
        for x in args:  # by value goes one element alone: a structure is one of its size
            if not isinstance(x, np.generic) and x.size != 1:
                raise TypeError(f"Unsupported type {type(x)}")
        assert type(grid) is tuple
        assert type(block) is tuple
        threads = int(np.prod(block))
        if not (0 < threads <= 1024 and min(grid) > 0 and max(grid[1:], default=1) <= 65535):
            raise CudaError(INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE: invalid argument")
        if shared_mem > max(gpu.allowed_smem.get(self.name, 0), 48 * 1024):
            raise CudaError(INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE: invalid argument")
        if self.name not in ENGINE_KERNELS:
            gpu.launches.append((self.name, grid, threads, shared_mem))
        gpu.launch(self.name, self._module, args)


_FUNCTIONS: weakref.WeakValueDictionary[int, FakeFunction] = weakref.WeakValueDictionary()


class FakeStream:
    def __init__(
        self,
        gpu: FakeGpu,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        gpu.check()
        assert non_blocking, "others' work on the legacy default stream would hold this one up"
        assert (null, ptds, priority) == (False, False, None)
        self._gpu = gpu
        self.ptr = next(gpu._handles)

    def synchronize(self) -> None:
        self._gpu.wait("cudaStreamSynchronize")

    def begin_capture(self, mode: int | None = None) -> None:
        del mode
        self._gpu.check()
        if self._gpu._capturing is not None:
            raise CudaError(CAPTURE_UNSUPPORTED, "cudaErrorIllegalState: already capturing")
        self._gpu._capturing, self._gpu._spoilt = [], False

    def end_capture(self) -> FakeGraph:
        gpu = self._gpu
        gpu.check()
        captured, gpu._capturing = gpu._capturing, None
        if captured is None:
            raise CudaError(CAPTURE_UNSUPPORTED, "cudaErrorIllegalState: not capturing")
        if gpu._spoilt:
            raise CudaError(CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated")
        return FakeGraph(gpu, captured)


class FakeGraph:
    def __init__(self, gpu: FakeGpu, operations: list[Operation]) -> None:
        if gpu.out_of_memory_at is not None and len(operations) >= gpu.out_of_memory_at:
            raise CudaError(2, "cudaErrorMemoryAllocation: out of memory")
        self._gpu, self._operations = gpu, operations
        weakref.finalize(self, gpu.destroy, "cudaGraphExecDestroy").atexit = False

    def upload(self, stream: FakeStream | None = None) -> None:
        assert stream is not None
        self._gpu.check()

    def launch(self, stream: FakeStream | None = None) -> None:
        assert stream is not None
        for operation in self._operations:
            self._gpu.enqueue(operation)


class FakeEvent:
    def __init__(
        self,
        gpu: FakeGpu,
        block: bool = False,
        disable_timing: bool = False,
        interprocess: bool = False,
    ) -> None:
        assert (block, disable_timing, interprocess) == (False, False, False)
        self._gpu = gpu
        self.ptr = next(gpu._handles)
        self.at_us: float | None = None

    def record(self, stream: FakeStream | None = None) -> None:
        assert stream is not None

        def happen() -> None:
            self.at_us = self._gpu._clock_us

        self._gpu.enqueue(happen)

    def synchronize(self) -> None:
        self._gpu.wait("cudaEventSynchronize")


class FakeMemory:
    """A block of the pool; back in it when nobody refers to it any more."""

    def __init__(self, gpu: FakeGpu, size: int) -> None:
        gpu.check()
        needed = gpu.memory_bytes - sum(m.size for m in gpu._heap.values())
        if size > needed:
            raise OutOfMemory(f"Out of memory allocating {size:,} bytes")
        self.ptr = gpu._next
        gpu._heap[self.ptr] = np.full(size, 0xEE, np.uint8)  # whatever was there before
        gpu._next += -(-size // 512) * 512 + 512
        weakref.finalize(self, gpu._heap.pop, self.ptr).atexit = False


class FakePool:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def free_all_blocks(self, stream: FakeStream | None = None) -> None:
        assert stream is None
        self._gpu.wait("cudaFree")
        self._gpu.freed_blocks += 1


class FakeRuntime:
    """`cupy.cuda.runtime`: only what is used, by CuPy's own names of functions and parameters."""

    CUDARuntimeError = CudaError
    memcpyHostToDevice = _HOST_TO_DEVICE  # noqa: N815
    memcpyDeviceToHost = _DEVICE_TO_HOST  # noqa: N815
    memcpyDeviceToDevice = _DEVICE_TO_DEVICE  # noqa: N815
    cudaDevAttrL2CacheSize = 38  # noqa: N815
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97  # noqa: N815
    cudaDevAttrClockRate = 13  # noqa: N815

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def getDevice(self) -> int:  # noqa: N802
        return 0

    def deviceGetAttribute(self, attrib: int, device: int) -> int:  # noqa: N802
        self._gpu.check()
        assert device == 0
        values = {38: self._gpu.l2_bytes, 97: self._gpu.smem_optin_bytes, 13: 2_040_000}
        return values[attrib]

    def getDeviceProperties(self, device: int) -> dict[str, Any]:  # noqa: N802
        assert device == 0
        major, minor = self._gpu.capability
        return {"name": b"NVIDIA L4", "major": major, "minor": minor} | {
            "pciDomainID": 0,
            "pciBusID": self._gpu.pci_bus,
            "pciDeviceID": 0,
            "multiProcessorCount": self._gpu.num_sms,
            "l2CacheSize": self._gpu.l2_bytes,
        }

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        self._gpu.check()
        used = sum(memory.size for memory in self._gpu._heap.values())
        return self._gpu.memory_bytes - used, self._gpu.memory_bytes

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        gpu = self._gpu
        assert stream, "the default stream"
        if kind == _DEVICE_TO_DEVICE:

            def copy() -> None:
                gpu.view(dst, size)[:] = gpu.view(src, size)

            gpu.enqueue(copy)
            return
        gpu.wait("cudaMemcpyAsync of pageable memory")
        host = np.frombuffer(
            (ctypes.c_uint8 * size).from_address(src if kind == _HOST_TO_DEVICE else dst), np.uint8
        )
        if kind == _HOST_TO_DEVICE:
            gpu.view(dst, size)[:] = host
        else:
            host[:] = gpu.view(src, size)

    def memsetAsync(self, ptr: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        assert stream, "the default stream"
        assert 0 <= value < 256

        def fill() -> None:
            self._gpu.view(ptr, size)[:] = value

        self._gpu.enqueue(fill)

    def streamQuery(self, stream: int) -> int:  # noqa: N802
        assert stream, "the default stream"
        return self._gpu.query()


class FakeDriver:
    """`cupy.cuda.driver`."""

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = _MAX_DYNAMIC_SMEM

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def funcSetAttribute(self, f: int, attribute: int, value: int) -> None:  # noqa: N802
        self._gpu.check()
        assert attribute == _MAX_DYNAMIC_SMEM
        if value > self._gpu.smem_optin_bytes:
            raise CudaError(INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE: invalid argument")
        self._gpu.allowed_smem[_FUNCTIONS[f].name] = value

    def occupancyMaxActiveBlocksPerMultiprocessor(  # noqa: N802
        self,
        func: int,
        blockSize: int,  # noqa: N803
        dynamicSMemSize: int,  # noqa: N803
    ) -> int:
        self._gpu.check()
        assert func in _FUNCTIONS
        assert blockSize > 0
        assert dynamicSMemSize >= 0
        return self._gpu.ctas_per_sm


def cupy_on(gpu: FakeGpu) -> SimpleNamespace:
    def alloc(size: int) -> FakeMemory:
        assert size > 0
        return FakeMemory(gpu, size)

    def get_elapsed_time(start_event: FakeEvent, end_event: FakeEvent) -> float:
        gpu.check()
        if start_event.at_us is None or end_event.at_us is None:
            raise CudaError(NOT_READY, "cudaErrorNotReady")
        return (EVENT_OVERHEAD_US + end_event.at_us - start_event.at_us) / 1000

    pool = FakePool(gpu)
    cuda = SimpleNamespace(
        runtime=FakeRuntime(gpu),
        driver=FakeDriver(gpu),
        alloc=alloc,
        get_elapsed_time=get_elapsed_time,
        Stream=_bound(FakeStream, gpu),
        Event=_bound(FakeEvent, gpu),
        function=SimpleNamespace(Module=_bound(FakeModule, gpu)),
    )
    return SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool)


def _bound(made: type, gpu: FakeGpu) -> Callable[..., Any]:
    """The class without its first parameter, which CuPy's does not have."""
    signature = inspect.signature(made)

    def make(*args: Any, **kwargs: Any) -> Any:
        signature.bind(gpu, *args, **kwargs)
        return made(gpu, *args, **kwargs)

    return make
