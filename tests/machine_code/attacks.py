"""Read, count and execute damaged cubins with native libraries built with sanitizers.

Run by `tests/machine_code/test_attacks.py`, which loads the address sanitizer's runtime first:
`python -m tests.machine_code.attacks FOLDER LIBRARIES RANDOM TARGETED EXECUTED [SEED]`. Every case
ends in counts, in executed CTAs or in one of the project's errors; the first that does not ends the
process. FOLDER holds the cubins and LIBRARIES the libraries built with sanitizers.

nvdisasm may not terminate for a damaged file. After a short time limit, the case continues with the
listing of the undamaged file and the damaged constants, sizes and parameters.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import hashlib
import os
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from engine.base.errors import AttuneError, CompileError
from engine.base.launch_arguments import TensorMapArg, encode_argument
from engine.devices import find_device
from engine.history.simulation import time_launch
from engine.machine_code import disassembly, emulation, native_library
from engine.machine_code.analysis import Analysis, find_entry
from engine.machine_code.counts import count_launch
from engine.machine_code.cubin import Cubin, Entry, read_cubin
from engine.machine_code.disassembly import (
    LISTING_OPTIONS,
    Disassembly,
    Program,
    disassemble,
    run_nvdisasm,
)
from engine.machine_code.emulation import Emulator
from engine.machine_code.execution import _SOURCE as EXECUTES
from engine.machine_code.execution import GlobalBuffer, execute, load_module
from engine.machine_code.launch import Launch, buffer_address

MAX_STEPS = 20_000  # warp instructions of one CTA
MAX_RUN_S = 0.5  # of a launch that is executed
MAX_READ_S = 1  # CPU time of nvdisasm, which takes 0.1 s for an undamaged cubin
DEVICES = {"sm_80": "A100", "sm_90": "H100", "sm_120": "RTX 5090"}
_FRAME_SIZE, _REGCOUNT, _KPARAM_INFO, _PARAM_CBANK = 0x11, 0x2F, 0x17, 0x0A
EXTREMES = (0, 1, 254, 255, 0x7FFF, 0xFFFF, 0x10000000, 0x7FFFFF01, 0xFFFFFFFF)


def sections(data: bytes) -> list[tuple[str, int, int, int]]:
    """Return (name, offset, size, offset of its header) of each section of an undamaged cubin."""
    (start,) = struct.unpack_from("<Q", data, 0x28)
    count, names = struct.unpack_from("<HH", data, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", data, start + 64 * n) for n in range(count)]
    strings = data[headers[names][4] :]
    return [
        (strings[h[0] :].split(b"\0", 1)[0].decode(), h[4], h[5], start + 64 * n)
        for n, h in enumerate(headers)
    ]


def shuffled(data: bytes, rng: random.Random) -> bytes:
    """Change some bytes, anywhere or in the code."""
    out = bytearray(data)
    code = [s for s in sections(data) if s[0].startswith(".text.") and s[2]]
    in_code = rng.random() < 0.6
    for _ in range(rng.randint(1, 24)):
        where = rng.randrange(len(out))
        if in_code:
            _, offset, size, _ = rng.choice(code)
            where = offset + rng.randrange(size)
        out[where] = rng.randrange(256)
    return bytes(out) if rng.random() < 0.9 else bytes(out[: rng.randrange(len(out))])


def far_registers(data: bytes, rng: random.Random) -> bytes:
    """Change register fields of some instructions to the highest register numbers."""
    out = bytearray(data)
    code = [s for s in sections(data) if s[0].startswith(".text.") and s[2]]
    for _ in range(rng.randint(1, 8)):
        _, offset, size, _ = rng.choice(code)
        at = offset + 16 * rng.randrange(size // 16)
        out[at + rng.choice((2, 3, 4, 8))] = rng.choice((251, 252, 253, 254, 63, 62))
    return bytes(out)


def far_modifiers(data: bytes, rng: random.Random) -> bytes:
    """Change widths, kinds and immediates of some instructions."""
    out = bytearray(data)
    code = [s for s in sections(data) if s[0].startswith(".text.") and s[2]]
    for _ in range(rng.randint(1, 6)):
        _, offset, size, _ = rng.choice(code)
        at = offset + 16 * rng.randrange(size // 16)
        out[at + rng.choice((4, 5, 6, 7, 9, 10, 11, 12))] ^= 1 << rng.randrange(8)
    return bytes(out)


def wrong_attribute(data: bytes, rng: random.Random) -> bytes:
    """Change the value or size of an attribute of `.nv.info`."""
    out = bytearray(data)
    known = []
    for name, offset, size, _ in sections(data):
        at = offset
        while name.startswith(".nv.info") and at + 4 <= offset + size:
            form, attribute, length = struct.unpack_from("<BBH", data, at)
            known.append((at, attribute, length))
            at += 4 + (length if form == 4 else 0)
    wanted = (_FRAME_SIZE, _REGCOUNT, _KPARAM_INFO, _PARAM_CBANK)
    at, _, length = rng.choice([k for k in known if k[1] in wanted] or known)
    if rng.random() < 0.4:
        struct.pack_into("<H", out, at + 2, rng.choice((0, 1, 3, 4, 7, 0xFFFF)))
    elif length >= 8:
        struct.pack_into("<I", out, at + rng.choice((4, 8)), rng.choice(EXTREMES))
    return bytes(out)


def wrong_section(data: bytes, rng: random.Random) -> bytes:
    """Change a section's name, type, offset, size or link."""
    out = bytearray(data)
    _, _, _, header = rng.choice(sections(data))
    where, form = rng.choice(((0, "<I"), (4, "<I"), (24, "<Q"), (32, "<Q"), (40, "<I")))
    value = rng.choice((*EXTREMES, 1 << 40, (1 << 63) - 1, len(data) - 3))
    struct.pack_into(
        form, out, header + where, value & (0xFFFFFFFF if form == "<I" else (1 << 64) - 1)
    )
    return bytes(out)


