"""Jobs that compile and simulate kernels that a page looked up and did not find.

The job worker runs NVRTC and the simulator, not the server's process; the page is redrawn as
results arrive.
"""

from __future__ import annotations

from app.shared import runs
from engine.history import History
from engine.jobs.manager import JobStatus
from engine.pipeline.request import EvaluationRequest


def jobs_for(history: History, local_gpu: str = "") -> tuple[JobStatus, ...]:
    """Submit the jobs, once per tab, and return them in the order in which they were needed.

    Args:
        history: from `known_times.history`, after all look-ups.
        local_gpu: name of the device that requests leave empty; empty: no GPU.
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
