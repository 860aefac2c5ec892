"""Work that the ladder's headers describe as overlapped is overlapped in the machine code."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fitting import fitting_config

from engine.attention.config import default_config
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Direction, Problem
from engine.machine_code.analysis import disassembled
from engine.machine_code.cubin import read_cubin
from engine.machine_code.disassembly import NO_BARRIER, Control, Instruction, Program, pipe_of
from engine.machine_code.overlap import (
    COPIES_BESIDE_PRODUCTS,
    PRODUCTS_BESIDE_EXP2,
    Overlap,
    overlaps,
)
from engine.model.kernel import compile_plan
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR
from tests.slow_cases import one_in

EXP2, COPIES = PRODUCTS_BESIDE_EXP2, COPIES_BESIDE_PRODUCTS
# Variant, head_dims, arch, kind of work, and the least share of a loop's instructions beside it.
CLAIMS = [
    *(("v18", d, "sm_90", EXP2, 1.0) for d in (64, 128)),
    *(("v19", d, "sm_90", EXP2, 1.0) for d in (64, 128)),
    *(("v20", d, "sm_90", EXP2, 1.0) for d in (64, 128)),
    ("v22", 64, "sm_90", EXP2, 0.8),  # the first 16 keys have no products before them
    ("v22", 128, "sm_90", EXP2, 0.8),
    *(("v26", d, "sm_90", EXP2, 1.0) for d in (64, 128)),
    ("v10", 64, "sm_80", COPIES, 1.0),
    ("v10", 128, "sm_89", COPIES, 1.0),
    ("v11", 64, "sm_89", COPIES, 0.8),
    ("v11", 128, "sm_80", COPIES, 0.3),  # copies are started after PV and overlap Q K^T
    ("v13", 64, "sm_80", COPIES, 0.8),
    ("v14", 128, "sm_80", COPIES, 1.0),
    ("v21", 128, "sm_80", COPIES, 1.0),
]


def _plan(variant_id: str, head_dim: int, causal: bool = False) -> LaunchPlan:
    variant = by_id(variant_id)
    direction: Direction = "backward" if variant.is_backward else "forward"
    seqlen = 64 if variant_id == "v22" else 1024
    problem = Problem(1, 2, seqlen, head_dim, causal, direction=direction)
    return make_plan(variant, problem, fitting_config(variant, problem))


def _of_plan(plan: LaunchPlan, arch: str) -> tuple[Overlap, ...]:
    compiled = compile_plan(plan, arch)
    entry = plan.problem.main_of(plan.passes).entry
    return overlaps(disassembled(read_cubin(compiled.cubin)).program(entry))


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.exhaustive), True])
@pytest.mark.parametrize(
    ("variant", "head_dim", "arch", "what", "least"), one_in(9, CLAIMS, offset=0, slow=9)
)
def test_work_that_a_header_calls_overlapped_is_overlapped(
    variant: str, head_dim: int, arch: str, what: str, least: float, causal: bool
) -> None:
    found = [o for o in _of_plan(_plan(variant, head_dim, causal), arch) if o.what == what]
    assert found, what
    for overlap in found:
        assert overlap.beside >= least * overlap.of > 0, str(overlap)


@pytest.mark.parametrize(
    ("head_dim", "config"),
    [
        (128, {"rescale_threshold": 8}),
        pytest.param(64, {"block_n": 192, "rescale_threshold": 8}, marks=pytest.mark.slow),
        pytest.param(128, {"block_n": 160}, marks=pytest.mark.exhaustive),
    ],
)
def test_v19_overlaps_with_wide_tiles_and_conditional_rescaling(
    head_dim: int, config: dict[str, int]
) -> None:
    variant = by_id("v19")
    plan = make_plan(variant, Problem(1, 2, 1024, head_dim), default_config(variant, config))
    found = [o for o in _of_plan(plan, "sm_90") if o.what == EXP2]
    assert found
    assert all(o.beside == o.of > 0 for o in found), found


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_wait_that_ptxas_hoists_removes_the_overlap_of_v18(head_dim: int, tmp_path: Path) -> None:
    """Without the branch between the softmax and the wait for O, as in an earlier v18."""
    for path in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(path, tmp_path)
    plan = _plan("v18", head_dim)
    text = plan.source.read_text("utf-8")
    old = "        wait_for_k(tile + 1);\n        wgmma_wait<0>(acc_rmem);\n"
    assert text.count(old) == 1
    source = tmp_path / plan.source.name
    moved = "        wgmma_wait<0>(acc_rmem);\n        wait_for_k(tile + 1);\n"
    source.write_text(text.replace(old, moved), "utf-8")
    (lost,) = _of_plan(replace(plan, source=source), "sm_90")
    assert (lost.what, lost.beside, lost.of) == (EXP2, 0, 66)


def test_a_softmax_after_the_products_overlaps_nothing() -> None:
    (v16,) = _of_plan(_plan("v16", 64), "sm_90")
    assert (v16.what, v16.beside, v16.of) == (EXP2, 0, 66)
    assert v16.file.startswith("v16")
    assert str(v16.line) in str(v16)


# ---- programs written by hand ----


def _program(*lines: str) -> Program:
    """Return a program; branch targets are line numbers, as in `@P0 BRA 3`."""
    made = []
    for n, line in enumerate(lines):
        guard, text = line.split(" ", 1) if line.startswith("@") else ("", line)
        mnemonic, *operands = text.replace(",", " ").split()
        opcode, *modifiers = mnemonic.split(".")
        target = 16 * int(operands[-1]) if opcode == "BRA" else None
        control = Control(1, False, NO_BARRIER, NO_BARRIER, 0, 0)
        made.append(
            Instruction(
                16 * n,
                opcode,
                tuple(modifiers),
                tuple(operands),
                guard.removeprefix("@"),
                control,
                pipe_of(opcode),
                target=target,
            )
        )
    return Program("entry", "sm_90", tuple(made), 32, 0, "")


WAIT_1, WAIT_0 = "WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0"
LOOP = ("HGMMA R0, gsb0", "HGMMA R8, gsb0", WAIT_1, "MUFU.EX2 R1", "MUFU.RCP R1")


def _beside(*lines: str) -> list[tuple[int, int]]:
    return [(o.beside, o.of) for o in overlaps(_program(*lines, "@P1 BRA 0", "EXIT"))]


def test_a_wait_ends_work_in_flight() -> None:
    assert _beside(*LOOP, WAIT_0) == [(1, 1)]
    assert _beside(*LOOP[:3], WAIT_0, *LOOP[3:]) == [(0, 1)]
    assert _beside("HGMMA R0", "MUFU.EX2 R1", "HGMMA R0, gsb0", WAIT_0) == [(1, 1)]


def test_every_path_through_the_code_counts() -> None:
    assert _beside(*LOOP[:3], f"@P0 {WAIT_0}", *LOOP[3:], WAIT_0) == [(0, 1)]
    # The wait is on one of two paths to the exponentials.
    around = (*LOOP[:3], "@P0 BRA 5", WAIT_0, "MUFU.EX2 R1", WAIT_0)
    assert _beside(*around) == [(0, 1)]
    # A polling loop out of line is neither a path around the wait nor a loop with products.
    lines = (*LOOP[:3], "@P0 BRA 8", "MUFU.EX2 R1", WAIT_0, "@P1 BRA 0", "EXIT", "@P0 BRA 8")
    (found,) = overlaps(_program(*lines, "BRA 4"))
    assert (found.beside, found.of) == (1, 1)


def test_copies_overlap_products() -> None:
    ring = ("LDGSTS [R1]", "LDGDEPBAR", "HMMA R0", "HMMA R0", "DEPBAR.LE SB0, 0x1", "HMMA R0")
    (found,) = overlaps(_program(*ring, "@P1 BRA 0", "EXIT"))
    assert (found.what, found.beside, found.of) == (COPIES, 3, 3)
    (none,) = overlaps(_program(*ring[:2], "DEPBAR.LE SB0, 0x0", *ring[2:], "@P1 BRA 0", "EXIT"))
    assert (none.beside, none.of) == (0, 3)


def test_code_that_was_not_executed_is_left_out() -> None:
    program = _program(*LOOP, WAIT_0, "@P1 BRA 0", "EXIT")
    assert overlaps(program, np.zeros(8, np.int64)) == ()
    assert overlaps(program, np.ones(8, np.int64)) == overlaps(program)


def test_code_without_products_has_no_overlap() -> None:
    assert overlaps(_program("MUFU.EX2 R1", "@P0 BRA 0", "EXIT")) == ()
