"""The benchmark's table with made-up timers: what is measured, against what, and the notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_history import Times
from software_nvml import SoftwareNvml, described
from verdicts import RIGHT
from words import raises, says

import engine.pipeline.bench as subject
from engine.attention.config import find_variant
from engine.attention.evaluation import ALL_KINDS, Correctness, Evaluation, Latency
from engine.attention.plan import LaunchPlan
from engine.attention.problem import BENCH_PROBLEMS, Problem
from engine.base.errors import MeasureError, Status
from engine.cuda_source.sources import read_sources
from engine.devices import find_device
from engine.history import History, KnownTime
from engine.measure.sampler import SamplerSettings
from engine.measure.statistics import Verdict
from engine.pipeline.bench import BenchResult, Entrant, bench
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest, resolve
from kernels.ladder import LADDER

PROBLEM = Problem(1, 8, 128, 64)
SHORT = SamplerSettings(kinds=ALL_KINDS, min_rounds=12, max_rounds=12)


@dataclass
class MadeUpTimer:
    """A `Launchable` that takes a known time, with noise of 0.1 %."""

    time_us: float
    refuses: str = ""
    copy_bytes: int = 1 << 20
    l2_bytes: int = 1 << 20
    number: int = 0  # of its GPU's timers

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng((int(1000 * self.time_us), self.number))

    def free_bytes(self) -> int:
        return 1 << 30

    def make_copies(self, count: int) -> None:
        assert count > 0

    def once_us(self) -> float:
        if self.refuses:
            raise RuntimeError(self.refuses)
        return self.time_us

    def graph(self, launches: int, copies: int) -> Callable[[], float]:
        cold = 1.5 if copies > 1 else 1.0
        noise = lambda: float(np.exp(0.001 * self._rng.normal()))  # noqa: E731
        return lambda: launches * self.time_us * cold * noise()

    def flush_l2(self, size: int) -> None:
        assert size > 0

    def call_us(self, calls: int) -> float:
        assert calls > 0
        return self.time_us + 7.0

    def verify(self) -> None:
        """Do nothing: the output is always the same."""

    def failed(self, error: Exception) -> MeasureError:
        return MeasureError(str(error))


class MadeUpGpu:
    """An evaluator and its CUDA backend; `times_us` by variant, `wrong` ones are incorrect."""

    lost = None

    def __init__(
        self,
        times_us: dict[str, float],
        wrong: Sequence[str] = (),
        history: History | None = None,
    ) -> None:
        self.times_us = times_us
        self.history = history or History(work="look up")
        self.wrong = wrong
        self.timers = 0
        self.checked: list[EvaluationRequest] = []

    def backend(self, name: str) -> MadeUpGpu:
        assert name == "cuda"
        return self

    @contextmanager
    def timer(
        self, plan: LaunchPlan, inputs: object, correctness: Correctness
    ) -> Iterator[MadeUpTimer]:
        del inputs
        assert correctness.passed
        self.timers += 1
        yield MadeUpTimer(self.times_us[plan.variant], number=self.timers)

    def evaluate(self, request: EvaluationRequest) -> EvaluationOutcome:
        self.checked.append(request)
        is_wrong = request.variant in self.wrong
        return EvaluationOutcome(
            Evaluation(
                status=Status.INCORRECT if is_wrong else Status.PASSED,
                reason="half of it is wrong" if is_wrong else "right",
                variant=request.variant,
                problem=request.problem,
                config=resolve(request).config,
                device="H200",
                when="2026-01-01T00:00:00+00:00",
                correctness=replace(RIGHT, passed=not is_wrong),
            )
        )


SDPA_US = {"flash": 12.0, "cudnn": 10.0, "math": 90.0}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, software_nvml: SoftwareNvml) -> None:
    """Set up an H200 with a made-up PyTorch whose `efficient` backend fails."""

    @contextmanager
    def baseline(name: str, problem: Problem, inputs: object) -> Iterator[MadeUpTimer]:
        del problem, inputs
        yield MadeUpTimer(SDPA_US.get(name, 1.0), "" if name in SDPA_US else "refused")

    software_nvml.has(described("H200"))
    monkeypatch.setenv("ATTUNE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))
    monkeypatch.setattr("engine.backends.sdpa.baseline", baseline)


def run(gpu: Any, *names: str) -> BenchResult:
    entrants = [Entrant(name, {}) for name in names] or None
    return bench(PROBLEM, entrants, gpu, SHORT)


def test_all_entrants_are_timed_with_the_best_backend() -> None:
    gpu = MadeUpGpu({"v01": 20.0, "v02": 5.0})
    result = run(gpu, "v01", "v02")
    assert result.best_baseline == "cudnn"
    assert [x.name for x in result.lines] == ["v02", "cudnn", "flash", "v01", "math", "efficient"]
    by_name = {x.name: x for x in result.lines}
    ours = by_name["v02"]
    assert ours.device is not None
    assert ours.cold is not None
    assert ours.end_to_end is not None
    assert ours.device.median_us == pytest.approx(5.0, rel=0.01)
    assert ours.cold.median_us == pytest.approx(7.5, rel=0.01)
    assert ours.end_to_end.median_us == pytest.approx(12.0, rel=0.01)
    assert ours.tflops == pytest.approx(PROBLEM.flops / 5e-6 / 1e12, rel=0.01)
    peak = find_device("H200").fp16_tensor_tflops
    assert peak is not None
    assert ours.peak_share == pytest.approx(ours.tflops / peak)
    assert ours.against_best is not None
    assert ours.against_best.speedup == pytest.approx(2.0, rel=0.01)
    assert ours.against_best.verdict is Verdict.FASTER
    assert ours.against_best.low < 0.5 < ours.against_best.high
    slow = by_name["v01"].against_best
    assert slow is not None
    assert slow.verdict is Verdict.SLOWER
    assert by_name["cudnn"].against_best is None  # it is the baseline of the others
    assert (by_name["efficient"].device, by_name["efficient"].reason) == (None, "refused")
    assert result.is_complete
    # All checks come first, without measuring.
    assert [(r.variant, r.backend, r.effort) for r in gpu.checked] == [
        ("v01", "cuda", "none"),
        ("v02", "cuda", "none"),
    ]


def test_evaluations_hold_the_times_and_the_baselines_of_the_run() -> None:
    (first,) = run(MadeUpGpu({"v02": 5.0}), "v02").evaluations
    assert first.status is Status.PASSED
    assert first.latency is not None
    assert first.latency.origin == "measured"
    assert [x.kind for x in first.other_latencies] == ["device_cold", "end_to_end"]
    named = {b.name: b for b in first.baselines}
    assert list(named) == ["flash", "cudnn", "efficient", "math"]
    assert named["cudnn"].latency is not None
    assert named["efficient"].reason == "refused"


def test_a_wrong_kernel_is_a_line_with_its_reason_and_no_time() -> None:
    result = run(MadeUpGpu({"v01": 20.0, "v02": 5.0}, wrong=["v02"]), "v01", "v02")
    wrong = next(x for x in result.lines if x.name == "v02")
    assert wrong.device is None
    assert wrong.reason == "INCORRECT: half of it is wrong"
    assert not result.is_complete
    statuses = {e.variant: (e.status, e.latency is None) for e in result.evaluations}
    assert statuses == {"v01": (Status.PASSED, False), "v02": (Status.INCORRECT, True)}


def test_only_the_fastest_rungs_are_measured_in_full() -> None:
    times = {v.id: 30.0 - i for i, v in enumerate(LADDER)}
    result = run(MadeUpGpu(times))
    usable = [v.id for v in LADDER if v.unsupported(PROBLEM, v.default_config()) is None]
    usable = [v for v in usable if not find_variant_is_foreign(v)]
    ours = [x.name for x in result.lines if not x.is_baseline]
    assert ours == sorted(usable, key=lambda v: times[v])[: subject.MAX_FINALISTS]
    said = " ".join(result.notes)
    assert all(v in said for v in usable if v not in ours)


def find_variant_is_foreign(variant_id: str) -> bool:
    """Return whether the variant is for another GPU than the H200."""
    variant = next(v for v in LADDER if v.id == variant_id)
    return variant.min_compute_capability > (9, 0)


def test_no_entrants_gives_a_message() -> None:
    with raises(MeasureError, "none_measurable", "v01: INCORRECT: half"):
        run(MadeUpGpu({"v01": 20.0}, wrong=["v01"]), "v01")


def test_a_throttled_run_has_no_verdict(software_nvml: SoftwareNvml) -> None:
    software_nvml.says("reasons=64")
    result = run(MadeUpGpu({"v02": 5.0}), "v02")
    assert says(result.throttled, "hardware_thermal_slowdown")
    assert not result.is_complete
    assert result.evaluations[0].status is Status.THROTTLED
    ours = result.lines[0].against_best
    assert ours is not None
    assert ours.verdict is Verdict.UNDECIDED


def test_the_presets_are_those_of_the_published_benchmarks() -> None:
    assert len(BENCH_PROBLEMS["small"]) == 9
    assert all(p.head_dim == 64 and not p.causal for p in BENCH_PROBLEMS["small"])
    large = BENCH_PROBLEMS["large"]
    assert len(large) == 24
    assert {p.batch * p.seqlen for p in large} == {16_384}
    assert {p.num_heads * p.head_dim for p in large} == {2_048}
    decode = BENCH_PROBLEMS["decode"]
    shapes = [(p.batch, p.num_heads, p.num_keys) for p in decode]
    long = (1, 32, 1024), (1, 32, 4096), (1, 32, 16_384), (8, 32, 4096), (32, 32, 4096)
    assert shapes == list(long)
    assert {(p.seqlen, p.head_dim, p.causal) for p in decode} == {(1, 128, False)}
    splitting = [v for v in LADDER if any(t.name == "num_splits" for t in v.tunables)]
    assert splitting
    assert all(v.unsupported(p, v.default_config()) is None for v in splitting for p in decode)


def test_a_kernel_that_decodes_is_timed_beside_the_best_backend() -> None:
    problem = BENCH_PROBLEMS["decode"][0]
    result = bench(problem, [Entrant("v05", {})], MadeUpGpu({"v05": 40.0}), SHORT)
    ours = next(x for x in result.lines if x.name == "v05")
    assert ours.device is not None
    assert ours.against_best is not None
    assert ours.against_best.speedup == pytest.approx(0.25, rel=0.01)
    # K and V are 8 MiB each; Q and O 8 KiB.
    assert ours.gb_per_s == pytest.approx((2**24 + 2**14) / 40.0 / 1e3, rel=0.01)


def test_auto_follows_the_known_times() -> None:
    time = KnownTime(
        name="v02",
        is_sdpa=False,
        config=find_variant("v02").default_config(),
        problem=PROBLEM,
        device="H200",
        latency=Latency("measured", 0.5, 0.5, 0.5, "made up"),
        when="",
        session="mine",
        file="",
        shipped=False,
        checked=True,
        source_sha256=read_sources(find_variant("v02").source).source_sha256,
    )
    known = History(Times({"H200": (time,)}), work="look up")
    gpu = MadeUpGpu({"v02": 5.0}, history=known)
    result = bench(PROBLEM, [Entrant("auto", {})], gpu, SHORT)
    assert [x.name.split()[0] for x in result.lines if not x.is_baseline] == ["v02"]
    assert "Measured (session mine) 0.5 µs" in result.notes[0]
