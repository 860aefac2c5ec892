"""Registers and shared memory for the batch model, from the compile cache and never by compiling.

NVRTC stays out of the server's process: what is missing is compiled by the job worker, and the page
draws again as results come in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import streamlit as st

from app.shared.runs import payload_of
from engine.compile import cached_kernel, resources
from engine.devices.spec import DeviceSpec
from engine.errors import ToolMissing
from engine.evaluation import Resources
from engine.jobs.manager import JobStatus, manager
from engine.model.estimate import Footprint
from engine.pipeline.request import EvaluationRequest
from engine.plan import make_plan
from engine.problem import Problem
from kernels.variant import Config, Variant

_ASKED = "footprint_jobs"


@dataclass(slots=True)
class CachedFootprints:
    """A `FootprintOf` that reads the compile cache and remembers what was not in it."""

    local_gpu: str = ""  # the row that the request calls by no name
    missing: list[EvaluationRequest] = field(default_factory=list)

    def __call__(self, variant: Variant, config: Config, device: DeviceSpec) -> Footprint:
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


def compile_missing(missing: Iterable[EvaluationRequest]) -> list[JobStatus]:
    """The jobs that compile these, submitted once per tab; in the order given."""
    asked: dict[str, str] = st.session_state.setdefault(_ASKED, {})
    found = []
    for request in missing:
        key = json.dumps(payload_of(request), sort_keys=True)
        if key not in asked:
            asked[key] = manager().submit(request)
        job = manager().status(asked[key])
        if job is None:
            del asked[key]  # the journal was cleared: ask again next time
        else:
            found.append(job)
    return found


def stop_compiling() -> None:
    """Drop the compiles that have not begun; those that are done stay in the cache."""
    asked: dict[str, str] = st.session_state.get(_ASKED, {})
    for key, job_id in list(asked.items()):
        job = manager().status(job_id)
        if job is not None and job.state == "queued":
            manager().cancel(job_id)
            del asked[key]
