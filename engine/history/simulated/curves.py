"""CTA times of one problem or of many, for the latency equations: simulated now, or found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.errors import AttuneError
from engine.compiled_plan import cached_kernel, compile_plan
from engine.cuda_source import CompiledKernel
from engine.cuda_source.cache import write_entry
from engine.devices.spec import DeviceSpec
from engine.history.simulated.persistent import PersistentCtas
from engine.history.simulated.simulate import simulate
from engine.history.simulated.store import REGIMES, KernelCtas, find, known_ctas, path_of
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US, kept_l2_bytes
from engine.model.equations import CtaCurve
from engine.model.estimate import SimulatedOf
from engine.model.launches import Launches, collect, traffic_by_order
from engine.model.occupancy import IntArray
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from kernels.variant import Config, Variant

FloatArray: TypeAlias = npt.NDArray[np.float64]
_MOST_BATCHES = 5  # at which the order of a curve's CTAs is looked at


def simulated_of(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec
) -> SimulatedOf:
    """CTA times of a kernel: simulated now, or found simulated before.

    Takes about a second the first time; without nvdisasm, a C++ compiler or figures of the GPU, and
    where the machine code cannot be run, there are none and the roofline stays.

    Args:
        compiled: `plan`'s kernel for `device`.
    """

    known = known_simulated_of(variant, plan, compiled, device)

    def curve(resident: int, launches: Launches) -> CtaCurve | None:
        if (curve := known(resident, launches)) is not None:
            return curve
        try:
            simulated = simulate(variant, plan, compiled, device, resident)
        except AttuneError:
            return None
        for regime, ctas in simulated.items():
            path = path_of(variant, plan, compiled, device, resident, regime)
            write_entry(path, json.dumps(asdict(ctas)).encode())
        return known(resident, launches)

    return curve


def known_simulated_of(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec
) -> SimulatedOf:
    """`simulated_of` of what was simulated before, for a page that follows a slider."""

    def curve(resident: int, launches: Launches) -> CtaCurve | None:
        ctas = known_ctas(variant, plan, compiled, device, resident)
        if ctas is None:
            return None
        moved = traffic_by_order(variant, plan, device, resident)
        dram_bytes = None if moved is None else np.array([moved.dram_bytes])
        return _curve(ctas, variant, plan.config, launches, device, dram_bytes)

    return curve


def _curve(
    ctas: KernelCtas,
    variant: Variant,
    config: Config,
    launches: Launches,
    device: DeviceSpec,
    dram_bytes: FloatArray | None = None,
) -> CtaCurve:
    if isinstance(ctas, PersistentCtas):
        return ctas.curve(variant, config, launches, device, dram_bytes)
    return ctas.curve(config, launches, device, dram_bytes)


def known_batch_curve(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    problem: Problem,
    launches: Launches,
    resident: IntArray,
) -> CtaCurve | None:
    """The CTA times of `problem` at many batches, where its kernel was simulated before.

    Args:
        launches: the problem's, at each batch.
        resident: CTAs per SM of each pass, `[passes, n]`; the batch does not change them.
    """
    plan = make_plan(variant, replace(problem, batch=1), config)
    compiled = cached_kernel(plan, device.arch)
    held = int(resident[0, 0])
    if compiled is None:
        return None
    is_alone = 2 * launches.ctas[0] <= (device.num_sms or 1)
    parts, spread = np.zeros((3, launches.size)), 0.0
    for regime, there in zip(REGIMES, (is_alone, ~is_alone), strict=True):
        known = find(path_of(variant, plan, compiled, device, held, regime))
        if known is None:
            return None
        spread = known.spread
        if there.any():
            curve = _curve(known, variant, config, launches.take(there), device)
            parts[:, there] = curve.cta_us, curve.added_us, curve.sm_us
    return CtaCurve(
        cta_us=parts[0],
        added_us=parts[1],
        sm_us=parts[2],
        spread=spread,
        floor_us=LAUNCH_FLOOR_US,
        dram_bytes=_dram_bytes(variant, config, device, problem, launches, held),
    )


def simulated_batch_curve(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    problem: Problem,
    launches: Launches,
    resident: IntArray,
) -> CtaCurve | None:
    """`known_batch_curve`, of a kernel that is compiled and simulated first where it was not."""
    plan = make_plan(variant, replace(problem, batch=1), config)
    with suppress(AttuneError):  # the roofline needs no more than what it compiles itself
        compiled = compile_plan(plan, device.arch)
        first = collect(variant, config, [plan.problem])
        simulated_of(variant, plan, compiled, device)(int(resident[0, 0]), first)
    return known_batch_curve(variant, config, device, problem, launches, resident)


def _dram_bytes(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    problem: Problem,
    launches: Launches,
    held: int,
) -> FloatArray | None:
    """By the order of CTAs, at some of the batches that L2 does not hold; straight in between."""
    kept_bytes = kept_l2_bytes(device.arch, device.l2_bytes or 0)
    beyond = np.flatnonzero(launches.device_bytes > kept_bytes)
    moved = np.zeros(launches.size)
    if len(beyond) == 0:
        return moved
    last = len(beyond) - 1
    looked_at = beyond[np.unique(np.geomspace(1, last + 1, _MOST_BATCHES).astype(np.int64) - 1)]
    at = []
    for batch in launches.batch[looked_at].tolist():
        plan = make_plan(variant, replace(problem, batch=int(batch)), config)
        if (traffic := traffic_by_order(variant, plan, device, held)) is None:
            return None
        at.append(traffic.dram_bytes)
    batches = launches.batch[looked_at]
    moved[beyond] = np.interp(launches.batch[beyond], batches, np.array(at))
    return moved


def known_curve(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    problems: Sequence[Problem],
    resident: IntArray,
) -> CtaCurve | None:
    """The CTA times of several problems, as far as they were simulated before; None unless all.

    Args:
        resident: CTAs per SM of each problem's main pass, `[n]`.
    """
    curves = []
    for problem, ctas in zip(problems, resident.tolist(), strict=True):
        plan = make_plan(variant, problem, config)
        compiled = cached_kernel(plan, device.arch)
        if compiled is None:
            return None
        known = known_simulated_of(variant, plan, compiled, device)
        curve = known(ctas, collect(variant, config, [problem]))
        if curve is None:
            return None
        curves.append(curve)
    return CtaCurve.joined(curves) if curves else None
