"""Evaluation requests: what to evaluate, the resolved names, and a quick `preview`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from engine.attention.config import (
    ConfigOrigin,
    ResolvedConfig,
    find_variant,
    resolve_config,
    variant_from,
)
from engine.attention.evaluation import Evaluation, Latency, PassReport
from engine.attention.plan import LaunchPlan, cached_kernel
from engine.attention.problem import Problem
from engine.attention.tensors import NORMAL, InputKind
from engine.backends.base import BackendName
from engine.base.errors import AttuneError, InvalidProblem, Status
from engine.base.host_memory import available_host_memory
from engine.base.schema import Stored
from engine.base.units import format_bytes
from engine.choose.auto import Choice, choose
from engine.correctness.reference import coverage_size
from engine.correctness.suspected_bugs import MAX_CASES
from engine.cuda_on_host.client import Schedule
from engine.devices import find_device, spec, target_gpu
from engine.devices.spec import ClockKind, DeviceSpec, at_clock
from engine.history import History
from engine.machine_code.cubin_files import read_cubin_file
from engine.model.kernel import Estimate, Kernel, launch_plan, least_us
from kernels.variant import AUTO, Variant

BackendChoice: TypeAlias = Literal["auto", "cpu", "cuda", "machine-code"]
Partial: TypeAlias = Literal["auto", "always", "never"]
Effort: TypeAlias = Literal["full", "quick", "none"]


@dataclass(frozen=True, slots=True)
class EvaluationRequest(Stored):
    """What to evaluate. Missing tunables take their tuned or default values (`attention.config`).

    `gpu=None` means the local GPU; the variant `auto` is the one chosen for problem and GPU
    (`engine.choose.auto`).
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
    # A config that spills registers, unlike the default one, is SKIPPED if its time would be
    # predicted: the cost of spills depends on caches, which predictions model least well.
    refuse_spills: bool = False
    # With the machine-code backend: a wrong output is not compared with a host build, which would
    # be native code of the kernel.
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
    def notes(self) -> tuple[str, ...]:
        """Notes on the choice of variant and config."""
        chosen = self.choice.note() if self.choice is not None else ""
        return tuple(filter(None, [chosen, self.config_origin.error]))

    @property
    def arch(self) -> str:
        """The arch that a CPU build reports. It is the target's, else the lowest that the variant
        needs but at least sm_80, whose tensor cores have BF16; for a cubin, the arch of the first
        one.

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
    if gpu is not None:
        return target_gpu(gpu), ""
    local = spec.detect_local()
    return (None, local) if isinstance(local, str) else (local.spec, "")


# Does it fit in host memory? Answered in one sentence before anything is allocated.
#
# The figures are upper estimates of what the pipeline holds at once, in units of the tensors where
# they grow with the problem; a test compares them with what is really allocated.

# The user half of a 48-bit address space; the only limit known where the system names none.
_ADDRESSABLE_BYTES = 1 << 47
# Interpreter, PyTorch and BLAS buffers that come with the first evaluation.
_FIXED_BYTES = 384 << 20


def host_bytes_needed(plan: LaunchPlan, backend: BackendName) -> int:
    """Host memory of one evaluation at its worst moment, from inputs to correctness."""
    problem = plan.problem
    output, kv = problem.tensor_bytes, max(problem.k_bytes, problem.v_bytes)
    inputs = output + 2 * kv
    # float32 originals of Q, K and V beside the rounded ones, and rounding's own copies.
    drawing = 3 * inputs + 8 * max(output, kv)
    # The child sees copies of Q, K, V and O in shared memory; a second run's output is compared.
    running = inputs + 2 * output
    if backend != "cuda":
        running += plan.device_bytes
    num_slices, num_rows = coverage_size(problem)
    covered = 8 * num_slices * num_rows * problem.head_dim
    total = problem.batch * problem.num_heads
    # As the slices have them, one K/V head each: with GQA more than there are.
    repeated = output + 2 * kv * problem.head_group
    # SDPA runs on the covered slices: 16-bit copies of Q, K, V, its output, and that in float32.
    sdpa = num_slices * (repeated + 3 * output) // total
    # One slice of Q, K and V in float64 (4 times its 16 bits), twice while it is converted; the
    # diagnosis keeps those of a few slices.
    one_slice = (2 + MAX_CASES) * 4 * repeated // total
    # Reference and SDPA, computed while the kernel runs.
    expecting = sdpa + one_slice + 2 * covered
    # Reference, output, error and what the maps and statistics make of them.
    checking = inputs + output + one_slice + 6 * covered
    return _FIXED_BYTES + max(drawing, running + expecting, checking)


def check_host_memory(plan: LaunchPlan, backend: BackendName) -> str | None:
    """Why the evaluation does not fit in host memory: one sentence, or None when it fits."""
    needed = host_bytes_needed(plan, backend)
    host = available_host_memory()
    limit = _ADDRESSABLE_BYTES if host is None else host
    if needed <= limit:
        return None
    return (
        f"{plan.problem.label()} needs {format_bytes(needed)} of host memory (inputs, copies, "
        f"reference, SDPA) and {format_bytes(limit)} is free: choose a smaller batch, fewer heads "
        "or a shorter sequence."
    )


# The quick part of the pipeline, for a page that follows a slider: no compile, no execution.

NO_RESOURCES = "No prediction without the compiled kernel's resources."


@dataclass(frozen=True)
class Preview:
    """What is known without compiling or running.

    `unsupported` is the sentence why this cannot run at all; `needs_compile` says that registers
    are not in the compile cache yet, so that occupancy and prediction wait for a compile.
    """

    variant: Variant
    config: dict[str, int]
    device: DeviceSpec | None
    plan: LaunchPlan | None
    unsupported: str | None
    estimate: Estimate | None  # None without a device, or without the compiled kernel
    latency_reason: str  # what binds, or why there is no latency
    needs_compile: bool

    @cached_property
    def memory(self) -> str | None:
        """Why executing it on the CPU does not fit in free host memory, or None.

        The system is asked when this is first read, which takes longer than all of the preview.
        """
        return check_host_memory(self.plan, "cpu") if self.plan is not None else None

    @property
    def passes(self) -> tuple[PassReport, ...]:
        return self.estimate.passes if self.estimate is not None else ()

    @property
    def latency(self) -> Latency | None:
        return self.estimate.latency if self.estimate is not None else None

    @cached_property
    def bound_us(self) -> float | None:
        """What stands in the place of a prediction: `Estimate.bound_us`, and before the kernel is
        compiled the roofline's."""
        if self.estimate is not None:
            return self.estimate.bound_us
        if self.plan is None or self.device is None or self.unsupported is not None:
            return None
        return least_us(Kernel.of(self.variant, self.device, self.config), self.plan)

    @property
    def predicted(self) -> Latency | None:
        """The latency as pages show it: None where no more than `bound_us` is known."""
        return self.latency if self.bound_us is None else None


