"""Evaluate on a GPU in a separate process, which can be replaced if it loses the GPU.

After an illegal address or an endless kernel, a process can never use the GPU again. A sweep then
replaces the process before the next point and keeps its results.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Self

from engine.base.errors import AttuneError
from engine.history import History
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.evaluation_run import EvaluationOutcome
from engine.pipeline.request import EvaluationRequest, runs_on_gpu
from engine.search.autotune import ProblemResult, gpu_candidates, problem_result
from engine.search.ranking import SweepRow


class EvaluationProcess:
    """One process, started on first use and again after it has lost its GPU or died.

    Use as a context manager, or call `close()`.

    Args:
        open_history: a top-level function that opens the history in that process.
    """

    def __init__(self, open_history: Callable[[], History] = History) -> None:
        self._open_history = open_history
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None and self._connection is not None:
            self._connection.close()
            self._process.kill()  # an endless kernel would prevent it from exiting
            self._process.join()
            self._process.close()
        self._process = self._connection = None

    def evaluate(self, request: EvaluationRequest) -> EvaluationOutcome:
        """Run one evaluation, without its error maps.

        Raises:
            BrokenExecutor: the process died of it.
            AttuneError: as `Evaluator.evaluate`.
        """
        answer: EvaluationOutcome = self._call(_evaluate, request)
        return answer

    def final(self, device: str, rows: Sequence[SweepRow]) -> ProblemResult | None:
        """Time the best of one problem's rows side by side. See `problem_result`.

        Raises:
            BrokenExecutor: the process died of it.
            MeasureError: the GPU failed.
        """
        answer: ProblemResult | None = self._call(_final, device, rows)
        return answer

    def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        if self._connection is None:
            self._start()
        assert self._connection is not None
        try:
            self._connection.send((function, arguments))
            answer, is_usable = self._connection.recv()
        except (EOFError, OSError):
            assert self._process is not None
            self._process.join(5)
            code = self._process.exitcode
            self.close()
            raise BrokenExecutor(
                f"The process that evaluated this point died (exit code {code}): a crash of the "
                "compiler or driver, or out of memory."
            ) from None
        if not is_usable:
            self.close()
        if isinstance(answer, AttuneError):
            raise answer
        return answer

    def _start(self) -> None:
        # A forked process cannot use CUDA if its parent has used it.
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(child_end, self._open_history), daemon=True
        )
        self._process.start()
        child_end.close()


def _serve(connection: Connection, open_history: Callable[[], History]) -> None:
    """Answer calls with (result or error, whether the GPU is still usable)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    with Evaluator(open_history()) as evaluator, contextlib.suppress(EOFError, OSError):
        while True:
            function, arguments = connection.recv()
            try:
                answer = function(evaluator, *arguments)
            except AttuneError as error:
                answer = error
            connection.send((answer, evaluator.gpu_error is None))


def evaluate_point(evaluator: Evaluator, request: EvaluationRequest) -> EvaluationOutcome:
    """Evaluate one point of a sweep; if it is not measured, predict it by machine code.

    The sweep records predictions.
    """
    simulates = not runs_on_gpu(request)
    # Instructions are not counted here but when two points are compared, because sweeps have many
    # points.
    return evaluator.evaluate(request, simulates=simulates, keeps=False, counts=False)


def _evaluate(evaluator: Evaluator, request: EvaluationRequest) -> EvaluationOutcome:
    return replace(evaluate_point(evaluator, request), maps=())


def _final(evaluator: Evaluator, device: str, rows: Sequence[SweepRow]) -> ProblemResult | None:
    return problem_result(device, rows, gpu_candidates(evaluator))
