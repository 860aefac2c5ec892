"""A kernel launch at machine-code level: grid and block, and constant bank 0 with the arguments."""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.base import files
from engine.base.errors import InvalidProblem
from engine.base.launch_arguments import TensorMapArg, encode_argument
from engine.machine_code.cubin import Entry

_FIRST_POINTER = 0x7F00_0000_0000
_POINTER_STEP = 1 << 32  # distance of made-up buffers: no tensor is larger, so none overlap
_STACK_TOP = 0xFFFDC0  # top of the stack as the driver sets it, read from launched kernels


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch."""

    grid: tuple[int, int, int]  # CTAs
    block: tuple[int, int, int]  # threads
    dynamic_smem_bytes: int
    arguments: tuple[bytes, ...]  # one value per parameter, little-endian
    # (address, bytes) of global memory whose contents are known; all other loads return 1.0. At
    # most two, for example a block table and the lengths of sequences.
    known: tuple[tuple[int, bytes], ...] = ()

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def ctas(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


def buffer_address(number: int) -> int:
    """Made-up address of buffer `number` of a launch, aligned as by cudaMalloc."""
    return _FIRST_POINTER + number * _POINTER_STEP


_WINDOWS = 0x18  # generic addresses of shared and local memory; newer GPUs keep them in registers


@dataclass(frozen=True, slots=True)
class BankLayout:
    """Byte offsets of the launch's values in constant bank 0, read from code of CUDA 13.5."""

    block: int
    grid: int
    stack: int
    in_clusters: int  # 1 in a launch with clusters
    # Along each axis: CTAs of a cluster, their reciprocals, and clusters of the grid. The code
    # computes %clusterid from these.
    cluster: int
    reciprocals: int
    clusters: int
    cluster_ctas: int  # CTAs of a cluster
    parameters: int  # address of the parameters, for TMA; here their offset in the bank


_VOLTA_TO_HOPPER = BankLayout(
    block=0x0,
    grid=0xC,
    stack=0x28,
    in_clusters=0x140,
    cluster=0x144,
    reciprocals=0x150,
    clusters=0x15C,
    cluster_ctas=0x188,
    parameters=0x198,
)
_SINCE_BLACKWELL = BankLayout(
    block=0x360,
    grid=0x370,
    stack=0x37C,
    in_clusters=0x36C,
    cluster=0x2A0,
    reciprocals=0x2B0,
    clusters=0x2C0,
    cluster_ctas=0x2CC,
    parameters=0x348,
)


def bank_layout(arch: str) -> BankLayout:
    """Layout of constant bank 0 on this arch. Only sm_90 and later have cluster fields."""
    return _SINCE_BLACKWELL if int(arch[3:].rstrip("af")) >= 100 else _VOLTA_TO_HOPPER


