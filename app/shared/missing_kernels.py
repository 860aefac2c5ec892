"""Jobs that compile and simulate what a page looked up and did not find.

NVRTC and the simulator stay out of the server's process: the job worker does the work, and the page
is drawn again as results come in.
"""

from __future__ import annotations

from app.shared import runs
from engine.history import History
from engine.jobs.manager import JobStatus
from engine.pipeline.request import EvaluationRequest


def jobs_for(history: History, local_gpu: str = "") -> tuple[JobStatus, ...]:
    """The jobs, submitted once per tab, in the order in which their results were missed.

    Args:
        history: of `known_times.history`, once all was looked up.
        local_gpu: the device that requests leave unnamed; empty: none.
    """
    jobs: dict[str, JobStatus] = {}
    for kernel, problem, work in history.missing:
        gpu = None if kernel.device.name == local_gpu else kernel.device.name
        request = EvaluationRequest(
            kernel.variant.id, problem, kernel.config, gpu=gpu, execute=False
        )
        submit = runs.compile_job if work == "compile" else runs.simulate_job
        if (job := submit(request)) is not None:
            jobs[job.job_id] = job
    return tuple(jobs.values())
