"""Evaluation requests: what to evaluate, the resolved names, and a quick `preview`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, TypeAlias

from engine.attention.config import ResolvedConfig, resolve_kernel, variant_from
from engine.attention.evaluation import Evaluation, Latency, PassReport
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import NORMAL, InputKind
from engine.backends.base import BackendName, RunOptions
from engine.base.errors import AttuneError, InvalidProblem, Status
from engine.base.memory import available_host_memory
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
from engine.model.kernel import Estimate, Kernel, cached_kernel, least_us
from engine.model.occupancy import ConfiguredVariant
from kernels.variant import AUTO, Variant

BackendChoice: TypeAlias = Literal["auto", "cpu", "cuda", "machine-code"]
Partial: TypeAlias = Literal["auto", "always", "never"]
Effort: TypeAlias = Literal["full", "quick", "none"]


@dataclass(frozen=True, slots=True)
class EvaluationRequest(Stored):
    """What to evaluate. Missing tunables take their tuned or default values (`attention.config`).

    `gpu=None` means the local GPU; the variant `auto` is chosen for problem and GPU
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
    # Whether the CPU backend executes only a few CTAs. "auto": if all of them do not fit in memory
    # or would take far longer than the time limit.
    partial: Partial = "auto"
    execute: bool = True  # False: compile, occupancy and prediction only
    # What is measured on a GPU. "quick": only the warm device time, in few rounds and without
    # baselines. "none": nothing, but the output is checked.
    effort: Effort = "full"
    # A config that spills registers, unlike the default one, is SKIPPED if its time would be
    # predicted: the cost of spills depends on caches, which predictions model least well.
    refuse_spills: bool = False
    # With the machine-code backend: a wrong output is not compared with a host build, which would
    # be native code of the kernel.
    software_only: bool = False
    # SM clock of predicted times in MHz, and its kind; None: the boost clock.
    clock_mhz: float | None = None
    clock: ClockKind = "boost"

    def run_options(self, arch: str, *, repeat: bool) -> RunOptions:
        """Return the options of a backend's run.

        Args:
            arch: `ResolvedRequest.arch`.
            repeat: run twice and compare bits.
        """
        return RunOptions(self.check, self.schedule, self.seed, self.timeout_s, repeat, arch)


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """The request with its names resolved."""

    variant: Variant
    device: DeviceSpec | None
    device_reason: str  # why `device` is None
    config_origin: ResolvedConfig  # the config, and where each value comes from
    choice: Choice | None = None  # if the request asks for `auto`

    @property
    def config(self) -> dict[str, int]:
        """Return the value of every tunable."""
        return self.config_origin.values

    @property
    def _configured(self) -> ConfiguredVariant:
        """Return variant, config and GPU, if there is one."""
        return ConfiguredVariant(self.variant, tuple(self.config.items()), self.device)

    @property
    def kernel(self) -> Kernel | None:
        """Return the kernel; None without a GPU, because nothing is predicted for a CPU."""
        return None if self.device is None else Kernel.of(self.variant, self.device, self.config)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on the choice of variant and config."""
        chosen = self.choice.note() if self.choice is not None else ""
        return (chosen, *self.config_origin.notes) if chosen else self.config_origin.notes

    def plan(self, problem: Problem) -> LaunchPlan:
        """Return the launch. Raises InvalidProblem if variant, config or GPU do not support the
        problem."""
        return self._configured.plan(problem)

    def unsupported(self, problem: Problem) -> str | None:
        """Return a sentence why it cannot run the problem, or None."""
        return self._configured.unsupported(problem)

    @property
    def arch(self) -> str:
        """Return the arch that a CPU build reports: the target's, else the lowest that the variant
        needs, but at least sm_80, whose tensor cores have BF16; for cubins, that of the first.

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
    """Resolve the names of a request.

    Args:
        history: the times that `auto` compares; None: no times of sessions.
        source: a `.cu` file to use instead of the variant's own, including its description.

    Raises:
        UnknownName: the variant or GPU is not in its list.
        InvalidKernel: there is a mistake in the kernel's description.
        InvalidProblem: it asks for `auto`, and there is no GPU to choose for.
    """
    device, why = _device(request.gpu)
    if device is not None and request.clock_mhz is not None:
        device = at_clock(device, request.clock_mhz, request.clock)
    name = request.variant
    of = name if name == AUTO or source is None else variant_from(source, name)
    auto = partial(choose, history=history)
    made = resolve_kernel(of, request.config, request.problem, device, auto)
    return ResolvedRequest(made.variant, device, why, made.config, made.choice)


def choose_backend(
    request: EvaluationRequest, device: DeviceSpec | None
) -> tuple[BackendName, str | None]:
    """Return where to execute, and the sentence why the requested backend cannot be used.

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
    """True if the evaluation would be measured on this machine's GPU."""
    if request.backend in ("cpu", "machine-code") or not request.execute:
        return False
    from engine.backends.cuda import why_not_cuda

    return why_not_cuda(find_device(request.gpu) if request.gpu else None) is None


def target_device(gpu: str | None) -> DeviceSpec | None:
    """Return the GPU with this name, or this machine's; None without one. Raises UnknownName."""
    return _device(gpu)[0]


def _device(gpu: str | None) -> tuple[DeviceSpec | None, str]:
    """Return the target GPU, or the sentence why there is none."""
    if gpu is not None:
        return target_gpu(gpu), ""
    local = spec.detect_local()
    return (None, local) if isinstance(local, str) else (local.spec, "")


# Check whether the evaluation fits in host memory, before anything is allocated.
#
# The figures are upper bounds of the memory that the pipeline uses at once, as multiples of tensor
# sizes where they grow with the problem; a test compares them with actual allocations.

