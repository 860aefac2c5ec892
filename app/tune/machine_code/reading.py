"""A request's machine code from the cache, or the job that reads it."""

from __future__ import annotations

from dataclasses import dataclass

from app.shared import known_times
from app.shared.runs import machine_code_job, rerun_as_jobs_end
from engine.base.errors import AttuneError
from engine.jobs.manager import JobStatus
from engine.machine_code.launch_report import MachineCode
from engine.pipeline.request import EvaluationRequest
from engine.pipeline.simulated_launches import known_machine_code

_POLL_S = 0.4


@dataclass(frozen=True, slots=True)
class Reading:
    """The code, the reason why there is none, or the running job."""

    code: MachineCode | None = None
    error: str = ""
    log: str = ""
    job: JobStatus | None = None

    def poll(self) -> None:
        """Rerun the page when the job has ended."""
        if self.job is not None:
            rerun_as_jobs_end([self.job], _POLL_S)


def read(request: EvaluationRequest, version: str) -> Reading:
    """Return the machine code of a request, and submit its job once per tab and source.

    Args:
        version: of the source on disk.
    """
    history = known_times.history()
    try:
        if (code := known_machine_code(request, history)) is not None:
            return Reading(code)
        job = machine_code_job(request, version)
    except AttuneError as error:
        return Reading(error=str(error))
    if job is None or not job.is_over:
        return Reading(job=job)
    if job.error:
        return Reading(error=job.error, log=job.log)
    try:
        code = known_machine_code(request, history)  # written between the two look-ups
    except AttuneError as error:
        return Reading(error=str(error))
    gone = "The machine code was read and is not in the cache: is the cache's disk full?"
    return Reading(code, error="" if code else gone)
