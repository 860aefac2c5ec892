"""Samples of a simulated GPU with an L2, whose launch times are known."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pytest
from words import raises, says

from engine.attention.evaluation import LatencyKind
from engine.base.errors import MeasureError
from engine.devices.nvml import GpuState
from engine.measure.sampler import sampled_latency
from engine.measure.side_by_side import TARGET_REPLAY_US, ReplayDevice

STATE = GpuState(1980, 1980, None, 300.0, 700.0, 50, None, ())
EVENT_OVERHEAD_US = 5.0  # added by events
CALL_OVERHEAD_US = 6.0  # added by a launch from Python


@dataclass
class SimulatedGpu:
    """A kernel that takes `warm_us` when its copy is in L2 and `cold_us` when it is not."""

    warm_us: float
    cold_us: float
    copy_bytes: int
    l2_bytes: int = 48 << 20
    memory_bytes: int = 20 << 30
    noise: float = 0.01
    copies: int = 1
    loaded: bool = False
    memory_error: bool = False
    ramp_us: float = 0.0  # time constant of the clock's rise; idle clocks are five times as slow
    busy_us: float = 0.0
    graphs: list[tuple[int, int]] = field(default_factory=list)
    in_l2: OrderedDict[int, None] = field(default_factory=OrderedDict)  # least recent first
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))

    def free_bytes(self) -> int:
        return self.memory_bytes

    def make_copies(self, count: int) -> None:
        self.copies = count

    def _launch(self, copy: int) -> float:
        assert self.loaded, "the first launch, which loads the kernel, must not be captured"
        assert copy < self.copies
        hit = copy in self.in_l2
        self.in_l2[copy] = None
        self.in_l2.move_to_end(copy)
        while len(self.in_l2) * self.copy_bytes > self.l2_bytes:
            self.in_l2.popitem(last=False)
        return self.warm_us if hit else self.cold_us

    def _timed(self, launches: list[int]) -> float:
        if self.memory_error:
            raise MemoryError("full")
        exact = sum(self._launch(copy) for copy in launches)
        if self.ramp_us:
            exact *= 1 + 4 * math.exp(-self.busy_us / self.ramp_us)
        self.busy_us += exact
        return EVENT_OVERHEAD_US + exact * (1 + self.noise * self.rng.exponential())

    def once_us(self) -> float:
        return self._timed([0])

    def graph(self, launches: int, copies: int) -> Callable[[], float]:
        self.graphs.append((launches, copies))
        sequence = [i % copies for i in range(launches)]
        return lambda: self._timed(sequence)

    def flush_l2(self, size: int) -> None:
        assert size >= 2 * self.l2_bytes
        self.in_l2.clear()

    def call_us(self, calls: int) -> float:
        self.loaded = True
        return sum(self._launch(0) for _ in range(calls)) / calls + CALL_OVERHEAD_US

    def verify(self) -> None:
        pass

    def failed(self, error: Exception) -> MeasureError:
        return MeasureError(str(error), code="made_up")


def device_of(*gpus: SimulatedGpu) -> ReplayDevice:
    device = ReplayDevice(lambda: STATE)
    for i, gpu in enumerate(gpus):
        device.add(str(i), gpu)
    return device


def sample(device: ReplayDevice, kind: LatencyKind, name: str = "0") -> float:
    return median(device.time_once(name, kind) for _ in range(9))


@pytest.mark.parametrize("copy_bytes", [4_096, 65_536, 1 << 20, 100 << 20])
@pytest.mark.parametrize("memory_bytes", [20 << 30, 256 << 20])
def test_a_3_us_kernel_is_found_within_1_percent(copy_bytes: int, memory_bytes: int) -> None:
    gpu = SimulatedGpu(3.0, 4.5, copy_bytes, memory_bytes=memory_bytes, noise=0.002)
    fits = copy_bytes <= gpu.l2_bytes
    device = device_of(gpu)
    assert sample(device, "device_warm") == pytest.approx(3.0 if fits else 4.5, rel=0.01)
    # One launch per replay, if memory allows no more, includes the events' time.
    alone = "of 1 launch " in device.describe("0", "device_cold")
    expected = 4.5 + EVENT_OVERHEAD_US * alone
    assert sample(device, "device_cold") == pytest.approx(expected, rel=0.01)
    found = sample(device, "end_to_end")
    assert found == pytest.approx((3.0 if fits else 4.5) + CALL_OVERHEAD_US, rel=0.01)


@pytest.mark.parametrize("launch_us", [0.5, 40.0, 3_000.0, 400_000.0])
def test_any_duration_is_found(launch_us: float) -> None:
    device = device_of(SimulatedGpu(launch_us, launch_us, 1 << 20, noise=0.0))
    assert sample(device, "device_warm") == pytest.approx(launch_us, rel=0.003)
    assert sample(device, "device_cold") == pytest.approx(launch_us, rel=0.01)


@pytest.mark.parametrize("ramp_us", [0.0, 20_000.0, 100_000.0])
def test_a_graph_is_sized_for_the_clock_that_it_will_run_at(ramp_us: float) -> None:
    """A trial at idle clocks would take launches for five times as long, and size graphs wrong."""
    gpu = SimulatedGpu(10.0, 10.0, 1 << 20, noise=0.0, ramp_us=ramp_us)
    device_of(gpu)
    warm = max(launches for launches, copies in gpu.graphs if copies == 1)
    assert 0.9 * TARGET_REPLAY_US / 10.0 <= warm <= 1.1 * TARGET_REPLAY_US / 10.0


def test_only_requested_kinds_are_prepared() -> None:
    gpu = SimulatedGpu(3.0, 4.5, 65_536)
    device = ReplayDevice(lambda: STATE, ("device_warm",))
    device.add("0", gpu)
    assert sample(device, "device_warm") > 0
    assert gpu.copies == 1
    assert all(copies == 1 for _, copies in gpu.graphs)


def test_a_warm_sample_does_not_depend_on_the_launch_before() -> None:
    """A kernel of 4 ms is launched once per sample and must not find another's data in L2."""
    gpu = SimulatedGpu(4_000.0, 6_000.0, 1 << 20, noise=0.0)
    device = device_of(gpu)
    for _ in range(3):
        gpu.in_l2.clear()  # as after another candidate
        found = device.time_once("0", "device_warm")
        assert found == pytest.approx(4_000.0, rel=0.002)


