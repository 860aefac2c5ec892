"""What another number of CTAs per SM would do to a launch's time."""

from __future__ import annotations

from collections.abc import Iterable

from engine.devices.spec import DeviceSpec
from engine.sass.instruction import Program
from engine.sass.launch import Launch
from engine.sass.timing.constants import LAUNCH_FLOOR_US
from engine.sass.timing.simulate import SimulatedLaunch, measured_ctas
from engine.sass.timing.sm import Regime, gpu_rates


def residency_ratios(
    program: Program,
    launch: Launch,
    device: DeviceSpec,
    simulated: SimulatedLaunch,
    numbers: Iterable[int],
) -> dict[int, float]:
    """{CTAs per SM: the launch's time to the one that it takes today}.

    As SMs that work through as many of the longest CTAs; memory's own time stays what it is.
    """
    gpu = gpu_rates(device, program.arch)
    smem_bytes = program.static_smem_bytes + launch.dynamic_smem_bytes
    regime: Regime = "alone" if 2 * launch.ctas <= gpu.num_sms else "shared"
    trace, length = simulated.longest, float(len(simulated.longest.instruction))

    def cycles(resident: int) -> float:
        times = measured_ctas(
            program,
            gpu,
            device,
            regime,
            smem_bytes,
            (trace, trace),
            (length, length),
            resident,
            simulated.ctas_per_sm,
            quick=True,
        )
        return times.of(simulated.ctas_per_sm, length)

    now = simulated.resident_ctas
    here, in_sms = cycles(now), simulated.sm_cycles / gpu.cycles_per_us

    def us(resident: int) -> float:
        in_those = in_sms if resident == now else in_sms * cycles(resident) / here
        return LAUNCH_FLOOR_US + max(in_those, simulated.dram_us)

    return {n: us(n) / us(now) for n in sorted({*numbers, now})}
