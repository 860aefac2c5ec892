"""Process that reads cubins for the software GPU's driver with the engine's reader.

Each request on standard input: two 64-bit numbers, the address of the cubin's variables and the
cubin's size, then the cubin. Each reply on standard output: two 64-bit numbers, a `CUresult` and a
size, then a description in the order that native/module.h reads, or an error sentence.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

from engine.base.errors import AttuneError, InvalidCubin
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import Cubin, Entry, read_cubin, read_sections
from engine.machine_code.disassembly import Program
from engine.machine_code.emulation import local_bytes, reserved_smem_bytes, text_and_targets
from engine.machine_code.execution import WINDOWS, load_module
from engine.machine_code.launch import Launch, bank_layout, constant_bank

_INVALID_IMAGE, _NOT_SUPPORTED = 200, 801  # CUresult
_VARIABLE = 1  # the type of a symbol
_USER_CONSTANTS = ".nv.constant3"
_CONSTANTS_AT = 15 << 32  # after the other variables, which are 4 GiB apart


def main() -> None:
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(16)) == 16:
        base, size = struct.unpack("<QQ", head)
        try:
            code, answer = 0, describe(source.read(size), base)
        except InvalidCubin as error:
            code, answer = _INVALID_IMAGE, str(error).encode()
        except AttuneError as error:
            code, answer = _NOT_SUPPORTED, str(error).encode()
        _write(target, struct.pack("<QQ", code, len(answer)) + answer)


def _write(target: BinaryIO, answer: bytes) -> None:
    target.write(answer)
    target.flush()


def describe(data: bytes, base: int) -> bytes:
    """Return all that the driver needs of a cubin whose variables begin at address `base`.

    Raises:
        InvalidCubin: it is not a cubin, or damaged.
        AttuneError: it cannot be read, or refers to an undefined symbol.
    """
    cubin = read_cubin(data)
    module = load_module(cubin, base)
    areas = {b.address: b.data.tobytes() for b in module.buffers}
    section_at = {b.name: b.address for b in module.buffers}
    constants = next((e.constants[3] for e in module.entries.values() if 3 in e.constants), None)
    if constants is not None:
        section_at[_USER_CONSTANTS] = base + _CONSTANTS_AT
        areas[base + _CONSTANTS_AT] = constants
    out = _Fields()
    out.number(len(areas))
    for address, content in areas.items():
        out.number(address)
        out.text(content)
    variables = list(_variables(cubin, section_at))
    out.number(len(variables))
    for name, address, size in variables:
        out.text(name.encode())
        out.number(address, size)
    out.number(len(module.entries))
    for name, entry in module.entries.items():
        _function(out, cubin, entry, program_of(cubin, name), section_at)
    return bytes(out.data)


class _Fields:
    """Encoder of 64-bit numbers, and of texts preceded by their size."""

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, *values: int) -> None:
        self.data += struct.pack(f"<{len(values)}Q", *(v & (2**64 - 1) for v in values))

    def text(self, content: bytes) -> None:
        self.number(len(content))
        self.data += content


def _function(
    out: _Fields, cubin: Cubin, entry: Entry, program: Program, section_at: dict[str, int]
) -> None:
    layout = bank_layout(cubin.arch)
    of_clusters = (layout.cluster, layout.reciprocals, layout.clusters, layout.cluster_ctas)
    out.text(entry.name.encode())
    out.number(int(cubin.arch[3:]), entry.registers, entry.static_smem_bytes, entry.frame_bytes)
    out.number(entry.max_threads, entry.parameter_offset, *entry.cluster)
    out.number(layout.block, layout.grid)
    out.number(*(of_clusters if int(cubin.arch[3:].rstrip("af")) >= 90 else (-1, -1, -1, -1)))
    out.number(reserved_smem_bytes(cubin.arch), local_bytes(entry))
    out.number(len(entry.parameters))
    for parameter in entry.parameters:
        out.number(parameter.offset, parameter.size)
    alone = replace(entry, cluster=(1, 1, 1))  # set by the driver at a launch
    empty = Launch((1, 1, 1), (1, 1, 1), 0, tuple(bytes(p.size) for p in entry.parameters))
    for cluster in ((1, 1, 1), (2, 1, 1)):  # without and with clusters
        out.text(constant_bank(alone, cubin.arch, empty, WINDOWS, cluster))
    banks = {bank: content for bank, content in entry.constants.items() if bank}
    out.number(len(banks))
    for bank, content in banks.items():
        out.number(bank, section_at.get(_USER_CONSTANTS, 0) if bank == 3 else 0)
        out.text(content)
    text, targets = text_and_targets(program)
    out.text(text.encode())
    out.text(targets.tobytes())
    lines = [(i.address, i.source) for i in program.instructions if i.source]
    out.number(len(lines))
    for address, source in lines:
        out.number(address)
        out.text(f"{source[0].file}:{source[0].line}".encode())


def _variables(cubin: Cubin, section_at: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    """Return (name, address, bytes) of `__device__` and `__constant__` variables."""
    sections = read_sections(cubin.data)
    table = next((s for s in sections if s.name == ".symtab"), None)
    if table is None:
        return
    strings = sections[table.link].of(cubin.data)
    for name, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", table.of(cubin.data)):
        if info & 0xF == _VARIABLE and section < len(sections):
            at = section_at.get(sections[section].name)
            if at is not None:
                label = strings[name : strings.index(b"\0", name)].decode(errors="replace")
                yield label, at + value, size


if __name__ == "__main__":
    main()
