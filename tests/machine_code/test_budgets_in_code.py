"""The code after each setmaxnreg uses no more registers than it leaves, or compiling fails."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from untimed import untimed

from engine.attention.evaluation import Evaluation
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.overlap import budget_mistake, register_budgets
from engine.model.kernel import compile_plan
from engine.pipeline.request import EvaluationRequest
from kernels.description import parse_variant
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR
from tests.slow_cases import one_in
from tests.words import says

V16, PROBLEM = by_id("v16"), Problem(1, 1, 128, 64)
TEXT = V16.source.read_text(encoding="utf-8")


def line_of(text: str) -> int:
    return TEXT[: TEXT.index(text)].count("\n") + 1


PRODUCER, CONSUMER = map(line_of, ("fewer_registers<", "more_registers<"))
_CU = V16.source.name
# Text that is replaced → its replacement, and the name and facts of the error that follows. The
# consumers' products alone need more than 24 registers.
PLANTED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "__launch_bounds__(NUM_THREADS, 1)": (
        "",
        "setmaxnreg_dropped",
        (f"{_CU}:{PRODUCER}", f"{_CU}:{CONSUMER}", "attention_forward", "__launch_bounds__"),
    ),
    "more_registers<CONSUMER_REGISTERS>": ("fewer_registers<24>", "budget_below_code", ()),
    "PRODUCER_REGISTERS = CONSUMERS == 2 ? 24": (
        "PRODUCER_REGISTERS = CONSUMERS == 2 ? 32",
        "budgets_of_source_differ",
        (_CU, "24, 240, 240", "32, 240"),
    ),
}


def evaluated(text: str, folder: Path) -> Evaluation:
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, folder)
    source = folder / V16.source.name
    source.write_text(text, encoding="utf-8")
    plan = make_plan(parse_variant(text, source), PROBLEM, V16.default_config())
    assert plan.passes[0].warpgroup_registers
    with untimed() as evaluator:
        request = EvaluationRequest("v16", PROBLEM, gpu="H100 SXM", execute=False)
        return evaluator.evaluate(request, source=source).evaluation


@pytest.mark.parametrize("old", one_in(3, list(PLANTED)))
def test_a_kernel_that_breaks_its_budgets_fails(old: str, tmp_path: Path) -> None:
    new, name, facts = PLANTED[old]
    assert TEXT.count(old) == 1
    evaluation = evaluated(TEXT.replace(old, new), tmp_path)
    assert evaluation.status is Status.COMPILE_ERROR, evaluation.reason
    registers = evaluation.passes[0].resources.registers_per_thread
    assert says(evaluation.reason, name, *facts)
    assert name != "setmaxnreg_dropped" or f"{registers} registers" in evaluation.reason


def test_each_region_has_its_own_budget() -> None:
    """ptxas generates no code that exceeds a budget, so an instruction is changed here."""
    plan = make_plan(V16, PROBLEM, V16.default_config())
    (launch,) = plan.passes
    program = program_of(read_cubin(compile_plan(plan, "sm_90").cubin), launch.entry)
    budgets = {b.registers: b for b in register_budgets(program)}
    assert {n: b.source.line for n, b in budgets.items() if b.source} == {
        24: PRODUCER,
        240: CONSUMER,
    }
    assert budgets[24].used <= 24 < 128 < budgets[240].used <= 240

    def mistake_with(opcode: str, operand: str) -> str | None:
        """Return the error if the first such instruction has this register as its first operand."""
        number = next(n for n, i in enumerate(program.instructions) if i.opcode == opcode)
        instructions = list(program.instructions)
        old = instructions[number]
        instructions[number] = replace(old, operands=(operand, *old.operands[1:]))
        changed = replace(program, instructions=tuple(instructions))
        return budget_mistake(launch, changed, program.registers, "", V16.source.name)

    # Only the producer issues TMA copies, only consumers wgmma; S of 64 rows takes 64 registers.
    assert mistake_with("UTMALDG", "R23") is None
    assert says(
        mistake_with("UTMALDG", "R24"),
        "code_behind_setmaxnreg",
        f"{V16.source.name}:{PRODUCER}",
        "24",
        "25",
    )
    assert mistake_with("HGMMA", "R176") is None
    assert says(str(mistake_with("HGMMA", "R177")), "code_behind_setmaxnreg", "240", "241")

    few = replace(launch, warpgroup_registers=(24, 240, 240, 240), threads=512)
    assert says(str(budget_mistake(few, program, 128 - 8, "", V16.source.name)), "so_that_one")
