"""CTA times of one problem or of many, for the latency equations: simulated now, or found."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.errors import AttuneError
from engine.compiled_plan import cached_kernel
from engine.cuda_source import CompiledKernel
from engine.cuda_source.cache import write_entry
from engine.devices.spec import DeviceSpec
from engine.history.simulated.persistent import PersistentCtas
from engine.history.simulated.simulate import simulate
from engine.history.simulated.store import REGIMES, KernelCtas, find, known_ctas, path_of
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US, kept_l2_bytes
from engine.model.equations import CtaCurve
from engine.model.kernel import Kernel
from engine.model.launches import Launches, collect, traffic_by_order
from engine.model.occupancy import IntArray
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from kernels.variant import Config, Variant

FloatArray: TypeAlias = npt.NDArray[np.float64]
_MOST_BATCHES = 5  # at which the order of a curve's CTAs is looked at


def known_launch_curve(
    kernel: Kernel, plan: LaunchPlan, compiled: CompiledKernel, resident: int
) -> CtaCurve | None:
    """CTA times of one launch, as far as its kernel was simulated before; milliseconds.

    Args:
        compiled: `plan`'s kernel for the GPU.
        resident: CTAs of the main pass per SM.
    """
    ctas = known_ctas(kernel.variant, plan, compiled, kernel.device, resident)
    if ctas is None:
        return None
    moved = traffic_by_order(kernel.variant, plan, kernel.device, resident)
    dram_bytes = None if moved is None else np.array([moved.dram_bytes])
    launches = collect(kernel.variant, plan.config, [plan.problem])
    return _curve(ctas, kernel.variant, plan.config, launches, kernel.device, dram_bytes)


def launch_curve(
    kernel: Kernel, plan: LaunchPlan, compiled: CompiledKernel, resident: int
) -> CtaCurve | None:
    """`known_launch_curve`, of a kernel that is simulated first where it was not.

    Takes about a second the first time; without nvdisasm, a C++ compiler or figures of the GPU, and
    where the machine code cannot be run, there is none and the roofline stays.
    """
    known = known_launch_curve(kernel, plan, compiled, resident)
    if known is not None:
        return known
    try:
        simulated = simulate(kernel.variant, plan, compiled, kernel.device, resident)
    except AttuneError:
        return None
    for regime, ctas in simulated.items():
        path = path_of(kernel.variant, plan, compiled, kernel.device, resident, regime)
        write_entry(path, json.dumps(asdict(ctas)).encode())
    return known_launch_curve(kernel, plan, compiled, resident)


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
    kernel: Kernel, problem: Problem, launches: Launches, resident: IntArray
) -> CtaCurve | None:
    """The CTA times of `problem` at many batches, where its kernel was simulated before.

    Args:
        launches: the problem's, at each batch.
        resident: CTAs per SM of each pass, `[passes, n]`; the batch does not change them.
    """
    variant, config, device = kernel.variant, kernel.config, kernel.device
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
        dram_bytes=_dram_bytes(kernel, problem, launches, held),
    )


def _dram_bytes(
    kernel: Kernel, problem: Problem, launches: Launches, held: int
) -> FloatArray | None:
    """By the order of CTAs, at some of the batches that L2 does not hold; straight in between."""
    variant, config, device = kernel.variant, kernel.config, kernel.device
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
