"""A counted launch's simulated time on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.devices import DeviceSpec
from engine.history.simulated.launch import TimedLaunch, resident_of, time_launch
from engine.machine_code.advice import Advice, Rerun, advise
from engine.machine_code.analysis import Analysis
from engine.model.estimate import Estimate
from engine.model.launches import traffic_by_order
from engine.plan import LaunchPlan
from kernels.variant import Variant

__all__ = ["TimedLaunch", "advise_launch", "main_pass_dram_bytes", "time_launch", "time_passes"]


def time_passes(
    variant: Variant,
    plan: LaunchPlan,
    analyses: Sequence[Analysis],
    device: DeviceSpec,
    predicted: Estimate | None,
) -> tuple[TimedLaunch, ...]:
    """A variant's passes, with the times of its prediction, which all pages show.

    Args:
        predicted: by machine code; where it is not, or None, each launch is simulated by itself.

    Raises:
        InvalidProblem, UnknownName, CompileError, ToolMissing: as `time_launch`.
    """
    if plan.is_backward:  # its prediction is the sum of these
        return tuple(time_launch(analysis, device) for analysis in analyses)
    moved = main_pass_dram_bytes(variant, plan, device, analyses[0])
    is_known = predicted is not None and predicted.by_machine_code
    timed = [
        time_launch(analysis, device, None if number else moved, quick=is_known)
        for number, analysis in enumerate(analyses)
    ]
    return _with_prediction(timed, predicted, device) if predicted is not None else tuple(timed)


def _with_prediction(
    timed: Sequence[TimedLaunch], predicted: Estimate, device: DeviceSpec
) -> tuple[TimedLaunch, ...]:
    """Its times; units' shares, stalls and bytes stay as they were simulated."""
    latency, terms = predicted.latency, predicted.terms
    if latency is None or terms is None:
        return tuple(timed)
    cycles_per_us = float(device.boost_clock_mhz or 0.0)
    floor_us, later_us = terms.floor_us[0] / len(timed), terms.fuse_us[0]
    main_us = latency.median_us - later_us - (len(timed) - 1) * floor_us
    result = []
    for number, each in enumerate(timed):
        us = floor_us + later_us / (len(timed) - 1) if number else main_us
        share = us / latency.median_us
        simulated = replace(
            each.simulated,
            latency=replace(
                each.simulated.latency,
                median_us=us,
                low_us=share * latency.low_us,
                high_us=share * latency.high_us,
            ),
        )
        if number == 0:
            simulated = replace(
                simulated,
                cta_cycles=float(terms.cta_us[0]) * cycles_per_us,
                sm_cycles=float(terms.compute_us[0]) * cycles_per_us,
                dram_us=float(terms.dram_us[0]),
            )
        result.append(replace(each, simulated=simulated))
    return tuple(result)


def advise_launch(
    analysis: Analysis, device: DeviceSpec | None = None, timed: TimedLaunch | None = None
) -> tuple[Advice, ...]:
    """What the launch wastes; with what mending it would gain where it was timed on `device`."""
    if device is None or timed is None:
        return advise(analysis)
    return advise(analysis, Rerun(analysis, device, timed.simulated), timed.shared)


def main_pass_dram_bytes(
    variant: Variant, plan: LaunchPlan, device: DeviceSpec, analysis: Analysis
) -> float | None:
    """What a plan's main pass moves from DRAM by the order of its CTAs; None where unclear."""
    moved = traffic_by_order(variant, plan, device, resident_of(analysis, device))
    return None if moved is None else moved.dram_bytes
