"""Run on the software GPU, only with cuda.bindings; print the result of each call as JSON."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cu
from cuda.bindings import nvml
from driver_refusals import call, documented_refusals

found: dict[str, Any] = {}


def refused(name: str, function: Any, *arguments: Any) -> None:
    found[name] = function(*arguments)[0].name


def launch(
    kernel: Any, arguments: list[Any], stream: Any = 0, block: int = 32, smem: int = 0
) -> Any:
    values = [np.asarray(a) for a in arguments]
    pointers = np.array([v.ctypes.data for v in values], np.uint64)
    return cu.cuLaunchKernel(kernel, 1, 1, 1, block, 1, 1, smem, stream, pointers.ctypes.data, 0)


cubin = Path(sys.argv[1]).read_bytes()
call(cu.cuInit, 0)
found["count"] = call(cu.cuDeviceGetCount)
found["names"] = [
    call(cu.cuDeviceGetName, 64, n).split(b"\0")[0].decode() for n in range(found["count"])
]
nvml.init_v2()
found["nvml_name"] = nvml.device_get_name(nvml.device_get_handle_by_index_v2(0))
device = call(cu.cuDeviceGet, 0)
call(cu.cuCtxSetCurrent, call(cu.cuDevicePrimaryCtxRetain, device))
refused("no such device", cu.cuDeviceGet, 7)

module = call(cu.cuModuleLoadData, cubin)
add = call(cu.cuModuleGetFunction, module, b"add")
poke = call(cu.cuModuleGetFunction, module, b"poke")
refused("no such kernel", cu.cuModuleGetFunction, module, b"nothing")
refused("PTX", cu.cuModuleLoadData, b".version 8.0\n.target sm_89\n\0")
refused("damaged cubin", cu.cuModuleLoadData, cubin[:64] + bytes(1 << 20))
refused("cubin of another GPU", cu.cuModuleLoadData, Path(sys.argv[2]).read_bytes())
# Tables and sections far beyond the file's end: a size must not be read from there.
place = mmap.mmap(-1, 1 << 20)  # no memory follows it


def behind_its_end(image: bytes) -> str:
    place[:] = image.ljust(len(place), b"\0")
    return cu.cuModuleLoadData(ctypes.addressof(ctypes.c_char.from_buffer(place)))[0].name


found["damaged headers"] = sorted(
    {
        behind_its_end(cubin[:at] + value + cubin[at + len(value) :])
        for at in (0x20, 0x28, int.from_bytes(cubin[0x28:0x30], "little") + 64 + 32)
        for value in (b"\xff" * 8, (1 << 29).to_bytes(8, "little"))
    }
)

found["registers"] = call(
    cu.cuFuncGetAttribute, cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, add
)
found["occupancy"] = [
    call(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor, add, threads, smem)
    for threads in (32, 96, 256, 1024)
    for smem in (0, 5000, 40000)
]

# 32 numbers, and the memory next to them.
given = np.arange(32, dtype=np.int32)
here = call(cu.cuMemAlloc, given.nbytes)
call(cu.cuMemcpyHtoD, here, given.ctypes.data, given.nbytes)
refused("copy past the end", cu.cuMemcpyHtoD, here, given.ctypes.data, given.nbytes + 1)
refused("more memory than there is", cu.cuMemAlloc, 1 << 50)
stream = call(cu.cuStreamCreate, 1)
arguments = [np.uint64(int(here)), np.int32(5)]
call(launch, add, arguments, stream)
call(cu.cuStreamSynchronize, stream)
back = np.zeros_like(given)
call(cu.cuMemcpyDtoH, back.ctypes.data, here, back.nbytes)
found["added"] = bool((back == given + 5).all())
refused("threads beyond a CTA", launch, add, arguments, stream, 2048)
refused("shared memory beyond the limit", launch, add, arguments, stream, 32, 49153)

# A global variable of the module, found by name.
total, size = call(cu.cuModuleGetGlobal, module, b"total")
call(cu.cuMemcpyDtoH, back.ctypes.data, total, size)
found["variable"] = int(back[0])

# A capture: nothing runs until the graph is launched, and a wait for it invalidates it.
call(cu.cuStreamBeginCapture, stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
call(launch, add, arguments, stream)
graph = call(cu.cuStreamEndCapture, stream)
executable = call(cu.cuGraphInstantiate, graph, 0)
for _ in range(3):
    call(cu.cuGraphLaunch, executable, stream)
call(cu.cuStreamSynchronize, stream)
call(cu.cuMemcpyDtoH, back.ctypes.data, here, back.nbytes)
found["replayed"] = bool((back == given + 20).all())
call(cu.cuStreamBeginCapture, stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
refused("waiting in a capture", cu.cuStreamSynchronize, stream)
refused("the end of that capture", cu.cuStreamEndCapture, stream)

# Tensor maps: which ones are accepted by a GPU below 9.0 and by one of 9.0.
space = np.zeros(256, np.uint8)
status, encode, _ = cu.cuGetProcAddress(
    b"cuTensorMapEncodeTiled", 12000, cu.CUdriverProcAddress_flags(0)
)
prototype = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    *(ctypes.c_void_p,) * 4,
    *(ctypes.c_int,) * 4,
)
aligned = space.ctypes.data + -space.ctypes.data % 64
FP16, SWIZZLE_128B, SWIZZLE_64B = 6, 3, 2
GIVEN: dict[str, Any] = {
    "where": aligned,
    "rank": 2,
    "address": 0,
    "dims": (64, 64),
    "strides": (128,),
    "box": (64, 8),
    "steps": (1, 1),
    "swizzle": SWIZZLE_128B,
    "interleave": 0,
}
WRONG: dict[str, dict[str, Any]] = {
    "fits": {},
    "not aligned": {"where": aligned + 16},
    "no dimensions": {"rank": 0},
    "six dimensions": {"rank": 6},
    "address not aligned": {"address": 8},
    "empty dimension": {"dims": (64, 0)},
    "stride not aligned": {"strides": (136,)},
    "stride too long": {"strides": (1 << 40,)},
    "box too large": {"box": (64, 257)},
    "empty box": {"box": (0, 8)},
    "row of the box not aligned": {"box": (4, 8)},
    "row of the box longer than the swizzle": {"swizzle": SWIZZLE_64B},
    "element stride too long": {"steps": (1, 9)},
    "too many elements": {"dims": (64, (1 << (31 if cu.CUDA_VERSION >= 13000 else 32)) + 1)},
    "no such swizzle": {"swizzle": 7},
    "no such interleaving": {"interleave": 3},
    "two interleaved dimensions": {"interleave": 1},
}


def encoded(**changes: Any) -> str:
    given = GIVEN | changes
    memory = int(call(cu.cuMemAlloc, 1 << 16))
    arrays = [
        (kind * len(given[name]))(*given[name])
        for name, kind in (
            ("dims", ctypes.c_uint64),
            ("strides", ctypes.c_uint64),
            ("box", ctypes.c_uint32),
            ("steps", ctypes.c_uint32),
        )
    ]
    code = prototype(int(encode))(
        *(given["where"], FP16, given["rank"], memory + given["address"]),
        *arrays,
        *(given["interleave"], given["swizzle"], 0, 0),
    )
    return cu.CUresult(code).name


found["maps"] = {}
for number, name in enumerate(("L4", "H200")):
    context = call(cu.cuDevicePrimaryCtxRetain, call(cu.cuDeviceGet, number))
    call(cu.cuCtxSetCurrent, context)
    found["maps"][name] = {what: encoded(**changes) for what, changes in WRONG.items()}
call(cu.cuCtxSetCurrent, call(cu.cuDevicePrimaryCtxRetain, device))

refused("not there", cu.cuCtxSetLimit, cu.CUlimit.CU_LIMIT_STACK_SIZE, 4096)
refused("not there either", cu.cuCtxGetCacheConfig)
# As for a program linked against the driver; its message goes to descriptor 2.
with tempfile.TemporaryFile() as said:
    kept = os.dup(2)
    os.dup2(said.fileno(), 2)
    found["not there, linked"] = ctypes.CDLL("libcuda.so.1").cuMipmappedArrayDestroy(None)
    os.dup2(kept, 2)
    said.seek(0)
    found["it says"] = said.read().decode()

found["documented"] = documented_refusals(add, here, given.nbytes, device)

# After an illegal address, every call of the context returns that error.
call(launch, poke, [np.uint64(int(here) + given.nbytes)], stream)
refused("wrong address", cu.cuStreamSynchronize, stream)
refused("after it", cu.cuMemAlloc, 64)
found["sentence"] = call(cu.cuGetErrorString, cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS).decode()
print(json.dumps(found))
