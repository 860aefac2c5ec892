"""What to evaluate, with its names resolved: variant, config, target GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from engine.auto import Choice, choose
from engine.backends.base import BackendName
from engine.config import ConfigOrigin, ResolvedConfig, find_variant, resolve_config, variant_from
from engine.cuda_on_host.toolchain import Schedule
from engine.devices import find_device, spec
from engine.devices.spec import ClockKind, DeviceSpec, at_clock
from engine.history import History
from engine.machine_code.cubin_files import read_cubin_file
from engine.model.kernel import Kernel
from engine.problem import Problem
from engine.schema import Stored
from engine.tensors import NORMAL, InputKind
from kernels.variant import AUTO, Variant

BackendChoice: TypeAlias = Literal["auto", "cpu", "cuda", "machine-code"]
Partial: TypeAlias = Literal["auto", "always", "never"]
Effort: TypeAlias = Literal["full", "quick", "none"]


@dataclass(frozen=True, slots=True)
class EvaluationRequest(Stored):
    """What to evaluate. Missing tunables take their tuned or default values (`engine.config`).

    `gpu=None` means the local GPU; the variant `auto` is the one chosen for problem and GPU
    (`engine.auto`).
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
    # A config that spills registers, unlike the default one, is SKIPPED where its time would be
    # predicted: what spills cost hangs on caches, of which a prediction knows least.
    refuse_spills: bool = False
    # With the machine-code backend: no host build is set beside a wrong output, as that would be
    # native code of the kernel.
    software_only: bool = False
    # SM clock of predicted times in MHz, and what it is; None: the boost clock.
    clock_mhz: float | None = None
    clock: ClockKind = "boost"


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """The request with its names resolved."""

    variant: Variant
    device: DeviceSpec | None
    device_reason: str  # why there is no device
    config_origin: ResolvedConfig  # the config, and where each value comes from
    choice: Choice | None = None  # where the request asks for `auto`

    @property
    def config(self) -> dict[str, int]:
        return self.config_origin.values

    @property
    def kernel(self) -> Kernel | None:
        """None without a GPU: there is nothing to know beforehand of a launch on the CPU."""
        return None if self.device is None else Kernel.of(self.variant, self.device, self.config)

    @property
    def arch(self) -> str:
        """What a CPU build says the GPU is: the target, else the least that the variant needs, from
        sm_80 on, which has BF16 on its tensor cores; that of its first cubin, where it has one.

        Raises:
            InvalidCubin: that file cannot be read.
        """
        if self.device is None and self.variant.cubins:
            return read_cubin_file(self.variant.cubins[0]).arch
        major, minor = max(self.variant.min_compute_capability, (8, 0))
        plain = self.device.arch if self.device is not None else f"sm_{major}{minor}"
        return f"{plain}a" if self.variant.arch_specific else plain


def resolve(
    request: EvaluationRequest, history: History | None = None, source: Path | None = None
) -> ResolvedRequest:
    """Look up the names of a request.

    Args:
        history: the times that `auto` goes by; None knows none of sessions.
        source: a `.cu` file to take in place of the variant's own, description included.

    Raises:
        UnknownName: the variant or GPU is not in its list.
        InvalidKernel: there is a mistake in the kernel's description.
        InvalidProblem: it asks for `auto`, and there is no GPU to choose for.
    """
    name = request.variant
    device, why = _device(request.gpu)
    if device is not None and request.clock_mhz is not None:
        device = at_clock(device, request.clock_mhz, request.clock)
    if name == AUTO:
        choice = choose(request.problem, device, request.config, history)
        return ResolvedRequest(choice.variant, device, why, _origin(choice), choice)
    variant = find_variant(name) if source is None else variant_from(source, name)
    config = resolve_config(variant, request.config, request.problem, device)
    return ResolvedRequest(variant, device, why, config)


def _origin(choice: Choice) -> ResolvedConfig:
    origins: dict[str, ConfigOrigin] = {
        name: "given" if name in choice.given else "auto" for name in choice.config
    }
    return ResolvedConfig(choice.config, origins)


def choose_backend(
    request: EvaluationRequest, device: DeviceSpec | None
) -> tuple[BackendName, str | None]:
    """Where to execute, and the sentence why the backend that was asked for cannot be used.

    Args:
        device: the target GPU.
    """
    if request.backend in ("cpu", "machine-code"):
        return request.backend, None
    from engine.backends.cuda import why_not_cuda

    why = why_not_cuda(device)
    if request.backend == "cuda":
        return "cuda", why
    return ("cuda" if why is None else "cpu"), None


def runs_on_gpu(request: EvaluationRequest) -> bool:
    """Whether the evaluation would be measured on this machine's GPU."""
    if request.backend in ("cpu", "machine-code") or not request.execute:
        return False
    from engine.backends.cuda import why_not_cuda

    return why_not_cuda(find_device(request.gpu) if request.gpu else None) is None


def target_device(gpu: str | None) -> DeviceSpec | None:
    """The GPU of this name, or this machine's; None where it has none. Raises UnknownName."""
    return _device(gpu)[0]


def _device(gpu: str | None) -> tuple[DeviceSpec | None, str]:
    """The target GPU, or the sentence why there is none."""
    local = spec.detect_local()
    if gpu is None:
        return (None, local) if isinstance(local, str) else (local.spec, "")
    named = find_device(gpu)
    # Of this machine's own GPU the driver knows more than the table.
    if not isinstance(local, str) and local.spec.name == named.name:
        return local.spec, ""
    return named, ""
