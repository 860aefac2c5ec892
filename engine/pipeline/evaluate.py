"""The pipeline of one evaluation, in this order and nowhere else:

    problem + variant + config → constraints (SKIPPED with a sentence) → compile → resources
        → occupancy → run once on poisoned output → correctness (INCORRECT stops here)
        → measure, or predict where there is no GPU → evaluation

Callers: the command line, the job worker, tests. `preview` of `engine.pipeline.request` is the
quick part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from engine.backends.base import Backend, BackendName
from engine.history import History
from engine.pipeline.evaluation_run import EvaluationOutcome, EvaluationRun, OnPart, OnStage
from engine.pipeline.request import (
    EvaluationRequest,
    resolve,
)

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from engine.correctness import ExpectedOutputs


class Evaluator:
    """Runs evaluations and keeps what is slow to start: backends and their child processes.

    Use as a context manager, or call `close()`.
    """

    def __init__(
        self,
        history: History | None = None,
        backends: Mapping[BackendName, Backend] | None = None,
    ) -> None:
        """
        Args:
            history: what is known of times beforehand; None knows none of sessions.
            backends: those to execute on; each other one is made when it is first needed. All are
                closed with the evaluator.
        """
        self.history = history or History()
        self._backends: dict[BackendName, Backend] = dict(backends or {})
        self._expected: ExpectedOutputs | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for backend in self._backends.values():
            backend.close()
        self._backends.clear()
        if self._expected is not None:
            self._expected.close()
            self._expected = None

    @property
    def expected(self) -> ExpectedOutputs:
        """Inputs, references and baselines, kept from one evaluation to the next."""
        if self._expected is None:
            from engine.correctness import ExpectedOutputs

            self._expected = ExpectedOutputs()
        return self._expected

    @property
    def gpu_error(self) -> str | None:
        """Why this process can use the GPU no more, or None; only a new process helps."""
        cuda = cast("CudaBackend | None", self._backends.get("cuda"))
        return cuda.gpu_error if cuda is not None else None

    def backend(self, name: BackendName) -> Backend:
        if name not in self._backends:
            if name == "cuda":
                from engine.backends.cuda import CudaBackend

                self._backends[name] = CudaBackend()
            elif name == "machine-code":
                from engine.backends.machine_code import MachineCodeBackend

                self._backends[name] = MachineCodeBackend()
            else:
                from engine.backends.cpu import CpuBackend

                self._backends[name] = CpuBackend()
        return self._backends[name]

    def evaluate(
        self,
        request: EvaluationRequest,
        on_stage: OnStage | None = None,
        *,
        source: Path | None = None,
        simulates: bool = True,
        keeps: bool = True,
        counts: bool = True,
        on_part: OnPart | None = None,
    ) -> EvaluationOutcome:
        """Run the whole pipeline. Expected failures come back as statuses.

        Args:
            on_part: gets the evaluation of a few CTAs, in about a second, where executing all of
                them on the CPU takes much longer; not called where they cannot be told apart. And
                that of all of them, without a time, where the kernel is still to be simulated.
            simulates: False takes CTA times by machine code only where they are known already.
            keeps: writes the prediction down; False leaves that to the caller.
            counts: also count what the machine code executes, where it is simulated: for a
                comparison later, up to as long as the rest.
            source: a `.cu` file to take in place of the variant's own, its headers beside it. What
                it says of itself counts; a file without a description takes the variant's.

        Raises:
            UnknownName: the variant or GPU is not in its list.
            InvalidKernel: there is a mistake in the kernel's description.
        """
        stage = on_stage or (lambda _: None)
        resolved = resolve(request, self.history, source)
        outcome = EvaluationRun(
            self, request, resolved, stage, simulates, counts, on_part
        ).outcome()
        if keeps and request.clock == "boost":  # times are measured at the clock a GPU chooses
            self.history.keep(outcome.evaluation, outcome.predicted)
        return outcome


def evaluate(
    request: EvaluationRequest,
    on_stage: OnStage | None = None,
    history: History | None = None,
    on_part: OnPart | None = None,
) -> EvaluationOutcome:
    """One evaluation with backends of its own. See `Evaluator.evaluate`."""
    with Evaluator(history) as evaluator:
        return evaluator.evaluate(request, on_stage, on_part=on_part)
