"""What the machine code of a ladder kernel is held to; run it to renew the recorded table.

    python -m tests.sass.gate [v08 …]    # prints what changed, and writes tests/sass/data/gate.json

Renewing the table is a commit of its own whose diff shows the change.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.compile import compile_plan
from engine.config import default_config
from engine.errors import AttuneError
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from engine.sass.analysis import disassembled
from engine.sass.cubin import read_cubin
from engine.sass.emulation import EXECUTED, IDEAL_WAVEFRONTS, WAVEFRONTS, Emulator
from engine.sass.instruction import Pipe
from engine.sass.launch import launch_of_pass
from kernels.ladder import LADDER
from kernels.variant import Variant

TABLE = Path(__file__).with_name("data") / "gate.json"
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
_SHORT, _LONG = 256, 512  # keys; several tiles of every kernel
_ONE_SHOT = 128  # what a kernel without a loop over keys takes


@dataclass(frozen=True, slots=True)
class Row:
    """The main pass of one kernel with its defaults, D = 64, not causal, CTA 0."""

    registers: int
    local_accesses: int  # instructions of the code that spill or use the stack
    double_precision: int  # FP64 instructions: nobody wants them
    instructions_per_64_keys: float  # warp instructions of a CTA
    conflicts: int  # shared wavefronts beyond the conflict-free number, for all keys


def supported(variant: Variant, arch: str) -> bool:
    major, minor = divmod(int(arch[3:]), 10)
    least = variant.min_compute_capability
    return least == (major, minor) if variant.arch_specific else least <= (major, minor)


def measure(variant: Variant, arch: str) -> Row:
    """Raises AttuneError where the kernel does not compile or run."""
    short, long = _plans(variant)
    cubin = read_cubin(compile_plan(short, arch).cubin)
    code = disassembled(cubin)
    entry = short.passes[0].entry
    program = code.program(entry)
    totals = []
    for plan in (short, long):
        emulator = Emulator(program, cubin.entries[program.entry], launch_of_pass(plan, 0))
        totals.append(emulator.totals().values)
    keys = long.problem.seqlen - short.problem.seqlen
    slope = int(totals[1][:, EXECUTED].sum() - totals[0][:, EXECUTED].sum())
    if keys == 0:  # no loop over keys
        slope, keys = int(totals[0][:, EXECUTED].sum()), short.problem.seqlen
    is_shuffle = [i.opcode in ("SHFL", "MOVM") for i in program.instructions]
    last = totals[1][[not s for s in is_shuffle]]
    return Row(
        registers=program.registers,
        local_accesses=sum(i.opcode in ("LDL", "STL") for i in program.instructions),
        double_precision=sum(i.pipe is Pipe.FP64 for i in program.instructions),
        instructions_per_64_keys=round(slope * 64 / keys, 1),
        conflicts=int((last[:, WAVEFRONTS] - last[:, IDEAL_WAVEFRONTS]).sum()),
    )


def _plans(variant: Variant) -> tuple[LaunchPlan, LaunchPlan]:
    config = default_config(variant, {})
    lengths = (_SHORT, _LONG)
    if variant.unsupported(Problem(1, 1, _LONG, 64), config) is not None:
        lengths = (_ONE_SHOT, _ONE_SHOT)
    short, long = (make_plan(variant, Problem(1, 1, n, 64), config) for n in lengths)
    return short, long


def recorded() -> dict[str, Row]:
    """By `v08 sm_80`."""
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
