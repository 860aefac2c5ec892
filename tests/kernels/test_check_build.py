"""The check build: no false alarm on the ladder, and a finding for every removed barrier."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fitting import fitting_config, is_supported
from planted_bugs.removals import REMOVED, left_out, tried
from slow_cases import of_each, one_in, slow_ones

from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import FAULTS, Status
from engine.correctness import check_with_maps, inputs_of
from engine.correctness.check import check_output
from engine.cuda_on_host.client import RunResult, Schedule
from kernels.ladder import LADDER
from kernels.variant import KERNELS_DIR, Dtype

ORDERS: tuple[Schedule, ...] = ("in_order", "random")
SHAPES: tuple[tuple[int, int, bool, Dtype], ...] = (
    (1, 32, True, "bfloat16"),
    (64, 64, False, "float16"),
    (113, 96, True, "float16"),
    (129, 128, False, "bfloat16"),
    (203, 64, True, "bfloat16"),
)


def _run(cpu: CpuBackend, plan: LaunchPlan, inputs: Inputs, seed: int) -> RunResult:
    options = RunOptions(check=True, schedule="random", seed=seed)
    return cpu.run(plan, inputs, options)


@pytest.mark.parametrize(
    ("variant_id", "seqlen", "head_dim", "causal", "dtype"),
    of_each(
        [(v.id, *case) for v in LADDER for case in SHAPES if is_supported(v, Problem(1, 2, *case))],
        every=24,
        slow=18,
    ),
)
def test_no_false_alarm(
    cpu: CpuBackend, variant_id: str, seqlen: int, head_dim: int, causal: bool, dtype: Dtype
) -> None:
    variant = LADDER.by_id(variant_id)
    problem = Problem(1, 2, seqlen, head_dim, causal, dtype)
    config = fitting_config(variant, problem)
    plan, inputs = make_plan(variant, problem, config), make_inputs(problem)
    result = _run(cpu, plan, inputs, seed=seqlen)
    assert result.status is Status.PASSED, result.reason
    verdict = check_output(inputs, result, plan=plan)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(
    ("variant_id", "name", "value"),
    one_in(
        1000,
        [(v.id, t.name, value) for v in LADDER for t in v.tunables for value in t.values],
        slow=168,
    ),
)
def test_every_tunable_value_is_clean(
    cpu: CpuBackend, variant_id: str, name: str, value: int
) -> None:
    problem = Problem(1, 1, 130, 64, True)
    variant = LADDER.by_id(variant_id)
    config = fitting_config(variant, problem, variant.default_config() | {name: value})
    plan, inputs = make_plan(variant, problem, config), make_inputs(problem)
    result = _run(cpu, plan, inputs, seed=value)
    assert result.status is Status.PASSED, f"{config}: {result.reason}"


def noticed(cpu: CpuBackend, variant_id: str, number: int, folder: Path) -> tuple[str, set[str]]:
    """Return the removed statement, and the orders of CTAs and warps in which that is found; the
    random order has a seed."""
    variant = LADDER.by_id(variant_id)
    name, text = list(left_out(variant))[number]
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, folder)
    source = folder / variant.source.name
    source.write_text(text, encoding="utf-8")
    seen: set[str] = set()
    for problem, values in tried(variant):
        config = fitting_config(variant, problem, variant.default_config() | values)
        plan, inputs = make_plan(variant, problem, config), inputs_of(problem)
        plan = replace(plan, source=source)
        for schedule in ORDERS:
            if schedule in seen:
                continue
            options = RunOptions(check=True, schedule=schedule, seed=1, repeat=False)
            result = cpu.run(plan, inputs, options)
            if result.status is Status.PASSED:
                is_right = check_with_maps(inputs, result, plan)[0].passed
            else:
                assert result.status in FAULTS, result.reason
                is_right = False
            if not is_right:
                seen.add(schedule)
        if len(seen) == len(ORDERS):
            break
    return name, seen


@pytest.mark.parametrize(("variant_id", "number"), slow_ones(192, REMOVED))
def test_removing_an_ordering_statement_is_detected(
    cpu: CpuBackend, variant_id: str, number: int, tmp_path: Path
) -> None:
    name, seen = noticed(cpu, variant_id, number, tmp_path)
    assert seen == set(ORDERS), name


def test_ordering_statements_are_found_in_every_rung() -> None:
    """The list above is complete."""
    with_shared = {v.id for v in LADDER.every() if "__shared__" in v.source.read_text("utf-8")}
    assert {variant_id for variant_id, _ in REMOVED} == with_shared
    assert len(REMOVED) >= 330
