"""Find `file:line` of a program counter in the DWARF line table of an ELF library.

The compiler's instrumentation and the fault handler only know addresses. Reading the table
(versions 2 to 4, which all supported compilers write with `-gdwarf-4`) avoids tools that not every
compiler has. Source: DWARF Debugging Information Format, version 4, section 6.2. For a library in
another format, errors have no line.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Row:
    address: int
    file: str
    line: int
    ends_sequence: bool


class LineTable:
    """The rows of one library, sorted by address."""

    def __init__(self, rows: list[_Row]) -> None:
        # At one address the end of a sequence comes before the start of the next.
        self._rows = sorted(rows, key=lambda row: (row.address, not row.ends_sequence))
        self._addresses = [row.address for row in self._rows]

    @classmethod
    def load(cls, library: Path) -> LineTable:
        """Read the table; empty if the library has none that can be read."""
        try:
            section = _elf_section(library.read_bytes(), b".debug_line")
            return cls(list(_rows(section)))
        except (OSError, struct.error, IndexError, ValueError):
            return cls([])

    def find(self, program_counter: int, sources: Collection[str]) -> tuple[str, int] | None:
        """Return the line at `program_counter`, a return address relative to the load address.

        For code inlined from a file that is not in `sources` (the runtime's headers), the nearest
        line before it in one of them.
        """
        position = bisect.bisect_right(self._addresses, program_counter - 1) - 1
        while position >= 0 and not self._rows[position].ends_sequence:
            row = self._rows[position]
            if row.file in sources and row.line > 0:
                return row.file, row.line
            position -= 1
        return None


def _elf_section(image: bytes, wanted: bytes) -> bytes:
    if image[:6] != b"\x7fELF\x02\x01":  # 64-bit, little-endian
        return b""
    table_offset = struct.unpack_from("<Q", image, 0x28)[0]
    entry_size, entries, names_index = struct.unpack_from("<HHH", image, 0x3A)

    def header(index: int) -> tuple[int, int, int]:
        base = table_offset + index * entry_size
        name = struct.unpack_from("<I", image, base)[0]
        offset, size = struct.unpack_from("<QQ", image, base + 24)
        return name, offset, size

    names_offset = header(names_index)[1]
    for index in range(entries):
        name, offset, size = header(index)
        begin = names_offset + name
        if image[begin : image.index(b"\0", begin)] == wanted:
            return image[offset : offset + size]
    return b""


class _Reader:
    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def unpack(self, layout: str) -> int:
        value: int = struct.unpack_from("<" + layout, self.data, self.position)[0]
        self.position += struct.calcsize("<" + layout)
        return value

    def text(self) -> str:
        end = self.data.index(b"\0", self.position)
        value = self.data[self.position : end]
        self.position = end + 1
        return value.decode("utf-8", "replace")

    def unsigned_leb(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed_leb(self) -> int:
        start = self.position
        value = self.unsigned_leb()
        bits = 7 * (self.position - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value


def _rows(section: bytes) -> Iterator[_Row]:
    reader = _Reader(section, 0)
    while reader.position < len(section):
        length = reader.unpack("I")
        end = reader.position + length
        version = reader.unpack("H")
        if 2 <= version <= 4:
            yield from _unit_rows(reader, version, end)
        reader.position = end


def _unit_rows(reader: _Reader, version: int, end: int) -> Iterator[_Row]:
    header_length = reader.unpack("I")
    program_begin = reader.position + header_length
    min_instruction = reader.unpack("B")
    if version >= 4:
        reader.unpack("B")  # operations per instruction: 1 on all supported machines
    reader.unpack("B")  # whether rows start as statements
    line_base = reader.unpack("b")
    line_range = reader.unpack("B")
    opcode_base = reader.unpack("B")
    operand_counts = [reader.unpack("B") for _ in range(opcode_base - 1)]
    while reader.text():
        pass  # directories: file names are unique
    files = [""]  # numbered from 1
    while name := reader.text():
        files.append(Path(name).name)
        for _ in range(3):
            reader.unsigned_leb()

    reader.position = program_begin
    address, file, line = 0, 1, 1

    def row(ends_sequence: bool = False) -> _Row:
        return _Row(address, files[file] if file < len(files) else "", line, ends_sequence)

    while reader.position < end:
        opcode = reader.unpack("B")
        if opcode >= opcode_base:  # special: advances both and emits a row
            adjusted = opcode - opcode_base
            address += adjusted // line_range * min_instruction
            line += line_base + adjusted % line_range
            yield row()
        elif opcode == 0:  # extended
            size = reader.unsigned_leb()
            next_position = reader.position + size
            extended = reader.unpack("B")
            if extended == 1:
                yield row(ends_sequence=True)
                address, file, line = 0, 1, 1
            elif extended == 2:
                address = reader.unpack("Q")
            reader.position = next_position
        elif opcode == 1:
            yield row()
        elif opcode == 2:
            address += reader.unsigned_leb() * min_instruction
        elif opcode == 3:
            line += reader.signed_leb()
        elif opcode == 4:
            file = reader.unsigned_leb()
        elif opcode == 8:
            address += (255 - opcode_base) // line_range * min_instruction
        elif opcode == 9:
            address += reader.unpack("H")
        else:  # columns, statement flags and others: skip operands
            for _ in range(operand_counts[opcode - 1]):
                reader.unsigned_leb()
