"""CUDA's errors as statuses and sentences."""

from __future__ import annotations

from dataclasses import dataclass

from engine.base.errors import AttuneError
from engine.base.status import Status

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
