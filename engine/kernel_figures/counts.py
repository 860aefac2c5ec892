"""What a kernel executes for a tile of scores, counted by running two CTAs of its machine code.

The two differ in the keys that they visit alone; their difference is the steady state, whatever is
done once per CTA left out. Figures are for 64 query rows and 64 keys, so that rungs with tiles of
different sizes can be compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.errors import InvalidProblem
from engine.cuda_source.cache import cache_root, read_entry, write_entry
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from kernels.variant import Config, Variant

if TYPE_CHECKING:
    from engine.cuda_source import CompiledKernel

_TILE = 64 * 64  # scores
_KEYS = (256, 512, 1024, 2048, 4096, 8192, 16384)
_SHUFFLES = ("SHFL", "MOVM")  # wavefronts of their own, which are no access
_FORMAT = 1
FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TileCounts:
    """Counted, for 64 query rows and 64 keys; instructions are a warp's."""

    by_pipe: Mapping[str, float]  # instructions
    wavefronts: float  # of shared memory
    ideal_wavefronts: float  # without bank conflicts
    code: int  # instructions of the whole kernel, each once

    @property
    def instructions(self) -> float:
        return sum(self.by_pipe.values())

    @property
    def conflicts(self) -> float:
        """Shared-memory wavefronts for each one that is needed; 1 without conflicts."""
        return self.wavefronts / self.ideal_wavefronts if self.ideal_wavefronts else 1.0


def count_tile(variant: Variant, plan: LaunchPlan, compiled: CompiledKernel) -> TileCounts:
    """Count the main pass, or read what was counted before.

    Raises:
        CompileError, InvalidProblem, ToolMissing: as `engine.machine_code.analysis.analyse`.
    """
    known = known_tile_counts(plan, compiled)
    if known is not None:
        return known
    counts = _count(variant, plan, compiled)
    write_entry(_path(plan, compiled), json.dumps(asdict(counts)).encode())
    return counts


def known_tile_counts(plan: LaunchPlan, compiled: CompiledKernel) -> TileCounts | None:
    """What was counted before; None where nothing was."""
    try:
        return _read(_path(plan, compiled))
    except (LookupError, ValueError, TypeError):  # not there, or damaged: it is counted again
        return None


@lru_cache(maxsize=128)
def _read(path: Path) -> TileCounts:
    """Raises where nothing is, which is not kept: another process may count it meanwhile."""
    if (payload := read_entry(path)) is None:
        raise LookupError(path)
    return TileCounts(**json.loads(payload))


def _path(plan: LaunchPlan, compiled: CompiledKernel) -> Path:
    decodes = plan.problem.seqlen_kv is not None
    # The number of queries matters where it is short of a tile.
    rows = min(plan.problem.seqlen, 4 * plan.query_rows) if decodes else 0
    entry = plan.problem.main_of(plan.passes).entry
    key = json.dumps([_FORMAT, compiled.key, entry, decodes, rows])
    digest = hashlib.sha256(key.encode()).hexdigest()
    return cache_root() / "sass" / digest[:2] / f"{digest}-tile"


def _count(variant: Variant, plan: LaunchPlan, compiled: CompiledKernel) -> TileCounts:
    from engine.compiled_plan import launch_of_pass
    from engine.machine_code.analysis import disassembled
    from engine.machine_code.cubin import read_cubin
    from engine.machine_code.disassembly import find_entry
    from engine.machine_code.emulation import EXECUTED, IDEAL_WAVEFRONTS, WAVEFRONTS, Emulator

    cubin = read_cubin(compiled.cubin)
    number = plan.problem.main_of(range(len(plan.passes)))
    name = plan.passes[number].entry
    entry = find_entry(cubin, compiled.symbols.get(name, name))
    program = disassembled(cubin).program(entry.name)

    def longest_cta(at: LaunchPlan) -> FloatArray:
        """Of the first and the last CTA: where a mask leaves one of them little, the other."""
        launch = launch_of_pass(at, number)
        emulator = Emulator(program, entry, launch)
        last = (launch.grid[0] - 1, launch.grid[1] - 1, launch.grid[2] - 1)
        ends = [emulator.totals(cta).values for cta in dict.fromkeys([(0, 0, 0), last])]
        longest = max(ends, key=lambda values: int(values[:, EXECUTED].sum()))
        return longest.astype(np.float64)

    plans = _two_lengths(variant, plan.problem, plan.config)
    # Backward a CTA of the main pass owns keys, and all queries come by.
    rows = [
        p.problem.seqlen * p.problem.head_group
        if p.is_backward
        else variant.work.kv_rows(p.problem, p.config)
        for p in plans
    ]
    values = longest_cta(plans[-1])
    visited = rows[-1]
    if len(plans) > 1:  # else there is no loop over keys
        values -= longest_cta(plans[0])
        visited -= rows[0]
    own = variant.work.kv_rows if plan.is_backward else variant.work.query_rows
    values *= _TILE / (visited * own(plans[-1].problem, plan.config))
    executed = values[:, EXECUTED]
    opcodes = np.array([i.opcode for i in program.instructions])
    pipes = np.array([i.pipe.value for i in program.instructions])
    in_shared = ~np.isin(opcodes, _SHUFFLES)
    return TileCounts(
        by_pipe={str(p): float(executed[pipes == p].sum()) for p in np.unique(pipes)},
        wavefronts=float(values[in_shared, WAVEFRONTS].sum()),
        ideal_wavefronts=float(values[in_shared, IDEAL_WAVEFRONTS].sum()),
        code=len(program.instructions),
    )


def _two_lengths(variant: Variant, problem: Problem, config: Config) -> list[LaunchPlan]:
    """Plans whose CTAs visit different numbers of keys; the problem's own where that is fixed."""
    group = problem.head_group
    small = replace(problem, num_heads=group, num_heads_kv=1)
    plans: dict[int, LaunchPlan] = {}
    for keys in _KEYS:
        longer = (
            replace(small, seqlen=keys, seqlen_kv=None)
            if problem.direction == "backward"
            else small.with_keys(keys)
        )
        try:
            plan = make_plan(variant, longer, config)
        except InvalidProblem:
            break
        visits = keys if plan.is_backward else variant.work.kv_rows(longer, config)
        plans.setdefault(visits, plan)
        if len(plans) == 2:
            return list(plans.values())
    one = small if small.seqlens is not None else replace(small, batch=1)
    return [make_plan(variant, one, config)]
