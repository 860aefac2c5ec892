"""Registers and shared memory from the compile cache, for models that ask about many kernels.

NVRTC stays out of the server's process: what is missing is compiled by the job worker, and the page
is drawn again as results come in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.shared.runs import compile_job
from engine.base.errors import ToolMissing
from engine.compiled_plan import cached_kernel, resources
from engine.devices.spec import DeviceSpec
from engine.evaluation import Resources
from engine.jobs.manager import JobStatus
from engine.model.estimate import Footprint
from engine.pipeline.request import EvaluationRequest
from engine.plan import make_plan
from engine.problem import Problem
from kernels.variant import Config, Variant


@dataclass(slots=True)
class CachedFootprints:
    """A `FootprintOf` that reads the compile cache and remembers what was not in it."""

    local_gpu: str = ""  # the device that requests leave unnamed; empty: none
    missing: list[EvaluationRequest] = field(default_factory=list)

    def __call__(self, variant: Variant, config: Config, device: DeviceSpec) -> Footprint:
        """The footprint of this kernel.

        Calling the footprint raises ToolMissing for a problem whose kernel is not in the cache.
        """
        known: dict[tuple[tuple[str, str], ...], tuple[Resources, ...]] = {}

        def footprint(problem: Problem) -> tuple[Resources, ...]:
            # Everything the compiler sees of a problem is in the defines.
            key = variant.defines(problem, config)
            if key not in known:
                plan = make_plan(variant, problem, config)
                kernel = cached_kernel(plan, device.arch)
                if kernel is None:
                    gpu = None if device.name == self.local_gpu else device.name
                    self.missing.append(
                        EvaluationRequest(variant.id, problem, dict(config), gpu=gpu, execute=False)
                    )
                    raise ToolMissing("Its kernel is not compiled yet.")
                known[key] = resources(plan, kernel)
            return known[key]

        return footprint

    def compile_missing(self) -> tuple[JobStatus, ...]:
        """The jobs that compile what was missing, submitted once per tab; in that order."""
        jobs = (compile_job(request) for request in self.missing)
        return tuple(job for job in jobs if job is not None)
