"""Where the machine code and the host build of one source differ: by element, line, instruction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.backends.base import RunOptions, RunResult
from engine.backends.cpu import CpuBackend
from engine.backends.machine_code import MachineCodeBackend
from engine.correctness import check_output
from engine.plan import LaunchPlan
from engine.tensors import Inputs, decode


def disagreement(
    host: CpuBackend,
    executed: MachineCodeBackend,
    plan: LaunchPlan,
    inputs: Inputs,
    options: RunOptions,
    result: RunResult,
) -> str:
    """What the host build says of a kernel whose machine code gave a wrong output.

    Args:
        result: of the machine code, with its output.

    Returns:
        One or two sentences; empty where the host build cannot be had.
    """
    found = host.run(plan, inputs, replace(options, check=False, repeat=False))
    if found.out is None or result.out is None:
        return f"The host build of the same source ends otherwise: {found.reason}".strip()
    ours, theirs = (decode(out, plan.problem.dtype) for out in (result.out, found.out))
    verdict = check_output(inputs, found, plan=plan)
    off = np.abs(ours - theirs)
    differing = np.argwhere(~(off <= verdict.tolerance))  # NaN differs from anything
    if not verdict.passed:
        if not len(differing):
            return (
                "The host build of the same source errs in the same elements: look at the source."
            )
        said = "is wrong, too, in another way"
    else:
        said = "is right"
    batch, head, row, column = (int(n) for n in differing[0])
    where = (batch, head, row, column)
    text = (
        f"The host build of the same source {said}: {len(differing):,} elements differ by more "
        f"than {verdict.tolerance:.3g}, first (batch {batch}, head {head}, row {row}, column "
        f"{column}): {ours[where]:.6g} by machine code, {theirs[where]:.6g} by the host build."
    )
    place = _place(plan, where)
    writer = executed.writer_of(plan, inputs, options, place) if place is not None else None
    if writer is not None:
        text += f" {writer} writes that element."
    return text


def _place(plan: LaunchPlan, where: tuple[int, int, int, int]) -> int | None:
    """The element's number in memory; None in a layout that is not known here."""
    batch, head, row, column = where
    p = plan.problem
    match plan.layouts.get("out", "bhsd"):
        case "bhsd":
            return ((batch * p.num_heads + head) * p.seqlen + row) * p.value_dim + column
        case "bshd":
            return ((batch * p.seqlen + row) * p.num_heads + head) * p.value_dim + column
        case _:
            return None
