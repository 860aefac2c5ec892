"""Emulate a kernel's main pass at few lengths and time it on one SM, in both regimes."""

from __future__ import annotations

from engine.cuda_source import CompiledKernel
from engine.devices.spec import DeviceSpec
from engine.history.simulated.ctas import SimulatedCtas
from engine.history.simulated.lengths import (
    cut_ctas,
    cut_query_tiles,
    has_even_splits,
    has_several_lengths,
    longest_ctas,
    shorter_ctas,
)
from engine.history.simulated.persistent import simulate_persistent
from engine.history.simulated.store import REGIMES, KernelCtas
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.disassembly import find_entry
from engine.machine_code.timing.dispatch import slot_times
from engine.machine_code.timing.result import family, spread
from engine.machine_code.timing.simulate import added_cycles, measured_ctas
from engine.machine_code.timing.sm import Regime, allocated_smem, gpu_rates, sm_kernel
from engine.plan import LaunchPlan
from kernels.variant import Variant


def simulate(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> dict[Regime, KernelCtas]:
    """In both regimes: another problem of the kernel may be in the other one."""
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program = program_of(cubin, entry.name)
    if variant.work.schedule is not None:
        return dict(simulate_persistent(program, entry, variant, plan, device, resident, REGIMES))
    gpu = gpu_rates(device)
    even = has_even_splits(program, entry, variant, plan)
    traces = longest_ctas(program, entry, variant, plan, even)
    error = spread(gpu.constants.arch, family(program))
    longest_first = not any(any(trace.cta) for trace in traces.values())
    shorter = shorter_ctas(program, entry, variant, plan, tuple(traces)) if even else None
    cut = cut_ctas(program, entry, variant, plan, tuple(traces))
    cut_queries = cut_query_tiles(program, entry, variant, plan, tuple(traces), resident)
    smem_bytes = program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes

    def times(regime: Regime) -> SimulatedCtas:
        measured = measured_ctas(
            program,
            gpu,
            device,
            regime,
            smem_bytes,
            tuple(traces.values()),
            tuple(traces),
            resident,
            # Where few SMs work, one has one CTA at most.
            most=1 if regime == "alone" else None,
            mixed=has_several_lengths(plan.problem) or plan.config.get("num_splits", 1) > 1,
            slightly_shorter=shorter,
        )
        cut_cycles = tuple(
            added_cycles(program, gpu, device, regime, smem_bytes, measured, others, resident)
            for others in cut.values()
        )
        slots = None
        if regime != "alone" and cut_queries:
            taken = resident * allocated_smem(device, smem_bytes)
            kernel = sm_kernel(program, gpu, regime, taken, fetches_code=False)
            slots = slot_times(
                kernel, variant.work.query_rows(plan.problem, plan.config), cut_queries, resident
            )
        return SimulatedCtas(
            measured,
            gpu.cycles_per_us,
            error,
            longest_first,
            even,
            tuple(cut),
            cut_cycles,
            slots,
        )

    return {regime: times(regime) for regime in REGIMES}
