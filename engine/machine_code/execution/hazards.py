"""Hazards of shared memory that an execution found: two accesses that nothing orders."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.machine_code.instruction import Instruction, Program

MOST = 64  # that are told apart; the rest is counted

HazardKind: TypeAlias = Literal["read-after-write", "write-after-read", "write-after-write"]
_KINDS: tuple[HazardKind, ...] = ("read-after-write", "write-after-read", "write-after-write")
_DOES = ("reads", "overwrites", "overwrites")
_DID = ("wrote", "read", "wrote")
_DOING = ("writes", "reads", "writes")
_COPIES = -1
_RESERVED = 1024  # bytes below a CTA's own shared memory from sm_90 on


class HazardRow(ctypes.Structure):
    """`Hazard` of native/request.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("before", ctypes.c_int32),
        ("now", ctypes.c_int32),
        ("under_way", ctypes.c_int32),
        ("warp_before", ctypes.c_int32),
        ("warp_now", ctypes.c_int32),
        ("cta", ctypes.c_uint32 * 3),
        ("address", ctypes.c_uint32),
        ("count", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two instructions that touch the same bytes of a CTA's shared memory, one of which writes,
    and that no barrier, mbarrier, atomic or wait orders."""

    kind: HazardKind
    before: Instruction
    now: Instruction
    under_way: bool  # `before` is asynchronous, and nobody waited for its end
    warps: tuple[int | None, int | None]  # of the CTA; None: a copy by TMA
    cta: tuple[int, int, int]  # whose memory it is, the first time
    address: int  # bytes from the beginning of the CTA's own shared memory, the first time
    count: int  # accesses of two bytes

    @property
    def sentence(self) -> str:
        """Both instructions with their source lines where the code has them."""
        number = _KINDS.index(self.kind)
        if self.under_way:
            why = f"which {place_of(self.before)} still {_DOING[number]}: nothing waited for it"
        else:
            why = (
                f"which {place_of(self.before)}{_of(self.warps[0])} {_DID[number]}: no barrier "
                "orders the two"
            )
        x, y, z = self.cta
        return (
            f"{place_of(self.now)}{_of(self.warps[1])} {_DOES[number]} byte {self.address} of "
            f"shared memory, {why} (CTA {x}, {y}, {z}; {self.count:,} times)."
        )


def hazard_of(program: Program, row: HazardRow) -> Hazard:
    code = program.instructions
    warps = tuple(None if w == _COPIES else int(w) for w in (row.warp_before, row.warp_now))
    reserved = _RESERVED if int(program.arch[3:].rstrip("af")) >= 90 else 0
    return Hazard(
        kind=_KINDS[row.kind],
        before=code[row.before],
        now=code[row.now],
        under_way=bool(row.under_way),
        warps=(warps[0], warps[1]),
        cta=(row.cta[0], row.cta[1], row.cta[2]),
        address=row.address - reserved,
        count=row.count,
    )


def place_of(at: Instruction) -> str:
    """`STS at 0x0190 (k.cu:10)`."""
    return f"{at.mnemonic} at 0x{at.address:04x}{lines_of(at)}"


def lines_of(at: Instruction | None) -> str:
    """` (tiles.cuh:31 in v08_mma_sync.cu:90)`, innermost first; empty where the code has none."""
    if at is None or not at.source:
        return ""
    first, last = at.source[0], at.source[-1]
    places = [f"{first.file}:{first.line}"]
    if last != first:
        places.append(f"{last.file}:{last.line}")
    return f" ({' in '.join(places)})"


def _of(warp: int | None) -> str:
    return "" if warp is None else f" of warp {warp}"
