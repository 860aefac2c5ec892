"""Emulate a kernel's main pass at few lengths and time it on one SM, in both regimes."""

from __future__ import annotations

from engine.compile import CompiledKernel
from engine.devices.spec import DeviceSpec
from engine.model.simulated.ctas import SimulatedCtas
from engine.model.simulated.lengths import longest_ctas
from engine.model.simulated.persistent import other_tiles, seqlen_of
from engine.model.simulated.store import REGIMES
from engine.plan import LaunchPlan
from engine.sass.analysis import program_of
from engine.sass.cubin import read_cubin
from engine.sass.disassembly import find_entry
from engine.sass.timing.native import simulate_sm
from engine.sass.timing.residuals import family, spread
from engine.sass.timing.simulate import measured_ctas
from engine.sass.timing.sm import Regime, allocated_smem, gpu_rates, sm_kernel
from kernels.variant import Variant


def simulate(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> dict[Regime, SimulatedCtas]:
    """In both regimes: another problem of the kernel may be in the other one."""
    cubin = read_cubin(compiled.cubin)
    entry = find_entry(cubin, compiled.symbols.get(plan.passes[0].entry, plan.passes[0].entry))
    program = program_of(cubin, entry.name)
    gpu = gpu_rates(device)
    traces = longest_ctas(program, entry, variant, plan)
    error = spread(gpu.constants.arch, family(program))
    longest_first = all(trace.cta[0] == 0 for trace in traces.values())
    tile_rows = float(seqlen_of(plan.problem))
    begins = other_tiles(program, entry, variant, plan)

    taken = resident * allocated_smem(
        device, program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes
    )

    def times(regime: Regime) -> SimulatedCtas:
        measured = measured_ctas(
            program,
            gpu,
            device,
            regime,
            program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes,
            tuple(traces.values()),
            tuple(traces),
            resident,
            # Where few SMs work, one has one CTA at most.
            most=1 if regime == "alone" else None,
        )
        begin_rows = []
        kernel = sm_kernel(program, gpu, regime, taken, fetches_code=False)
        for pieces, visited, trace in begins:
            # What beginning more query tiles adds to the same rows, in rows.
            lines = measured.table([visited, 2 * visited])[:, 1]
            one = simulate_sm(kernel, [trace], [0], resident, stalls=False)
            more = one.cycles - lines[0]
            begin_rows.append(max(0.0, visited * float(more / (lines[1] - lines[0])) / pieces))
        return SimulatedCtas(
            measured,
            gpu.cycles_per_us,
            error,
            longest_first,
            (begin_rows[0], begin_rows[1]) if begin_rows else None,
            tile_rows,
        )

    return {regime: times(regime) for regime in REGIMES}
