"""Errors and warnings of a host execution: their codes, and the messages for unsupported CUDA
features.

The values are prefixes of the runtime library's (`native/`) sentences; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from engine.base.errors import Status


class ErrorKind(StrEnum):
    ARITHMETIC_FAULT = "arithmetic fault"
    ARRAY_INDEX = "array index out of bounds"
    OPEN_BARRIER = "arrivals that nobody waited for"
    ASSERTION = "assertion failed"
    COPY_NOT_COMPLETE = "asynchronous copy not complete"
    STORE_NOT_COMPLETE = "asynchronous store not complete"
    BAD_BARRIER = "bad barrier"
    BAD_CLUSTER_RANK = "bad cluster rank"
    BAD_CP_ASYNC = "bad cp.async"
    BAD_MBARRIER = "bad mbarrier"
    BAD_MMA = "bad mma"
    BAD_SETMAXNREG = "bad setmaxnreg"
    BAD_TENSOR_MAP = "bad tensor map"
    BAD_WARP_MASK = "bad warp mask"
    BAD_WARPGROUP = "bad warpgroup"
    BAD_WGMMA = "bad wgmma"
    BAD_WMMA = "bad wmma"
    SHARED_BARRIER = "barrier of two groups"
    CLUSTER_BARRIER = "cluster barrier"
    DEADLOCK = "deadlock"
    DIVERGENT_BARRIER = "divergent barrier"
    GLOBAL_OTHER_HEAD = "global memory of another head"
    GLOBAL_BOUNDS = "global memory out of bounds"
    GLOBAL_RACE = "global memory race"
    GRID_TOO_LARGE = "grid too large"
    GUARD_ZONE = "guard zone damaged"
    ILLEGAL_ADDRESS = "illegal address"
    INVALID_LAUNCH = "invalid launch"
    LIVELOCK = "livelock"
    MBARRIER_FENCE = "mbarrier fence missing"
    MBARRIER_TWICE = "mbarrier initialised twice"
    MBARRIER_MISSING = "mbarrier not initialised"
    OPEN_PHASE = "mbarrier phase never complete"
    MISALIGNED = "misaligned address"
    PROXY_FENCE = "proxy fence missing"
    RUNNING_WGMMA_REGISTERS = "registers of a running wgmma"
    REGISTERS_NEVER_FREE = "setmaxnreg waits for ever"
    CTA_HAS_LEFT = "shared memory of a CTA that has left"
    CTA_NOT_STARTED = "shared memory of a CTA that may not have started"
    SHARED_BOUNDS = "shared memory out of bounds"
    SHARED_RACE = "shared memory race"
    STACK_OVERFLOW = "stack overflow"
    TIME_LIMIT = "time limit"
    TOO_MANY_ARRIVALS = "too many mbarrier arrivals"
    TRAP = "trap"
    GLOBAL_UNINITIALISED = "uninitialised global memory"
    LOCAL_UNINITIALISED = "uninitialised local variable"
    SHARED_UNINITIALISED = "uninitialised shared memory"
    UNSUPPORTED_PTX = "unsupported PTX"
    UNSUPPORTED_WGMMA_LAYOUT = "unsupported wgmma layout"
    WARP_DIVERGENCE = "warp divergence"
    WARPGROUP_DIVERGENCE = "warpgroup divergence"
    WGMMA_NOT_COMPLETE = "wgmma not complete"
    WGMMA_FENCE = "wgmma_fence missing"
    INPUT_WRITTEN = "write to an input"


_RACES = frozenset(
    {
        ErrorKind.GLOBAL_RACE,
        ErrorKind.SHARED_RACE,
        ErrorKind.PROXY_FENCE,
        ErrorKind.COPY_NOT_COMPLETE,
        ErrorKind.STORE_NOT_COMPLETE,
        ErrorKind.WGMMA_NOT_COMPLETE,
        ErrorKind.RUNNING_WGMMA_REGISTERS,
    }
)
_BOUNDS = frozenset(
    {
        ErrorKind.ARRAY_INDEX,
        ErrorKind.GLOBAL_BOUNDS,
        ErrorKind.GLOBAL_OTHER_HEAD,
        ErrorKind.GUARD_ZONE,
        ErrorKind.ILLEGAL_ADDRESS,
        ErrorKind.SHARED_BOUNDS,
    }
)


def status_of(kind: ErrorKind) -> Status:
    """Return the status of a run that ended with an error of this kind."""
    if kind in _RACES:
        return Status.RACE
    return Status.OUT_OF_BOUNDS if kind in _BOUNDS else Status.LAUNCH_ERROR


# CUDA features that the CPU backend lacks: sentences for errors of the host compiler.

CPU_VERSION = (
    "write it otherwise, or give the CPU a version of its own under #if defined(__CUDA_ON_HOST__)"
)

# Pattern in the source line or the compiler's message -> (feature, remedy).
_KNOWN = (
    (
        r"\bcluster_group\b|\bthis_cluster\b|\b__cluster\w+\(",
        "thread block clusters for this target",
        "only GPUs of sm_90 and newer have them: choose one, or leave the cluster out under "
        "#if __CUDA_ARCH__ >= 900",
    ),
    (
        r"\bcurand\w*|\bthrust/|\bthrust::",
        "cuRAND and Thrust",
        "leave dropout out, as the reference has none, and use plain pointers in device code",
    ),
    (
        r"\bcuda/(?:std/)?\w+|\bcuda::|\bcub/|\bcub::|\bcuda_awbarrier",
        "libcu++ and CUB (cuda::barrier, cuda::pipeline, cuda::atomic, cub)",
        "inline PTX (mbarrier, cp.async), __pipeline_memcpy_async of <cuda_pipeline.h> and "
        "cooperative groups are executed: use those",
    ),
    (
        r"\bcute/|\bcutlass/|\bcute::|\bcutlass::",
        "CUTLASS and CuTe, whose folders the build does not know",
        "put the headers beside the kernel, or write the kernel without them",
    ),
    (
        r"\bcuda_fp[46]\.h|\b__nv_fp[46]|\bcuda_tf32\.h",
        "FP4 and FP6 numbers",
        "FP8 (<cuda_fp8.h>), FP16 and BF16 are executed",
    ),
    (
        r"\bbmma_sync|\bwmma::experimental",
        "wmma of 1 and 4 bits",
        "half, bfloat16, tf32, double and 8-bit integers are executed",
    ),
    (
        r"\btex\w*D\w*\s*[<(]|\bsurf\dD\w+|\bcudaTextureObject_t|\btexture\s*<",
        "textures and surfaces",
        "read global memory through a pointer",
    ),
    (
        r"\bcudaLaunchDevice|\bcudaGetParameterBuffer|<<<",
        "launches of a kernel from a kernel",
        "call the code as a __device__ function",
    ),
    (
        r"\b__(?:shfl(?:_up|_down|_xor)?|any|all|ballot)\s*\(",
        "warp functions without a mask, which no GPU from sm_70 on has either",
        "use the ones that end in _sync",
    ),
    (
        r"\b__v(?:add|sub|abs|neg|avg|hadd|min|max|set|cmp|sad|i?min|i?max)\w*[24]\b|\b__vi\w+",
        "the SIMD video instructions (__vadd4 and its like)",
        CPU_VERSION,
    ),
)
_UNKNOWN_NAME = re.compile(
    r"'(?P<name>[\w:]+)' (?:was not declared|has not been declared|does not name|is not a member)"
    r"|(?:undeclared identifier|unknown type name|no member named|no template named)"
    r" '(?P<clang>[\w:]+)'"
)
# A static_assert of the CPU backend's headers.
_STATIC_ASSERT = re.compile(r"static assertion failed.*?: \"?(the CPU backend .*?)\"?$")
_NO_FILE = re.compile(
    r"(?:^| )(?P<file>[\w./+-]+): No such file|'(?P<clang>[\w./+-]+)' file not found"
)
_OF_CUDA = re.compile(r"(?:__|cuda|nvcuda|cooperative_groups|cg::|CU|nv_|h2?[a-z]+\d*$)")


def explain(where: str, message: str, sources: Mapping[str, str]) -> str:
    """Return the compiler's first error as a sentence.

    Args:
        where: "file.cu:12".
        message: the compiler's message.
        sources: text of the kernel's files by name; a `#line 1` precedes the original's lines.
    """
    file, _, line = where.rpartition(":")
    lines = sources.get(file, "").partition(f'#line 1 "{file}"\n')[2].splitlines()
    source_line = lines[int(line) - 1] if int(line) <= len(lines) else ""
    for pattern, what, instead in _KNOWN:
        if re.search(pattern, f"{message}\n{source_line}"):
            return f"{where}: the CPU backend lacks {what}: {instead}."
    if match := _STATIC_ASSERT.search(message):
        return f"{where}: {match[1]}."
    if match := _NO_FILE.search(message):
        name = match["file"] or match["clang"]
        return (
            f"{where}: the header {name} is neither beside the kernel nor among those of the CUDA "
            f"toolkit that the CPU backend has: put it there, or leave it out."
        )
    match = _UNKNOWN_NAME.search(message)
    name = (match["name"] or match["clang"]) if match else ""
    if name and _OF_CUDA.match(name):
        return f"{where}: the CPU backend does not know {name}: if CUDA has it, {CPU_VERSION}."
    return f"{where}: {message}"
