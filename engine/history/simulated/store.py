"""Where simulated CTAs are kept, and how they are read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from engine.cuda_source import CompiledKernel, cache_root
from engine.cuda_source.cache import read_entry
from engine.devices.spec import DeviceSpec
from engine.history.simulated.ctas import SimulatedCtas
from engine.history.simulated.lengths import ROWS, plans_of
from engine.history.simulated.persistent import PersistentCtas
from engine.machine_code.analysis import code_digest
from engine.machine_code.timing.cta_times import CtaTimes
from engine.machine_code.timing.dispatch import SlotTimes
from engine.machine_code.timing.sm import Regime
from engine.plan import LaunchPlan
from kernels.variant import Variant

KernelCtas: TypeAlias = SimulatedCtas | PersistentCtas
REGIMES: tuple[Regime, ...] = ("alone", "shared")
_MOST_KEPT = 256
_VERSION = 23


def path_of(
    variant: Variant,
    plan: LaunchPlan,
    compiled: CompiledKernel,
    device: DeviceSpec,
    resident: int,
    regime: Regime,
) -> Path:
    """Where the result is kept: by cubin, GPU, residency, and what lengths and regime depend on."""
    gpu = [device.num_sms, device.boost_clock_mhz, device.fp16_tensor_tflops]
    lengths = []
    if variant.work.schedule is None:
        plans = plans_of(variant, plan.problem, plan.config, (ROWS[0], ROWS[-1]))
        lengths = [(p.problem.seqlen, p.problem.num_keys) for p in plans]
    key = [_VERSION, code_digest(), compiled.key, plan.passes[0].entry, device.arch, gpu, resident]
    key += [plan.problem.causal, lengths, regime]  # the mask may be an argument
    text = json.dumps([*key, plan.passes[0].dynamic_smem_bytes])
    return cache_root() / "sass" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.entry"


_kept: dict[Path, KernelCtas] = {}  # what was read; what is not there may come any time


def find(path: Path) -> KernelCtas | None:
    if (kept := _kept.get(path)) is not None:
        return kept
    if (payload := read_entry(path)) is None or (read := _read(payload)) is None:
        return None
    while len(_kept) >= _MOST_KEPT:
        _kept.pop(next(iter(_kept)), None)
    _kept[path] = read
    return read


def _read(payload: bytes) -> KernelCtas | None:
    try:
        fields: dict[str, Any] = json.loads(payload)
        if "times" not in fields:
            return PersistentCtas(
                counts=tuple(int(n) for n in fields["counts"]),
                costs=tuple(_floats(row) for row in fields["costs"]),
                mixed=tuple(_floats(row) for row in fields["mixed"]),
                first_work=_floats(fields["first_work"]),
                resident=int(fields["resident"]),
                fetch_cycles=float(fields["fetch_cycles"]),
                cycles_per_us=float(fields["cycles_per_us"]),
                spread=float(fields["spread"]),
            )
        times = fields["times"]
        return SimulatedCtas(
            times=CtaTimes(
                resident=int(times["resident"]),
                lengths=_floats(times["lengths"]),
                counts=tuple(int(n) for n in times["counts"]),
                cycles=tuple(_floats(row) for row in times["cycles"]),
                round_cycles=_floats(times["round_cycles"]),
                mixed_shares=_floats(times["mixed_shares"]),
                start_share=float(times["start_share"]),
                cta_spread=float(times["cta_spread"]),
                fetch_cycles=float(times["fetch_cycles"]),
            ),
            cycles_per_us=float(fields["cycles_per_us"]),
            spread=float(fields["spread"]),
            longest_first=bool(fields["longest_first"]),
            has_even_splits=bool(fields["has_even_splits"]),
            cut_keys=tuple(int(n) for n in fields["cut_keys"]),
            cut_cycles=tuple((float(one), float(full)) for one, full in fields["cut_cycles"]),
            slots=_slot_times(fields["slots"]),
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return None  # it is simulated again


def _slot_times(fields: dict[str, Any] | None) -> SlotTimes | None:
    if fields is None:
        return None
    return SlotTimes(
        tile=int(fields["tile"]),
        rows=tuple(int(n) for n in fields["rows"]),
        offsets=tuple(_floats(row) for row in fields["offsets"]),
        shifts=tuple(tuple(_floats(row) for row in sample) for sample in fields["shifts"]),
    )


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(x) for x in values)


def regime_of(plan: LaunchPlan, device: DeviceSpec) -> Regime:
    """Whether few or all SMs ask L2 for data. (What does not fit there is DRAM's term.)"""
    return "alone" if 2 * plan.passes[0].ctas <= (device.num_sms or 1) else "shared"


def known_ctas(
    variant: Variant, plan: LaunchPlan, compiled: CompiledKernel, device: DeviceSpec, resident: int
) -> KernelCtas | None:
    """The main pass's CTAs, by K/V rows; None where they were not simulated."""
    regime = regime_of(plan, device)
    return find(path_of(variant, plan, compiled, device, resident, regime))
