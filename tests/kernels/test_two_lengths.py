"""Every variant with more or fewer keys than queries: decoding, chunks of a prompt, one key."""

from __future__ import annotations

from typing import Any

import pytest
from fitting import configs, fitting_config
from slow_cases import of_each, slow_ones

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import Status
from engine.correctness.check import check_output
from kernels.ladder import LADDER, by_id
from kernels.variant import Variant

# (queries, keys): tile multiples and their neighbours, also more queries than keys.
LENGTHS = (
    *((1, 1), (1, 63), (1, 64), (1, 65), (1, 1023)),
    *((3, 129), (17, 200), (128, 64), (65, 1), (130, 500)),
)
SCHEDULES: tuple[Any, ...] = ("random", "reverse", "in_order")
KINDS: tuple[Any, ...] = ("normal", "structured_v", "large_logits")


def _problem(variant: Variant, number: int) -> Problem:
    """Return a pair of lengths with D, dtype and number of heads in turn."""
    seqlen, seqlen_kv = LENGTHS[number]
    # v01's D = 4 has a separate test.
    dims = [d for d in variant.head_dims if d >= 32]
    batch, num_heads = (1, 2) if seqlen_kv > 500 else (2, 3)
    head_dim, dtype = dims[number % len(dims)], variant.dtypes[number % len(variant.dtypes)]
    return Problem(batch, num_heads, seqlen, head_dim, dtype=dtype, seqlen_kv=seqlen_kv)


def _configs(variant: Variant, problem: Problem) -> list[dict[str, int]]:
    """Return the default config, and for K/V splits also the fewest and the most."""
    splits = next((t for t in variant.tunables if t.name == "num_splits"), None)
    if splits is None:
        return [fitting_config(variant, problem)]
    return [variant.default_config() | {"num_splits": n} for n in (2, splits.values[-1])]


def _takes(variant: Variant, problem: Problem) -> bool:
    return any(variant.unsupported(problem, c) is None for c in configs(variant))


CASES = [
    pytest.param(v.id, number, id=f"{v.id}-S{LENGTHS[number][0]}-KV{LENGTHS[number][1]}")
    for v in LADDER
    for number in range(len(LENGTHS))
    if _takes(v, _problem(v, number))
]


def _assert_right(
    cpu: CpuBackend, variant: Variant, problem: Problem, number: int, *, check: bool = False
) -> None:
    kind = KINDS[number // 3 % 3]
    for config in _configs(variant, problem):
        plan, inputs = make_plan(variant, problem, config), make_inputs(problem, number, kind)
        options = RunOptions(check=check, schedule=SCHEDULES[number % 3], seed=number)
        result = cpu.run(plan, inputs, options)
        assert result.status is Status.PASSED, f"{config}: {result.reason}"
        verdict = check_output(inputs, result, plan=plan)
        assert verdict.passed, f"{config}: {verdict.reason}"


@pytest.mark.parametrize(("variant_id", "number"), of_each(CASES, every=24, slow=8))
def test_a_variant_is_correct(cpu: CpuBackend, variant_id: str, number: int) -> None:
    variant = by_id(variant_id)
    _assert_right(cpu, variant, _problem(variant, number), number)


@pytest.mark.parametrize(
    ("variant_id", "number"),
    slow_ones(51, [(v.id, n) for v in LADDER for n in (3, 6)]),
)
def test_the_check_build_finds_nothing(cpu: CpuBackend, variant_id: str, number: int) -> None:
    variant = by_id(variant_id)
    _assert_right(cpu, variant, _problem(variant, number), number, check=True)


def test_only_variants_that_hold_all_keys_limit_the_length() -> None:
    left_out = {
        (v.id, LENGTHS[number])
        for v in LADDER
        for number in range(len(LENGTHS))
        if not _takes(v, _problem(v, number))
    }
    assert left_out == {("v12", (1, 1023)), ("v22", (1, 1023)), ("v22", (130, 500))}
