"""Which short problems stand for a kernel's: CTAs of few lengths, and their traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from engine.errors import InvalidProblem
from engine.model.simulated.heaviest import heaviest_cta
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from engine.sass.cubin import Entry
from engine.sass.emulation import Emulator
from engine.sass.instruction import Program
from engine.sass.launch import launch_of_pass
from engine.sass.trace import CtaTrace
from kernels.variant import Config, Variant

# K/V rows of the CTAs. How many of them overlap on an SM settles after some tiles, and varies from
# tile to tile: long CTAs tell it better, as far as they are quick to simulate.
ROWS = (128, 512, 2048)
_MOST_INSTRUCTIONS = 120_000  # of the longest CTA; where even 512 rows take more, 256 do
_FEWEST_ROWS = 256
_LONGEST_SEQLEN = 1 << 15


def plans_of(
    variant: Variant, problem: Problem, config: Config, rows: Sequence[int]
) -> tuple[LaunchPlan, ...]:
    """Plans whose CTAs visit about so many K/V rows; the problem's own where that is fixed."""
    plans = tuple(_plans(variant, problem, config, rows))
    if len({variant.work.kv_rows(p.problem, config) for p in plans}) > 1:
        return plans
    return (make_plan(variant, problem, config),)


def _plans(
    variant: Variant, problem: Problem, config: Config, rows: Sequence[int]
) -> Iterator[LaunchPlan]:
    seqlen = 128
    for least in rows:
        while seqlen <= _LONGEST_SEQLEN:
            # Decoding keeps its few queries; otherwise queries and keys are of one length.
            if problem.seqlen_kv is None:
                short = replace(problem, batch=1, seqlen=seqlen)
            else:
                short = replace(problem, batch=1, seqlen_kv=seqlen)
            try:
                plan = make_plan(variant, short, config)
            except InvalidProblem:
                return
            if variant.work.kv_rows(short, config) >= least:
                yield plan
                break
            seqlen *= 2


def longest_ctas(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan
) -> dict[float, CtaTrace]:
    """{K/V rows that it visits, ascending: a CTA's trace}, of that corner of the grid that executes
    most (a causal kernel's last tile)."""
    problem, config = plan.problem, plan.config
    traces: dict[float, CtaTrace] = {}

    def add(rows: int) -> int:
        """Instructions of its longest CTA."""
        at = (ROWS[0], rows) if traces else (rows, ROWS[-1])
        short = plans_of(variant, problem, config, at)[-1 if traces else 0]
        emulator = Emulator(program, entry, launch_of_pass(short, 0))
        trace = heaviest_cta(emulator)
        traces[float(variant.work.kv_rows(short.problem, config))] = trace
        return len(trace.instruction)

    executed = add(ROWS[0])
    for before, rows in pairwise(ROWS):
        if executed * rows > _MOST_INSTRUCTIONS * before:
            break
        executed = add(rows)
    if len(traces) == 1:
        add(_FEWEST_ROWS)
    return traces
