"""Registers and shared memory of a variant on a GPU, for any problem, compiled once per kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from engine.devices.spec import DeviceSpec
from engine.evaluation import Resources
from engine.pipeline.request import target_arch
from engine.plan import make_plan
from engine.problem import Problem
from kernels.variant import Config, Variant

# Resources of each pass for a problem, as compiled for the device at hand.
Footprint: TypeAlias = Callable[[Problem], tuple[Resources, ...]]
# Where footprints come from: the compiler, or a stand-in where there is none.
FootprintOf: TypeAlias = Callable[[Variant, Config, DeviceSpec], Footprint]


def compiled_footprint(variant: Variant, config: Config, device: DeviceSpec) -> Footprint:
    """Resources by the real compiler for the device's arch; no GPU needed.

    The footprint raises what the compiler raises: CompileError, ToolMissing, UnknownName, and
    InvalidProblem where the variant does not take the problem.
    """
    compiled: dict[tuple[tuple[str, str], ...], tuple[Resources, ...]] = {}

    def footprint(problem: Problem) -> tuple[Resources, ...]:
        from engine.compile import compile_plan, resources

        # Everything the compiler sees of a problem is in the defines.
        key = variant.defines(problem, config)
        if key not in compiled:
            plan = make_plan(variant, problem, config)
            compiled[key] = resources(plan, compile_plan(plan, target_arch(variant, device)))
        return compiled[key]

    return footprint
