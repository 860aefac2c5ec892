"""Machine code of the ladder: first analysis, a new problem, extrapolated against simulated time.

`bench_machine_code.py [VARIANT …] [--gpu L4]`. Each line: seconds of the first analysis of a
compiled kernel (wall, and CPU of this process and of nvdisasm) with an empty cache, milliseconds of
a new problem on it, and how far CTA times at twice and four times the longer simulated length are
from simulating those lengths themselves, alone on an SM and with as many CTAs as fit.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from dataclasses import replace

import numpy as np

from engine.compile import compile_plan, resources
from engine.compile.cache import cache_root
from engine.devices import DeviceSpec, find_device
from engine.errors import AttuneError
from engine.model.estimate import estimate, launch_plan
from engine.model.launches import collect
from engine.model.simulated import known_simulated_of, simulated_of
from engine.names import find_variant
from engine.plan import LaunchPlan
from engine.problem import Problem
from engine.sass.analysis import program_of
from engine.sass.cubin import read_cubin
from engine.sass.disassembly import find_entry
from engine.sass.emulation import emulate
from engine.sass.launch import launch_of_pass
from engine.sass.native_library import build_libraries
from engine.sass.timing.simulate import measured_ctas
from engine.sass.timing.sm import gpu_rates
from kernels.ladder import LADDER
from kernels.variant import Variant

_PROBLEM = Problem(batch=8, num_heads=16, seqlen=512, head_dim=64)
_LENGTHS = (1024, 2048)


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
        begin = time.perf_counter()
        other = launch_plan(variant, longer, plan.config, device)
        known = known_simulated_of(variant, other, compiled, device)
        estimate(variant, other, used, device, simulated_of=known)
        times_ms.append(1e3 * (time.perf_counter() - begin))
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
    """Extrapolated over simulated − 1 of one CTA alone and of `resident` together."""
    plan = launch_plan(variant, replace(_PROBLEM, seqlen=seqlen), short.config, device)
    compiled = compile_plan(plan, device.arch)
    curve = simulated_of(variant, plan, compiled, device)(
        resident, collect(variant, plan.config, [plan.problem])
    )
    assert curve is not None
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program, gpu = program_of(cubin, entry.name), gpu_rates(device)
    trace = emulate(program, entry, launch_of_pass(plan, 0))
    smem_bytes = program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes
    regime = "alone" if 2 * plan.passes[0].ctas <= gpu.num_sms else "shared"
    whole = measured_ctas(
        program, gpu, device, regime, smem_bytes, (trace, trace), (1.0, 1.0), resident, quick=True
    )
    together = np.array(whole.together[0]) / gpu.cycles_per_us
    alone, full = float(together[0]), float(together[-1])
    extrapolated = float(curve.alone_us[0] + (whole.counts[-1] - 1) * curve.shared_us[0])
    return [float(curve.alone_us[0]) / alone - 1, extrapolated / full - 1]


def _cpu_s() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
