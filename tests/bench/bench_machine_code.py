"""Machine code of the ladder: first analysis, a new problem, extrapolated against simulated time.

`bench_machine_code.py [VARIANT …] [--gpu L4]`. Each line: seconds of the first analysis of a
compiled kernel (wall, and CPU of this process and of nvdisasm) with an empty cache, milliseconds of
CPU time of a new problem on it, and how far CTA times at other lengths than the simulated ones, up
to twice the longest, are from simulating those lengths themselves: alone on an SM, with as many
CTAs as fit, and in the steady state of an SM that stays full.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from dataclasses import replace

from engine.compile import compile_plan, resources
from engine.compile.cache import cache_root
from engine.devices import DeviceSpec, find_device
from engine.errors import AttuneError
from engine.model.estimate import estimate, launch_plan
from engine.model.launches import collect
from engine.model.simulated import known_ctas, known_simulated_of, simulated_of
from engine.names import find_variant
from engine.plan import LaunchPlan
from engine.problem import Problem
from engine.sass.analysis import program_of
from engine.sass.cubin import read_cubin
from engine.sass.disassembly import find_entry
from engine.sass.emulation import emulate
from engine.sass.launch import launch_of_pass
from engine.sass.native_library import build_libraries
from engine.sass.timing.native import simulate_sm
from engine.sass.timing.sm import allocated_smem, gpu_rates, sm_kernel
from kernels.ladder import LADDER
from kernels.variant import Variant

_PROBLEM = Problem(batch=8, num_heads=16, seqlen=512, head_dim=64)
_LENGTHS = (1024, 1536, 4096)
_ROUNDS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", default=[v.id for v in LADDER])
    parser.add_argument("--gpu", default="L4")
    args = parser.parse_args()
    device = find_device(args.gpu)
    kept = cache_root()
    build_libraries()
    errors: list[float] = []
    print("variant   first s (CPU s)   new ms   extrapolated against simulated")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTUNE_CACHE_DIR"] = folder
        for name in args.variants:
            try:
                errors += _one(find_variant(name), device)
            except AttuneError as error:
                print(f"{name:9} {error}")
    os.environ["ATTUNE_CACHE_DIR"] = str(kept)
    print(f"worst difference {max(map(abs, errors), default=0.0):.1%} over {len(errors)} times")


def _one(variant: Variant, device: DeviceSpec) -> list[float]:
    plan = launch_plan(variant, _PROBLEM, variant.default_config(), device)
    compiled = compile_plan(plan, device.arch)
    used = resources(plan, compiled)
    begin, cpu = time.perf_counter(), _cpu_s()
    found = estimate(
        variant, plan, used, device, simulated_of=simulated_of(variant, plan, compiled, device)
    )
    first_s, first_cpu_s = time.perf_counter() - begin, _cpu_s() - cpu
    if not found.by_machine_code:
        print(f"{variant.id:9} cannot be simulated")
        return []
    times_ms = []
    for seqlen in range(513, 553):
        longer = replace(_PROBLEM, seqlen=seqlen)
        begin = time.process_time()
        other = launch_plan(variant, longer, plan.config, device)
        known = known_simulated_of(variant, other, compiled, device)
        estimate(variant, other, used, device, simulated_of=known)
        times_ms.append(1e3 * (time.process_time() - begin))
    resident = found.passes[0].occupancy.ctas_per_sm
    errors = []
    for seqlen in _LENGTHS:
        try:
            errors += _errors(variant, plan, seqlen, device, resident)
        except AttuneError:
            continue  # it keeps all keys in one CTA
    shown = ", ".join(f"{e:+.1%}" for e in errors) or "one length alone"
    median = statistics.median(times_ms)
    print(f"{variant.id:9} {first_s:7.2f} ({first_cpu_s:.2f}) {median:12.2f}   {shown}")
    return errors


def _errors(
    variant: Variant, short: LaunchPlan, seqlen: int, device: DeviceSpec, resident: int
) -> list[float]:
    """Extrapolated over simulated − 1: one CTA, `resident` together, and so many rounds of them."""
    problem = replace(_PROBLEM, seqlen=seqlen)
    plan = launch_plan(variant, problem, short.config, device)
    compiled = compile_plan(plan, device.arch)
    launches = collect(variant, plan.config, [problem])
    simulated_of(variant, plan, compiled, device)(resident, launches)
    known = known_ctas(variant, plan, compiled, device, resident)
    assert known is not None
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program, gpu = program_of(cubin, entry.name), gpu_rates(device)
    trace = emulate(program, entry, launch_of_pass(plan, 0))
    taken = resident * allocated_smem(
        device, program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes
    )
    kernel = sm_kernel(program, gpu, "shared", taken, fetches_code=False)
    rows = float(launches.kv_rows[0])
    errors = []
    for count in (1, resident, _ROUNDS * resident):
        whole = simulate_sm(kernel, [trace], [0] * count, resident).cycles
        errors.append((known.times.of(count, rows) - known.times.fetch_cycles) / whole - 1)
    return errors


def _cpu_s() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
