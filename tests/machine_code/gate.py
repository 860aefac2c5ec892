"""Rules for the machine code of the ladder's kernels; run this file to renew the recorded table.

    python -m tests.machine_code.gate [v08 …]    # prints what changed, writes data/gate.json here

Renew the table in a separate commit whose diff shows the change.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.attention.config import default_config
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.base.errors import AttuneError
from engine.machine_code.analysis import disassembled, outer_line
from engine.machine_code.cubin import read_cubin
from engine.machine_code.disassembly import Pipe, Program
from engine.machine_code.emulation import EXECUTED, IDEAL_WAVEFRONTS, WAVEFRONTS, Emulator
from engine.model.kernel import compile_plan, launch_of_pass
from kernels.ladder import LADDER
from kernels.variant import Variant

TABLE = Path(__file__).with_name("data") / "gate.json"
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
_SHORT, _LONG = 256, 512  # keys; several tiles of every kernel
_ONE_SHOT = 128  # keys of a kernel without a loop over keys


# Instructions that a kernel's idea needs; `.128` is an access of 16 bytes a thread.
_TENSOR = ("HMMA", "LDSM")
_HOPPER = ("HGMMA", "UTMALDG", "UTMASTG")
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("v03", "v04"), ("LDG.128", "STS.128", "LDS.128")),
    **dict.fromkeys(("v07", "v08", "v09"), (*_TENSOR, "LDG.128", "STS.128")),
    **dict.fromkeys(("v10", "v14", "v21"), (*_TENSOR, "LDGSTS.128")),
    **dict.fromkeys(("v11", "v12", "v13"), (*_TENSOR, "LDGSTS.128", "STG.128")),
    "v15": _HOPPER,
    "v22": (*_HOPPER, "STSM"),
    **dict.fromkeys(("v16", "v17", "v18", "v19", "v20"), (*_HOPPER, "USETMAXREG")),
}
# Substitutes on an arch that has no such instruction.
INSTEAD = {"sm_75": {"LDGSTS.128": ("LDG.128", "STS.128")}}
# (kernel, rule) → why the kernel may break it. Rules that a kernel keeps must not be listed.
EXCEPTIONS = {
    ("v01", "no PRMT in copies"): "the slow start copies element by element",
    ("v03", "no PRMT in copies"): "zeros of rows past the end are packed by halves, once a tile",
    ("v04", "no PRMT in copies"): "as v03",
    ("v03", "wavefronts are ideal"): "a warp's two row groups store P to the same 16 banks",
    ("v04", "wavefronts are ideal"): "as v03",
    ("v14", "wavefronts are ideal"): "warps' parts of O are added once a CTA, 8 bytes a lane",
    ("v21", "wavefronts are ideal"): "as v14",
}


@dataclass(frozen=True, slots=True)
class Row:
    """The main pass of one kernel with its defaults, D = 64, not causal, CTA 0."""

    registers: int
    local_accesses: int  # instructions of the code that spill or use the stack
    double_precision: int  # FP64 instructions, which no kernel should have
    instructions_per_64_keys: float  # warp instructions of a CTA
    conflicts: int  # shared wavefronts beyond the conflict-free number, for all keys


def supported(variant: Variant, arch: str) -> bool:
    major, minor = divmod(int(arch[3:]), 10)
    least = variant.min_compute_capability
    return least == (major, minor) if variant.arch_specific else least <= (major, minor)


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """The main pass's machine code, and the counts of CTA 0 for few keys and for more."""

    program: Program
    keys: tuple[int, int]  # equal where there is no loop over keys
    totals: tuple[NDArray[np.int64], NDArray[np.int64]]


@lru_cache(maxsize=1)
def read(variant: Variant, arch: str) -> Code:
    """Return a kernel's code; raise AttuneError if it does not compile or run."""
    short, long = _plans(variant)
    cubin = read_cubin(compile_plan(short, arch).cubin)
    program = disassembled(cubin).program(short.passes[0].entry)
    totals = [
        Emulator(program, cubin.entries[program.entry], launch_of_pass(plan, 0)).totals().values
        for plan in (short, long)
    ]
    return Code(program, (short.problem.seqlen, long.problem.seqlen), (totals[0], totals[1]))


