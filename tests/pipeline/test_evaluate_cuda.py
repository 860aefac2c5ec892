"""Pipeline and live job on a made-up GPU: lock, check, measure, stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words import says

from engine.attention.evaluation import ALL_KINDS, Correctness
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import Inputs
from engine.attention.tensors import encode as encode_tensor
from engine.backends.base import RunOptions
from engine.backends.sdpa import sdpa_same_dtype
from engine.base.errors import MeasureError, Status
from engine.base.schema import decode, encode
from engine.cuda_on_host.client import RunResult
from engine.jobs.latency_series import read_samples
from engine.jobs.layout import RunDir
from engine.jobs.supervisor import JobRunner, JobType
from engine.jobs.worker import JOB_TYPES, run_latency_stream
from engine.measure.device_lock import device_lock, lock_path
from engine.measure.sampler import SamplerSettings
from engine.measure.side_by_side import PLACEMENTS
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import Effort, EvaluationRequest

REQUEST = EvaluationRequest("v01", Problem(1, 1, 64, 64), gpu="L4", backend="cuda")


class MadeUpTimer:
    """A `Launchable` of 5 µs, with noise."""

    copy_bytes, l2_bytes = 1 << 20, 1 << 20

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)

    def free_bytes(self) -> int:
        return 1 << 30

    def make_copies(self, count: int) -> None:
        assert count > 0

    def once_us(self) -> float:
        return 5.0

    def graph(self, launches: int, copies: int) -> Callable[[], float]:
        assert launches % copies == 0
        return lambda: launches * 5.0 * float(np.exp(0.002 * self._rng.normal()))

    def flush_l2(self, size: int) -> None:
        assert size > 0

    def call_us(self, calls: int) -> float:
        assert calls > 0
        return 12.0

    def verify(self) -> None:
        """Do nothing: the output is always the same."""

    def failed(self, error: Exception) -> MeasureError:
        raise error


class MadeUpCuda:
    """Returns correct output, computed by PyTorch; records who holds the GPU during a run."""

    name = "cuda"
    is_software = False
    gpu_error = None

    def __init__(self) -> None:
        self.held_by: list[str] = []
        self.can_time = True

    def _note_holder(self) -> None:
        self.held_by.append(json.loads(lock_path("GPU-1").read_text())["purpose"])

    def run(self, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
        assert options.repeat
        self._note_holder()
        out, _ = sdpa_same_dtype(inputs)
        return RunResult(Status.PASSED, out=encode_tensor(out, plan.problem.dtype))

    @contextmanager
    def timer(
        self, plan: LaunchPlan, inputs: Inputs, correctness: Correctness
    ) -> Iterator[MadeUpTimer]:
        assert plan.problem == inputs.problem
        assert correctness.passed
        self._note_holder()
        if not self.can_time:
            raise MeasureError("there is no room")
        yield MadeUpTimer()

    def close(self) -> None:
        """Do nothing: there are no resources."""


@pytest.fixture
def cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, set_local_gpu: Callable[..., None]
) -> MadeUpCuda:
    monkeypatch.setenv("ATTUNE_LOCK_DIR", str(tmp_path / "locks"))
    set_local_gpu()
    return MadeUpCuda()


@pytest.fixture
def evaluator(cuda: MadeUpCuda) -> Iterator[Evaluator]:
    samplers: dict[Effort, SamplerSettings] = {
        "full": SamplerSettings(kinds=ALL_KINDS, min_rounds=6, max_rounds=6),
        "quick": SamplerSettings(kinds=("device_warm",), min_rounds=6, max_rounds=6),
    }
    with Evaluator(backends={"cuda": cuda}, samplers=samplers) as made:
        yield made


def with_effort(effort: Any) -> EvaluationRequest:
    return decode(EvaluationRequest, {**encode(REQUEST), "effort": effort})


def test_checked_and_measured_while_the_gpu_is_held(evaluator: Evaluator, cuda: MadeUpCuda) -> None:
    stages: list[str] = []
    found = evaluator.evaluate(REQUEST, stages.append).evaluation
    assert found.status is Status.PASSED, found.reason
    assert found.execution is not None
    assert found.execution.backend == "cuda"
    assert found.latency is not None
    assert (found.latency.origin, found.latency.kind) == ("measured", "device_warm")
    assert found.latency.median_us == pytest.approx(5.0, rel=0.01)
    assert [x.kind for x in found.other_latencies] == ["device_cold", "end_to_end"]
    # PyTorch has no GPU here: every backend has a reason.
    assert all(b.latency is None and b.reason for b in found.baselines)
    assert cuda.held_by == ["v01, B1 H1 S64 D64 fp16"] * (1 + PLACEMENTS)
    assert lock_path("GPU-1").read_text() == ""
    assert stages[-1] == "Measuring"


def test_quick_effort_and_no_measurement(evaluator: Evaluator) -> None:
    quick = evaluator.evaluate(with_effort("quick")).evaluation
    assert quick.latency is not None
    assert (quick.other_latencies, quick.baselines) == ((), ())
    none = evaluator.evaluate(with_effort("none")).evaluation
    assert (none.status, none.latency) == (Status.PASSED, None)


def test_a_kernel_that_cannot_be_timed_passes(evaluator: Evaluator, cuda: MadeUpCuda) -> None:
    cuda.can_time = False
    found = evaluator.evaluate(REQUEST).evaluation
    assert (found.status, found.latency) == (Status.PASSED, None)
    assert says(found.notes, "not_measured", "there is no room")


def test_a_gpu_held_by_other_processes_is_waited_for(evaluator: Evaluator) -> None:
    stages: list[str] = []
    waited, held = threading.Event(), threading.Event()

    def other() -> None:
        with device_lock("GPU-1", "somebody's sweep"):
            held.set()
            waited.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(60)

    def hear(stage: str) -> None:
        stages.append(stage)
        if stage.startswith("Waiting for the GPU"):
            waited.set()

    found = evaluator.evaluate(with_effort("none"), hear).evaluation
    thread.join()
    assert found.status is Status.PASSED
    assert any("(somebody's sweep)" in stage for stage in stages)


def test_a_latency_stream_pauses_for_other_jobs(
    evaluator: Evaluator, cuda: MadeUpCuda, tmp_path: Path
) -> None:
    class Watched(JobRunner):
        def serve_waiting_evaluations(self) -> None:
            """End the live job once the other job had its turn and some more samples came."""
            super().serve_waiting_evaluations()
            if others and len(read_samples(run.stream("live")).samples) > others[0]:
                thread.join()
                super().serve_waiting_evaluations()
                self.event("live", "cancelled")

    run = RunDir(tmp_path / "run")
    run.create()
    turn = SamplerSettings(kinds=("device_warm",), min_rounds=1 << 40, max_s=0.2)
    live = JobType(EvaluationRequest, partial(run_latency_stream, turn=turn), is_long=True)
    runner = Watched(run, evaluator, {**JOB_TYPES, "live": live})
    runner.event("live", "queued", kind="live", request=encode(REQUEST))
    others: list[int] = []

    def another_wants_it() -> None:
        with device_lock("GPU-1", "another", timeout_s=60):
            others.append(len(read_samples(run.stream("live")).samples))
        runner.event("single", "queued", request=encode(with_effort("none")))

    thread = threading.Thread(target=another_wants_it)
    thread.start()
    runner.serve(runner.waiting()[0])
    thread.join()
    part = read_samples(run.stream("live"))
    assert (part.kind, part.device) == ("device_warm", "L4")
    assert len(part.samples) > others[0]
    assert all(4.9 < s.time_us < 5.1 for s in part.samples)
    times = [s.at for s in part.samples]
    assert times == sorted(times)
    assert "live, v01, B1 H1 S64 D64 fp16" in cuda.held_by
    log = run.journal.read_text()
    assert log.count('"Measuring repeatedly"') == 1  # not with every turn
    assert '"job":"single","event":"finished"' in log
    assert '"failed"' not in log