def made_up_constants(data: bytes, rng: random.Random) -> bytes:
    """Put a tensor map of random shape into the constants."""
    out = bytearray(data)
    for name, offset, size, _ in sections(data):
        if name.startswith(".nv.constant") and size:
            for at in range(offset, offset + size - 8, 8):
                struct.pack_into(
                    "<Q", out, at, rng.choice((0x434F48544D41, rng.getrandbits(64), 5))
                )
    return bytes(out)


def header(data: bytes, rng: random.Random) -> bytes:
    """Change a field of the file's header."""
    out = bytearray(data)
    out[rng.randrange(4, 64)] = rng.choice((0, 1, 0x7F, 0xFF))
    return bytes(out)


TARGETED: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    far_registers, far_modifiers, wrong_attribute, wrong_section, made_up_constants, header,
)  # fmt: skip


def damaged_listing(program: Program, rng: random.Random) -> Program:
    """Return a listing whose instructions have missing, additional or wrong operands."""
    others = list(program.instructions)
    for _ in range(rng.randint(1, 12)):
        n = rng.randrange(len(others))
        operands = list(others[n].operands)
        what = rng.randrange(5)
        if what == 0 and operands:
            operands.pop(rng.randrange(len(operands)))
        elif what == 1:
            operands.insert(
                rng.randrange(len(operands) + 1),
                rng.choice(rng.choice(others).operands or ("B15",)),
            )
        elif what == 2 and operands:
            odd = (
                "R254",
                "UR254.64",
                "R300",
                "P9",
                "B16",
                "-",
                "|",
                "",
                "c[0x0][-0x8000000000000000]",
            )
            operands[rng.randrange(len(operands))] = rng.choice(odd)
        elif what == 3:
            rng.shuffle(operands)
        other = rng.choice(others)
        others[n] = dataclasses.replace(
            others[n],
            operands=tuple(operands),
            **({"opcode": other.opcode, "modifiers": other.modifiers} if what == 4 else {}),
        )
    return dataclasses.replace(program, instructions=tuple(others), cubin_sha256="")


@functools.cache
def listing_of(data: bytes) -> str:
    """Return the disassembly of an undamaged file."""
    return run_nvdisasm(read_cubin(data).data, *LISTING_OPTIONS)


def program_of(cubin: Cubin, entry: Entry, whole: bytes) -> tuple[Program, bool]:
    """Return the program of a damaged cubin, and True if nvdisasm could read it; otherwise the
    program of the undamaged cubin."""
    try:
        return disassemble(cubin).program(entry.name), True
    except CompileError as error:
        if error.code != "nvdisasm_time_limit":
            raise
    listing = listing_of(whole)
    return Disassembly(cubin, hashlib.sha256(cubin.data).hexdigest(), listing).program(
        entry.name
    ), False


