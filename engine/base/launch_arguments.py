"""Launch arguments, as in the plan and as bytes for the kernel.

Both backends encode arguments here, so that a kernel gets the same bytes on either. Only tensor
maps differ, because their format on a GPU is not public.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, Literal, TypeAlias

ScalarType: TypeAlias = Literal["int32", "uint32", "int64", "uint64", "bool", "float32", "float64"]
# Format character of each type, for both `struct` and NumPy.
FORMATS: Final[Mapping[ScalarType, str]] = {
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "bool": "?",
    "float32": "f",
    "float64": "d",
}
# Limits of cuTensorMapEncodeTiled (CUDA driver API, tensor map object management).
MAX_BOX: Final = 256  # elements along a dimension
TMA_ALIGNMENT: Final = 16  # bytes, of strides and of a box's rows
SWIZZLE_CODES: Final[Mapping[int, int]] = {0: 0, 32: 1, 64: 2, 128: 3}
_TENSOR_MAP_BYTES: Final = 128  # size of a CUtensorMap, whose alignment is 64
_TENSOR_MAP_MAGIC: Final = 0x434F48544D41

# Kind of the kernel's parameter: pointer, integer, floating-point number or structure.
ParameterKind: TypeAlias = Literal["p", "i", "f", "s"]


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A pointer to `q`, `k`, `v`, `out`, `lse` or a scratch buffer, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class NullArg:
    """A null pointer."""

    name: str


@dataclass(frozen=True, slots=True)
class ScalarArg:
    name: str
    ctype: ScalarType
    value: float


@dataclass(frozen=True, slots=True)
class StructArg:
    """A structure passed by value."""

    name: str
    fields: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class TensorMapArg:
    """A TMA tensor map passed by value (`const __grid_constant__`), innermost dimension first."""

    name: str
    buffer: str
    dims: tuple[int, ...]  # elements
    strides_bytes: tuple[int, ...]  # of dims[1:]
    box: tuple[int, ...]  # elements
    swizzle_bytes: int = 128
    element_bytes: int = 2

    @property
    def mistake(self) -> str | None:
        """Return why `cuTensorMapEncodeTiled` would reject it, as the end of a sentence; None if it
        would not."""
        row_bytes = self.box[0] * self.element_bytes
        if self.swizzle_bytes not in SWIZZLE_CODES:
            known = ", ".join(map(str, SWIZZLE_CODES))
            return f"its swizzle is {self.swizzle_bytes} bytes, and there are {known}"
        if not all(1 <= size <= MAX_BOX for size in self.box):
            return f"its box of {self.box} elements exceeds 1 to {MAX_BOX} along a dimension"
        if row_bytes % TMA_ALIGNMENT:
            return f"its box's rows of {row_bytes} bytes are not a multiple of {TMA_ALIGNMENT}"
        if self.swizzle_bytes and row_bytes > self.swizzle_bytes:
            return (
                f"its box's rows of {row_bytes} bytes exceed the swizzle of "
                f"{self.swizzle_bytes} bytes"
            )
        if any(stride % TMA_ALIGNMENT or stride >= 1 << 40 for stride in self.strides_bytes):
            return (
                f"its strides of {self.strides_bytes} bytes are not all multiples of "
                f"{TMA_ALIGNMENT} below 2^40"
            )
        return None


Argument: TypeAlias = TensorArg | NullArg | ScalarArg | StructArg | TensorMapArg


@dataclass(frozen=True, slots=True)
class EncodedArgument:
    """An argument's bytes, little-endian, with zeros in place of addresses."""

    kind: ParameterKind
    data: bytes
    pointers: tuple[tuple[int, str], ...]  # (offset, buffer)
    alignment: int

    def with_addresses(self, addresses: Mapping[str, int]) -> bytes:
        data = bytearray(self.data)
        for offset, name in self.pointers:
            struct.pack_into("<Q", data, offset, addresses[name])
        return bytes(data)


def encode_argument(argument: Argument) -> EncodedArgument:
    """Return the bytes of one argument; fields of a structure are aligned as in C++."""
    if isinstance(argument, TensorArg | NullArg):
        pointers = ((0, argument.name),) if isinstance(argument, TensorArg) else ()
        return EncodedArgument("p", bytes(8), pointers, 8)
    if isinstance(argument, ScalarArg):
        code = FORMATS[argument.ctype]
        is_float = code in "fd"
        value = float(argument.value) if is_float else int(argument.value)
        data = struct.pack(f"<{code}", bool(value) if code == "?" else value)
        return EncodedArgument("f" if is_float else "i", data, (), len(data))
    if isinstance(argument, TensorMapArg):
        return _encode_tensor_map(argument)
    return _encode_structure(argument)


def _encode_tensor_map(argument: TensorMapArg) -> EncodedArgument:
    """Encode in the CPU runtime's own format, `TensorMapOnHost` of its native/hopper.h."""
    rank = len(argument.dims)
    padding = [0] * (5 - rank)
    data = struct.pack(
        "<QQ3I5I5II4Q",
        _TENSOR_MAP_MAGIC,
        0,
        rank,
        argument.element_bytes,
        SWIZZLE_CODES[argument.swizzle_bytes],
        *argument.box,
        *padding,
        *argument.dims,
        *padding,
        0,
        *argument.strides_bytes,
        *padding,
    )
    return EncodedArgument("s", data.ljust(_TENSOR_MAP_BYTES, b"\0"), ((8, argument.buffer),), 64)


def _encode_structure(argument: StructArg) -> EncodedArgument:
    data = bytearray()
    pointers: list[tuple[int, str]] = []
    alignment = 1
    for field in map(encode_argument, argument.fields):
        data += bytes(-len(data) % field.alignment)
        pointers += [(len(data) + offset, name) for offset, name in field.pointers]
        data += field.data
        alignment = max(alignment, field.alignment)
    data += bytes(-len(data) % alignment)
    return EncodedArgument("s", bytes(data), tuple(pointers), alignment)


def describe_type(argument: Argument) -> str:
    """Return the argument's type, for messages."""
    if isinstance(argument, ScalarArg):
        return argument.ctype
    if isinstance(argument, TensorMapArg):
        return "a tensor map"
    return "a structure" if isinstance(argument, StructArg) else "a buffer"


@dataclass(frozen=True, slots=True)
class PassLaunch:
    entry: str  # a kernel's name, or a name expression: `fwd<64, true>`
    grid: tuple[int, int, int]
    threads: int  # per CTA
    dynamic_smem_bytes: int
    args: tuple[Argument, ...]
    block_shape: tuple[int, int, int] | None = None  # None: (threads, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)  # CTAs of a cluster along each axis
    # Registers per thread of each warpgroup, set by setmaxnreg; empty without it.
    warpgroup_registers: tuple[int, ...] = ()

    @property
    def block(self) -> tuple[int, int, int]:
        return self.block_shape or (self.threads, 1, 1)

    @property
    def ctas(self) -> int:
        return prod(self.grid)


WARPGROUP = 128  # threads
