"""The steps of an evaluation, in this order:

    problem + variant + config → constraints (SKIPPED with a sentence) → compile → resources
        → occupancy → run once on poisoned output → correctness (INCORRECT stops here)
        → measure, or predict where there is no GPU → evaluation

`preview` of `engine.pipeline.request` runs the quick steps only.
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
    from engine.measure.sampler import SamplerSettings
    from engine.pipeline.request import Effort


class Evaluator:
    """Runs evaluations, and reuses backends and their child processes, which are slow to start.

    Use as a context manager, or call `close()`.
    """

    def __init__(
        self,
        history: History | None = None,
        backends: Mapping[BackendName, Backend] | None = None,
        samplers: Mapping[Effort, SamplerSettings] | None = None,
    ) -> None:
        """
        Args:
            history: times known beforehand; None: no times of sessions.
            backends: backends to execute on; others are created when needed. All are closed with
                the evaluator.
            samplers: how to measure with an effort, if not as `engine.measure` does.
        """
        self.history = history or History()
        self._backends: dict[BackendName, Backend] = dict(backends or {})
        self.samplers: Mapping[Effort, SamplerSettings] = samplers or {}
        self._expected: ExpectedOutputs | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all backends and end their child processes. Safe to call twice."""
        for backend in self._backends.values():
            backend.close()
        self._backends.clear()
        if self._expected is not None:
            self._expected.close()
            self._expected = None

    @property
    def expected(self) -> ExpectedOutputs:
        """Cache of inputs, references and baselines between evaluations."""
        if self._expected is None:
            from engine.correctness import ExpectedOutputs

            self._expected = ExpectedOutputs()
        return self._expected

    @property
    def gpu_error(self) -> str | None:
        """Return why this process cannot use the GPU any more, or None. Only a new process can."""
        cuda = cast("CudaBackend | None", self._backends.get("cuda"))
        return cuda.gpu_error if cuda is not None else None

    def backend(self, name: BackendName) -> Backend:
        """Return the backend with this name, created at the first call."""
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
        """Run all steps. Expected failures are returned as statuses.

        Args:
            on_part: called with intermediate evaluations: after about a second with that of a few
                CTAs, if executing all of them on the CPU takes much longer and they can be executed
                alone; and with that of all CTAs, without a time, if the kernel is still to be
                simulated.
            simulates: False uses simulated CTA times only if they are cached.
            keeps: record the prediction in the ledger; False leaves that to the caller.
            counts: also count executed instructions if the machine code is simulated, for later
                comparisons; this can double the time.
            source: a `.cu` file to use instead of the variant's own, with its headers beside it.
                Its description is used if it has one, else the variant's.

        Raises:
            UnknownName: the variant or GPU is not in its list.
            InvalidKernel: there is a mistake in the kernel's description.
        """
        stage = on_stage or (lambda _: None)
        resolved = resolve(request, self.history, source)
        outcome = EvaluationRun(
            self, request, resolved, stage, simulates, counts, on_part
        ).outcome()
        if keeps and request.clock == "boost":  # only these can be scored by measurements
            self.history.keep(outcome.evaluation, outcome.predicted)
        return outcome


def evaluate(
    request: EvaluationRequest,
    on_stage: OnStage | None = None,
    history: History | None = None,
    on_part: OnPart | None = None,
) -> EvaluationOutcome:
    """Run one evaluation with its own backends. See `Evaluator.evaluate`."""
    with Evaluator(history) as evaluator:
        return evaluator.evaluate(request, on_stage, on_part=on_part)
