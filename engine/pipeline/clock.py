"""The clock that simulated times are of: boost, given, or what the power limit sustains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Final

from engine.base.errors import InvalidProblem
from engine.base.units import format_us
from engine.compiled_plan import analyse_plan
from engine.devices.spec import DeviceSpec, at_clock
from engine.history import History
from engine.machine_code.analysis import Analysis
from engine.machine_code.timing.power import BURST_US, SustainedClock, sustained_clock, work_of
from engine.model.kernel import Kernel
from engine.pipeline.machine_code import TimedLaunch, time_passes
from engine.plan import LaunchPlan
from kernels.variant import Variant

BOOST: Final = "boost"
SUSTAINED: Final = "sustained"


def given_clock(text: str) -> float | None:
    """The number of MHz that a word is; None where it is `boost` or `sustained`.

    Raises:
        InvalidProblem: it is none of these.
    """
    if text in (BOOST, SUSTAINED):
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidProblem(
            f"--clock takes a number of MHz, boost or sustained, not {text!r}."
        ) from None


def sustained_by(
    device: DeviceSpec, analyses: Sequence[Analysis], timed: Sequence[TimedLaunch]
) -> SustainedClock | None:
    """What the GPU sustains while these launches follow each other; None where its power limit is
    not known."""
    each = [
        work_of(
            analysis.counts,
            launch.simulated.sm_cycles,
            launch.simulated.dram_us,
            launch.simulated.dram_bytes,
        )
        for analysis, launch in zip(analyses, timed, strict=True)
    ]
    return sustained_clock(device, reduce(add, each))


def device_at(
    device: DeviceSpec,
    word: str | None,
    analyses: Sequence[Analysis],
    time_at_boost: Callable[[], Sequence[TimedLaunch]],
) -> DeviceSpec:
    """The GPU at the clock that the word says (None: boost).

    Args:
        time_at_boost: simulates the launches; called for `sustained` alone.

    Raises:
        InvalidProblem: no such clock, or the GPU's power limit is not known.
    """
    if word is None or word == BOOST:
        return device
    if (mhz := given_clock(word)) is not None:
        return at_clock(device, mhz)
    found = sustained_by(device, analyses, time_at_boost())
    if found is None:
        raise InvalidProblem(
            f"The table of GPUs gives no power limit for {device.name}: give --clock in MHz."
        )
    return at_clock(device, found.clock_mhz, SUSTAINED) if found.is_limited else device


def device_of_plan(
    device: DeviceSpec, word: str | None, variant: Variant, plan: LaunchPlan
) -> DeviceSpec:
    """`device_at` for a variant's launches."""
    if word is None or given_clock(word) is not None or word == BOOST:
        return device_at(device, word, (), tuple)
    analyses = analyse_plan(plan, device.arch)

    def at_boost() -> Sequence[TimedLaunch]:
        predicted = History().estimate(Kernel.of(variant, device, plan.config), plan.problem)
        return time_passes(variant, plan, analyses, device, predicted)

    return device_at(device, word, analyses, at_boost)


def clock_note(
    device: DeviceSpec, analyses: Sequence[Analysis], timed: Sequence[TimedLaunch]
) -> str:
    """What to know of the clock of these times: one sentence."""
    total = sum(t.simulated.latency.median_us for t in timed)
    if device.clock == "given":
        return f"Times are at {device.clock_label}."
    if device.clock == SUSTAINED:
        return (
            f"Times are at {device.clock_label}: {device.power_w} W while such launches follow "
            "each other, on random values. Published clocks that the energy model had not seen lie "
            "within 12 %, and the interval is as much wider."
        )
    found = sustained_by(device, analyses, timed)
    at = f"Times are at {device.clock_label}"
    if found is None:
        return f"{at}; its power limit is not known, so neither is what it sustains."
    if not found.is_limited:
        return f"{at}, which {found.watts:,.0f} W of {device.power_w} hold."
    slower = sum(t.simulated.us_at(found.clock_mhz) for t in timed)
    lasts = "This launch" if total > BURST_US else "Launches that follow each other"
    verb = "lasts longer and falls" if total > BURST_US else "fall"
    return (
        f"{at}, which bursts of up to {BURST_US / 1e3:.0f} ms reach. {lasts} {verb} to about "
        f"{found.clock_mhz:,.0f} MHz within {device.power_w} W, {format_us(slower)} "
        "(--clock sustained)."
    )
