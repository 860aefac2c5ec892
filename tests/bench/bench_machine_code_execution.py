"""Machine code executed with values: rung × architecture, right or not, and seconds of CPU time.

`python tests/bench/bench_machine_code_execution.py [--speed]` prints a line for each kernel of the
ladder: on each architecture, how many of the problems it takes came out right (FP16 and BF16, each
plain, causal and with shared heads, S odd; the backward pass where a kernel computes that) and what
all of them took; with `--speed` warp instructions per second of CPU time instead, of the quickest
of ten runs.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from fitting import fitting_config, is_taken

from engine.backends.base import RunOptions
from engine.backends.machine_code import MachineCodeBackend
from engine.base.errors import AttuneError, CompileError
from engine.correctness import check_output
from engine.correctness.gradients import with_forward
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.execution import GlobalBuffer, execute, load_module
from engine.machine_code.launch import buffer_address
from engine.plan import compile_plan, launch_of_pass, make_plan
from engine.problem import Direction, Problem
from engine.tensors import make_inputs
from kernels.ladder import LADDER
from kernels.variant import Variant

ARCHS = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_120")
PROBLEMS = tuple(
    replace(problem, dtype=dtype)
    for dtype in ("float16", "bfloat16")
    for problem in (
        Problem(1, 2, 65, 64),
        Problem(1, 2, 65, 64, causal=True),
        Problem(1, 4, 71, 64, num_heads_kv=2),
    )
)
SPEED = (
    ("v01", "sm_89", Problem(1, 1, 512, 64)),
    ("v06", "sm_89", Problem(1, 1, 512, 64)),
    ("v08", "sm_89", Problem(1, 16, 512, 128)),
    ("v11", "sm_89", Problem(1, 16, 512, 128)),
    ("v15", "sm_90", Problem(1, 16, 512, 128)),
    ("v19", "sm_90", Problem(1, 16, 512, 128)),
)


def outcome(variant: Variant, arch: str, problem: Problem) -> tuple[str, float]:
    """`right`, `WRONG`, another status, or empty where it does not compile or the kernel does not
    take it; and seconds of CPU time without the compile."""
    if not is_taken(variant, problem):
        return "", 0.0
    plan = make_plan(variant, problem, fitting_config(variant, problem))
    try:
        compile_plan(plan, arch)
    except CompileError:
        return "", 0.0
    inputs = make_inputs(problem)
    if variant.is_backward:
        inputs = with_forward(inputs)
    begin = time.process_time()
    result = MachineCodeBackend().run(plan, inputs, RunOptions(arch=arch, repeat=False))
    took_s = time.process_time() - begin
    if result.out is None and result.gradients is None:
        return str(result.status), took_s
    right = check_output(inputs, result, plan=plan).passed and result.inputs_unchanged
    return "right" if right else "WRONG", took_s


def cell(variant: Variant, arch: str) -> str:
    """`6: 1.2 s`: six problems, all of them right; what is not right is named."""
    direction: Direction = "backward" if variant.is_backward else "forward"
    problems = [replace(problem, direction=direction) for problem in PROBLEMS]
    found = [(problem, *outcome(variant, arch, problem)) for problem in problems]
    tried = [(problem, what, took_s) for problem, what, took_s in found if what]
    if not tried:
        return "–"
    wrong = [f"{what} {problem.label()}" for problem, what, _ in tried if what != "right"]
    return "; ".join(wrong) or f"{len(tried)}: {sum(took_s for *_, took_s in tried):.1f} s"


def table() -> None:
    print("| kernel | " + " | ".join(ARCHS) + " |")
    print("|---" * (1 + len(ARCHS)) + "|")
    for variant in LADDER.every():
        cells = [cell(variant, arch) for arch in ARCHS]
        print(f"| {variant.id} | " + " | ".join(cells) + " |", flush=True)


def speed() -> None:
    for name, arch, problem in SPEED:
        variant = LADDER.by_id(name)
        plan = make_plan(variant, problem, fitting_config(variant, problem))
        compiled = compile_plan(plan, arch)
        cubin = read_cubin(compiled.cubin)
        module, (launch,) = load_module(cubin), plan.passes
        tensors = make_inputs(problem).in_layouts(plan.layouts, plan.pages)
        symbol = compiled.symbols.get(launch.entry, launch.entry)
        took = math.inf
        for _ in range(10):  # the first one also decodes
            buffers = [
                GlobalBuffer(n, buffer_address(k), bytes_of(tensors.get(n), size))
                for k, (n, size) in enumerate(plan.buffer_bytes.items())
            ]
            begin = time.process_time()
            executed = execute(
                program_of(cubin, symbol),
                module.entries[symbol],
                launch_of_pass(plan, 0),
                [*buffers, *module.buffers],
            )
            took = min(took, time.process_time() - begin)
        rates = f"{executed / took / 1e6:.1f} M and {problem.flops / took / 1e9:.1f} GFLOP a second"
        print(
            f"{name} {arch} {problem.label()}: {executed:,} warp instructions in {took:.2f} s of "
            f"CPU time, {rates}",
            flush=True,
        )


def bytes_of(tensor: np.ndarray | None, size: int) -> np.ndarray:
    if tensor is None:
        return np.zeros(size, np.uint8)
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speed", action="store_true")
    try:
        speed() if parser.parse_args().speed else table()
    except AttuneError as error:
        sys.exit(str(error))
