"""Code inside a Dask worker: one evaluation at a time, with one evaluator per process.

Functions are sent by name, so a worker runs its own copy of Attune, whose version `describe`
checks. The evaluator stays open between sweeps, because its backends are slow to start.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from engine.base.errors import ClusterError, ToolMissing
from engine.cuda_source.nvrtc import toolchain
from engine.history import History
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest, resolve, runs_on_gpu
from engine.search.autotune import ProblemResult, gpu_candidates, problem_result
from engine.search.evaluation_process import evaluate_point
from engine.search.ranking import SweepRow
from engine.search.space import local_gpu_id

_ROOT = Path(__file__).resolve().parents[3]
# Parts that only show or store results and are not part of the fingerprint.
_NOT_COMPARED = frozenset({"cli", "jobs", "sessions"})
_SOURCES = frozenset({".py", ".toml", ".cu", ".cuh", ".cpp", ".hpp", ".h", ".forms"})

_RESTART_DELAY_S = 1.0

# A worker may have several threads, but a GPU and the CPU backend's child serve one caller at a
# time.
_one_at_a_time = threading.Lock()
_evaluator: Evaluator | None = None


class SourcesDiffer(ClusterError):
    """This process has another version of Attune, or other kernels, than the requesting machine."""


class WorkerRestarts(ClusterError):
    """This process cannot use its GPU any more and is about to be replaced."""


@dataclass(frozen=True, slots=True)
class Description:
    """The properties of a worker that determine whether it takes part."""

    host: str
    measures: bool  # evaluations run on its GPU
    gpu: str  # its UUID if known; empty if it only predicts
    device: str  # the model that evaluations are for, or "unknown"
    versions: str  # of Python and libraries; may differ from those of other workers


def describe(expected: str, request: EvaluationRequest) -> Description:
    """Describe this process for evaluations like this one.

    Raises:
        SourcesDiffer, UnknownName: as `evaluate`.
    """
    _check_sources(expected)
    target = resolve(request)
    measures = runs_on_gpu(request)
    return Description(
        host=platform.node(),
        measures=measures,
        gpu=local_gpu_id() if measures else "",
        device=target.device.name if target.device else "unknown",
        versions=versions(),
    )


def versions() -> str:
    """Return `Python 3.11, NumPy 2.4.6, NVRTC 13.0`."""
    python = ".".join(platform.python_version_tuple()[:2])
    try:
        compiler = toolchain().name
    except ToolMissing:
        compiler = "no NVRTC"
    return f"Python {python}, NumPy {metadata.version('numpy')}, {compiler}"


def _check_sources(expected: str) -> None:
    if fingerprint() != expected:
        raise SourcesDiffer(
            f"the sources of Attune or of the kernels on {platform.node()} are not this machine's "
            f"({fingerprint()} there, {expected} here), and their results are never mixed. Bring "
            "both to one commit and start the worker again."
        )


@functools.cache
def fingerprint() -> str:
    """Return 16 hex digits of a hash of the sources that results depend on, computed at the
    first call."""
    digest = hashlib.sha256()
    for path in sorted(p for top in ("engine", "kernels") for p in (_ROOT / top).rglob("*")):
        name = path.relative_to(_ROOT)
        if path.suffix in _SOURCES and name.parts[1] not in _NOT_COMPARED:
            digest.update(f"{name.as_posix()}\n{path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def evaluate(
    expected: str, open_history: Callable[[], History], request: EvaluationRequest
) -> EvaluationOutcome:
    """Run one evaluation. On a GPU it holds the GPU's lock.

    Args:
        expected: the `fingerprint` of the requesting machine.
        open_history: called for this process's first evaluation.

    Raises:
        SourcesDiffer: this process's sources have another fingerprint.
        WorkerRestarts: this process can no longer use its GPU.
        UnknownName: the variant or GPU is not in its list.
    """
    _check_sources(expected)
    with _exclusive_evaluator(open_history) as evaluator:
        return evaluate_point(evaluator, request)


def final(
    open_history: Callable[[], History], device: str, rows: Sequence[SweepRow]
) -> ProblemResult | None:
    """Time the best of one problem's rows side by side on the GPU on which they were measured.

    Raises:
        WorkerRestarts: as `evaluate`.
        MeasureError: the GPU failed.
    """
    with _exclusive_evaluator(open_history) as evaluator:
        return problem_result(device, rows, gpu_candidates(evaluator), should_stop=_cancellation())


@contextmanager
def _exclusive_evaluator(open_history: Callable[[], History]) -> Iterator[Evaluator]:
    """Return this process's evaluator, for one caller at a time."""
    global _evaluator
    with _one_at_a_time:
        if _evaluator is None:
            _evaluator = Evaluator(open_history())
        if _evaluator.gpu_error is not None:
            raise WorkerRestarts(f"The worker is about to be restarted: {_evaluator.gpu_error}")
        try:
            yield _evaluator
        finally:
            if _evaluator.gpu_error is not None:
                _restart_soon()


def _restart_soon() -> None:
    """Have the nanny start a new process after the results of this one were fetched."""
    from distributed import get_worker

    worker = get_worker()
    leave = functools.partial(
        worker.close_gracefully, restart=True, reason="this process can no longer use its GPU"
    )
    worker.loop.add_callback(worker.loop.call_later, _RESTART_DELAY_S, leave)


def _cancellation() -> Callable[[], bool]:
    """Return a function that tells whether the current task was cancelled."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    task = worker.state.tasks[key]
    return lambda: task.state == "cancelled"
