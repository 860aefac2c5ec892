"""A cubin as it lies in memory: its global variables, and their addresses in constant banks."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from engine.base.errors import CompileError
from engine.machine_code.cubin import Cubin, Entry, Section, read_sections
from engine.machine_code.execution.run import GlobalBuffer

_FIRST_ADDRESS = 0x6000_0000_0000
_STEP = 1 << 32
_NOWHERE = 0x7FA5_0000_0000
_NO_BITS = 8
_WITH_ADDENDS, _WITHOUT_ADDENDS = 4, 9  # SHT_RELA, SHT_REL
_ADDRESS_64 = 2  # R_CUDA_64
_CONSTANTS = re.compile(r"\.rela?\.nv\.constant(\d)(?:\.(.+))?")


@dataclass(frozen=True, slots=True)
class Module:
    """What `__device__` variables hold now; every launch of the cubin sees the same."""

    buffers: tuple[GlobalBuffer, ...]
    entries: Mapping[str, Entry]  # with addresses in their constants


def load_module(cubin: Cubin, first_address: int = _FIRST_ADDRESS) -> Module:
    """Lay out the cubin's variables, from `first_address` on.

    Raises:
        CompileError: it refers to something in a way that is not known here.
    """
    sections = read_sections(cubin.data)
    buffers: list[GlobalBuffer] = []
    address_of: dict[int, int] = {}
    for number, section in enumerate(sections):
        if section.name not in (".nv.global", ".nv.global.init"):
            continue
        content = np.zeros(-(-section.size // 8) * 8, np.uint8)
        if section.kind != _NO_BITS:
            content[: section.size] = np.frombuffer(section.of(cubin.data), np.uint8)
        address_of[number] = first_address + len(buffers) * _STEP
        buffers.append(GlobalBuffer(section.name, address_of[number], content[: section.size]))
    entries = dict(cubin.entries)
    for section in sections:
        if section.kind not in (_WITH_ADDENDS, _WITHOUT_ADDENDS):
            continue
        if (found := _CONSTANTS.fullmatch(section.name)) is None:
            continue
        bank = int(found[1])
        for name, entry in entries.items():
            if found[2] in (None, name) and bank in entry.constants:
                patched = _relocated(cubin, sections, section, entry.constants[bank], address_of)
                entries[name] = replace(entry, constants={**entry.constants, bank: patched})
    return Module(tuple(buffers), entries)


def _relocated(
    cubin: Cubin,
    sections: list[Section],
    relocations: Section,
    content: bytes,
    address_of: Mapping[int, int],
) -> bytes:
    """The constants with the addresses that they refer to."""
    symbols = next(s for s in sections if s.name == ".symtab").of(cubin.data)
    given = relocations.kind == _WITH_ADDENDS
    patched = bytearray(content)
    for where, info, *addend in struct.iter_unpack(
        "<QQq" if given else "<QQ", relocations.of(cubin.data)
    ):
        kind, symbol = info & 0xFFFFFFFF, info >> 32
        _, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", symbols, 24 * symbol)
        if kind != _ADDRESS_64 or where + 8 > len(patched):
            raise CompileError(
                f"This cubin's constants refer to something (relocation {kind}) that is not "
                "executed here: a texture?"
            )
        offset = addend[0] if given else struct.unpack_from("<q", patched, where)[0]
        # A function of the driver's has no address here: calling it says so.
        address = address_of[section] + value + offset if section in address_of else _NOWHERE
        struct.pack_into("<Q", patched, where, address)
    return bytes(patched)
