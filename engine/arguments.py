"""Arguments of a launch: what stands in the plan, and the bytes that a kernel is given.

Both backends take their arguments from here, so that a kernel sees the same bytes on either.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from kernels.variant import ScalarType

# The format of each type in `struct`, which is NumPy's character for it too.
FORMATS: Final[Mapping[ScalarType, str]] = {
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "bool": "?",
    "float32": "f",
    "float64": "d",
}
_POINTER: Final = "Q"

# What the kernel's parameter must be: pointer, integer, floating-point number or structure.
ParameterKind: TypeAlias = Literal["p", "i", "f", "s"]


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A pointer: `q`, `k`, `v`, `out`, `lse` or a scratch buffer's name."""

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
    """A structure by value."""

    name: str
    fields: tuple[Argument, ...]


Argument: TypeAlias = TensorArg | NullArg | ScalarArg | StructArg


@dataclass(frozen=True, slots=True)
class EncodedArgument:
    """An argument's bytes, little-endian, with zeros where addresses belong."""

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
    """The bytes of one argument; a structure's fields lie as C++ aligns them."""
    if isinstance(argument, TensorArg | NullArg):
        pointers = ((0, argument.name),) if isinstance(argument, TensorArg) else ()
        return EncodedArgument("p", bytes(8), pointers, 8)
    if isinstance(argument, ScalarArg):
        code = FORMATS[argument.ctype]
        is_float = code in "fd"
        value = float(argument.value) if is_float else int(argument.value)
        data = struct.pack(f"<{code}", bool(value) if code == "?" else value)
        return EncodedArgument("f" if is_float else "i", data, (), len(data))
    return _encode_structure(argument)


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
    """The argument's type, for sentences."""
    if isinstance(argument, ScalarArg):
        return argument.ctype
    return "a structure" if isinstance(argument, StructArg) else "a buffer"
