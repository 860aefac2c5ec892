"""Compute the figures that ship with Attune: `attune variants --renew`.

For one GPU of each compute capability: every rung with its default config and every kernel that
`auto` compares, in FP16 with D = 64 and no mask, the app's initial problem; for three GPUs also
with D = 128 and causal. A kernel's figures are valid for any B and H, and for any S, except for
v12, which keeps all keys on chip. Compiled kernels and simulated times are cached on disk, so a
later run only does what is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product

from engine.attention.config import TunedConfig
from engine.attention.plan import resources
from engine.attention.problem import Problem
from engine.base.errors import AttuneError
from engine.choose.auto.choice import candidates_for
from engine.choose.auto.renew import GPUS, HEADS, LENGTHS
from engine.cuda_source.nvrtc import toolchain
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.history import History, shipped
from engine.history.ctas import REGIMES, find, name_of
from engine.history.shipped import ShippedFigures
from engine.kernel_figures.rung import count_tile, counts_path, request_of
from engine.model.kernel import Kernel, compile_plan, misfit_of, pass_reports
from kernels.ladder import LADDER

SHIPPED_GPUS = tuple(GPUS.values())
_WITH_MORE_SHAPES = ("L4", "A100 80GB SXM", "H200")


@dataclass(frozen=True)
class _Untuned(History):
    """A history without the user's tuned configs, which do not ship."""

    def tuned(self) -> list[TunedConfig]:
        return []


def renew(gpu: str, on_stage: Callable[[str], None] = lambda _: None) -> ShippedFigures:
    """Compute the figures of one GPU and write them.

    Raises:
        UnknownName: there is no such GPU.
        ToolMissing: there is no compiler, or no nvdisasm.
        OSError: the files cannot be written.
    """
    device, compiler = find_device(gpu), toolchain().exact_name
    wanted = _wanted(device)
    found = ShippedFigures()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, figures in enumerate(pool.map(lambda each: _figures(*each), wanted), 1):
            found.add(figures)
            on_stage(f"{device.name}: {done} of {len(wanted)}")
    today = datetime.now(UTC).date().isoformat()
    shipped.write(device.name, compiler, today, found)
    return found


def shapes_of(gpu: str) -> list[tuple[int, bool]]:
    """Return head dimensions and masks for which a GPU's figures ship."""
    more = gpu in _WITH_MORE_SHAPES
    return [(64, False), *([(64, True), (128, False), (128, True)] if more else [])]


def _wanted(device: DeviceSpec) -> list[tuple[Kernel, Problem]]:
    """Return the kernels, each with problems for which its figures may differ."""
    wanted: dict[tuple[Kernel, Problem], None] = {}
    for seqlen, (head_dim, causal) in product(LENGTHS, shapes_of(device.name)):
        problem = Problem(1, 1, seqlen, head_dim, causal)
        kernels = [
            Kernel.of(v, device, request_of(v, problem, device.name).config)
            for v in LADDER
            if v.min_compute_capability <= device.compute_capability
        ]
        for heads in HEADS:
            kernels += candidates_for(replace(problem, num_heads=heads), device, _Untuned())
        wanted |= dict.fromkeys((kernel, problem) for kernel in kernels)
    return list(wanted)


def _figures(kernel: Kernel, problem: Problem) -> ShippedFigures:
    """Return the figures of one kernel; none if it cannot run or be simulated."""
    found = ShippedFigures()
    try:
        plan = kernel.plan(problem)
        compiled = compile_plan(plan, kernel.device.arch)
        passes = pass_reports(kernel, plan, resources(plan, compiled))
        if misfit_of(kernel, passes):
            return found
        History().estimate_plan(kernel, plan, compiled)
        counts = count_tile(kernel.variant, plan, compiled)
    except AttuneError:
        return found
    found.add_report(compiled)
    found.counts[counts_path(plan, compiled).name] = asdict(counts)
    resident = passes[0].occupancy.ctas_per_sm
    for regime in REGIMES:
        name = name_of(kernel.variant, plan, compiled, kernel.device, resident, regime)
        if (ctas := find(name)) is not None:
            found.ctas[name] = asdict(ctas)
    return found
