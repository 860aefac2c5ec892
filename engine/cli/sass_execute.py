"""`sass FILE --execute`: execute any kernel's machine code on this CPU, on buffers made for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.attention.tensors import POISON_BITS
from engine.base import files
from engine.base.errors import InvalidProblem
from engine.base.units import format_duration
from engine.cli.output import print_json
from engine.cuda_on_host.client import worker_threads
from engine.devices.spec import SM_LIMITS
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import Cubin, Entry, read_cubin
from engine.machine_code.disassembly import find_entry
from engine.machine_code.execution import (
    ExecutionFault,
    ExecutionTimeout,
    GlobalBuffer,
    Hazard,
    execute,
    load_module,
    prepare,
)
from engine.machine_code.launch import Content, Launch, buffer_address

_TIME_LIMIT_S = 300.0
_MAX_CLUSTER_CTAS = 16  # the largest non-portable cluster size
_FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "tf32": np.float32}


@dataclass(frozen=True, slots=True)
class _Executed:
    entry: str
    arch: str
    instructions: int
    seconds: float
    fault: str
    hazards: tuple[Hazard, ...]
    buffers: tuple[tuple[int, int, int], ...]  # (number of the pointer, its bytes, changed bytes)


def run_executed(
    file: str,
    cubin_data: bytes,
    entry_name: str | None,
    launch: Launch,
    contents: Sequence[Content | None],
    *,
    cluster: tuple[int, int, int] | None,
    check: bool,
    save: Path | None,
    as_json: bool,
) -> int:
    """Execute, print the result, and return the exit code: 1 if a fault or hazard was found.

    Args:
        cluster: CTAs of a cluster; None: as compiled into the code.
        save: a folder for the final memory of each pointer.

    Raises:
        InvalidProblem: the launch does not fit the entry, or a pointer has no size.
        StoreError: `save` cannot be written.
        CompileError, ToolMissing: the cubin cannot be read or the emulator cannot be built.
    """
    cubin = read_cubin(cubin_data)
    entry = find_entry(cubin, entry_name)
    cluster = _cluster_of(cubin, entry, cluster)
    _check_shared_memory(cubin, entry, launch)
    memory = [_memory(number, content) for number, content in enumerate(contents)]
    found = _executed(cubin, entry, launch, memory, cluster, check)
    if save is not None:
        for number, buffer in enumerate(memory):
            path = save / f"pointer_{number + 1}.bin"
            with files.explain_os_error(f"{path} cannot be written"):
                path.write_bytes(buffer.data.tobytes())
    if as_json:
        print_json(_as_json(file, found, check))
    else:
        _print(file, found, check)
    return 1 if found.fault or found.hazards else 0


def _cluster_of(
    cubin: Cubin, entry: Entry, given: tuple[int, int, int] | None
) -> tuple[int, int, int]:
    """Return the cluster size given by the launch or the code."""
    compiled = entry.cluster if prod(entry.cluster) > 1 else None
    cluster = given or compiled or (1, 1, 1)
    size = prod(cluster)
    if size > 1 and int(cubin.arch[3:].rstrip("af")) < 90:
        raise InvalidProblem(
            f"--cluster needs sm_90 or later, and the code is for {cubin.arch}: leave it out.",
            code="cluster_before_hopper",
        )
    if size > _MAX_CLUSTER_CTAS or (compiled and cluster != compiled):
        by = f"the code says {compiled}" if compiled else f"it has {_MAX_CLUSTER_CTAS} at most"
        raise InvalidProblem(
            f"CUDA launches no cluster of {cluster} CTAs: {by}.", code="cluster_refused"
        )
    return cluster


def _check_shared_memory(cubin: Cubin, entry: Entry, launch: Launch) -> None:
    number = int(cubin.arch[3:].rstrip("af"))
    limits = SM_LIMITS.get(divmod(number, 10))
    used = entry.static_smem_bytes + launch.dynamic_smem_bytes
    if limits is not None and used > limits.smem_per_cta_optin_bytes:
        raise InvalidProblem(
            f"{entry.name} would have {used:,} bytes of shared memory for a CTA "
            f"({entry.static_smem_bytes:,} static, the rest dynamic by --smem), and {cubin.arch} "
            "has "
            f"{limits.smem_per_cta_optin_bytes:,}: give less.",
            code="sass_shared_memory",
        )


def _executed(
    cubin: Cubin,
    entry: Entry,
    launch: Launch,
    memory: Sequence[GlobalBuffer],
    cluster: tuple[int, int, int],
    check: bool,
) -> _Executed:
    given = [buffer.data.copy() for buffer in memory]
    module = load_module(cubin)
    hazards: list[Hazard] | None = [] if check else None
    fault, instructions = "", 0
    prepare()
    begin = time.perf_counter()
    try:
        instructions = execute(
            program_of(cubin, entry.name),
            module.entries[entry.name],
            launch,
            [*memory, *module.buffers],
            cluster=cluster,
            timeout_s=_TIME_LIMIT_S,
            threads=worker_threads(),
            hazards=hazards,
        )
    except (ExecutionFault, ExecutionTimeout) as error:
        fault = str(error)
    return _Executed(
        entry.name,
        cubin.arch,
        instructions,
        time.perf_counter() - begin,
        fault,
        tuple(hazards or ()),
        tuple(
            (number + 1, buffer.data.nbytes, int(np.count_nonzero(buffer.data != before)))
            for number, (buffer, before) in enumerate(zip(memory, given, strict=True))
        ),
    )


def _memory(number: int, content: Content | None) -> GlobalBuffer:
    """Return initial memory: normally distributed floats from a fixed seed, zero integers, and
    NaN patterns for plain bytes."""
    if content is None:
        raise InvalidProblem(
            f"Pointer {number + 1} has no size: write ptr:4096 (bytes) or "
            "ptr:f16[2,64] (numbers), in a structure as struct:24;0=ptr:4096."
        )
    words = np.zeros(-(-content.size_bytes // 8), np.uint64)
    data: NDArray[np.uint8] = words.view(np.uint8)[: content.size_bytes]
    rng = np.random.default_rng(number)
    if content.data:
        data[:] = np.frombuffer(content.data, np.uint8)
    elif content.dtype in _FLOATS:
        kind = _FLOATS[content.dtype]
        data[:] = rng.standard_normal(content.count, np.float32).astype(kind).view(np.uint8)
    elif content.dtype == "bf16":
        numbers = rng.standard_normal(content.count, np.float32).view(np.uint32)
        data[:] = (numbers >> 16).astype(np.uint16).view(np.uint8)
    elif not content.dtype:
        data[: data.size // 2 * 2].view(np.uint16)[:] = POISON_BITS
    return GlobalBuffer(f"pointer {number + 1}", buffer_address(number), data)


def _print(file: str, found: _Executed, check: bool) -> None:
    print(f"{file}: {found.entry}, {found.arch}, executed on this CPU.")
    if found.fault:
        print(found.fault)
    else:
        print(
            f"It finished after {found.instructions:,} warp instructions "
            f"({format_duration(found.seconds)} on this CPU, not a GPU time)."
        )
    for number, size, changed in found.buffers:
        print(f"pointer {number}: {changed:,} of {size:,} bytes changed")
    for hazard in found.hazards:
        print(f"{hazard.kind}: {hazard.sentence}")
    if check and not found.hazards:
        so_far = " before the fault" if found.fault else ""
        print(f"No hazard in shared or global memory was found{so_far}.")


def _as_json(file: str, found: _Executed, check: bool) -> dict[str, Any]:
    return {
        "kernel": file,
        "entry": found.entry,
        "arch": found.arch,
        "warp_instructions": found.instructions,
        "fault": found.fault,
        "checked": check,
        "hazards": [
            {
                "kind": hazard.kind,
                "sentence": hazard.sentence,
                "addresses": [hazard.before.address, hazard.now.address],
                "lines": [
                    f"{at.source[0].file}:{at.source[0].line}" if at.source else ""
                    for at in (hazard.before, hazard.now)
                ],
                "under_way": hazard.in_flight,
                "warps": hazard.warps,
                "cta": hazard.cta,
                "buffer": hazard.buffer,
                "cta_before": hazard.cta_before,
                "count": hazard.count,
            }
            for hazard in found.hazards
        ],
        "pointers": [
            {"bytes": size, "changed_bytes": changed} for _, size, changed in found.buffers
        ],
    }
