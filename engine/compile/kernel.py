"""What a device compile yields, and its form on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class PtxasInfo:
    """What ptxas says about one entry function."""

    registers_per_thread: int
    static_smem_bytes: int
    spill_store_bytes: int  # per thread
    spill_load_bytes: int  # per thread
    stack_bytes: int  # per thread


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One source compiled with one set of macros for one arch."""

    arch: str  # "sm_89", "sm_90a"
    cubin: bytes
    entries: Mapping[str, PtxasInfo]  # by the name of the `extern "C" __global__` function
    log: str  # the compiler's output: warnings, then ptxas' report
    flags: tuple[str, ...]  # all options but the toolkit's include folder
    source_sha256: str  # of the `.cu` file; its headers are covered by `key`
    key: str  # content address: source, headers, flags and NVRTC's version


def to_bytes(kernel: CompiledKernel) -> bytes:
    """A line of JSON, then the cubin."""
    head = {
        "arch": kernel.arch,
        "entries": {name: asdict(info) for name, info in kernel.entries.items()},
        "log": kernel.log,
        "flags": kernel.flags,
        "source_sha256": kernel.source_sha256,
        "key": kernel.key,
    }
    return json.dumps(head).encode("ascii") + b"\n" + kernel.cubin


def from_bytes(payload: bytes) -> CompiledKernel:
    """The inverse of `to_bytes`. Raises KeyError, TypeError or ValueError for anything else."""
    line, _, cubin = payload.partition(b"\n")
    head = json.loads(line)
    return CompiledKernel(
        arch=head["arch"],
        cubin=cubin,
        entries={name: PtxasInfo(**info) for name, info in head["entries"].items()},
        log=head["log"],
        flags=tuple(head["flags"]),
        source_sha256=head["source_sha256"],
        key=head["key"],
    )
