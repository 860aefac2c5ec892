"""The verdict on an LSE, and the findings for wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from slow_cases import of_each, slow_ones
from words import raises, says

from engine.attention.config import resolve_config
from engine.attention.plan import make_plan, target_arch
from engine.attention.problem import Problem
from engine.attention.tensors import decode, make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.backends.machine_code import MachineCodeBackend
from engine.base.errors import InvalidProblem
from engine.correctness import check_output
from engine.correctness.gradient_check import check_lse
from engine.machine_code.cubin import read_cubin
from engine.model.kernel import compile_plan
from kernels.ladder import LADDER, by_id

PROBLEM = Problem(2, 2, 40, 64, seqlen_kv=200)
INPUTS = make_inputs(PROBLEM)


def _lse(begin: int = 0, end: int = 200) -> np.ndarray:
    """Return the LSE over some of the keys."""
    q, k = (decode(x, "float16").astype(np.float64) for x in (INPUTS.q, INPUTS.k))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k[:, :, begin:end]) * PROBLEM.softmax_scale
    return np.asarray(np.log(np.exp(scores).sum(axis=-1)))


PARTS = np.stack([_lse(0, 96), _lse(96, 192), _lse(192, 200)])


@pytest.mark.parametrize(
    ("lse", "name", "facts"),
    [
        (_lse() / np.log(2), "lse_base_2", []),
        (-_lse(), "lse_sign", []),
        (_lse() + np.log(2), "lse_sum_doubled", []),
        (PARTS[0], "lse_of_keys", ["0 to 95"]),
        (PARTS[2], "lse_last_part", ["16 keys"]),
        (PARTS.max(axis=0), "lse_largest_of_parts", ["96 keys"]),
        (_lse() - PARTS.max(axis=0), "lse_maximum_of_parts", ["96 keys"]),
    ],
)
def test_a_wrong_lse_is_named(lse: np.ndarray, name: str, facts: list[str]) -> None:
    judged = check_lse(INPUTS, lse.astype(np.float32))
    assert not judged.passed
    assert says(judged.sentence, name, *facts)


def test_a_correct_lse_passes() -> None:
    assert check_lse(INPUTS, _lse().astype(np.float32)).passed


ASKED = (
    Problem(2, 4, 70, 64, causal=True, lse=True),
    Problem(1, 2, 200, 128, dtype="bfloat16", lse=True),
    Problem(3, 4, 1, 64, seqlen_kv=100, lse=True),
    Problem(2, 4, 40, 64, True, seqlen_kv=140, window=33, softcap=3.0, sinks=True, lse=True),
    Problem(3, 4, 100, 64, causal=True, seqlens=(5, 17, 100), lse=True),
    Problem(2, 8, 3, 64, seqlen_kv=100, num_heads_kv=4, kv_dtype="float8_e4m3", lse=True),
    Problem(2, 2, 100, 192, causal=True, head_dim_v=128, lse=True),
)
_RUNS = [
    (variant.id, how, problem)
    for variant in LADDER
    if "lse" in variant.takes
    for problem in ASKED
    if set(problem.features) <= set(variant.takes)
    and (problem.head_dim_v is None or variant.dim_pairs)
    for how in ("in_order", "random", "machine code")
]


@pytest.fixture(scope="module")
def cpu() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant_id", "how", "problem"),
    of_each(_RUNS, every=12, slow=16),
    ids=lambda value: value.label() if isinstance(value, Problem) else value,
)
def test_every_rung_writes_lse(
    cpu: CpuBackend, variant_id: str, how: str, problem: Problem
) -> None:
    variant = by_id(variant_id)
    if variant.gqa and problem.num_heads_kv is None:
        problem = replace(problem, num_heads_kv=2)
    if variant.unsupported(problem, variant.default_config()) is not None and problem.seqlen == 200:
        problem = replace(problem, seqlen=70)  # the most keys that v12 and v22 support
    config = resolve_config(variant, {}, problem, None).values
    plan, inputs = make_plan(variant, problem, config), make_inputs(problem)
    backend = MachineCodeBackend() if how == "machine code" else cpu
    schedule = "in_order" if how == "machine code" else how
    arch = "sm_90" if variant.arch_specific else "sm_80"
    result = backend.run(plan, inputs, RunOptions(arch=arch, repeat=False, schedule=schedule))
    assert result.out is not None, result.reason
    assert result.lse is not None
    found = check_output(inputs, result, plan=plan)
    assert found.passed, found.reason
    judged = check_lse(inputs, result.lse)
    assert judged.passed, judged.sentence


@pytest.mark.parametrize("variant_id", slow_ones(4, ["v01", "v11", "v19", "v14"]))
def test_without_lse_the_code_is_unchanged(variant_id: str) -> None:
    """The parameter and its code are only compiled in with LSE."""
    variant = by_id(variant_id)
    arch = "sm_90" if variant.arch_specific else "sm_80"
    plain, asked = (
        make_plan(variant, replace(ASKED[0], lse=lse), variant.default_config())
        for lse in (False, True)
    )
    assert plain.lse is None
    assert "lse" not in plain.buffer_bytes
    assert dict(plain.defines).get("HAS_LSE") is None
    codes = {
        read_cubin(compile_plan(plan, target_arch(plan, arch)).cubin).code_sha256
        for plan in (plain, asked)
    }
    assert len(codes) == 2
    written = asked.problem.batch * asked.problem.num_heads * asked.problem.seqlen
    assert asked.problem.io_bytes - plain.problem.io_bytes == 4 * written


def test_the_backward_pass_reads_lse_and_cannot_write_it() -> None:
    with raises(InvalidProblem, "lse_of_the_backward_pass"):
        replace(ASKED[0], direction="backward")
