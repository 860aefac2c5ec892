"""Jobs: evaluations, sweeps and latency streams that a worker process runs for a server."""

from engine.jobs.layout import ENDED, JobProgress, JobState, JobStatus
from engine.jobs.manager import JobManager

__all__ = ["ENDED", "JobManager", "JobProgress", "JobState", "JobStatus"]
