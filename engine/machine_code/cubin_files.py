"""Use a cubin of another compiler (Triton, CuTe DSL, nvcc) instead of compiling the kernel."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from engine.base import files
from engine.base.errors import AttuneError, CompileError, InvalidBuild, InvalidCubin
from engine.base.launch_arguments import PassLaunch, encode_argument
from engine.cuda_source.nvrtc import CompiledKernel
from engine.cuda_source.ptxas import PtxasInfo
from engine.cuda_source.sources import Sources, read_sources
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import Cubin, Entry, read_cubin
from engine.machine_code.disassembly import find_entry
from engine.machine_code.launch import check_arguments

_MAX_BYTES = 256 << 20


def read_cubin_file(path: Path) -> Cubin:
    """Read a cubin. Raises InvalidCubin if the file cannot be read or is not a complete cubin."""
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise InvalidCubin(
            f"{path.name} cannot be read ({error.strerror or error}): put it where the "
            f"description's `cubin` says, {path.parent}.",
            code="cubin_file_unreadable",
        ) from None


@functools.lru_cache(maxsize=32)
def _read(path: Path, _mtime_ns: int, _size: int) -> Cubin:
    data = files.read(path, _MAX_BYTES)
    try:
        return read_cubin(data)
    except InvalidCubin as error:
        raise InvalidCubin(f"{path.name}: {error}", code="cubin_file_damaged") from None


def read_texts(source: Path, include_folders: Sequence[Path], cubins: Sequence[Path]) -> Sources:
    """Read the sources of a kernel as `read_sources`.

    For a kernel in cubins, the text ends with a line for each file, so that the hash covers the
    files too.
    """
    sources = read_sources(source, include_folders)
    if not cubins:
        return sources
    digests = [hashlib.sha256(read_cubin_file(path).data).hexdigest() for path in cubins]
    named = [f"{path.name} {digest}" for path, digest in zip(cubins, digests, strict=True)]
    text = "\n".join([sources.text.rstrip("\n"), *(f"// {line}" for line in named), ""])
    return replace(sources, main=replace(sources.main, text=text, code="\n".join(named)))


def choose_cubin(paths: Sequence[Path], arch: str) -> tuple[Path, Cubin]:
    """Choose the file for a GPU: the one for its arch, else the newest that the GPU can run.

    By NVIDIA's rule of binary compatibility, a GPU runs code of its own compute capability and of
    lower ones with the same major number.

    Raises:
        InvalidCubin: a file cannot be read or is damaged.
        InvalidBuild: no file runs on this arch.
    """
    wanted = _number(arch)
    found = [(path, read_cubin_file(path)) for path in paths]
    fitting = [
        (path, cubin)
        for path, cubin in found
        if _number(cubin.arch) // 10 == wanted // 10 and _number(cubin.arch) <= wanted
    ]
    if not fitting:
        have = " and ".join(f"{path.name} for {cubin.arch}" for path, cubin in found)
        raise InvalidBuild(
            f"There is {have}, and this GPU runs {arch}: choose a GPU of that architecture, or "
            f"compile the kernel for {arch} and list that file in `cubin` too.",
            code="cubin_of_other_arch",
        )
    return max(fitting, key=lambda item: _number(item[1].arch))


def why_no_cubin(paths: Sequence[Path], arch: str) -> str | None:
    """Why no file runs on this arch; None if one does, or if a file is damaged."""
    try:
        choose_cubin(paths, arch)
    except InvalidBuild as error:
        return str(error)
    except CompileError:  # `take_cubin` reports a damaged file
        pass
    return None


def take_cubin(
    paths: Sequence[Path], passes: Sequence[PassLaunch], arch: str, source_sha256: str
) -> CompiledKernel:
    """Load the compiled kernel from a file, in the form that a compile returns.

    All local memory counts as spills, because a cubin does not say how much of it is arrays.

    Args:
        passes: the launches, which are checked against the attributes of the entries.
        source_sha256: digest of the description and the files.

    Raises:
        InvalidCubin, InvalidBuild: as `choose_cubin`; or an entry is missing, or its arguments,
            number of threads or cluster size differ from the description.
    """
    path, cubin = choose_cubin(paths, arch)
    symbols, infos = {}, {}
    for launch in passes:
        try:
            entry = find_entry(cubin, launch.entry, whole=True)
            check_arguments(entry, tuple(encode_argument(a).data for a in launch.args))
        except AttuneError as error:
            raise InvalidBuild(f"{path.name}: {error}", code="cubin_entry_differs") from None
        if entry.required_block not in (None, launch.block):
            why = f"CTAs of {entry.required_block} threads, not {launch.block}"
            raise _differs(path, entry, why)
        if launch.threads > entry.max_threads:
            why = f"CTAs of up to {entry.max_threads:,} threads, not {launch.threads:,}"
            raise _differs(path, entry, why)
        if prod(entry.cluster) > 1 and launch.cluster != entry.cluster:
            raise _differs(path, entry, f"clusters of {entry.cluster} CTAs, not {launch.cluster}")
        symbols[launch.entry] = entry.name
        infos[launch.entry] = infos[entry.name] = _resources(cubin, entry)
    sha256 = hashlib.sha256(cubin.data).hexdigest()
    key = json.dumps([sha256, source_sha256, symbols])
    return CompiledKernel(
        arch=cubin.arch,
        cubin=cubin.data,
        entries=infos,
        symbols=symbols,
        log=f"{path.name}, {cubin.arch}, as its compiler wrote it: sha256 {sha256}",
        flags=(),
        source_sha256=source_sha256,
        key=hashlib.sha256(key.encode()).hexdigest(),
    )


def _differs(path: Path, entry: Entry, why: str) -> InvalidBuild:
    return InvalidBuild(
        f"{path.name}: {entry.name} was compiled for {why}: correct the description's launch.",
        code="cubin_launch_differs",
    )


def _resources(cubin: Cubin, entry: Entry) -> PtxasInfo:
    read_bytes = written_bytes = 0
    if entry.frame_bytes:
        for instruction in program_of(cubin, entry.name).instructions:
            bits = next((int(m) for m in instruction.modifiers if m.isdigit()), 32)
            read_bytes += bits // 8 * (instruction.opcode == "LDL")
            written_bytes += bits // 8 * (instruction.opcode == "STL")
    return PtxasInfo(
        registers_per_thread=entry.registers,
        static_smem_bytes=entry.static_smem_bytes,
        spill_store_bytes=written_bytes,
        spill_load_bytes=read_bytes,
        stack_bytes=entry.frame_bytes,
    )


def _number(arch: str) -> int:
    """The compute capability as a number: 89 of sm_89 and of sm_89a."""
    return int(arch.removeprefix("sm_").rstrip("af"))
