"""ptxas's code for the ladder's Hopper kernels: wgmma and register budgets as written."""

from __future__ import annotations

from itertools import product

import pytest

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.machine_code.analysis import disassembled
from engine.machine_code.cubin import read_cubin
from engine.model.kernel import compile_plan, plan_budget_mistake
from kernels.ladder import LADDER
from kernels.variant import Variant
from tests.fitting import fitting_config
from tests.slow_cases import one_in


def problem_of(variant: Variant, head_dim: int, causal: bool) -> Problem:
    return Problem(1, 1, 64 if variant.id == "v22" else 512, head_dim, causal)


HOPPER = [v for v in LADDER if v.arch_specific and v.min_compute_capability == (9, 0)]
DEFAULTS = [
    (v, d, causal, fitting_config(v, problem_of(v, d, causal)))
    for v in HOPPER
    for causal in (False, True)
    for d in v.head_dims
]


def others() -> list[tuple[Variant, int, bool, dict[str, int]]]:
    """Return every config of a kernel but the default one."""
    found = []
    for v, d, causal, default in DEFAULTS:
        tunables = [t for t in v.tunables if t.name not in ("num_ctas", "kv_mib")]  # no code
        for values in product(*(t.values for t in tunables)):
            config = {**default, **{t.name: x for t, x in zip(tunables, values, strict=True)}}
            if config != default and v.unsupported(problem_of(v, d, causal), config) is None:
                found.append((v, d, causal, config))
    return found


@pytest.mark.parametrize(
    ("variant", "head_dim", "causal", "config"),
    [
        *one_in(len(DEFAULTS), DEFAULTS, offset=2, slow=30),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in others()),
    ],
    ids=lambda value: getattr(value, "id", str(value)),
)
def test_wgmma_is_not_serialized_and_register_counts_change_as_written(
    variant: Variant, head_dim: int, causal: bool, config: dict[str, int]
) -> None:
    plan = make_plan(variant, problem_of(variant, head_dim, causal), config)
    (launch,) = plan.passes
    compiled = compile_plan(plan, "sm_90")
    # v20's polynomial leaves ptxas no registers; the kernel's header says so.
    waits = variant.id == "v20" and config["polynomial"] > 0
    assert ("serialized" in compiled.log) == waits, compiled.log
    info = compiled.entries[launch.entry]
    assert info.spill_store_bytes == info.spill_load_bytes == info.stack_bytes == 0
    assert plan_budget_mistake(plan, compiled) is None
    program = disassembled(read_cubin(compiled.cubin)).program(launch.entry)
    opcodes = [i.opcode for i in program.instructions]
    if variant.id == "v22":  # Q times two halves of K
        products = (2 * head_dim + plan.config["keys"]) // 16
    else:
        products = (head_dim + plan.config["block_n"]) // 16
    # Also for the first and last key tile, and between two query tiles.
    assert opcodes.count("HGMMA") in (products, 2 * products, 3 * products)
    assert "UTMALDG" in opcodes
    assert "UTMASTG" in opcodes
