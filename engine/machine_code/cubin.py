"""Read a cubin's entries without their code: parameters, registers, memory, constants.

A cubin is a 64-bit little-endian ELF file. The attributes of `.nv.info` sections are named as in
NVIDIA's cuobjdump (`cuobjdump -elf` prints EIATTR_REGCOUNT and so on).
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.base.errors import InvalidCubin

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8  # SHT_NOBITS: a section that takes no space in the file
_PARAM_CBANK, _FRAME_SIZE, _KPARAM_INFO, _REGCOUNT = 0x0A, 0x11, 0x17, 0x2F
_MAX_THREADS = 0x05
_REQUIRED_THREADS = 0x10
_CTA_PER_CLUSTER = 0x3D
_FUNCTION = 2  # STT_FUNC, a symbol type
_MACHINE_CUDA = 190
# Since sm_90 the first KiB of a CTA's shared memory is reserved, and `.nv.shared` includes it.
_RESERVED_SMEM_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an entry, in the order of the source."""

    offset: int  # bytes from the first parameter
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One `__global__` function of a cubin."""

    name: str  # the symbol, mangled unless extern "C"
    registers: int  # per thread
    static_smem_bytes: int  # per CTA, without what the system reserves
    frame_bytes: int  # of the stack, per thread
    parameters: tuple[Parameter, ...]
    parameter_offset: int  # offset of the first parameter in constant bank 0
    constants: Mapping[int, bytes]  # bank → contents; bank 0 without the values of a launch
    outside: tuple[str, ...] = ()  # functions that the file calls and the driver supplies
    cluster: tuple[int, int, int] = (1, 1, 1)  # cluster size set in the code
    max_threads: int = 1024  # per CTA, by __launch_bounds__
    # Exact CTA size by PTX's `.reqntid`, which Triton sets; None: any size up to max_threads.
    required_block: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Cubin:
    arch: str  # "sm_90"
    data: bytes  # complete
    entries: Mapping[str, Entry]
    # Digest of instructions, constants and registers, without names and source lines.
    code_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int

    def of(self, data: bytes) -> bytes:
        return b"" if self.kind == _NO_BITS else data[self.offset : self.offset + self.size]


def read_cubin(data: bytes) -> Cubin:
    """Parse a cubin; a last byte that CuPy's NVRTC binding dropped is restored.

    Raises:
        InvalidCubin: the data is not a cubin, is truncated, or has no entry.
    """
    if data[:4] != b"\x7fELF" or len(data) < _HEADER.size:
        raise InvalidCubin(
            "This is not a cubin (not an ELF file): `nvcc -cubin -arch=sm_80 FILE.cu` writes one; "
            "`cuobjdump -xelf all FILE` extracts them from an executable or a fatbin."
        )
    header = _HEADER.unpack_from(data)
    machine, program_offset, offset, flags = header[2], header[5], header[6], header[7]
    program_size, program_count, size, count, names_index = header[9:14]
    if machine != _MACHINE_CUDA or size != _SECTION.size or names_index >= count:
        raise InvalidCubin(
            "This ELF file is not a cubin: `nvcc -cubin -arch=sm_80 FILE.cu` writes one; "
            "`cuobjdump -xelf all FILE` extracts them from an executable."
        )
    whole = max(offset + size * count, program_offset + program_size * program_count)
    data = _completed(data, whole)
    raw = [_SECTION.unpack_from(data, offset + size * i) for i in range(count)]
    ends = [s[4] + s[5] for s in raw if s[1] != _NO_BITS]
    data = _completed(data, max(ends, default=0))
    sections = read_sections(data)
    arch = _arch(flags, header[0][8])
    try:
        entries = {e.name: e for e in _entries(data, sections, arch)}
    except (struct.error, IndexError):  # a truncated record, or a link to a missing section
        raise InvalidCubin(
            "This cubin is damaged: a table in it is truncated or refers to nothing. Copy it again."
        ) from None
    if not entries:
        raise InvalidCubin("This cubin has no __global__ function: there is nothing to analyse.")
    return Cubin(arch, data, entries, _code_digest(data, sections, entries))


def _code_digest(data: bytes, sections: list[Section], entries: Mapping[str, Entry]) -> str:
    """Digest of section contents, independent of names: a renamed function is the same code."""
    running = (".text.", ".nv.constant", ".nv.global")
    contents = [s.of(data) for s in sections if s.name.startswith(running)]
    shapes = [
        repr((e.registers, e.static_smem_bytes, e.frame_bytes, e.parameters)).encode()
        for e in entries.values()
    ]
    digest = hashlib.sha256()
    for part in (*sorted(contents), *sorted(shapes)):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def read_sections(data: bytes) -> list[Section]:
    """The sections of a complete cubin, in the order of the indices that symbols use."""
    header = _HEADER.unpack_from(data)
    offset, count, names_index = header[6], header[12], header[13]
    raw = [_SECTION.unpack_from(data, offset + _SECTION.size * i) for i in range(count)]
    names = data[raw[names_index][4] : raw[names_index][4] + raw[names_index][5]]
    return [Section(_text(names, s[0]), s[1], s[4], s[5], s[6]) for s in raw]


def _completed(data: bytes, size: int) -> bytes:
    if len(data) + 1 < size:
        raise InvalidCubin(
            f"This cubin is truncated: it has {len(data):,} of {size:,} bytes. Copy it again.",
            code="cubin_cut_short",
        )
    return data + bytes(max(0, size - len(data)))


def _arch(flags: int, abi_version: int) -> str:
    """The low byte of e_flags, or the second in files of ABI version 8 (CUDA 13)."""
    number = flags >> 8 & 0xFFFF if abi_version >= 8 else flags & 0xFF
    return f"sm_{number & 0xFF}"


def _entries(data: bytes, sections: list[Section], arch: str) -> Iterator[Entry]:
    by_name = {s.name: s for s in sections}
    registers, frames = _per_function(data, sections)
    outside = _functions_outside(data, sections)
    reserved = _RESERVED_SMEM_BYTES if int(arch[3:]) >= 90 else 0
    for section in sections:
        if not section.name.startswith(".nv.info."):
            continue
        name = section.name.removeprefix(".nv.info.")
        if f".text.{name}" not in by_name:
            continue
        if not name.isprintable():
            raise InvalidCubin(
                "This cubin is damaged: a function name has unprintable characters. Copy it again."
            )
        parameters, base, parameter_bytes, is_entry = [], 0, 0, False
        cluster, max_threads = (1, 1, 1), 1024
        required_block = None
        for attribute, value in _attributes(section.of(data)):
            if attribute == _KPARAM_INFO:
                _, ordinal, where, size = struct.unpack_from("<IHHI", value)
                parameters.append((ordinal, Parameter(where, size >> 18)))
            elif attribute == _PARAM_CBANK:
                _, base, parameter_bytes = struct.unpack_from("<IHH", value)
                is_entry = True
            elif attribute == _MAX_THREADS and len(value) >= 12:
                max_threads = min(1024, math.prod(struct.unpack_from("<3I", value)))
            elif attribute == _REQUIRED_THREADS and len(value) >= 12:
                required_block = struct.unpack_from("<3I", value)
            elif attribute == _CTA_PER_CLUSTER and len(value) >= 12:
                x, y, z = struct.unpack_from("<3I", value)
                cluster = max(1, x), max(1, y), max(1, z)
        if any(p.offset + p.size > parameter_bytes for _, p in parameters):
            raise InvalidCubin(
                f"This cubin is damaged: a parameter of {name} lies outside its "
                f"{parameter_bytes} bytes of parameters. Copy it again.",
                code="cubin_parameter_outside",
            )
        constant0 = f".nv.constant0.{name}"
        if not is_entry and constant0 not in by_name:
            continue  # a device function that was not inlined
        constants = {}
        for bank in range(8):
            for candidate in (f".nv.constant{bank}.{name}", f".nv.constant{bank}"):
                if candidate in by_name:
                    constants[bank] = by_name[candidate].of(data)
                    break
        shared = by_name.get(f".nv.shared.{name}")
        yield Entry(
            name=name,
            registers=registers.get(name, 0),
            static_smem_bytes=max(0, shared.size - reserved) if shared else 0,
            frame_bytes=frames.get(name, 0),
            parameters=tuple(p for _, p in sorted(parameters, key=lambda item: item[0])),
            parameter_offset=base or _PARAMETER_OFFSET.get(arch, 0x160),
            constants=constants,
            outside=outside,
            cluster=cluster,
            max_threads=max_threads,
            required_block=required_block,
        )


# Default parameter offset: entries without parameters lack EIATTR_PARAM_CBANK.
_PARAMETER_OFFSET = {"sm_90": 0x210, "sm_100": 0x380, "sm_103": 0x380, "sm_120": 0x380}


def _per_function(data: bytes, sections: list[Section]) -> tuple[dict[str, int], dict[str, int]]:
    """(registers per thread, bytes of stack) by function name, from the file's `.nv.info`."""
    table = next((s for s in sections if s.name == ".symtab"), None)
    general = next((s for s in sections if s.name == ".nv.info"), None)
    if table is None or general is None:
        return {}, {}
    strings, symbols = sections[table.link].of(data), table.of(data)
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for attribute, value in _attributes(general.of(data)):
        if attribute in (_REGCOUNT, _FRAME_SIZE) and len(value) >= 8:
            symbol, amount = struct.unpack_from("<II", value)
            if 24 * symbol + 4 <= len(symbols):
                (where,) = struct.unpack_from("<I", symbols, 24 * symbol)
                target = registers if attribute == _REGCOUNT else frames
                target[_text(strings, where)] = amount
    return registers, frames


def _functions_outside(data: bytes, sections: list[Section]) -> tuple[str, ...]:
    """Undefined functions in the symbol table, such as vprintf and malloc."""
    table = next((s for s in sections if s.name == ".symtab"), None)
    if table is None:
        return ()
    strings = sections[table.link].of(data)
    symbols = struct.iter_unpack("<IBBHQQ", table.of(data))
    return tuple(
        _text(strings, name)
        for name, info, _, section, _, _ in symbols
        if section == 0 and info & 0xF == _FUNCTION
    )


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) pairs: format 4 has a size and a value, formats 1 to 3 a 2-byte value."""
    position = 0
    while position + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, position)
        position += 4
        if form == 4:
            yield attribute, info[position : position + size]
            position += size
        else:
            yield attribute, info[position - 2 : position]


def _text(names: bytes, start: int) -> str:
    end = names.find(b"\0", start)
    return names[start : end if end >= 0 else None].decode("utf-8", errors="replace")