def preview(request: EvaluationRequest, history: History | None = None) -> Preview:
    """The quick part of the pipeline: a few milliseconds, nothing compiled, nothing executed.

    Args:
        history: what is known beforehand, which is only looked up; None knows no times of sessions.

    Raises:
        UnknownName: the variant or GPU is not in its list.
        InvalidKernel: there is a mistake in the kernel's description.
    """
    history = history or History()
    if history.work != "look up":
        history = history.doing("look up")
    resolved = resolve(request, history)
    variant, device, kernel = resolved.variant, resolved.device, resolved.kernel
    plan: LaunchPlan | None = None
    result: Estimate | None = None
    unsupported: str | None = None
    needs_compile = False
    try:
        plan = launch_plan(variant, request.problem, resolved.config, device)
    except InvalidProblem as error:
        unsupported = str(error)
    if plan is not None and kernel is not None:
        compiled = history.report(kernel, plan)
        needs_compile = compiled is None
        if compiled is not None:
            result = history.estimate_plan(kernel, plan, compiled)
            unsupported = result.misfit or None
    return Preview(
        variant=variant,
        config=resolved.config,
        device=device,
        plan=plan,
        unsupported=unsupported,
        estimate=result,
        latency_reason=(
            result.reason if result else unsupported or resolved.device_reason or NO_RESOURCES
        ),
        needs_compile=needs_compile,
    )


def evaluation_of_preview(seen: Preview, reason: str) -> Evaluation:
    """A preview as an evaluation that was not executed; `reason` says why it was not.

    Raises:
        ValueError: the kernel is not compiled.
    """
    if seen.plan is None or seen.device is None:
        raise ValueError("there is no launch")
    compiled = cached_kernel(seen.plan, seen.device.arch)
    if compiled is None:
        raise ValueError("the kernel is not compiled")
    return Evaluation(
        status=Status.SKIPPED,
        reason=reason,
        variant=seen.variant.id,
        problem=seen.plan.problem,
        config=seen.config,
        device=seen.device.name,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        passes=seen.passes,
        latency=seen.latency,
        log=compiled.log,
        source_sha256=compiled.source_sha256,
        flags=compiled.flags,
    )


# A kernel's CTA time by its machine code, ahead of the previews and evaluations that use it.


def simulated_us(request: EvaluationRequest, history: History) -> float | None:
    """The request's time by machine code; its kernel is compiled and simulated where it was not.

    From then on previews and evaluations of the kernel on that GPU, of any problem, predict by
    machine code. Takes about a second the first time and a few milliseconds after that.

    Returns:
        None without a GPU, a compiler, nvdisasm or figures of the GPU, and of code that cannot be
        run.
    """
    try:
        kernel = resolve(request, history).kernel
        if kernel is None:
            return None
        predicted = history.doing("simulate").estimate(kernel, request.problem)
    except AttuneError:  # evaluating the request says what is wrong with it
        return None
    return predicted.latency.median_us if predicted.by_machine_code and predicted.latency else None