def constant_bank(
    entry: Entry,
    arch: str,
    launch: Launch,
    windows: tuple[int, int] = (0, 0),
    cluster: tuple[int, int, int] = (1, 1, 1),
) -> bytes:
    """Constant bank 0 of this launch.

    Args:
        windows: upper words of generic addresses of shared and local memory.
        cluster: CTAs of a cluster, written to the bank if there is more than one.

    Raises:
        InvalidProblem: the arguments do not fit the entry's parameters.
    """
    check_arguments(entry, launch.arguments)
    layout = bank_layout(arch)
    end = entry.parameter_offset + sum(p.size + 16 for p in entry.parameters)
    bank = bytearray(entry.constants.get(0, b""))
    bank.extend(bytes(max(0, max(end, 0x400) - len(bank))))
    struct.pack_into("<3I", bank, layout.block, *launch.block)
    struct.pack_into("<3I", bank, layout.grid, *launch.grid)
    struct.pack_into("<I", bank, layout.stack, _STACK_TOP)
    if cluster != (1, 1, 1):
        struct.pack_into("<I", bank, layout.in_clusters, 1)
    if int(arch[3:].rstrip("af")) >= 90:
        told = cluster if cluster != (1, 1, 1) else entry.cluster
        clusters = (n // size for n, size in zip(launch.grid, told, strict=True))
        # Rounded up, so that a multiple of the divisor times this is never below the integer.
        reciprocals = (np.nextafter(np.float32(1 / n), np.float32(2)) for n in told)
        struct.pack_into("<3I", bank, layout.cluster, *told)
        struct.pack_into("<3f", bank, layout.reciprocals, *reciprocals)
        struct.pack_into("<3I", bank, layout.clusters, *clusters)
        struct.pack_into("<I", bank, layout.cluster_ctas, math.prod(told))
        struct.pack_into("<Q", bank, layout.parameters, entry.parameter_offset)
    if layout is _VOLTA_TO_HOPPER:
        struct.pack_into("<4I", bank, _WINDOWS, 0, windows[0], 0, windows[1])
    for parameter, value in zip(entry.parameters, launch.arguments, strict=True):
        start = entry.parameter_offset + parameter.offset
        bank[start : start + len(value)] = value
    return bytes(bank)


def check_arguments(entry: Entry, arguments: tuple[bytes, ...]) -> None:
    """Check the arguments against the entry's parameters.

    Raises:
        InvalidProblem: their number or their sizes in bytes differ.
    """
    sizes = [p.size for p in entry.parameters]
    if len(arguments) != len(sizes):
        listed = ", ".join(map(str, sizes)) or "none"
        raise InvalidProblem(
            f"{entry.name} takes {len(sizes)} arguments (bytes each: {listed}), "
            f"not {len(arguments)}."
        )
    for number, (size, value) in enumerate(zip(sizes, arguments, strict=True)):
        if len(value) != size:
            raise InvalidProblem(
                f"Argument {number + 1} of {entry.name} has {size} bytes, not {len(value)}."
            )


# Kernel arguments on the command line: `ptr`, `i32:128`, `f32:0.125`, `bytes:00ff@ptr`, a TMA
# tensor map, innermost dimension first: `tensormap:f16[4096,4096]box[64,128]swizzle128`, and a
# structure of such arguments at their offsets: `struct:24;0=ptr:f16[64,64];8=ptr:4096;16=i32:64`.


_USAGE = (
    "arguments are written ptr, to be executed ptr:4096 (bytes) or ptr:f16[2,64] (numbers), "
    "i8:, u8:, i16:, u16:, i32:, u32:, i64:, u64: with a whole number, "
    "f32: or f64: with a number, bytes: with hexadecimal digits in which @ptr stands for an "
    "address, file:PATH for a table whose content decides addresses, same:1 for the address of the "
    "first pointer again, tensormap:f16[4096,4096]box[64,128]swizzle128 (innermost dimension "
    "first; the swizzle may be left out, strides[8192] in bytes stand before the box), such a map "
    "in memory ptr:tensormap:f16[64,64]box[64,64], or "
    "struct:24;0=ptr:4096;8=i32:64 (a structure of 24 bytes, or of a file's, struct:params.bin;…, "
    "with arguments at their offsets)"
)
_INTEGERS = {
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
}
_FLOATS = {"f32": "f", "f64": "d"}
_POINTER = "@ptr"
_TENSOR_MAP = re.compile(
    r"([a-z]\w*)\[([\d,\s]+)\](?:strides\[([\d,\s]+)\])?box\[([\d,\s]+)\](?:swizzle(\d+))?"
)
_ELEMENT_BYTES = {
    **dict.fromkeys(("i8", "u8", "e4m3", "e5m2"), 1),
    **dict.fromkeys(("f16", "bf16", "i16", "u16"), 2),
    **dict.fromkeys(("f32", "tf32", "i32", "u32"), 4),
    **dict.fromkeys(("f64", "i64", "u64"), 8),
}
_MAX_DIMENSIONS = 5
_MAX_BYTES = 1 << 32  # distance between two made-up buffers
_MAX_CONTENT_BYTES = 2 << 30
_MAX_TABLES, _MAX_TABLE_BYTES = 2, 256 << 20
_MAX_PARAMETER_BYTES = 32_764  # of a kernel, from sm_70 on


@dataclass(frozen=True, slots=True)
class Content:
    """Initial contents of a pointer's memory, for execution: `count` elements.

    `dtype` is one of the names above, or "" for unwritten bytes (or for `data`, if that is given).
    """

    dtype: str
    count: int
    data: bytes = b""

    @property
    def size_bytes(self) -> int:
        return self.count * _ELEMENT_BYTES.get(self.dtype, 1)


def parse_arguments(texts: Sequence[str]) -> tuple[bytes, ...]:
    """Parse arguments to bytes; every pointer gets a made-up, aligned address of its own.

    Raises:
        InvalidProblem: an argument does not have one of the forms above.
    """
    return arguments_and_memory(texts)[0]


def arguments_and_memory(
    texts: Sequence[str],
) -> tuple[tuple[bytes, ...], tuple[Content | None, ...]]:
    """Parse arguments to bytes, and to the contents of each made-up buffer (None: not given).

    Raises:
        InvalidProblem: an argument does not have one of the forms above.
    """
    values: list[bytes] = []
    contents: list[Content | None] = []
    for text in texts:
        value, pointed = _parse(text.strip(), len(contents))
        values.append(value)
        contents += pointed
    return tuple(values), tuple(contents)


def _parse(text: str, first_buffer: int) -> tuple[bytes, list[Content | None]]:
    """(bytes, contents of the memory that the pointers in them point to)."""
    if text == "ptr":
        return _address(first_buffer), [None]
    kind, colon, value = text.partition(":")
    if not colon:
        raise _mistake(text)
    if kind == "ptr" and value.startswith("tensormap:"):  # the map itself lies in memory
        held, tensor = _parse(value, first_buffer + 1)
        return _address(first_buffer), [Content("", len(held), held), *tensor]
    if kind == "ptr":
        return _address(first_buffer), [_content(text, value)]
    if kind == "file":
        return _address(first_buffer), [_table(Path(value))]
    if kind == "same":
        return _address(_number_of_pointer(text, value, first_buffer) - 1), []
    if kind == "struct":
        return _structure(text, value, first_buffer)
    if kind == "tensormap":
        try:
            return _tensor_map(text, value, first_buffer)
        except ValueError:
            raise _mistake(text) from None
    value_bytes, pointers = _parse_value(text, kind, value, first_buffer)
    return value_bytes, [None] * pointers


def _table(path: Path) -> Content:
    data = _bytes_of_file(path, _MAX_TABLE_BYTES)
    return Content("", len(data), data)


def _bytes_of_file(path: Path, most: int) -> bytes:
    with files.explain_os_error(f"{path} cannot be read", "name another file", named=True):
        return files.read(path, most)


def _number_of_pointer(text: str, value: str, pointers: int) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= pointers:
        raise InvalidProblem(
            f"{text!r} repeats the address of an earlier pointer, and {pointers:,} come before it: "
            "write same: with the number of one of them, counted from 1.",
            code="argument_same",
        )
    return int(value)


def _structure(text: str, value: str, first_buffer: int) -> tuple[bytes, list[Content | None]]:
    """A structure of zeros or of a file's bytes, with arguments written at their offsets."""
    base, *pieces = value.split(";")
    if base.isdecimal():
        data = bytearray(min(int(base), _MAX_PARAMETER_BYTES))
    else:
        data = bytearray(_bytes_of_file(Path(base), _MAX_PARAMETER_BYTES))
    contents: list[Content | None] = []
    for piece in pieces:
        place, equals, inner = piece.partition("=")
        try:
            offset = int(place, 0)
        except ValueError:
            raise _mistake(text) from None
        if not equals:
            raise _mistake(text)
        held, pointed = _parse(inner.strip(), first_buffer + len(contents))
        if not 0 <= offset <= len(data) - len(held):
            raise InvalidProblem(
                f"{inner} at byte {offset:,} does not fit in a structure of {len(data):,} bytes: "
                f"change the offset, or the structure's size (argument {text!r}).",
                code="argument_in_structure",
            )
        data[offset : offset + len(held)] = held
        contents += pointed
    return bytes(data), contents


def tables(contents: Sequence[Content | None]) -> tuple[tuple[int, bytes], ...]:
    """`Launch.known` for the contents of pointers.

    Raises:
        InvalidProblem: there are more tables than a launch can have.
    """
    known = tuple((buffer_address(n), c.data) for n, c in enumerate(contents) if c and c.data)
    if len(known) > _MAX_TABLES:
        raise InvalidProblem(
            f"A launch can have at most {_MAX_TABLES} tables (--arg file:), not {len(known)}: "
            "give the others as ptr.",
            code="launch_tables",
        )
    return known


def _content(text: str, value: str) -> Content:
    """Parse the contents of a pointer: `4096` (bytes) or `f16[2,64]`."""
    match = re.fullmatch(r"(?:([a-z]\w*)\[([\d,\s]+)\]|(\d+))", value)
    if match is None or (match[1] and match[1] not in _ELEMENT_BYTES):
        raise InvalidProblem(
            f"{value!r} does not describe a pointer's memory (argument {text!r}): give bytes, "
            f"ptr:4096, or numbers, ptr:f16[2,64], of a type in {', '.join(_ELEMENT_BYTES)}."
        )
    try:
        count = math.prod(int(n) for n in match[2].split(",")) if match[1] else int(match[3])
    except ValueError:
        raise _mistake(text) from None
    content = Content(match[1] or "", count)
    if not 1 <= content.size_bytes <= _MAX_CONTENT_BYTES:
        raise InvalidProblem(
            f"A buffer has 1 byte to {_MAX_CONTENT_BYTES >> 30} GiB (argument {text!r})."
        )
    return content


def _parse_value(text: str, kind: str, value: str, first_buffer: int) -> tuple[bytes, int]:
    """(bytes, number of pointers in them)."""
    try:
        if kind in _INTEGERS:
            return struct.pack("<" + _INTEGERS[kind], int(value, 0)), 0
        if kind in _FLOATS:
            return struct.pack("<" + _FLOATS[kind], float(value)), 0
        if kind == "bytes":
            return _bytes(value, first_buffer)
    except (ValueError, OverflowError):
        raise _mistake(text) from None
    except struct.error:
        raise InvalidProblem(
            f"{value} does not fit into {kind} (argument {text!r}).", code="argument_range"
        ) from None
    raise _mistake(text)


def _tensor_map(text: str, value: str, buffer: int) -> tuple[bytes, list[Content | None]]:
    """The map, and the tensor."""
    match = _TENSOR_MAP.fullmatch(value)
    if match is None:
        raise _mistake(text)
    element_bytes = _ELEMENT_BYTES.get(match[1])
    if element_bytes is None:
        raise InvalidProblem(
            f"{match[1]} is not an element type of tensor maps (argument {text!r}): write one of "
            f"{', '.join(_ELEMENT_BYTES)}."
        )
    dims, box = (tuple(int(n) for n in part.split(",")) for part in (match[2], match[4]))
    if len(dims) != len(box) or len(dims) > _MAX_DIMENSIONS:
        raise InvalidProblem(
            f"A tensor map has one to {_MAX_DIMENSIONS} dimensions, and its box as many, not "
            f"{len(dims)} and {len(box)} (argument {text!r})."
        )
    if not 1 <= min(dims) <= max(dims) < 1 << 32 or math.prod(dims) * element_bytes > _MAX_BYTES:
        raise InvalidProblem(
            f"A dimension of a tensor map has 1 to 2^32 - 1 elements, and the tensor here at most "
            f"4 GiB (argument {text!r})."
        )
    row_bytes = itertools.accumulate(dims[:-1], lambda a, b: a * b)
    strides = tuple(n * element_bytes for n in row_bytes)
    if match[3]:
        strides = tuple(int(n) for n in match[3].split(","))
        if len(strides) != len(dims) - 1:
            raise InvalidProblem(
                f"A tensor map of {len(dims)} dimensions has {len(dims) - 1} strides, of all but "
                f"the innermost, in bytes, not {len(strides)} (argument {text!r}).",
                code="tensor_map_strides",
            )
    swizzle = int(match[5] or 0)
    arg = TensorMapArg("map", "buffer", dims, strides, box, swizzle, element_bytes)
    if (why := arg.mistake) is not None:
        raise InvalidProblem(f"The CUDA driver would reject the tensor map {text!r}: {why}.")
    last = sum((n - 1) * stride for n, stride in zip(dims[1:], strides, strict=True))
    if last >= _MAX_BYTES:
        raise InvalidProblem(f"A tensor has at most 4 GiB here (argument {text!r}).")
    encoded = encode_argument(arg).with_addresses({"buffer": buffer_address(buffer)})
    return encoded, [Content(match[1], last // element_bytes + dims[0])]


def _bytes(text: str, first_buffer: int) -> tuple[bytes, int]:
    pieces = [bytes.fromhex(piece) for piece in text.split(_POINTER)]
    data = pieces[0]
    for number, piece in enumerate(pieces[1:]):
        data += _address(first_buffer + number) + piece
    return data, len(pieces) - 1


def _address(number: int) -> bytes:
    return struct.pack("<Q", buffer_address(number))


def _mistake(text: str) -> InvalidProblem:
    return InvalidProblem(f"{text!r} is not an argument: {_USAGE}.", code="argument_form")
