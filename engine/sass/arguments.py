"""A kernel's arguments as people write them: `ptr`, `i32:128`, `f32:0.125`, `bytes:00ff@ptr`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from engine.errors import InvalidProblem
from engine.sass.launch import buffer_address

_USAGE = (
    "arguments are written ptr, i8:, u8:, i16:, u16:, i32:, u32:, i64:, u64: with a whole number, "
    "f32: or f64: with a number, or bytes: with hexadecimal digits in which @ptr stands for an "
    "address"
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


def parse_arguments(texts: Sequence[str]) -> tuple[bytes, ...]:
    """The bytes of each argument; every pointer gets a made-up, aligned address of its own.

    Raises:
        InvalidProblem: one of them is not of the forms above.
    """
    values: list[bytes] = []
    buffers = 0
    for text in texts:
        value, used = _parse(text.strip(), buffers)
        values.append(value)
        buffers += used
    return tuple(values)


def _parse(text: str, first_buffer: int) -> tuple[bytes, int]:
    """(bytes, pointers in them)."""
    if text == "ptr":
        return _address(first_buffer), 1
    kind, colon, value = text.partition(":")
    if not colon:
        raise _mistake(text)
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
        raise InvalidProblem(f"{value} does not fit into {kind} (argument {text!r}).") from None
    raise _mistake(text)


def _bytes(text: str, first_buffer: int) -> tuple[bytes, int]:
    pieces = [bytes.fromhex(piece) for piece in text.split(_POINTER)]
    data = pieces[0]
    for number, piece in enumerate(pieces[1:]):
        data += _address(first_buffer + number) + piece
    return data, len(pieces) - 1


def _address(number: int) -> bytes:
    return struct.pack("<Q", buffer_address(number))


def _mistake(text: str) -> InvalidProblem:
    return InvalidProblem(f"{text!r} is not an argument: {_USAGE}.")
