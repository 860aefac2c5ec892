"""A simulated GPU with known true times, for tests of the sampler.

Its clock ramps up from idle, drifts and throttles; its samples jitter and have outliers; time is
virtual, so that hours of measuring take seconds. Its times are never shown to a user.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from engine.attention.evaluation import LatencyKind
from engine.devices.nvml import GpuState
from engine.measure.sampler import SamplerSettings, run_rounds
from engine.measure.statistics import Verdict


@dataclass(frozen=True, slots=True)
class Throttle:
    """The SM clock falls to `clock_share` of its value, and NVML reports the reason."""

    start_s: float
    end_s: float
    clock_share: float
    reason: str = "hardware thermal slowdown"


@dataclass(frozen=True, slots=True)
class SimulatedConditions:
    """Disturbances of the simulated GPU. Shares are of the time or clock they belong to."""

    noise: float = 0.01  # standard deviation of ln(time)
    outlier_share: float = 0.0  # of the samples
    outlier_factor: float = 1.5
    drift: float = 0.0  # amplitude of a slow oscillation of the clock
    drift_period_s: float = 7.0
    wander: float = 0.0  # standard deviation of the clock's random walk, per √s
    ramp_s: float = 0.1  # time constant of the clock's rise from idle
    heat_s: float = 20.0  # time constant of the temperature under load
    wake_factor: float = 1.0  # slow-down of the first launch after a pause
    throttles: tuple[Throttle, ...] = ()
    reports_clock: bool = True
    placement: float = 0.0  # standard deviation of ln(time) between placements of one kernel
    timer_step_us: float = 0.0  # times are multiples of it


# The noise of a good machine with all other disturbances of a bad one.
ROUGH = SimulatedConditions(
    noise=0.01, outlier_share=0.03, drift=0.02, wander=0.003, wake_factor=1.2
)


@dataclass
class SimulatedDevice:
    """A `TimedDevice` in virtual time.

    Args:
        true_us: the time of each candidate at the boost clock.
        cold_factor: slow-down by a cold L2.
        sample_s: device time of one sample (a graph of many launches).
    """

    true_us: Mapping[str, float]
    conditions: SimulatedConditions = SimulatedConditions()
    seed: int = 0
    cold_factor: float = 1.3
    sample_s: float = 0.004
    boost_mhz: int = 1980
    idle_mhz: int = 345
    placement_count: int = 6
    samples_taken: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._now = 0.0
        self._busy = 0.0
        self._walk = 0.0
        self._phase = self._rng.uniform(0, 2 * math.pi)
        self._rested = True
        self._offsets: dict[tuple[str, int], float] = {}

    def placements(self, candidate: str) -> int:
        assert candidate in self.true_us
        return self.placement_count

    def time_once(self, candidate: str, kind: LatencyKind, placement: int = 0) -> float:
        """Return one sample in µs and advance the virtual clock."""
        c = self.conditions
        self._advance(self.sample_s, busy=True)
        time_us = self.true_us[candidate] * (self.cold_factor if kind == "device_cold" else 1.0)
        time_us *= math.exp(c.noise * self._rng.standard_normal()) / self._clock_share()
        if self._rng.random() < c.outlier_share:
            time_us *= c.outlier_factor
        if self._rested:
            time_us *= c.wake_factor
        self._rested = False
        self.samples_taken += 1
        if c.placement:
            place = candidate, placement
            if place not in self._offsets:
                self._offsets[place] = c.placement * self._rng.standard_normal()
            time_us *= math.exp(self._offsets[place])
        if c.timer_step_us:
            time_us = max(1, round(time_us / c.timer_step_us)) * c.timer_step_us
        return time_us

    def state(self) -> GpuState:
        clock = round(self.boost_mhz * self._clock_share())
        throttle = self._throttle()
        warmth = 1 - math.exp(-self._busy / self.conditions.heat_s)
        return GpuState(
            sm_clock_mhz=clock if self.conditions.reports_clock else None,
            max_sm_clock_mhz=self.boost_mhz,
            memory_clock_mhz=None,
            power_w=100 + 400 * warmth,
            power_limit_w=700.0,
            temperature_c=round(35 + 35 * warmth),
            memory_used_bytes=None,
            throttle_reasons=(throttle.reason,) if throttle else (),
        )

    def now_s(self) -> float:
        return self._now

    def rest(self, seconds: float) -> None:
        self._advance(seconds, busy=False)
        self._rested = True

    def _advance(self, seconds: float, *, busy: bool) -> None:
        self._now += seconds
        self._busy += seconds if busy else 0.0
        self._walk += self.conditions.wander * math.sqrt(seconds) * self._rng.standard_normal()

    def _throttle(self) -> Throttle | None:
        active = (t for t in self.conditions.throttles if t.start_s <= self._now < t.end_s)
        return next(active, None)

    def _clock_share(self) -> float:
        """Return the SM clock as a share of the boost clock."""
        c = self.conditions
        idle = self.idle_mhz / self.boost_mhz
        share = 1 - (1 - idle) * math.exp(-self._busy / c.ramp_s)
        swing = c.drift * math.sin(self._phase + 2 * math.pi * self._now / c.drift_period_s)
        throttle = self._throttle()
        return share * math.exp(swing + self._walk) * (throttle.clock_share if throttle else 1.0)


def verdict_counts(
    comparisons: int,
    ratio: float,
    conditions: SimulatedConditions,
    settings: SamplerSettings | None = None,
    seed: int = 0,
) -> Counter[Verdict]:
    """Count the sampler's verdicts on a candidate whose true time is `ratio` × the incumbent's.

    Args:
        comparisons: number of runs, each on its own device.
    """
    verdicts: Counter[Verdict] = Counter()
    for run_seed in range(seed, seed + comparisons):
        device = SimulatedDevice(
            {"incumbent": 10.0, "candidate": 10.0 * ratio}, conditions, run_seed
        )
        each = replace(settings or SamplerSettings(kinds=("device_warm",)), seed=run_seed)
        run = run_rounds(device, "incumbent", ["candidate"], each)
        verdicts[run.comparison("candidate").verdict] += 1
    return verdicts