def attack(data: bytes, whole: bytes, rng: random.Random, listing: bool) -> str:
    """Read, disassemble, count and simulate a cubin; return the outcome. Errors of Attune pass."""
    cubin = read_cubin(data)
    entry = find_entry(cubin, None)
    program, was_read = program_of(cubin, entry, whole)
    arguments = tuple(rng.randbytes(p.size) for p in entry.parameters)
    launch = Launch((2, 1, 1), (rng.choice((32, 128)), 1, 1), rng.choice((0, 16 << 10)), arguments)
    if listing:
        program = damaged_listing(program, rng)
    emulator = Emulator(program, entry, launch)
    emulator._request.max_steps = MAX_STEPS
    counts = count_launch(emulator)
    if program.arch in DEVICES and not listing:
        analysis = Analysis(program, entry, launch, counts, cubin)
        time_launch(analysis, find_device(DEVICES[program.arch]), quick=True)
    return "counted" if was_read else "counted by the undamaged listing"


def executed_argument(size: int, address: int, rng: random.Random) -> bytes:
    """Return a pointer, a number, or a tensor map with a random field."""
    if size == 8:
        return struct.pack("<Q", address + rng.choice((0, 0, 0, 16, 60)))
    if size == 4:
        return struct.pack("<I", rng.choice((1, 7, 64, 256, 0xFFFFFFFF)))
    if size != 128:
        return rng.randbytes(size)
    tensor = TensorMapArg("m", "b", (64, 256), (128,), (64, 64), rng.choice((0, 128)))
    out = bytearray(encode_argument(tensor).data)
    struct.pack_into("<Q", out, 8, address)
    for _ in range(rng.choice((0, 0, 1, 3))):
        struct.pack_into("<I", out, 4 * rng.randrange(32), rng.choice((*EXTREMES, 3, 256)))
    return bytes(out)


def attack_execution(data: bytes, whole: bytes, rng: random.Random, listing: bool) -> str:
    """Execute it on allocated buffers, with random sizes of launches and buffers, and with the
    detection of hazards in half of the cases."""
    cubin = read_cubin(data)
    module = load_module(cubin)
    entry = module.entries[find_entry(cubin, None).name]
    program, was_read = program_of(cubin, entry, whole)
    if listing:
        program = damaged_listing(program, rng)
    sizes = (64, 4096, 65536, 1 << 20, 1 << 20)
    buffers = [
        GlobalBuffer(f"b{n}", buffer_address(n), np.zeros(rng.choice(sizes), np.uint8))
        for n in range(len(entry.parameters))
    ]
    arguments = tuple(
        executed_argument(p.size, b.address, rng)
        for p, b in zip(entry.parameters, buffers, strict=True)
    )
    cluster = rng.choice(((1, 1, 1), (1, 1, 1), (2, 1, 1)))
    block = (rng.choice((32, 128, 256, 384)), 1, 1)
    launch = Launch((2, 1, 2), block, rng.choice((0, 16 << 10, 64 << 10)), arguments)
    found = [*module.buffers, *buffers]
    hazards = rng.choice((None, []))
    execute(
        program,
        entry,
        launch,
        found,
        cluster=cluster,
        timeout_s=MAX_RUN_S,
        threads=2,
        hazards=hazards,
    )
    for hazard in hazards or ():
        assert hazard.sentence.endswith(").")
    return "executed" if was_read else "executed by the undamaged listing"


def main(
    folder: Path, libraries: Path, number: int, targeted: int, executed: int, seed: int = 0
) -> None:
    for source in (*native_library._sources(), EXECUTES):
        native_library._loaded[source] = ctypes.CDLL(str(libraries / f"{source.stem}.so"))
    emulation.MAX_STEPS = MAX_STEPS
    os.environ.pop("LD_PRELOAD", None)  # the tools have too little memory for the sanitizer
    cubins = [path.read_bytes() for path in sorted(folder.glob("*.cubin"))]
    disassembly._MAX_CPU_S = MAX_READ_S
    ends: collections.Counter[str] = collections.Counter()
    for case in range(number + targeted + executed):
        rng = random.Random(f"{seed}-{case}")
        data = whole = rng.choice(cubins)
        kind = (
            "random"
            if case < number
            else rng.choice([*(t.__name__ for t in TARGETED), "listing"])
            if case < number + targeted
            else rng.choice(["listing", "listing", "listing", "far_registers", "far_modifiers"])
        )
        print("case", case, kind, flush=True)
        if kind == "random":
            data = shuffled(data, rng)
        elif kind != "listing":
            data = next(t for t in TARGETED if t.__name__ == kind)(data, rng)
        try:
            run = attack if case < number + targeted else attack_execution
            end = run(data, whole, rng, kind == "listing")
        except AttuneError as error:
            if not str(error).endswith((".", "?")):
                raise
            end = str(error)[:48]
        ends[end] += 1
    cases = f"{number} random and {targeted} targeted cubins, {executed} executed"
    print(f"{cases}:", dict(ends.most_common(16)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
