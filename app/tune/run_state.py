"""The state of the selected request: its preview, its compile, and its newest run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.evaluation.view import EvaluationView, Residencies
from app.shared import known_times
from app.shared.runs import (
    compile_job,
    error_maps_of,
    evaluation_of,
    is_machine_code_asked,
    machine_code_job,
    part_of,
    runs_of,
    simulate_job,
)
from app.shared.selection import Selection
from app.tune.source_watch import source_digest
from engine.attention.evaluation import Evaluation
from engine.base.errors import WITHOUT_TIME, AttuneError, CompileError, Status
from engine.cuda_source.sources import read_source
from engine.history.known_time import known_time_of, preferred
from engine.jobs.manager import JobStatus, manager
from engine.machine_code.launch_report import Residency
from engine.machine_code.native_library import are_libraries_built
from engine.model.kernel import variant_sources
from engine.pipeline.request import EvaluationRequest, Preview, evaluation_of_preview, preview
from engine.pipeline.simulated_launches import machine_code_of
from kernels.variant import Variant

_OF_A_WRONG_KERNEL = "The kernel's result is wrong: no time is shown for it."


@dataclass(frozen=True, slots=True)
class RunState:
    """What is known of one request at the moment."""

    preview: Preview | None
    error: str  # why there is no preview
    compiling: JobStatus | None  # under way
    simulating: JobStatus | None  # running: a prediction by machine code follows
    compiled: Evaluation | None  # the outcome of the compile job, if one was needed
    job: JobStatus | None  # the newest run
    evaluation: Evaluation | None  # the result of the newest finished run
    evaluation_job: str  # its job's id
    # Of the running job: the result of its first few CTAs, or of all while it is simulated.
    part: Evaluation | None
    digest: str  # of the source on disk
    is_stale: bool  # the source has changed since the evaluation

    @property
    def is_running(self) -> bool:
        """Return True if a run is queued or under way."""
        return self.job is not None and not self.job.is_over

    @property
    def is_wrong(self) -> bool:
        """True if the newest run of this source found an error."""
        found = self.evaluation
        return found is not None and not self.is_stale and found.status in WITHOUT_TIME

    @property
    def is_previewed(self) -> bool:
        """True if the request can be run."""
        seen = self.preview
        return seen is not None and not (seen.unsupported or seen.memory)


def has_changed(selection: Selection, state: RunState) -> bool:
    """True if a run or compile has started or ended since `state`. Takes a few milliseconds."""
    runs = runs_of(selection.request(execute=True))
    compiling = state.compiling and manager().status(state.compiling.job_id)
    simulating = state.simulating and manager().status(state.simulating.job_id)
    newest = runs[0] if runs else None
    known = _stamps(state.job, state.compiling, state.simulating)
    return _stamps(newest, compiling, simulating) != known


def _stamps(*jobs: JobStatus | None) -> list[tuple[str, bool, str | None] | None]:
    return [(job.job_id, job.is_over, _partial(part_of(job))) if job else None for job in jobs]


def _partial(part: Evaluation | None) -> str | None:
    """Return the number of CTAs of a partial result, empty for all; None without a result."""
    return None if part is None or part.execution is None else part.execution.partial


def run_state(selection: Selection) -> RunState:
    """Return the state of the selected request, and submit the compile that its preview needs."""
    request = selection.request(execute=False)
    digest = source_digest(selection.variant)
    error, seen, compiling, simulating, compiled = "", None, None, None, None
    try:
        history = known_times.history()
        seen = preview(request, history)
        if seen.needs_compile:
            job = compile_job(request, digest, wait=True)
            compiling = None if job is None or job.is_over else job
            compiled = evaluation_of(job) if job is not None else None
            if job is not None and job.state in ("failed", "crashed"):
                error = job.error
            seen = preview(request, history)
        simulating = simulation_of(seen, request, digest)
    except AttuneError as failure:
        error = str(failure)
    runs = runs_of(selection.request(execute=True))
    finished = [(job, result) for job in runs if (result := evaluation_of(job)) is not None]
    # While the source does not compile, the result of the last version that did is shown.
    good = [pair for pair in finished if pair[1].status is not Status.COMPILE_ERROR]
    job, evaluation = (good or finished or [(None, None)])[0]
    part = part_of(runs[0]) if runs and not runs[0].is_over else None
    if _partial(part) == "":
        job, evaluation = None, part
    return RunState(
        preview=seen,
        error=error,
        compiling=compiling,
        simulating=simulating,
        compiled=compiled,
        job=runs[0] if runs else None,
        evaluation=evaluation,
        evaluation_job=job.job_id if job else "",
        part=part,
        digest=digest,
        is_stale=_is_stale(evaluation, selection.variant),
    )


def simulation_of(seen: Preview, request: EvaluationRequest, digest: str = "") -> JobStatus | None:
    """Submit and return the job that simulates a kernel; None once it has ended."""
    if seen.estimate is None or seen.estimate.latency is None or seen.estimate.by_machine_code:
        return None
    job = simulate_job(request, digest)
    return None if job is None or job.is_over else job


def _is_stale(evaluation: Evaluation | None, variant: Variant) -> bool:
    if evaluation is None or not evaluation.source_sha256:
        return False
    try:
        return variant_sources(variant).source_sha256 != evaluation.source_sha256
    except CompileError:
        return True


def view_of(selection: Selection, state: RunState) -> EvaluationView:
    """Return the view of this state. The problem must be valid."""
    assert selection.problem is not None
    seen, evaluation = state.preview, state.evaluation
    bound_us = seen.bound_us if seen else None
    predicted = seen.predicted if seen else None
    measured = evaluation.latency if evaluation else None
    if measured is not None and (measured.origin != "measured" or state.is_stale):
        measured = None  # a time of an older source is not one of this kernel
    known = known_times.at(selection.problem, selection.gpu_name)
    mine = known_time_of(known, selection.variant, selection.config)
    if state.is_wrong:
        measured = mine = predicted = bound_us = None
    compiled = state.compiled or evaluation
    passes = seen.passes if seen else ()
    return EvaluationView(
        variant=selection.variant.id,
        problem=selection.problem,
        config=selection.config,
        device_name=selection.gpu_name,
        device=seen.device if seen else None,
        passes=passes or (evaluation.passes if evaluation else ()),
        latency=measured or preferred(mine, predicted),
        latency_reason=_OF_A_WRONG_KERNEL if state.is_wrong else _latency_reason(seen, state),
        bound_us=bound_us,
        predicted=predicted,
        terms=seen.estimate.terms if seen and seen.estimate and predicted else None,
        kernel=selection.variant,
        known=known,
        evaluation=evaluation,
        maps=error_maps_of(state.evaluation_job),
        source_name=selection.variant.source.name,
        source_path=str(selection.variant.source),
        source=_text(selection.variant),
        headers=_headers(selection.variant),
        flags=compiled.flags if compiled else (),
        log=compiled.log if compiled else "",
        is_recorded=False,
        residencies=Residencies(
            times=partial(_residencies, seen),
            read=partial(machine_code_job, selection.request(execute=False), state.digest),
            is_being_read=partial(
                is_machine_code_asked, selection.request(execute=False), state.digest
            ),
        ),
        is_stale=state.is_stale,
    )


def _latency_reason(seen: Preview | None, state: RunState) -> str:
    if seen is None:
        return state.error
    if seen.estimate is None and state.compiled is not None and state.compiled.notes:
        return " ".join(state.compiled.notes)
    if seen.estimate is None or seen.bound_us is None:
        return seen.latency_reason
    if state.simulating is not None and not are_libraries_built():
        return "The simulator is being built, once per machine: the prediction follows."
    if state.simulating is not None:
        return "Its machine code is being simulated: the prediction follows."
    return "Its machine code could not be simulated, and the roofline gives only a bound."


def _residencies(seen: Preview | None) -> tuple[Residency, ...]:
    code = machine_code_of(seen) if seen is not None else None
    return code.passes[0].residencies if code is not None else ()


def shown_evaluation(state: RunState) -> Evaluation | None:
    """Return the evaluation that the page shows, to be saved; None if there is none yet.

    After an edit it has registers, occupancy and prediction of the present source, without the
    correctness of the previous one.
    """
    seen, evaluation = state.preview, state.evaluation
    if not state.is_stale:
        return evaluation
    if seen is None or seen.plan is None or seen.device is None or not seen.passes:
        return None
    return evaluation_of_preview(
        seen, "The source has changed since the last run and has not been executed."
    )


def pinnable(state: RunState) -> Evaluation | None:
    """Return the evaluation that the page shows, executed or only previewed."""
    evaluation = shown_evaluation(state)
    if evaluation is None and state.preview is not None and state.preview.passes:
        evaluation = evaluation_of_preview(state.preview, "Pinned without being executed.")
    return evaluation


def _headers(variant: Variant) -> Mapping[str, str]:
    try:
        included = variant_sources(variant).included
    except CompileError:
        return {}
    return {Path(each.name).name: each.text for each in included}


def _text(variant: Variant) -> str:
    try:
        return read_source(variant.source)
    except CompileError:
        return ""
