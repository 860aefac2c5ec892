"""A made-up GPU for a process: call `install` before anything asks for the GPU.

Times are made up: known, and 1.5 times as long on the GPU whose UUID ends in b. With num_splits=4,
S = 48 kills the process, as a driver may, and after S = 96 its CUDA context is broken: everything
that the process evaluates from then on is a LAUNCH_ERROR.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from search_data import SimulatedCandidates, bowl, evaluation
from simulated_gpu import SimulatedConditions, SimulatedDevice

from engine.attention.evaluation import Execution
from engine.base.errors import Status
from engine.devices import find_device, spec
from engine.devices.spec import DetectedDevice
from engine.pipeline import request as requests
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest
from engine.search import evaluation_process
from engine.search.autotune import Candidates
from engine.search.cluster import dask_worker as worker
from engine.search.ranking import SweepRow, without_result

DEADLY_SEQLEN = 48
LOSING_SEQLEN = 96


def install() -> None:
    uuid = os.environ["FAKE_GPU"]
    found = DetectedDevice(find_device("L4"), True, "NVIDIA L4", uuid, "580.0")

    def evaluate(_: Evaluator, request: EvaluationRequest, **__: bool) -> EvaluationOutcome:
        if isinstance(Evaluator.gpu_error, str):
            lost = without_result(request, Status.LAUNCH_ERROR, Evaluator.gpu_error, "")
            return EvaluationOutcome(lost)
        special = request.problem.seqlen if request.config["num_splits"] == 4 else 0
        if special == DEADLY_SEQLEN:
            os.kill(os.getpid(), signal.SIGKILL)
        if special == LOSING_SEQLEN:
            Evaluator.gpu_error = "The context is gone."  # type: ignore[assignment, method-assign]
        slower = 1.5 if uuid.endswith("b") else 1.0
        made = evaluation(request, slower * bowl(request), device=found.spec.name)
        on_gpu = Execution("cuda", "device", "device", 0, None)
        return EvaluationOutcome(replace(made, execution=on_gpu))

    @contextmanager
    def opened(rows: Sequence[SweepRow]) -> Iterator[Candidates]:
        assert {row.measured_on for row in rows} == {uuid}
        true_us = {row.point: row.median_us or 0.0 for row in rows}
        device = SimulatedDevice(true_us, SimulatedConditions(noise=0.004))
        yield SimulatedCandidates(device, list(true_us))

    def gpu_candidates(*_: Any) -> Any:
        return opened

    spec.detect_local = lambda: found
    Evaluator.evaluate = evaluate  # type: ignore[assignment, method-assign]
    worker.gpu_candidates = gpu_candidates  # type: ignore[attr-defined]
    evaluation_process.gpu_candidates = gpu_candidates  # type: ignore[attr-defined]
    worker.runs_on_gpu = requests.runs_on_gpu = lambda _: True  # type: ignore[attr-defined]
