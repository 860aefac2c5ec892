"""Execution of machine code: correctness and CPU seconds by rung and architecture.

`python tests/bench/bench_machine_code_execution.py` prints a line for each kernel of the
ladder: on each architecture, how many of the supported problems are correct (FP16 and BF16, each
plain, causal and with grouped-query heads, S odd; for the backward pass likewise) and their CPU
time. With `--speed [KERNEL …] [--beside COMMIT]` it prints warp instructions per second of CPU time
instead, of the fastest of ten runs, alternating with the executor of another commit; and the upper
bound if only the multiply-adds of the problem took time, at the rate of this core for 32-bit floats
in registers, measured alternating with them.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from fitting import fitting_config, is_supported

from engine.attention.plan import make_plan
from engine.attention.problem import Direction, Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.machine_code import MachineCodeBackend
from engine.base.cxx import build_library
from engine.base.errors import AttuneError, CompileError
from engine.correctness import check_output
from engine.correctness.gradients import with_forward
from engine.machine_code import execution
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.execution import GlobalBuffer, load_module
from engine.machine_code.launch import buffer_address
from engine.model.kernel import compile_plan, launch_of_pass
from kernels.ladder import LADDER
from kernels.variant import Variant

ROOT = Path(__file__).resolve().parents[2]
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
# The first one that a kernel supports is used.
SPEED = (Problem(1, 4, 512, 128), Problem(1, 4, 512, 64), Problem(1, 4, 256, 64))
RUNS = 10
# GFLOP of 2^20 × twelve independent vectors of eight floats.
PEAK_GFLOP = 2**20 * 12 * 8 * 2 / 1e9
PEAK_SOURCE = """
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
extern "C" float multiply_adds() {
    __m256 sums[12];
    for (int n = 0; n < 12; n++) {
        sums[n] = _mm256_set1_ps(1.0f + n);
        asm volatile("" : "+x"(sums[n]));
    }
    const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
    for (int i = 0; i < 1 << 20; i++) {
#pragma GCC unroll 12
        for (int n = 0; n < 12; n++) sums[n] = _mm256_fmadd_ps(factor, sums[n], term);
        asm volatile("");
    }
    for (int n = 1; n < 12; n++) sums[0] = _mm256_add_ps(sums[0], sums[n]);
    return _mm256_cvtss_f32(sums[0]);
}
#endif
"""


def outcome(variant: Variant, arch: str, problem: Problem) -> tuple[str, float]:
    """Return `right`, `WRONG`, another status, or "" if it does not compile or is not supported;
    and CPU seconds without the compile."""
    if not is_supported(variant, problem):
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
    """Return for instance `6: 1.2 s` for six correct problems; other outcomes are named."""
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


def speed(kernels: list[str], commits: list[str]) -> None:
    """Print speeds, alternating with the executors of `commits`; all outputs must be bit-equal."""
    with ExitStack() as stack:
        libraries = {commit: library_of(commit, stack) for commit in commits}
        libraries["these files"] = execution._library()
        peak = multiply_adds(stack)
        for variant in LADDER.every():
            if kernels and variant.id not in kernels:
                continue
            direction: Direction = "backward" if variant.is_backward else "forward"
            problem = next(
                p for p in SPEED if is_supported(variant, replace(p, direction=direction))
            )
            print(line(variant, replace(problem, direction=direction), libraries, peak), flush=True)


def multiply_adds(stack: ExitStack) -> Callable[[], object] | None:
    """Return a function that runs `PEAK_GFLOP`; None without AVX2 and FMA."""
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "peak.cpp"
    path.write_text(PEAK_SOURCE)
    return getattr(ctypes.CDLL(str(build_library(path))), "multiply_adds", None)


def library_of(commit: str, stack: ExitStack) -> ctypes.CDLL:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    command = ["git", "-C", str(ROOT), "archive", commit, "engine/machine_code/native"]
    files = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", folder], check=True, input=files.stdout)
    library = ctypes.CDLL(str(build_library(folder / "engine/machine_code/native/execute.cpp")))
    library.sass_decode.restype = ctypes.c_void_p
    return library


def line(
    variant: Variant,
    problem: Problem,
    libraries: dict[str, ctypes.CDLL],
    peak: Callable[[], object] | None,
) -> str:
    """`v08 sm_89 …: 843,000 warp instructions, 31.0 M and 20.1 GFLOP a second (these files); at
    most 132.1 M with 85.1 GFLOP a second`."""
    arch = "sm_89" if variant.min_compute_capability <= (8, 9) else "sm_90"
    plan = make_plan(variant, problem, fitting_config(variant, problem))
    compiled = compile_plan(plan, arch)
    cubin = read_cubin(compiled.cubin)
    module, inputs = load_module(cubin), make_inputs(problem)
    inputs = with_forward(inputs) if variant.is_backward else inputs
    tensors = inputs.in_layouts(plan.layouts, plan.pages)
    took = dict.fromkeys(libraries, math.inf)
    peak_s = math.inf
    outputs: dict[str, list[bytes]] = {}
    for _ in range(RUNS):  # the first run also decodes
        for name, library in libraries.items():
            buffers = [
                GlobalBuffer(n, buffer_address(k), bytes_of(tensors.get(n), size))
                for k, (n, size) in enumerate(plan.buffer_bytes.items())
            ]
            executed, run_s = 0, 0.0
            for n, launch in enumerate(plan.passes):
                symbol = compiled.symbols.get(launch.entry, launch.entry)
                program, entry = program_of(cubin, symbol), module.entries[symbol]
                what, memory = launch_of_pass(plan, n), [*buffers, *module.buffers]
                with patch.object(execution, "_library", lambda library=library: library):
                    begin = time.process_time()
                    executed += execution.execute(
                        program, entry, what, memory, cluster=launch.cluster
                    )
                    run_s += time.process_time() - begin
            took[name] = min(took[name], run_s)
            outputs[name] = [buffer.data.tobytes() for buffer in buffers]
        if peak is not None:
            begin = time.process_time()
            peak()
            peak_s = min(peak_s, time.process_time() - begin)
    rates = "; ".join(
        f"{executed / run_s / 1e6:.1f} M and {problem.flops / run_s / 1e9:.1f} GFLOP a second "
        f"({name}{'' if outputs[name] == outputs['these files'] else ', OTHER BITS'})"
        for name, run_s in took.items()
    )
    bound = ""
    if peak is not None:
        products_s = problem.flops / (PEAK_GFLOP * 1e9 / peak_s)
        most = executed / products_s / 1e6
        bound = f"; at most {most:.1f} M with {PEAK_GFLOP / peak_s:.1f} GFLOP a second"
    return f"{variant.id} {arch} {problem.label()}: {executed:,} warp instructions, {rates}{bound}"


def bytes_of(tensor: np.ndarray | None, size: int) -> np.ndarray:
    if tensor is None:
        return np.zeros(size, np.uint8)
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).copy()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="with --speed: of these alone")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--beside", action="append", default=[], metavar="COMMIT")
    args = parser.parse_args()
    try:
        speed(args.kernels, args.beside) if args.speed else table()
    except AttuneError as error:
        sys.exit(str(error))
