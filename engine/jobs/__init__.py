"""Jobs: evaluations, sweeps and latency streams that a worker process runs for a server."""

from engine.jobs.manager import JobManager
from engine.jobs.status import ENDED, JobProgress, JobState, JobStatus

__all__ = ["ENDED", "JobManager", "JobProgress", "JobState", "JobStatus"]
