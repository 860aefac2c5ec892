"""What to evaluate, with its names resolved: variant, config, target GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from engine.backends.base import Schedule
from engine.config import ResolvedConfig, resolve_config
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.input_kinds import NORMAL, InputKind
from engine.names import find_variant, variant_from
from engine.problem import Problem
from engine.schema import Stored
from kernels.variant import Variant

BackendChoice: TypeAlias = Literal["auto", "cpu", "cuda"]
Partial: TypeAlias = Literal["auto", "always", "never"]
Effort: TypeAlias = Literal["full", "quick", "none"]


@dataclass(frozen=True, slots=True)
class EvaluationRequest(Stored):
    """What to evaluate. Missing tunables take their tuned or default values (`engine.config`).

    `gpu=None` means the local GPU.
    """

    variant: str
    problem: Problem
    config: Mapping[str, int] = field(default_factory=dict)
    gpu: str | None = None
    backend: BackendChoice = "auto"
    check: bool = False
    schedule: Schedule = "in_order"
    seed: int = 0
    timeout_s: float = 60.0
    input_kind: InputKind = NORMAL
    # Whether the CPU backend executes a few CTAs alone. "auto": where all of them do not fit in
    # memory or would take far longer than the time limit.
    partial: Partial = "auto"
    execute: bool = True  # False: compile, occupancy and prediction only
    # What is measured on a GPU. "quick": the warm device time alone, in few rounds and without the
    # baselines. "none": nothing; the output is checked all the same.
    effort: Effort = "full"


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """The request with its names resolved."""

    variant: Variant
    config: dict[str, int]
    device: DeviceSpec | None
    device_reason: str  # why there is no device
    config_origin: ResolvedConfig  # where each value of `config` comes from

    @property
    def arch(self) -> str:
        """What a CPU build says the GPU is: the target, else the least that the variant needs."""
        major, minor = self.variant.min_compute_capability
        plain = self.device.arch if self.device is not None else f"sm_{major}{minor}"
        return f"{plain}a" if self.variant.arch_specific else plain


def resolve(request: EvaluationRequest, source: Path | None = None) -> ResolvedRequest:
    """Look up the names of a request.

    Args:
        source: a `.cu` file to take in place of the variant's own, description included.

    Raises:
        UnknownName: the variant or GPU is not in its list.
        InvalidKernel: there is a mistake in the kernel's description.
    """
    name = request.variant
    variant = find_variant(name) if source is None else variant_from(source, name)
    device, why = _device(request)
    config = resolve_config(
        variant, request.config, request.problem, device.name if device is not None else None
    )
    return ResolvedRequest(variant, config.values, device, why, config)


def _device(request: EvaluationRequest) -> tuple[DeviceSpec | None, str]:
    """The target GPU, or the sentence why there is none."""
    from engine.devices.detect import detect_local

    local = detect_local()
    if request.gpu is None:
        return (None, local) if isinstance(local, str) else (local.spec, "")
    named = find_device(request.gpu)
    # Of this machine's own GPU the driver knows more than the table.
    if not isinstance(local, str) and local.spec.name == named.name:
        return local.spec, ""
    return named, ""