# The user half of a 48-bit address space: the limit if the system reports none.
_ADDRESSABLE_BYTES = 1 << 47
# Interpreter, PyTorch and BLAS buffers that the first evaluation allocates.
_FIXED_BYTES = 384 << 20


def host_bytes_needed(plan: LaunchPlan, backend: BackendName) -> int:
    """Return the peak host memory of one evaluation, from inputs to correctness, in bytes."""
    problem = plan.problem
    output, kv = problem.tensor_bytes, max(problem.k_bytes, problem.v_bytes)
    inputs = output + 2 * kv
    # float32 originals of Q, K and V beside the rounded ones, and copies made by rounding.
    drawing = 3 * inputs + 8 * max(output, kv)
    # The child process has copies of Q, K, V and O in shared memory; a second output is compared.
    running = inputs + 2 * output
    if backend != "cuda":
        running += plan.device_bytes
    num_slices, num_rows = coverage_size(problem)
    covered = 8 * num_slices * num_rows * problem.head_dim
    total = problem.batch * problem.num_heads
    # Slices have one K/V head each: with GQA more than the problem has.
    repeated = output + 2 * kv * problem.head_group
    # SDPA runs on the covered slices: 16-bit copies of Q, K, V, its output, and a float32 copy of
    # that.
    sdpa = num_slices * (repeated + 3 * output) // total
    # One slice of Q, K and V in float64 (4 times its 16 bits), twice during conversion; the
    # diagnosis keeps a few slices.
    one_slice = (2 + MAX_CASES) * 4 * repeated // total
    # Reference and SDPA, computed while the kernel runs.
    expecting = sdpa + one_slice + 2 * covered
    # Reference, output, error, and temporaries of maps and statistics.
    checking = inputs + output + one_slice + 6 * covered
    return _FIXED_BYTES + max(drawing, running + expecting, checking)


def check_host_memory(
    plan: LaunchPlan,
    backend: BackendName,
    free_bytes: Callable[[], int | None] = available_host_memory,
) -> str | None:
    """Return one sentence why the evaluation does not fit in host memory, or None if it fits."""
    needed = host_bytes_needed(plan, backend)
    host = free_bytes()
    limit = _ADDRESSABLE_BYTES if host is None else host
    if needed <= limit:
        return None
    return (
        f"{plan.problem.label()} needs {format_bytes(needed)} of host memory (inputs, copies, "
        f"reference, SDPA) and {format_bytes(limit)} is free: choose a smaller batch, fewer heads "
        "or a shorter sequence."
    )


# The quick steps, for a page that follows a slider: no compile, no execution.

NO_RESOURCES = "No prediction without the compiled kernel's resources."


@dataclass(frozen=True)
class Preview:
    """What is known of a request without compiling or executing it.

    `unsupported` says why it cannot run. If `needs_compile` is True, registers are not in the
    compile cache yet, so occupancy and prediction wait for a compile.
    """

    variant: Variant
    config: dict[str, int]
    device: DeviceSpec | None
    plan: LaunchPlan | None
    unsupported: str | None
    estimate: Estimate | None  # None without a device, or without the compiled kernel
    latency_reason: str  # the limiting term, or why there is no latency
    needs_compile: bool

    @cached_property
    def memory(self) -> str | None:
        """Return why executing it on the CPU does not fit in free host memory, or None.

        The first read asks the system, which takes longer than the rest of the preview.
        """
        return check_host_memory(self.plan, "cpu") if self.plan is not None else None

    @property
    def passes(self) -> tuple[PassReport, ...]:
        """Return resources and occupancy of each pass; empty before the kernel is compiled."""
        return self.estimate.passes if self.estimate is not None else ()

    @property
    def latency(self) -> Latency | None:
        """Return the estimated latency; None if there is none."""
        return self.estimate.latency if self.estimate is not None else None

    @cached_property
    def bound_us(self) -> float | None:
        """Return the lower bound shown in place of a prediction: `Estimate.bound_us`, or the
        roofline's before the kernel is compiled."""
        if self.estimate is not None:
            return self.estimate.bound_us
        if self.plan is None or self.device is None or self.unsupported is not None:
            return None
        return least_us(Kernel.of(self.variant, self.device, self.config), self.plan)

    @property
    def predicted(self) -> Latency | None:
        """Return the latency as pages show it; None if only `bound_us` is known."""
        return self.latency if self.bound_us is None else None


def preview(request: EvaluationRequest, history: History | None = None) -> Preview:
    """Return what is known of a request within a few milliseconds, without compiling or executing
    it.

    Args:
        history: times known beforehand, which are only looked up; None: no times of sessions.

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
        plan = resolved.plan(request.problem)
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
    """Return a preview as an evaluation that was not executed; `reason` says why not.

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


# Simulate a kernel's CTAs before the previews and evaluations that use them.


def simulated_us(request: EvaluationRequest, history: History) -> float | None:
    """Return the request's simulated time; compile and simulate its kernel if that is not cached.

    Afterwards, previews and evaluations of the kernel on that GPU, for any problem, predict by
    machine code. The first call takes about a second, later ones a few milliseconds.

    Returns:
        The time in µs; None without a GPU, a compiler, nvdisasm or figures of the GPU, or if the
        code cannot be executed.
    """
    try:
        kernel = resolve(request, history).kernel
        if kernel is None:
            return None
        predicted = history.doing("simulate").estimate(kernel, request.problem)
    except AttuneError:  # an evaluation of the request reports the error
        return None
    return predicted.latency.median_us if predicted.by_machine_code and predicted.latency else None