def test_a_description_names_how_samples_were_taken() -> None:
    device = device_of(SimulatedGpu(3.0, 4.5, 65_536), SimulatedGpu(3.0, 4.5, 1_024))
    warm = device.describe("0", "device_warm")
    assert says(warm, "replay_of_a_graph", "launches")
    assert says(warm, "on_the_same_inputs")
    assert 1_000 <= int(warm.split(" launches")[0].split()[-1].replace(",", "")) < 2_000
    assert says(device.describe("0", "device_cold"), "rotating_over_copies", "3,840")
    assert says(device.describe("0", "end_to_end"), "calls_from_python", "32")
    assert says(device.describe("1", "device_cold"), "l2_written_over")


def test_errors_of_the_library_become_measure_errors() -> None:
    class Broken(SimulatedGpu):
        def once_us(self) -> float:
            raise RuntimeError("no kernel")

    with raises(MeasureError, "made_up", "no kernel"):
        device_of(Broken(3.0, 4.5, 1_024))
    gpu = SimulatedGpu(3.0, 4.5, 1_024)
    device = device_of(gpu)
    gpu.memory_error = True
    with raises(MeasureError, "made_up", "full"):
        device.time_once("0", "device_warm")


def test_the_state_comes_from_the_gpu() -> None:
    device = device_of(SimulatedGpu(3.0, 4.5, 1_024))
    assert device.state() is STATE
    before = device.now_s()
    device.rest(0.002)
    assert device.now_s() - before >= 0.002


def test_a_latency_is_the_samples_median() -> None:
    samples = (3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0)
    found = sampled_latency(samples, "device_cold", "said so")
    assert (found.median_us, found.low_us, found.high_us) == (4.0, 1.0, 7.0)
    assert (found.kind, found.reason, found.samples_us) == ("device_cold", "said so", samples)
