"""Calls that CUDA's documentation says must fail, made by `driver_calls.py`.

For freed objects and arbitrary numbers CUDA's behaviour is undefined; here they are refused like
any invalid handle. `test_refusals.py` compares with cuda.h.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

VALUE, HANDLE, CONTEXT = (f"CUDA_ERROR_INVALID_{what}" for what in ("VALUE", "HANDLE", "CONTEXT"))
CAPTURE = "CUDA_ERROR_STREAM_CAPTURE_"
MODES = cu.CUstreamCaptureMode
NOBODYS = 0x123450


def call(function: Any, *arguments: Any) -> Any:
    """Return the results of a call that must succeed."""
    status, *results = function(*arguments)
    assert status == cu.CUresult.CUDA_SUCCESS, (function.__name__, status)
    return results[0] if len(results) == 1 else results


def in_thread(function: Any, *arguments: Any) -> Any:
    """Return its result in another thread with the same context."""
    context, answers = call(cu.cuCtxGetCurrent), []

    def work() -> None:
        call(cu.cuCtxSetCurrent, context)
        answers.append(function(*arguments))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return answers[0]


class Refusals:
    """Makes calls; `found` has the result and the documented one, by the name of the case."""

    def __init__(self, kernel: Any, here: Any, size: int, device: Any) -> None:
        self.found: dict[str, tuple[str, str]] = {}
        self.kernel, self.here, self.size, self.device = kernel, here, size, device
        self.stream, self.other = (call(cu.cuStreamCreate, 1) for _ in range(2))
        self.values = [np.array(int(here), np.uint64), np.array(5, np.int32)]
        self.parameters = np.array([v.ctypes.data for v in self.values], np.uint64).copy()

    def refused(self, name: str, code: str, function: Any, *arguments: Any) -> None:
        self.found[name] = (function(*arguments)[0].name, code)

    def launch(self, stream: Any, kernel: Any = None, parameters: int | None = None) -> Any:
        given = self.parameters.ctypes.data if parameters is None else parameters
        kernel = self.kernel if kernel is None else kernel
        return cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, given, 0)

    def of_launches(self) -> None:
        both, end = self.parameters.ctypes.data, np.zeros(1, np.uint64)
        grid = (1, 1, 1, 32, 1, 1, 0, self.stream)
        ask, nobody = self.refused, cu.CUfunction(NOBODYS)
        ask("parameters twice", VALUE, cu.cuLaunchKernel, self.kernel, *grid, both, end.ctypes.data)
        ask("no parameters", VALUE, self.launch, self.stream, None, 0)
        ask("no kernel", HANDLE, self.launch, self.stream, nobody)
        ask("nobody's stream", HANDLE, self.launch, cu.CUstream(NOBODYS))
        occupancy = cu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        ask("occupancy of no kernel", HANDLE, occupancy, nobody, 32, 0, 0)
        ask("other flags of occupancy", VALUE, occupancy, self.kernel, 32, 0, 2)

    def of_memory(self) -> None:
        ask, here, stream = self.refused, self.here, self.stream
        host = np.zeros(64, np.int32)
        at = host.ctypes.data
        ask("to pageable memory as a device's", VALUE, cu.cuMemcpyHtoD, at, at + 64, 4)
        ask("from pageable memory as a device's", VALUE, cu.cuMemcpyDtoH, at, at + 64, 4)
        ask("a device's memory as the host's", VALUE, cu.cuMemcpyHtoD, here, int(here), 4)
        ask("fill of more than a number holds", VALUE, cu.cuMemsetD32, here, 0, 1 << 62)
        ask("fill past the end", VALUE, cu.cuMemsetD8, here, 0, self.size + 1)
        ask("flags of pinned memory", VALUE, cu.cuMemHostAlloc, 64, 8)
        too_much = "CUDA_ERROR_OUT_OF_MEMORY"
        ask("pinned memory beyond the host's", too_much, cu.cuMemHostAlloc, 1 << 50, 0)
        ask("a device's memory is not pinned", VALUE, cu.cuMemHostGetDevicePointer, int(here), 0)
        call(cu.cuMemHostRegister, at + 64, 64, 0)
        already = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        ask("registered in part", already, cu.cuMemHostRegister, at, 128, 0)
        ask("copy of what is registered in part", VALUE, cu.cuMemcpyHtoD, here, at + 64, 128)
        ask("flags of a device pointer", VALUE, cu.cuMemHostGetDevicePointer, at + 64, 1)
        call(cu.cuMemHostUnregister, at + 64)
        no_more = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
        ask("not registered any more", no_more, cu.cuMemHostUnregister, at + 64)
        nobody = cu.CUmemoryPool(NOBODYS)
        ask("nobody's pool", VALUE, cu.cuMemAllocFromPoolAsync, 64, nobody, stream)
        ask("nobody's pool as a device's", VALUE, cu.cuDeviceSetMemPool, self.device, nobody)
        ask("nobody's pool trimmed", VALUE, cu.cuMemPoolTrimTo, nobody, 0)
        freed = call(cu.cuMemAllocAsync, 64, stream)
        call(cu.cuMemFreeAsync, freed, stream)
        ask("freed twice in a stream", VALUE, cu.cuMemFreeAsync, freed, stream)
        call(cu.cuStreamSynchronize, stream)
        ask("freed twice", VALUE, cu.cuMemFree, freed)

    def of_contexts_and_events(self) -> None:
        ask, stream = self.refused, self.stream
        ask("nobody's context", CONTEXT, cu.cuCtxSetCurrent, cu.CUcontext(NOBODYS))
        event = call(cu.cuEventCreate, 0)
        ask("no time is recorded", HANDLE, cu.cuEventElapsedTime, event, event)
        ask("external record, no capture", VALUE, cu.cuEventRecordWithFlags, event, stream, 1)
        ask("external wait, no capture", VALUE, cu.cuStreamWaitEvent, stream, event, 1)
        ask("nobody's event", HANDLE, cu.cuEventRecord, cu.CUevent(NOBODYS), stream)
        mine = call(cu.cuCtxGetCurrent)
        parameters = () if cu.CUDA_VERSION < 13000 else (None,)
        other = call(cu.cuCtxCreate, *parameters, 0, self.device)
        its_own = call(cu.cuMemAlloc, 64)
        ask("event of another context", HANDLE, cu.cuEventRecord, event, 0)
        ask("kernel of another context", HANDLE, self.launch, 0)
        call(cu.cuCtxDestroy, other)
        assert int(call(cu.cuCtxGetCurrent)) == int(mine)
        ask("memory of a destroyed context", VALUE, cu.cuMemFree, its_own)
        ask("destroyed context", CONTEXT, cu.cuCtxSetCurrent, other)
        call(cu.cuEventDestroy, event)
        ask("destroyed event", HANDLE, cu.cuEventDestroy, event)

    def of_captures(self) -> None:
        """Test cuThreadExchangeStreamCaptureMode: calls of other threads are allowed in thread
        mode, and invalidate the capture in global mode."""
        ask, stream, other = self.refused, self.stream, self.other
        event = call(cu.cuEventCreate, 0)
        call(cu.cuStreamBeginCapture, stream, MODES.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        ask(
            "end by another thread",
            f"{CAPTURE}WRONG_THREAD",
            in_thread,
            cu.cuStreamEndCapture,
            stream,
        )
        theirs = in_thread(cu.cuMemAlloc, 64)
        self.found["another thread's call"] = (theirs[0].name, "CUDA_SUCCESS")
        call(cu.cuThreadExchangeStreamCaptureMode, MODES.CU_STREAM_CAPTURE_MODE_RELAXED)
        relaxed = cu.cuMemFree(theirs[1])
        self.found["a call of a relaxed thread"] = (relaxed[0].name, "CUDA_SUCCESS")
        call(cu.cuThreadExchangeStreamCaptureMode, MODES.CU_STREAM_CAPTURE_MODE_GLOBAL)
        call(cu.cuEventRecord, event, stream)
        call(cu.cuStreamBeginCapture, other, MODES.CU_STREAM_CAPTURE_MODE_GLOBAL)
        ask("two captures in one", f"{CAPTURE}MERGE", cu.cuStreamWaitEvent, other, event, 0)
        for each in (stream, other):
            ask(f"the end of {int(each)}", f"{CAPTURE}INVALIDATED", cu.cuStreamEndCapture, each)
        captured = "CUDA_ERROR_CAPTURED_EVENT"
        ask("event of a capture that ended", captured, cu.cuStreamWaitEvent, other, event, 0)
        call(cu.cuStreamBeginCapture, stream, MODES.CU_STREAM_CAPTURE_MODE_GLOBAL)
        unsupported = f"{CAPTURE}UNSUPPORTED"
        ask("another thread beside a global one", unsupported, in_thread, cu.cuMemAlloc, 64)
        ask("the end of that", f"{CAPTURE}INVALIDATED", cu.cuStreamEndCapture, stream)

    def of_graphs(self) -> None:
        """Test that a graph keeps captured objects that the program has released."""
        ask, stream = self.refused, self.stream
        call(cu.cuStreamBeginCapture, stream, MODES.CU_STREAM_CAPTURE_MODE_GLOBAL)
        call(self.launch, stream)
        graph = call(cu.cuStreamEndCapture, stream)
        _, count = call(cu.cuGraphGetNodes, graph, 1)
        assert count == 1
        wanted = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
        executable = call(cu.cuGraphInstantiateWithParams, graph, wanted)
        call(cu.cuGraphDestroy, graph)
        ask("destroyed graph", VALUE, cu.cuGraphDestroy, graph)
        ask("an executable of it", VALUE, cu.cuGraphInstantiate, graph, 0)
        call(cu.cuGraphLaunch, executable, stream)
        call(cu.cuStreamSynchronize, stream)
        call(cu.cuGraphExecDestroy, executable)
        ask("destroyed executable", VALUE, cu.cuGraphLaunch, executable, stream)


def documented_refusals(
    kernel: Any, here: Any, size: int, device: Any
) -> dict[str, tuple[str, str]]:
    """Return results and the documented ones.

    Args:
        kernel: takes the address of 32 integers, and one to add to each.
        here: that address, of memory of `size` bytes.
    """
    made = Refusals(kernel, here, size, device)
    for part in (
        made.of_launches,
        made.of_memory,
        made.of_contexts_and_events,
        made.of_captures,
        made.of_graphs,
    ):
        part()
    return made.found
