"""The recipe against a simulated GPU whose launch times are known."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.measure.recipe import measure
from engine.measure.sample import measured_latency, sample_calls

EVENT_OVERHEAD_US = 5.0  # what events around anything add


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
    calls: int = 0
    loaded: bool = False
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
        exact = sum(self._launch(copy) for copy in launches)
        return EVENT_OVERHEAD_US + exact * (1 + self.noise * self.rng.exponential())

    def once_us(self) -> float:
        return self._timed([0])

    def graph(self, launches: int, copies: int) -> Callable[[], float]:
        sequence = [i % copies for i in range(launches)]
        return lambda: self._timed(sequence)

    def flush_l2(self, size: int) -> None:
        assert size >= 2 * self.l2_bytes
        self.in_l2.clear()

    def call(self) -> None:
        self.loaded = True
        self.calls += 1
        self._launch(0)


@pytest.mark.parametrize("copy_bytes", [4_096, 65_536, 1 << 20, 100 << 20])
@pytest.mark.parametrize("memory_bytes", [20 << 30, 256 << 20])
def test_a_3_us_kernel_is_found_within_1_percent(copy_bytes: int, memory_bytes: int) -> None:
    gpu = SimulatedGpu(3.0, 4.5, copy_bytes, memory_bytes=memory_bytes, noise=0.002)
    fits = copy_bytes <= gpu.l2_bytes
    warm, cold, end_to_end = measure(gpu)
    assert warm.median_us == pytest.approx(3.0 if fits else 4.5, rel=0.01)
    # One launch a replay, where memory allows no more, keeps the events' own time in it.
    alone = "of 1 launch " in cold.reason
    assert cold.median_us == pytest.approx(4.5 + EVENT_OVERHEAD_US * alone, rel=0.01)
    assert [x.kind for x in (warm, cold, end_to_end)] == [
        "device_warm",
        "device_cold",
        "end_to_end",
    ]
    assert {x.origin for x in (warm, cold, end_to_end)} == {"measured"}


@pytest.mark.parametrize("launch_us", [0.5, 40.0, 3_000.0, 400_000.0])
def test_any_duration_is_found(launch_us: float) -> None:
    gpu = SimulatedGpu(launch_us, launch_us, 1 << 20, noise=0.0)
    warm, cold, _ = measure(gpu)
    assert warm.median_us == pytest.approx(launch_us, rel=0.003)
    assert cold.median_us == pytest.approx(launch_us, rel=0.01)
    assert len(warm.samples_us) >= 6


def test_the_interval_says_how_noisy_it_was() -> None:
    quiet = measure(SimulatedGpu(10.0, 10.0, 1 << 20, noise=0.0))[0]
    noisy = measure(SimulatedGpu(10.0, 10.0, 1 << 20, noise=0.1))[0]
    assert quiet.high_us - quiet.low_us < 1e-6
    assert noisy.high_us - noisy.low_us > 0.01


def test_how_it_was_measured_is_said() -> None:
    warm, cold, end_to_end = measure(SimulatedGpu(3.0, 4.5, 65_536))
    assert re.search(
        r"replays of a CUDA graph of 1,[23]\d\d launches on the same inputs$", warm.reason
    )
    assert "rotating over 3,840 copies" in cold.reason
    assert "calls from Python" in end_to_end.reason
    tiny = measure(SimulatedGpu(3.0, 4.5, 1_024))[1]
    assert "L2 written over before each" in tiny.reason


def test_end_to_end_counts_calls() -> None:
    calls: list[int] = []
    samples = sample_calls(lambda: calls.append(1))
    assert len(calls) == len(samples) + 2  # one that loads, one that finds the duration
    assert all(s > 0 for s in samples)


def test_a_latency_is_the_samples_median() -> None:
    samples = (3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0)
    found = measured_latency(samples, "device_cold", "said so")
    assert (found.median_us, found.low_us, found.high_us) == (4.0, 1.0, 7.0)
    assert (found.kind, found.reason, found.samples_us) == ("device_cold", "said so", samples)
