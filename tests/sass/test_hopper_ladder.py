"""What ptxas made of the ladder's Hopper kernels: wgmma as asked, registers as planned."""

from __future__ import annotations

import pytest

from engine.compile import compile_plan
from engine.plan import make_plan
from engine.problem import Problem
from engine.sass.analysis import disassembled
from engine.sass.cubin import read_cubin
from kernels.ladder import LADDER
from kernels.variant import Variant
from tests.slow_cases import one_in

HOPPER = [v for v in LADDER if v.arch_specific and v.min_compute_capability == (9, 0)]
CASES = [(v, d, causal) for v in HOPPER for causal in (False, True) for d in v.head_dims]


@pytest.mark.parametrize(
    ("variant", "head_dim", "causal"),
    one_in(len(CASES), CASES, offset=2, slow=5),
    ids=lambda value: getattr(value, "id", str(value)),
)
def test_products_run_on_and_registers_move_as_planned(
    variant: Variant, head_dim: int, causal: bool
) -> None:
    plan = make_plan(variant, Problem(1, 1, 512, head_dim, causal), variant.default_config())
    (launch,) = plan.passes
    compiled = compile_plan(plan, "sm_90")
    assert "serialized" not in compiled.log, compiled.log
    info = compiled.entries[launch.entry]
    assert info.spill_store_bytes == info.spill_load_bytes == info.stack_bytes == 0
    program = disassembled(read_cubin(compiled.cubin)).program(launch.entry)
    opcodes = [i.opcode for i in program.instructions]
    products = (head_dim + plan.config["block_n"]) // 16
    # Also of the first and last key tile, and of those where one query tile follows another.
    assert opcodes.count("HGMMA") in (products, 2 * products, 3 * products)
    assert "UTMALDG" in opcodes
    assert "UTMASTG" in opcodes
    moved = {
        int(i.operands[-1], 0) for i in program.instructions if i.opcode.startswith("USETMAXREG")
    }
    assert moved == set(launch.warpgroup_registers)
    # What the CTA starts with covers what its warpgroups ask for: none waits for ever.
    started = program.registers * launch.threads
    assert 128 * sum(launch.warpgroup_registers) <= started <= 65536
