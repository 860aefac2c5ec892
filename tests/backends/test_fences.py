"""The one-pass KV split with the fences of the CUDA toolkit's sample: each one is needed, and the
check build reports which one is missing."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from slow_cases import one_in
from words import says

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import Status
from engine.cuda_on_host.client import Client
from engine.cuda_on_host.error_kinds import ErrorKind
from kernels.ladder import by_id

V06 = by_id("v06")
PLAN = make_plan(V06, Problem(1, 2, 70, 32, causal=True), V06.default_config())

# v06 with a fence of every thread and a plain atomic in place of one thread's ordered atomic.
WITH_FENCES = [
    ("    // Thread 0 arrives", "    __threadfence();\n    // Thread 0 arrives"),
    ("arrive_at_counter(tile_arrivals)", "atomicAdd(tile_arrivals, 1)"),
    (
        "    if (threadIdx.x == 0) *tile_arrivals = 0;",
        "    __threadfence();\n    if (threadIdx.x == 0) *tile_arrivals = 0;",
    ),
]
RELEASE = """    __threadfence();
    // Thread 0 arrives"""
ACQUIRE = """    __threadfence();
    if (threadIdx.x == 0) *tile_arrivals = 0;"""
HAND_OVER = "    l = row_sum(l);\n"

# Names of what the finding says is missing.
NOBODY_FENCED = "fences_missing"
WRITER_MUST = "writer_fence_missing"
READER_MUST = "reader_fence_missing"

# Texts that are replaced, with their replacements, and what is then missing.
MUTATIONS = {
    "no release": ([(RELEASE, RELEASE.replace("__threadfence();", ""))], NOBODY_FENCED),
    "release before the writes": (
        [
            (RELEASE, RELEASE.replace("__threadfence();", "")),
            (HAND_OVER, f"{HAND_OVER}    __threadfence();\n"),
        ],
        WRITER_MUST,
    ),
    "only thread 0 releases": (
        [(RELEASE, RELEASE.replace("__thread", "if (threadIdx.x == 0) __thread"))],
        WRITER_MUST,
    ),
    "release of CTA scope": (
        [(RELEASE, RELEASE.replace("fence()", "fence_block()"))],
        NOBODY_FENCED,
    ),
    "no acquire": ([(ACQUIRE, ACQUIRE.replace("__threadfence();", ""))], READER_MUST),
    "only thread 0 acquires": (
        [(ACQUIRE, ACQUIRE.replace("__thread", "if (threadIdx.x == 0) __thread"))],
        READER_MUST,
    ),
}


@pytest.fixture(scope="module")
def backend():
    backend = CpuBackend(Client(workers=2))
    yield backend
    backend.close()


def changed_plan(folder: Path, changes):
    for header in V06.source.parent.glob("*.cuh"):
        shutil.copy(header, folder)
    text = V06.source.read_text()
    for old, new in (*WITH_FENCES, *changes):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    source = folder / V06.source.name
    source.write_text(text)
    return replace(PLAN, source=source)


def test_with_all_fences_it_passes(backend, tmp_path):
    plan = changed_plan(tmp_path, [])
    inputs = make_inputs(plan.problem)
    options = RunOptions(check=True, schedule="random", repeat=False)
    assert backend.run(plan, inputs, options).status is Status.PASSED


@pytest.mark.parametrize("mutation", one_in(4, list(MUTATIONS), slow=9))
def test_a_missing_fence_is_found_in_every_order(backend, tmp_path, mutation):
    changes, what_is_missing = MUTATIONS[mutation]
    plan = changed_plan(tmp_path, changes)
    inputs = make_inputs(plan.problem)
    for schedule in ("in_order", "random", "reverse"):
        result = backend.run(plan, inputs, RunOptions(check=True, schedule=schedule, repeat=False))
        assert result.status is Status.RACE, schedule
        assert f"{ErrorKind.GLOBAL_RACE} in kernel attention_forward" in result.reason
        assert re.search(r"buffer '[mlo]_partial' .* v06_\w+\.cu:\d+", result.reason)
        assert says(result.reason, what_is_missing)
