"""The sampler on a simulated GPU: rounds, warm-up, dropping, stopping."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from simulated_gpu import ROUGH, SimulatedConditions, SimulatedDevice, Throttle
from words import raises, says

from engine.attention.evaluation import LatencyKind
from engine.devices.nvml import GpuState
from engine.measure.sampler import Mode, Sample, SamplerSettings, SamplingRun, run_rounds
from engine.measure.statistics import Verdict

TRUE_US = {"a": 10.0, "b": 9.5, "c": 12.0}
QUIET = SimulatedConditions(noise=0.003)
WARM = SamplerSettings(kinds=("device_warm",))


def dropped_share(run: SamplingRun) -> float:
    return sum(map(bool, run.table.dropped)) / len(run.samples)


def test_a_round_times_each_candidate_once_and_the_incumbent_twice() -> None:
    run = run_rounds(SimulatedDevice(TRUE_US, QUIET), "a", ["b", "c", "b", "a"])
    assert run.candidates == ("b", "c")
    for number in range(run.rounds):
        of_round = [s for s in run.samples if s.round == number]
        seen = Counter((s.candidate, s.twin, s.kind) for s in of_round)
        wanted = [("a", False), ("a", True), ("b", False), ("c", False)]
        assert seen == Counter((*w, k) for w in wanted for k in run.settings.kinds)


def test_the_order_is_shuffled_by_the_seed() -> None:
    def order(seed: int) -> list[str]:
        device = SimulatedDevice(TRUE_US, QUIET)
        run = run_rounds(device, "a", ["b", "c"], replace(WARM, seed=seed))
        return [s.candidate for s in run.samples]

    assert order(1) == order(1)
    assert order(1) != order(2)
    firsts = Counter(order(3)[::4])
    assert set(firsts) == {"a", "b", "c"}


def test_warm_and_cold_times_are_measured_separately() -> None:
    run = run_rounds(SimulatedDevice(TRUE_US, QUIET), "a", ["b", "c"])
    assert run.comparison("b").verdict is Verdict.FASTER
    assert run.comparison("c").verdict is Verdict.SLOWER
    assert run.comparison("b").ratio == pytest.approx(0.95, rel=0.005)
    factors: dict[LatencyKind, float] = {"device_warm": 1.0, "device_cold": 1.3}
    for kind, factor in factors.items():
        latency = run.latency("b", kind)
        assert latency is not None
        assert latency.origin == "measured"
        assert latency.kind == kind
        assert latency.median_us == pytest.approx(9.5 * factor, rel=0.01)
        assert says(latency.reason, "samples_interleaved")
    assert run.comparison("c", "device_cold").verdict is Verdict.SLOWER
    assert run.table.compare("c", "b", "device_warm").ratio == pytest.approx(12 / 9.5, rel=0.01)


def test_it_stops_when_all_pairs_are_decided() -> None:
    run = run_rounds(SimulatedDevice(TRUE_US, QUIET), "a", ["b", "c"], WARM)
    assert (run.stop, run.rounds) == ("decided", 30)


def test_it_stops_when_every_median_is_known_well_enough() -> None:
    run = run_rounds(SimulatedDevice(TRUE_US, QUIET), "a", [], WARM)
    assert (run.stop, run.rounds) == ("precise", 30)  # no second candidate: no verdict
    assert "±" in run.stop_reason
    noisy = SimulatedDevice(TRUE_US, SimulatedConditions(noise=0.03))
    run = run_rounds(noisy, "a", [], WARM)
    assert run.stop == "precise"
    assert run.rounds > 60
    found = run.table.interval("a", "device_warm")
    assert found is not None
    assert found.half_width <= WARM.max_half_width


def test_it_stops_when_the_time_is_up() -> None:
    device = SimulatedDevice(TRUE_US, SimulatedConditions(noise=0.3))
    run = run_rounds(device, "a", ["b"], replace(WARM, max_s=3.0))
    assert run.stop == "time"
    assert 3.0 <= run.elapsed_s < 3.1
    assert "3 s" in run.stop_reason


def test_the_number_of_rounds_can_be_limited() -> None:
    few = replace(WARM, min_rounds=6, max_rounds=6)
    run = run_rounds(SimulatedDevice(TRUE_US, SimulatedConditions(noise=0.05)), "a", ["b"], few)
    assert (run.stop, run.rounds) == ("rounds", 6)
    assert run.latency("b", "device_warm") is not None


def test_it_can_be_stopped_between_any_two_samples() -> None:
    device = SimulatedDevice(TRUE_US, QUIET)
    stop_at = 200  # after the warm-up, and within the 30 rounds
    run = run_rounds(device, "a", ["b"], WARM, should_stop=lambda: device.samples_taken >= stop_at)
    assert run.stop == "cancelled"
    assert run.samples
    assert device.samples_taken == stop_at
    run = run_rounds(SimulatedDevice(TRUE_US, QUIET), "a", ["b"], WARM, should_stop=lambda: True)
    assert (run.stop, run.rounds, run.samples) == ("cancelled", 0, ())
    assert run.latency("a", "device_warm") is None
    assert run.comparison("b").verdict is Verdict.UNDECIDED


def test_rounds_are_reported_while_it_runs() -> None:
    told: list[Sequence[Sample]] = []
    run = run_rounds(SimulatedDevice(TRUE_US, QUIET), "a", ["b"], WARM, on_round=told.append)
    assert [s for samples in told for s in samples] == list(run.samples)
    assert len(told) == run.rounds


def test_it_waits_until_the_clock_is_steady() -> None:
    run = run_rounds(SimulatedDevice(TRUE_US, replace(QUIET, ramp_s=0.15)), "a", [], WARM)
    assert run.warm_up.steady
    assert 0.25 < run.warm_up.seconds < 2.0
    clocks = [s.state.sm_clock_mhz or 0 for s in run.samples]
    assert min(clocks) > 0.98 * max(clocks)


def test_an_unsteady_clock_is_waited_for_two_seconds_and_reported() -> None:
    restless = replace(QUIET, drift=0.05, drift_period_s=0.5)
    run = run_rounds(SimulatedDevice(TRUE_US, restless), "a", [], WARM)
    assert not run.warm_up.steady
    assert 2.0 <= run.warm_up.seconds < 2.1
    assert says(run.warm_up.reason, "steady_clock_after")


def test_sustained_mode_waits_for_a_steady_temperature_without_pauses() -> None:
    rests: list[float] = []

    class Resting(SimulatedDevice):
        def rest(self, seconds: float) -> None:
            rests.append(seconds)
            super().rest(seconds)

    def run(mode: Mode) -> tuple[float, int]:
        device = Resting(TRUE_US, replace(QUIET, heat_s=6.0))
        done = run_rounds(device, "a", [], replace(WARM, mode=mode))
        return done.warm_up.seconds, max(s.state.temperature_c or 0 for s in done.samples)

    burst_s, burst_c = run("burst")
    assert rests
    rests.clear()
    sustained_s, sustained_c = run("sustained")
    assert not rests
    assert burst_s < 2.0 < sustained_s < 30.0
    assert sustained_c > burst_c


def test_the_slow_launch_after_a_pause_is_not_sampled() -> None:
    device = SimulatedDevice(TRUE_US, replace(QUIET, wake_factor=2.0))
    run = run_rounds(device, "a", ["b"], WARM)
    assert max(s.time_us for s in run.samples) < 11.0


def test_a_short_throttle_is_dropped_kept_and_explained() -> None:
    conditions = replace(QUIET, throttles=(Throttle(1.0, 1.2, 0.6),))
    settings = replace(WARM, max_s=3.0, min_rounds=10_000)
    run = run_rounds(SimulatedDevice(TRUE_US, conditions), "a", ["b"], settings)
    dropped = [s for s, why in zip(run.samples, run.table.dropped, strict=True) if why]
    assert dropped
    assert all(1.0 <= s.at_s < 1.2 for s in dropped)
    reasons = {why for why in run.table.dropped if why}
    assert len(reasons) == 1
    assert says(reasons, "hardware_thermal_slowdown")
    assert not run.throttled
    latency = run.latency("a", "device_warm")
    assert latency is not None
    assert max(latency.samples_us) < 11.0
    assert run.comparison("b").verdict is Verdict.FASTER


def test_a_low_clock_is_dropped_even_when_the_driver_gives_no_reason() -> None:
    class Silent(SimulatedDevice):
        def state(self) -> GpuState:
            return replace(super().state(), throttle_reasons=())

    conditions = replace(QUIET, throttles=(Throttle(1.0, 1.2, 0.9),))
    settings = replace(WARM, max_s=3.0, min_rounds=10_000)
    run = run_rounds(Silent(TRUE_US, conditions), "a", [], settings)
    reasons = {why for why in run.table.dropped if why}
    assert len(reasons) == 1
    assert says(reasons, "clock_below_median", "95%")


def test_a_candidate_that_runs_at_a_lower_clock_is_not_a_throttled_gpu() -> None:
    """A kernel with more power runs at a lower clock: with one median for all candidates, its
    samples would be dropped and the run THROTTLED."""
    clocks = {"a": 1.0, "b": 0.9}

    class Hungry(SimulatedDevice):
        last = "a"

        def time_once(self, candidate: str, kind: LatencyKind, placement: int = 0) -> float:
            self.last = candidate
            return super().time_once(candidate, kind, placement)

        def state(self) -> GpuState:
            found = super().state()
            return replace(found, sm_clock_mhz=round(found.sm_clock_mhz * clocks[self.last]))

    for seed in range(20):
        run = run_rounds(Hungry({"a": 10.0, "b": 11.0}, QUIET, seed), "a", ["b"], WARM)
        assert not run.throttled
        assert not any(run.table.dropped)
        comparison = run.comparison("b")
        assert comparison.verdict is Verdict.SLOWER
        assert says(comparison.reason, "median_sm_clock")
        assert re.search(r"\b1,7\d\d MHz .* 1,9\d\d MHz\.$", comparison.reason)


def test_samples_under_a_power_cap_count() -> None:
    conditions = replace(QUIET, throttles=(Throttle(0.0, 99.0, 0.8, "power cap"),))
    run = run_rounds(SimulatedDevice(TRUE_US, conditions), "a", ["b"], WARM)
    assert not any(run.table.dropped)
    assert run.comparison("b").verdict is Verdict.FASTER


def test_a_throttled_run_keeps_its_times_and_gives_no_verdict() -> None:
    conditions = replace(QUIET, throttles=(Throttle(1.0, 99.0, 0.5),))
    settings = replace(WARM, max_s=3.0)
    run = run_rounds(SimulatedDevice(TRUE_US, conditions), "a", ["b"], settings)
    assert says(run.throttled, "hardware_thermal_slowdown")
    assert dropped_share(run) > 0.2
    found = run.comparison("b")
    assert found.verdict is Verdict.UNDECIDED
    assert says(found.reason, "no_verdict_throttled")
    assert run.latency("b", "device_warm") is not None


def test_a_run_throttled_throughout_keeps_its_samples() -> None:
    conditions = replace(QUIET, throttles=(Throttle(0.0, 99.0, 0.5),))
    run = run_rounds(SimulatedDevice(TRUE_US, conditions), "a", ["b"], replace(WARM, max_s=1.0))
    assert dropped_share(run) == 1.0
    assert run.throttled.startswith("100%")
    latency = run.latency("a", "device_warm")
    assert latency is not None
    assert latency.median_us == pytest.approx(20.0, rel=0.01)


def test_a_gpu_without_clock_readings_is_measured() -> None:
    device = SimulatedDevice(TRUE_US, replace(QUIET, reports_clock=False))
    run = run_rounds(device, "a", ["b"], WARM)
    assert not any(run.table.dropped)
    assert run.comparison("b").verdict is Verdict.FASTER


def test_no_verdict_within_the_difference_of_a_kernel_to_itself() -> None:
    class Unfair(SimulatedDevice):
        """The incumbent's second runs are 3 % slower."""

        def time_once(self, candidate: str, kind: LatencyKind, placement: int = 0) -> float:
            time_us = super().time_once(candidate, kind, placement)
            return time_us * 1.03 if candidate == "a" and placement >= 3 else time_us

    run = run_rounds(Unfair({"a": 10.0, "b": 10.35}, QUIET), "a", ["b"], replace(WARM, max_s=4.0))
    assert run.table.floor("device_warm") > math.log(1.02)
    assert run.comparison("b").verdict is Verdict.UNDECIDED


def test_five_percent_are_detected_under_noise() -> None:
    run = run_rounds(SimulatedDevice(TRUE_US, ROUGH), "a", ["b", "c"])
    assert run.comparison("b").verdict is Verdict.FASTER
    assert run.comparison("c").verdict is Verdict.SLOWER


def test_settings_that_measure_nothing_are_refused() -> None:
    with raises(ValueError, "not_a_measurement"):
        SamplerSettings(kinds=())
    with raises(ValueError, "not_a_measurement"):
        SamplerSettings(max_s=0.0)
