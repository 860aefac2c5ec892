"""The check build: no false alarm on the ladder, and no barrier that could be left out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fitting import fitting_config, is_taken
from kernel_text import Barrier, barriers
from slow_cases import of_each, one_in

from engine.backends.base import RunOptions, RunResult
from engine.backends.cpu import CpuBackend
from engine.base.errors import FAULTS, Status
from engine.correctness.check import check_output
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from engine.tensors import Inputs, make_inputs
from kernels.ladder import LADDER
from kernels.variant import KERNELS_DIR, Dtype, Variant

SHAPES: tuple[tuple[int, int, bool, Dtype], ...] = (
    (1, 32, True, "bfloat16"),
    (64, 64, False, "float16"),
    (113, 96, True, "float16"),
    (129, 128, False, "bfloat16"),
    (203, 64, True, "bfloat16"),
)

BARRIERS = [
    pytest.param(variant, barrier, id=f"{variant.id}-line{barrier.line}")
    for variant in LADDER
    for barrier in barriers(variant.source.read_text(encoding="utf-8"))
]


def _run(cpu: CpuBackend, plan: LaunchPlan, inputs: Inputs, seed: int) -> RunResult:
    options = RunOptions(check=True, schedule="random", seed=seed)
    return cpu.run(plan, inputs, options)


@pytest.mark.parametrize(
    ("variant_id", "seqlen", "head_dim", "causal", "dtype"),
    of_each(
        [(v.id, *case) for v in LADDER for case in SHAPES if is_taken(v, Problem(1, 2, *case))],
        every=8,
        slow=5,
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
        slow=56,
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


def _without(variant: Variant, barrier: Barrier, folder: Path) -> Iterator[LaunchPlan]:
    """Plans of the variant less one barrier: every barrier counts in one of them."""
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, folder)
    source = folder / variant.source.name
    text = variant.source.read_text(encoding="utf-8")
    source.write_text(barrier.removed_from(text), encoding="utf-8")
    shares = any(t.name == "num_ctas" for t in variant.tunables)
    takes_all = any(t.name == "keys" for t in variant.tunables)  # of a head, 256 at most
    problem = Problem(1, 2 if shares else 1, 260, 32, seqlen_kv=250 if takes_all else None)
    config = dict(fitting_config(variant, problem))
    if shares:
        config["num_ctas"] = 4  # six query tiles: a share ends amid one
    if "num_splits" in config:
        config["num_splits"] = 2  # two CTAs to fuse, two tiles and more for each
    if "cluster_size" in config:  # two clusters of two to fuse, two tiles for each warp
        config |= {"num_splits": 4, "cluster_size": 2, "num_warps": 2}
    yield replace(make_plan(variant, problem, config), source=source)
    if "row_warps" in config:  # four warps share K and V, and two parts of the keys are added up
        few = Problem(1, 1, 260, 32, seqlen_kv=100)
        config |= {"num_warps": 8, "row_warps": 4, "keys_per_warp": 64}
        yield replace(make_plan(variant, few, config), source=source)


@pytest.mark.parametrize(("variant", "barrier"), one_in(24, BARRIERS, slow=24))
def test_no_barrier_can_go(
    cpu: CpuBackend, variant: Variant, barrier: Barrier, tmp_path: Path
) -> None:
    for plan in _without(variant, barrier, tmp_path):
        inputs = make_inputs(plan.problem)
        result = _run(cpu, plan, inputs, seed=1)
        if result.status is not Status.PASSED:
            assert result.status in FAULTS, result.reason
            # The line of the access; of an instruction behind a function of a header, that one's.
            named = re.match(r"(\w+\.cuh?):\d+", result.reason)
            assert named is not None, result.reason
            assert named[1] in {
                variant.source.name,
                *(header.name for header in KERNELS_DIR.glob("*.cuh")),
            }
            return
        if not check_output(inputs, result, plan=plan).passed:
            return
    pytest.fail(f"nothing notices that line {barrier.line} is gone")


def test_every_variant_with_shared_memory_has_barriers() -> None:
    """The list above is not empty by accident."""
    found = {param.values[0].id for param in BARRIERS}
    assert found == {v.id for v in LADDER if "__shared__" in v.source.read_text("utf-8")}