def measure(variant: Variant, arch: str) -> Row:
    """Return a kernel's figures; raise as `read`."""
    code = read(variant, arch)
    program, totals = code.program, code.totals
    keys = code.keys[1] - code.keys[0]
    slope = int(totals[1][:, EXECUTED].sum() - totals[0][:, EXECUTED].sum())
    if keys == 0:  # no loop over keys
        slope, keys = int(totals[0][:, EXECUTED].sum()), code.keys[0]
    return Row(
        registers=program.registers,
        local_accesses=sum(i.opcode in ("LDL", "STL") for i in program.instructions),
        double_precision=sum(i.pipe is Pipe.FP64 for i in program.instructions),
        instructions_per_64_keys=round(slope * 64 / keys, 1),
        conflicts=_conflicts(code),
    )


def _conflicts(code: Code) -> int:
    is_shuffle = [i.opcode in ("SHFL", "MOVM") for i in code.program.instructions]
    last = code.totals[1][[not s for s in is_shuffle]]
    return int((last[:, WAVEFRONTS] - last[:, IDEAL_WAVEFRONTS]).sum())


def broken_rules(variant: Variant, arch: str) -> dict[str, str]:
    """Return {rule: what breaks it} for the rules that apply to the kernel; raise as `read`."""
    code = read(variant, arch)
    ran = [
        i
        for i, executed in zip(
            code.program.instructions, code.totals[1][:, EXECUTED].tolist(), strict=True
        )
        if executed
    ]
    names = {f"{i.opcode}.128" if "128" in i.modifiers else i.opcode for i in ran}
    names |= {i.opcode for i in ran}
    broken: dict[str, str] = {}
    # Instructions that copy global to shared memory, by source line of the kernel.
    loads, stores = (
        {outer_line(i) for i in ran if i.opcode in opcodes}
        for opcodes in (("LDG", "LDGSTS"), ("STS", "LDGSTS"))
    )
    packing = {outer_line(i) for i in ran if i.opcode == "PRMT"} & loads & stores
    # sm_75 packs P by PRMT, which v11 and v13 do in the line that copies the next tile.
    if packing and not (arch == "sm_75" and "HMMA" in names):
        broken["no PRMT in copies"] = ", ".join(str(x.line) for x in packing if x is not None)
    if any(i.opcode == "FSETP" and "-126" in str(i) for i in ran):
        broken["no FSETP around EX2"] = "EX2 without ftz"
    instead = INSTEAD.get(arch, {})
    needed = [n for name in NEEDS.get(variant.id, ()) for n in instead.get(name, (name,))]
    if lacking := [name for name in needed if name not in names]:
        broken["instructions of the idea"] = ", ".join(lacking)
    number = int(variant.id[1:3])
    if number >= 3 and any(
        i.opcode == "LDS" and not {"U8", "S8", "U16", "S16"}.isdisjoint(i.modifiers) for i in ran
    ):
        broken["no 2-byte shared loads"] = "LDS.U16"
    claims = variant.work.conflict_ways is not None and number >= 2
    if (claims or number >= 8) and (extra := _conflicts(code)):
        broken["wavefronts are ideal"] = f"{extra} more"
    return broken


def _plans(variant: Variant) -> tuple[LaunchPlan, LaunchPlan]:
    config = default_config(variant, {})
    lengths = (_SHORT, _LONG)
    if variant.unsupported(Problem(1, 1, _LONG, 64), config) is not None:
        lengths = (_ONE_SHOT, _ONE_SHOT)
    short, long = (make_plan(variant, Problem(1, 1, n, 64), config) for n in lengths)
    return short, long


def recorded() -> dict[str, Row]:
    """Return the recorded rows by kernel and arch, `v08 sm_80`."""
    return {key: Row(**row) for key, row in json.loads(TABLE.read_text()).items()}


def cases() -> list[tuple[str, str]]:
    return [(v.id, arch) for v in LADDER for arch in ARCHS if supported(v, arch)]


def main() -> None:
    before = recorded() if TABLE.is_file() else {}
    table: dict[str, Row] = {}
    for name, arch in cases():
        key = f"{name} {arch}"
        if sys.argv[1:] and name not in sys.argv[1:]:
            table |= {key: before[key]} if key in before else {}
            continue
        try:
            table[key] = measure(LADDER.by_id(name), arch)
        except AttuneError as error:
            print(f"{key}: {error}", file=sys.stderr)
            continue
        if table[key] != before.get(key):
            print(f"{key}: {before.get(key)} -> {table[key]}")
    rows = [f'  "{key}": {json.dumps(asdict(row))}' for key, row in table.items()]
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
