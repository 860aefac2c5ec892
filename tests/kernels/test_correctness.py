"""Every variant, executed on the CPU, compared with float64 by the 2× rule."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
from fitting import fitting_config, is_supported, supports_seqlen
from pairwise import pairs_of, pairwise
from slow_cases import of_each, one_in

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import Status
from engine.correctness.check import check_output
from kernels.ladder import LADDER, by_id
from kernels.variant import Variant

# Tile multiples and their neighbours; 500 is long where 1,023 is too long (v12).
SEQLENS = (1, 63, 64, 65, 113, 127, 128, 129, 203, 500, 1023)
KINDS = ("normal", "large_logits", "structured_v")


def _seqlens(variant: Variant) -> tuple[int, ...]:
    return tuple(seqlen for seqlen in SEQLENS if supports_seqlen(variant, seqlen))


@functools.cache
def _cases(variant_id: str) -> list[dict[str, Any]]:
    variant = by_id(variant_id)
    axes: dict[str, tuple[Any, ...]] = {
        "seqlen": _seqlens(variant),
        "head_dim": variant.head_dims,
        "causal": (False, True),
        "dtype": variant.dtypes,
        "kind": KINDS,
        "schedule": ("random", "reverse", "in_order"),
    }
    return pairwise(axes | {t.name: t.values for t in variant.tunables})


def _problem(case: dict[str, Any]) -> Problem:
    # Several batches and heads where they are cheap, to find wrong strides.
    batch, num_heads = (1, 1) if case["seqlen"] > 500 else (2, 3)
    return Problem(
        batch, num_heads, case["seqlen"], case["head_dim"], case["causal"], case["dtype"]
    )


def _assert_right(
    cpu: CpuBackend,
    variant: Variant,
    problem: Problem,
    config: dict[str, int],
    options: RunOptions,
    kind: Any = "normal",
) -> None:
    plan = make_plan(variant, problem, config)
    inputs = make_inputs(problem, seed=options.seed, kind=kind)
    result = cpu.run(plan, inputs, options)
    assert result.status is Status.PASSED, result.reason
    verdict = check_output(inputs, result, plan=plan)
    assert verdict.passed, verdict.reason


def _numbers(variant: Variant) -> list[int]:
    """Return the numbers of the cases that some config supports."""
    numbered = enumerate(_cases(variant.id))
    return [number for number, case in numbered if is_supported(variant, _problem(case))]


@pytest.mark.parametrize(
    ("variant_id", "number"),
    of_each([(v.id, number) for v in LADDER for number in _numbers(v)], every=9, slow=4),
)
def test_a_variant_is_correct(cpu: CpuBackend, variant_id: str, number: int) -> None:
    variant, case = by_id(variant_id), _cases(variant_id)[number]
    problem = _problem(case)
    config = fitting_config(variant, problem, {t.name: case[t.name] for t in variant.tunables})
    options = RunOptions(schedule=case["schedule"], seed=number)
    _assert_right(cpu, variant, problem, config, options, case["kind"])


@pytest.mark.parametrize("variant", LADDER, ids=lambda v: v.id)
def test_the_cases_pair_every_value_with_every_other(variant: Variant) -> None:
    seen = set().union(*map(pairs_of, _cases(variant.id)))
    assert (("head_dim", variant.head_dims[-1]), ("seqlen", 203)) in seen
    values = [len(_seqlens(variant)), len(variant.head_dims), 2, len(variant.dtypes), len(KINDS), 3]
    values += [len(t.values) for t in variant.tunables]
    assert len(seen) == (sum(values) ** 2 - sum(n * n for n in values)) // 2


SPLITTING = [v.id for v in LADDER if any(t.name == "num_splits" for t in v.tunables)]


@pytest.mark.parametrize(
    ("variant_id", "causal", "seqlen"),
    of_each(list(itertools.product(SPLITTING, (False, True), (1, 64, 65, 129, 300))), every=4),
)
def test_more_splits_than_tiles(
    cpu: CpuBackend, variant_id: str, causal: bool, seqlen: int
) -> None:
    """Empty splits, and splits without a visible key for a causal row."""
    variant = by_id(variant_id)
    config = variant.default_config()
    config["num_splits"] = next(t for t in variant.tunables if t.name == "num_splits").values[-1]
    assert config["num_splits"] * config["block_n"] > seqlen
    problem = Problem(1, 2, seqlen, 32, causal)
    for schedule in ("random", "reverse"):
        options = RunOptions(schedule=schedule, seed=seqlen)
        _assert_right(cpu, variant, problem, config, options, "large_logits")


ON_TURING = [v for v in LADDER if v.work.math_unit == "tensor" and not v.arch_specific]


@pytest.mark.parametrize("variant", one_in(20, ON_TURING, offset=5, slow=9), ids=lambda v: v.id)
def test_correct_with_the_instructions_of_sm_75(cpu: CpuBackend, variant: Variant) -> None:
    """Only FP16; two m16n8k8 replace m16n8k16, a load and a store replace cp.async."""
    problem = Problem(1, 2, 113, 64, causal=True)
    config = fitting_config(variant, problem)
    options = RunOptions(arch="sm_75", schedule="random", seed=1, repeat=False)
    _assert_right(cpu, variant, problem, config, options)


def test_the_smallest_shape_of_the_l4_study(cpu: CpuBackend) -> None:
    """S = 4 with D = 4."""
    v01 = by_id("v01")
    _assert_right(cpu, v01, Problem(1, 1, 4, 4), v01.default_config(), RunOptions())
