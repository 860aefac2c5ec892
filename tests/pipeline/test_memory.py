"""Memory checks: the error comes before any allocation, and the estimate is an upper bound."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from slow_cases import one_in
from words import says

from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, encode, make_inputs
from engine.backends.cuda.timing import why_too_large
from engine.base.errors import Status
from engine.base.memory import available_host_memory
from engine.correctness import check_with_maps
from engine.cuda_on_host.client import RunResult
from engine.pipeline.request import check_host_memory, host_bytes_needed
from kernels.ladder import by_id

GIB = 1 << 30


def plan_of(problem: Problem, variant: str = "v05"):
    chosen = by_id(variant)
    return make_plan(chosen, problem, chosen.default_config())


def check_zeros(plan: LaunchPlan, inputs: Inputs) -> None:
    out = encode(np.zeros(plan.problem.shape, np.float32), plan.problem.dtype)
    check_with_maps(inputs, RunResult(status=Status.PASSED, out=out), plan)


def test_a_problem_that_fits_gives_no_message() -> None:
    assert check_host_memory(plan_of(Problem(1, 1, 128, 64)), "cpu") is None


def test_a_huge_problem_is_refused_at_once_with_both_figures() -> None:
    plan = plan_of(Problem(65535, 4096, 1 << 20, 128))
    tracemalloc.start()
    sentence = check_host_memory(plan, "cpu")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    assert sentence is not None
    assert says(sentence, "host_memory_needs")
    assert "PiB" in sentence or "EiB" in sentence
    assert " GiB " in sentence or " MiB " in sentence
    assert sentence.count(".") <= 3


def test_free_device_memory_is_a_separate_limit() -> None:
    plan = plan_of(Problem(4, 8, 1024, 64))
    needed = plan.device_bytes + plan.problem.tensor_bytes
    assert why_too_large(plan, needed) is None
    sentence = why_too_large(plan, needed - 1)
    assert sentence is not None
    assert says(sentence, "gpu_memory_needs")


def test_the_cpu_backend_needs_its_copies_and_scratch() -> None:
    problem = Problem(8, 8, 2048, 64)
    on_cpu, on_gpu = (host_bytes_needed(plan_of(problem), name) for name in ("cpu", "cuda"))
    assert on_cpu >= on_gpu


@pytest.mark.parametrize(
    ("shape", "keys", "dtype"),
    one_in(
        5,
        [
            (shape, keys, dtype)
            for dtype in ("float16", "bfloat16")
            for shape, keys in (
                *(((4, 8, 1024, 64), None), ((64, 64, 64, 64), None), ((1, 1, 4096, 64), None)),
                *(((4, 16, 1, 128), 4096), ((1, 4, 2048, 64), 77)),
            )
        ],
        offset=4,  # the quickest one
        slow=4,
    ),
    ids=str,
)
@pytest.mark.slow
def test_the_estimate_bounds_what_is_allocated(
    shape: tuple[int, ...], keys: int | None, dtype: str
) -> None:
    """With a wrong output, so that the diagnosis runs too."""
    problem = Problem(*shape, dtype=dtype, seqlen_kv=keys)
    plan = plan_of(problem, "v01")
    small = Problem(1, 1, 2, 32)
    check_zeros(plan_of(small), make_inputs(small))  # imports are slow when traced
    tracemalloc.start()
    inputs = make_inputs(problem)
    drawn = tracemalloc.get_traced_memory()[1]
    check_zeros(plan, inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    need = host_bytes_needed(plan, "cpu")
    assert drawn <= need
    assert peak <= need
    # An estimate ten times too high would refuse problems that fit.
    assert need <= 10 * peak + (384 << 20)


def test_free_memory_is_read_from_the_system() -> None:
    free = available_host_memory()
    assert free is not None
    assert 16 << 20 < free < 1 << 50


def test_the_memory_limit_of_a_container_counts(tmp_path: Path) -> None:
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text(f"{6 * GIB}\n")
    (tmp_path / "a" / "memory.current").write_text(f"{5 * GIB}\n")
    (tmp_path / "a" / "memory.stat").write_text(f"anon 1\ninactive_file {2 * GIB}\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text(f"{GIB}\n")
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {100 << 20} kB\n")
    # The file cache can be reclaimed: 6 GiB allowed, 5 used, 2 of them cache.
    assert available_host_memory(proc, tmp_path) == 3 * GIB


def test_with_unknown_free_memory_only_impossible_sizes_are_refused() -> None:
    possible, impossible = Problem(1, 1, 128, 64), Problem(65535, 4096, 1 << 20, 128)
    assert check_host_memory(plan_of(possible), "cpu", lambda: None) is None
    assert check_host_memory(plan_of(impossible), "cpu", lambda: None) is not None
