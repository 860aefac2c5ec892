"""Machine code analysis of the ladder: CPU time, and predicted against fully simulated cycles.

`bench_machine_code.py [VARIANT …] [--gpu L4 …] [--speed]`. For every kernel and GPU: CPU seconds
of the first analysis of a compiled kernel with an empty cache (this process, nvdisasm, both), its
wall time, and CPU milliseconds of a new problem. Then, without --speed, the error of the prediction
against the full simulation in % for each problem: of one CTA alone on an SM, of as many as fit, and
of the whole launch, in which all SMs take CTAs of their own lengths from one queue. Launches whose
CTAs differ in length are simulated several times with CTAs started a few cycles later: the error is
against their mean, and their spread is printed.
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

from engine.attention.config import find_variant
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.base.errors import AttuneError
from engine.base.files import cache_root
from engine.cuda_source import CompiledKernel
from engine.devices import DeviceSpec, find_device
from engine.history import History
from engine.history.ctas import SimulatedCtas, known_ctas
from engine.history.persistent import PersistentCtas
from engine.history.simulation import heaviest_cta
from engine.machine_code.analysis import program_of
from engine.machine_code.counts import count_launch
from engine.machine_code.cubin import read_cubin
from engine.machine_code.disassembly import find_entry
from engine.machine_code.emulation import Emulator
from engine.machine_code.native_library import build_libraries
from engine.machine_code.timing.native import allocated_smem, gpu_rates, simulate_sm, sm_kernel
from engine.model.kernel import Estimate, Kernel, compile_plan, launch_of_pass
from engine.model.launches import collect
from kernels.ladder import LADDER
from kernels.variant import Variant

_GPUS = ("A100 80GB SXM", "L4", "H200", "RTX 5090")
_FIRST = Problem(batch=8, num_heads=16, seqlen=512, head_dim=64)
_FEW_KEYS = Problem(batch=64, num_heads=8, seqlen=128, head_dim=64)  # supported by every kernel
_PROBLEMS = (
    Problem(batch=8, num_heads=16, seqlen=1024, head_dim=64),
    Problem(batch=2, num_heads=8, seqlen=1537, head_dim=64),
    Problem(batch=1, num_heads=16, seqlen=2048, head_dim=64),
    Problem(batch=2, num_heads=16, seqlen=2048, head_dim=64, causal=True),
    Problem(batch=4, num_heads=16, seqlen=1000, head_dim=64, causal=True),
    Problem(batch=1, num_heads=8, seqlen=1000, head_dim=64),  # with uneven splits
    _FEW_KEYS,
    # Small problems, for kernels with many instructions per tile.
    Problem(batch=5, num_heads=16, seqlen=100, head_dim=64),
    Problem(batch=1, num_heads=16, seqlen=256, head_dim=64, causal=True),
)
_SELF, _CHILDREN = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
_MAX_INSTRUCTIONS = 20_000_000  # limit for a full simulation, which takes some seconds
_LATER_CYCLES = (0, 1, 3, 8, 17)  # delays of the start of a CTA in a freed slot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("variants", nargs="*", default=[v.id for v in LADDER])
    parser.add_argument("--gpu", nargs="+", default=_GPUS)
    parser.add_argument("--speed", action="store_true", help="no full simulations")
    args = parser.parse_args()
    kept = cache_root()
    build_libraries()
    ctas: list[float] = []
    launches: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTUNE_CACHE_DIR"] = folder
        for gpu in args.gpu:
            device = find_device(gpu)
            print(f"{device.name}\nvariant    own + nvdisasm = CPU s   wall s   new ms", flush=True)
            for name in args.variants:
                try:
                    of_ctas, of_launches = _one(find_variant(name), device, args.speed)
                except AttuneError as error:
                    print(f"{name:9} {error}")
                    continue
                ctas += of_ctas
                launches += of_launches
    os.environ["ATTUNE_CACHE_DIR"] = str(kept)
    if args.speed:
        return
    for what, errors in (("CTAs", ctas), ("launches", launches)):
        size = np.abs(errors) if errors else np.zeros(1)
        print(
            f"{what}: {len(errors)} times, mean difference {size.mean():.1%}, worst "
            f"{size.max():.1%}, within 2 % {np.mean(size <= 0.02):.0%}"
        )


def _one(variant: Variant, device: DeviceSpec, only_speed: bool) -> tuple[list[float], list[float]]:
    first = _FIRST
    if variant.unsupported(first, variant.default_config()) is not None:
        first = _FEW_KEYS
    plan, compiled = _compiled(variant, first, device)
    begin, own, disassembling = time.perf_counter(), _cpu_s(_SELF), _cpu_s(_CHILDREN)
    found = _predicted(variant, plan, compiled, device)
    first_s, own = time.perf_counter() - begin, _cpu_s(_SELF) - own
    disassembling = _cpu_s(_CHILDREN) - disassembling
    if not found.by_machine_code:
        print(f"{variant.id:9} cannot be simulated")
        return [], []
    times_ms = []
    for batch in range(9, 29):
        begin = time.process_time()
        kernel = Kernel.of(variant, device, plan.config)
        other = kernel.plan(replace(first, batch=batch))
        History(work="look up").estimate_plan(kernel, other, compiled)
        times_ms.append(1e3 * (time.process_time() - begin))
    print(
        f"{variant.id:9} {own:5.2f} + {disassembling:8.2f} = {own + disassembling:5.2f} "
        f"{first_s:8.2f} {statistics.median(times_ms):8.2f}",
        flush=True,
    )
    if only_speed:
        return [], []
    of_ctas: list[float] = []
    of_launches: list[float] = []
    for problem in _PROBLEMS:
        try:
            ctas, launch, scatter = _errors(variant, problem, device)
        except AttuneError:
            continue  # it does not support the problem
        of_ctas += ctas
        of_launches += launch
        shown = ", ".join(f"{e:+.1%}" for e in ctas) or "-"
        whole = f"{launch[0]:+.1%}" if launch else "too long to simulate in full"
        whole += f" (simulated launches ±{scatter:.1%})" if scatter else ""
        causal = " causal" if problem.causal else ""
        heads = problem.batch * problem.num_heads
        print(
            f"    S={problem.seqlen} B·H={heads}{causal}: CTA {shown}; launch {whole}", flush=True
        )
    return of_ctas, of_launches


def _compiled(
    variant: Variant, problem: Problem, device: DeviceSpec
) -> tuple[LaunchPlan, CompiledKernel]:
    plan = Kernel.of(variant, device, variant.default_config()).plan(problem)
    return plan, compile_plan(plan, device.arch)


def _predicted(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec
) -> Estimate:
    return History().estimate_plan(Kernel.of(variant, device, plan.config), plan, compiled)


def _errors(
    variant: Variant, problem: Problem, device: DeviceSpec
) -> tuple[list[float], list[float], float]:
    """Return predicted / simulated − 1 of one CTA, of as many as fit, and of the main pass's
    launch, and the relative standard deviation of the simulated launches."""
    plan, compiled = _compiled(variant, problem, device)
    found = _predicted(variant, plan, compiled, device)
    resident = found.passes[0].occupancy.ctas_per_sm
    known = known_ctas(found.kernel, plan, compiled, resident)
    if known is None or found.terms is None:
        return [], [], 0.0
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program, gpu = program_of(cubin, entry.name), gpu_rates(device)
    emulator = Emulator(program, entry, launch_of_pass(plan, 0))
    taken = resident * allocated_smem(
        device, program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes
    )
    ctas = plan.passes[0].ctas
    regime = "alone" if 2 * ctas <= gpu.num_sms else "shared"
    kernel = sm_kernel(program, gpu, regime, taken, fetches_code=False)
    of_ctas: list[float] = []
    if not problem.causal and isinstance(known, SimulatedCtas) and regime == "shared":
        trace = heaviest_cta(emulator)  # the longest of splits that differ by a tile
        launch = collect(found.kernel, [problem])
        rows, absent = float(launch.kv_rows[0]), launch.kv_rows - launch.num_keys
        for count in sorted({1, resident}):
            full = simulate_sm(kernel, [trace], [0] * count, resident).cycles
            cycles = known.times.of(count, rows) - known.fetch_cycles
            if plan.config.get("num_splits", 1) == 1:
                cycles += float(known.cut(np.array([count]), absent)[0])
            of_ctas.append(cycles / full - 1)
    work = count_launch(emulator).work
    if work.sum() > _MAX_INSTRUCTIONS:
        return of_ctas, [], 0.0
    grid = emulator.launch.grid
    # Persistent CTAs may execute equally much in another order; other such CTAs are identical.
    kinds = np.arange(ctas) if isinstance(known, PersistentCtas) else work.reshape(-1)
    _, first, queue = np.unique(kinds, return_index=True, return_inverse=True)
    shape = grid[::-1] if isinstance(known, PersistentCtas) else work.shape
    at = [np.unravel_index(i, shape)[::-1] for i in first]
    traces = [emulator.trace((int(x), int(y), int(z)))[0] for x, y, z in at]
    order = np.broadcast_to(queue.reshape(shape), grid[::-1]).reshape(-1)
    starts = kernel.machine.cta_start_cycles
    cycles = []
    for later in _LATER_CYCLES if len(traces) > 1 and regime == "shared" else (0,):
        kernel.machine.cta_start_cycles = starts + later
        whole = simulate_sm(kernel, traces, order.tolist(), resident, gpu.num_sms, stalls=False)
        cycles.append(whole.cycles)
    predicted = found.terms.compute_us[0] * gpu.cycles_per_us - known.fetch_cycles
    mean = float(np.mean(cycles))
    return of_ctas, [float(predicted / mean - 1)], float(np.std(cycles)) / mean


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
