"""A kernel's launch as its machine code sees it: sizes, and arguments in constant bank 0."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from engine.arguments import encode_argument
from engine.errors import InvalidProblem
from engine.plan import LaunchPlan
from engine.sass.cubin import Entry
from kernels.arguments import BLOCK_TABLE

_FIRST_POINTER = 0x7F00_0000_0000
_POINTER_STEP = 1 << 32  # room for any tensor, so that made-up buffers do not overlap
_STACK_TOP = 0xFFFDC0  # what the driver gives as the stack's top: read off launched kernels


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch."""

    grid: tuple[int, int, int]  # CTAs
    block: tuple[int, int, int]  # threads
    dynamic_smem_bytes: int
    arguments: tuple[bytes, ...]  # one value per parameter, little-endian
    # (address, bytes) of global memory that is read as it is, and not as ones: a block table.
    known: tuple[int, bytes] = (0, b"")

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def ctas(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


def buffer_address(number: int) -> int:
    """The made-up address of the launch's buffer `number`, aligned as cudaMalloc aligns."""
    return _FIRST_POINTER + number * _POINTER_STEP


def launch_of_pass(plan: LaunchPlan, number: int) -> Launch:
    """The launch of the plan's pass `number`; one buffer has one address in all passes."""
    launch = plan.passes[number]
    addresses = plan.addresses({n: buffer_address(i) for i, n in enumerate(plan.buffer_bytes)})
    arguments = tuple(encode_argument(arg).with_addresses(addresses) for arg in launch.args)
    known = (0, b"")
    if plan.pages is not None:
        known = addresses[BLOCK_TABLE], plan.pages.table().tobytes()
    return Launch(launch.grid, launch.block, launch.dynamic_smem_bytes, arguments, known)


# Where sm_90 finds the address of its parameters, for TMA: here their place in the bank.
_PARAMETERS = 0x198


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where constant bank 0 keeps the launch, in bytes; read off code of CUDA 13.5."""

    block: int
    grid: int
    stack: int


_VOLTA_TO_HOPPER = _Layout(block=0x0, grid=0xC, stack=0x28)
_SINCE_BLACKWELL = _Layout(block=0x360, grid=0x370, stack=0x37C)


def constant_bank(entry: Entry, arch: str, launch: Launch) -> bytes:
    """Constant bank 0 of this launch.

    Raises:
        InvalidProblem: the arguments do not fit the entry's parameters.
    """
    check_arguments(entry, launch.arguments)
    layout = _SINCE_BLACKWELL if int(arch[3:].rstrip("af")) >= 100 else _VOLTA_TO_HOPPER
    end = entry.parameter_offset + sum(p.size + 16 for p in entry.parameters)
    bank = bytearray(entry.constants.get(0, b""))
    bank.extend(bytes(max(0, max(end, 0x400) - len(bank))))
    struct.pack_into("<3I", bank, layout.block, *launch.block)
    struct.pack_into("<3I", bank, layout.grid, *launch.grid)
    struct.pack_into("<I", bank, layout.stack, _STACK_TOP)
    if layout is _VOLTA_TO_HOPPER:
        struct.pack_into("<Q", bank, _PARAMETERS, entry.parameter_offset)
    for parameter, value in zip(entry.parameters, launch.arguments, strict=True):
        start = entry.parameter_offset + parameter.offset
        bank[start : start + len(value)] = value
    return bytes(bank)


def check_arguments(entry: Entry, arguments: tuple[bytes, ...]) -> None:
    """Raises InvalidProblem where number or sizes differ from what the entry takes."""
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
