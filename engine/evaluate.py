"""The pipeline of one evaluation, in this order and nowhere else:

    problem + variant + config → constraints (SKIPPED with a sentence) → compile → resources
        → occupancy → run once on poisoned output → correctness (INCORRECT stops here)
        → measure, or predict where there is no GPU → evaluation

Callers: the command line, the job worker, tests. `preview` is the quick part of it for a page that
follows a slider: no compiler and no kernel runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from engine.backends.base import Backend, RunOptions, RunResult, Schedule
from engine.devices import find_device, limits_for
from engine.devices.spec import DeviceSpec
from engine.errors import AttuneError, CompileError, InvalidProblem, ToolMissing
from engine.evaluation import (
    BaselineTiming,
    Correctness,
    Evaluation,
    Execution,
    Latency,
    PassReport,
    Resources,
    Status,
)
from engine.memory import check_memory
from engine.model.latency import predict
from engine.model.occupancy import occupancy
from engine.names import find_variant
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from engine.tensors import InputKind, make_inputs
from kernels.variant import Variant

if TYPE_CHECKING:
    from engine.compile import CompiledKernel
    from engine.correctness.diagnose import ErrorMaps

BackendChoice: TypeAlias = Literal["auto", "cpu", "cuda"]
OnStage: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What to evaluate. Missing tunables take their defaults; `gpu=None` means the local GPU."""

    variant: str
    problem: Problem
    config: Mapping[str, int] = field(default_factory=dict)
    gpu: str | None = None
    backend: BackendChoice = "auto"
    check: bool = False
    schedule: Schedule = "in_order"
    seed: int = 0
    timeout_s: float = 60.0
    input_kind: InputKind = "normal"
    execute: bool = True  # False: compile, occupancy and prediction only

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "problem": Problem(**data["problem"])})


@dataclass(frozen=True, slots=True)
class EvaluationOutcome:
    """The evaluation, and its error maps when something was executed."""

    evaluation: Evaluation
    maps: ErrorMaps | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """What is known at once, without compiling or running.

    `unsupported` is the sentence why this cannot run at all; `memory` the one why it does not fit
    in memory; `needs_compile` says that registers are not in the compile cache yet, so that
    occupancy and prediction wait for a compile.
    """

    variant: Variant
    config: dict[str, int]
    device: DeviceSpec | None
    plan: LaunchPlan | None
    unsupported: str | None
    memory: str | None
    passes: tuple[PassReport, ...]
    latency: Latency | None
    latency_reason: str
    needs_compile: bool


@dataclass(frozen=True, slots=True)
class _Target:
    """The request with its names resolved."""

    variant: Variant
    config: dict[str, int]
    device: DeviceSpec | None
    device_reason: str  # why there is no device


def resolve_config(variant: Variant, config: Mapping[str, int]) -> dict[str, int]:
    """The variant's defaults, overridden by `config`; `unsupported` reports unknown names."""
    return {**variant.default_config(), **config}


def _resolve(request: EvaluationRequest) -> _Target:
    variant = find_variant(request.variant)
    config = resolve_config(variant, request.config)
    if request.gpu is not None:
        return _Target(variant, config, find_device(request.gpu), "")
    from engine.devices.detect import detect_local

    local = detect_local()
    if isinstance(local, str):
        return _Target(variant, config, None, local)
    return _Target(variant, config, local.spec, "")


def _unsupported(target: _Target, problem: Problem) -> str | None:
    """Constraints of variant, config, problem and arch, as one sentence."""
    why = target.variant.unsupported(problem, target.config)
    if why is not None or target.device is None:
        return why
    needed = target.variant.min_compute_capability
    has = target.device.compute_capability
    if has < needed:
        return (
            f"{target.variant.id} needs compute capability {needed[0]}.{needed[1]} and "
            f"{target.device.name} has {has[0]}.{has[1]}: choose another variant or GPU."
        )
    if target.variant.arch_specific and has != needed:
        return (
            f"{target.variant.id} uses instructions that exist on compute capability "
            f"{needed[0]}.{needed[1]} alone, and {target.device.name} has {has[0]}.{has[1]}: "
            "choose another variant or GPU."
        )
    return None


def target_arch(variant: Variant, device: DeviceSpec) -> str:
    """`sm_89`, or `sm_90a` for variants that need the arch-specific instructions."""
    return device.arch + ("a" if variant.arch_specific else "")


def pass_reports(
    plan: LaunchPlan, resources: tuple[Resources, ...], device: DeviceSpec
) -> tuple[PassReport, ...]:
    """Occupancy of every pass on `device`."""
    limits = limits_for(device.compute_capability)
    return tuple(
        PassReport(
            r,
            occupancy(
                limits,
                device.num_sms,
                launch.ctas,
                launch.threads,
                r.registers_per_thread,
                r.smem_bytes,
            ),
        )
        for launch, r in zip(plan.passes, resources, strict=True)
    )


def does_not_fit(passes: tuple[PassReport, ...], device: DeviceSpec) -> str | None:
    """Why not even one CTA fits on an SM, or None."""
    for p in passes:
        if p.occupancy.ctas_per_sm == 0:
            return f"{p.resources.entry} does not fit on {device.name}: {p.occupancy.reason}"
    return None


def _predict(
    target: _Target, problem: Problem, passes: tuple[PassReport, ...]
) -> tuple[Latency | None, str]:
    """The predicted latency, or the sentence why there is none."""
    if target.device is None or not passes:
        return (
            None,
            target.device_reason or "No prediction without the compiled kernel's resources.",
        )
    predicted = predict(
        target.variant,
        problem,
        target.config,
        target.device,
        tuple(p.resources for p in passes),
        tuple(p.occupancy for p in passes),
    )
    if isinstance(predicted, str):
        return None, predicted
    return predicted, predicted.reason


def preview(request: EvaluationRequest) -> Preview:
    """The quick part of the pipeline: a few milliseconds, nothing compiled, nothing executed.

    Raises:
        UnknownName: the variant or GPU is not in its list.
    """
    from engine.compile import cached_kernel, resources

    target = _resolve(request)
    problem = request.problem
    unsupported = _unsupported(target, problem)
    plan: LaunchPlan | None = None
    memory: str | None = None
    passes: tuple[PassReport, ...] = ()
    needs_compile = False
    if unsupported is None:
        try:
            plan = make_plan(target.variant, problem, target.config)
        except InvalidProblem as error:
            unsupported = str(error)
    if plan is not None:
        memory = check_memory(plan, "cpu", None)
    if plan is not None and target.device is not None:
        compiled = cached_kernel(plan, target_arch(target.variant, target.device))
        needs_compile = compiled is None
        if compiled is not None:
            passes = pass_reports(plan, resources(plan, compiled), target.device)
            unsupported = does_not_fit(passes, target.device)
    latency, latency_reason = (None, unsupported or "")
    if unsupported is None:
        latency, latency_reason = _predict(target, problem, passes)
    return Preview(
        variant=target.variant,
        config=target.config,
        device=target.device,
        plan=plan,
        unsupported=unsupported,
        memory=memory,
        passes=passes,
        latency=latency,
        latency_reason=latency_reason,
        needs_compile=needs_compile,
    )


class Evaluator:
    """Runs evaluations and keeps what is dear to start: backends and their child processes.

    Use as a context manager, or call `close()`.
    """

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for backend in self._backends.values():
            backend.close()
        self._backends.clear()

    def _backend(self, name: Literal["cpu", "cuda"]) -> Backend:
        if name not in self._backends:
            if name == "cuda":
                from engine.backends.cuda import CudaBackend

                self._backends[name] = CudaBackend()
            else:
                from engine.backends.cpu import CpuBackend

                self._backends[name] = CpuBackend()
        return self._backends[name]

    def evaluate(
        self, request: EvaluationRequest, on_stage: OnStage | None = None
    ) -> EvaluationOutcome:
        """Run the whole pipeline. Expected failures come back as statuses.

        Raises:
            UnknownName: the variant or GPU is not in its list.
        """
        stage = on_stage or (lambda _: None)
        target = _resolve(request)
        return _Run(self, request, target, stage).outcome()


def evaluate(request: EvaluationRequest, on_stage: OnStage | None = None) -> EvaluationOutcome:
    """One evaluation with backends of its own. See `Evaluator.evaluate`."""
    with Evaluator() as evaluator:
        return evaluator.evaluate(request, on_stage)


class _Run:
    """One pass through the pipeline; each step fills in more of the evaluation."""

    def __init__(
        self, evaluator: Evaluator, request: EvaluationRequest, target: _Target, stage: OnStage
    ) -> None:
        self.evaluator = evaluator
        self.request = request
        self.target = target
        self.stage = stage
        self.maps: ErrorMaps | None = None
        self.base = Evaluation(
            status=Status.SKIPPED,
            reason="Not executed.",
            variant=target.variant.id,
            problem=request.problem,
            config=target.config,
            device=target.device.name if target.device else "unknown",
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def outcome(self) -> EvaluationOutcome:
        return EvaluationOutcome(self._evaluate(), self.maps)

    def _stop(self, status: Status, reason: str, log: str = "") -> Evaluation:
        return replace(self.base, status=status, reason=reason, log=log or self.base.log)

    def _note(self, sentence: str) -> None:
        self.base = replace(self.base, notes=(*self.base.notes, sentence))

    def _evaluate(self) -> Evaluation:
        problem, target = self.request.problem, self.target
        why = _unsupported(target, problem)
        if why is not None:
            return self._stop(Status.SKIPPED, why)
        try:
            plan = make_plan(target.variant, problem, target.config)
        except InvalidProblem as error:
            return self._stop(Status.SKIPPED, str(error))
        stopped = self._compile(plan)
        if stopped is not None:
            return stopped
        if not self.request.execute:
            return self._with_prediction(self.base)
        return self._execute(plan)

    def _compile(self, plan: LaunchPlan) -> Evaluation | None:
        """Fill in resources and occupancy. Returns an evaluation only when the pipeline stops."""
        from engine.compile import compile_plan, resources

        target = self.target
        if target.device is None:
            self._note(
                f"Registers, occupancy and latency are unknown: {target.device_reason} "
                "Name a target GPU to see them."
            )
            return None
        arch = target_arch(target.variant, target.device)
        self.stage(f"Compiling {target.variant.name} for {arch}")
        try:
            compiled: CompiledKernel = compile_plan(plan, arch)
        except CompileError as error:
            return self._stop(Status.COMPILE_ERROR, str(error), error.log)
        except ToolMissing as error:
            self._note(f"Registers, occupancy and latency are unknown: {error}")
            return None
        passes = pass_reports(plan, resources(plan, compiled), target.device)
        self.base = replace(
            self.base,
            passes=passes,
            log=compiled.log,
            source_sha256=compiled.source_sha256,
            flags=compiled.flags,
        )
        why = does_not_fit(passes, target.device)
        return self._stop(Status.SKIPPED, why) if why is not None else None

    def _choose_backend(self) -> tuple[Literal["cpu", "cuda"], str | None]:
        """The backend, and the sentence why the one asked for cannot be used."""
        if self.request.backend == "cpu":
            return "cpu", None
        from engine.backends.cuda import why_not_cuda

        why = why_not_cuda(self.target.device)
        if self.request.backend == "cuda":
            return "cuda", why
        return ("cuda" if why is None else "cpu"), None

    def _execute(self, plan: LaunchPlan) -> Evaluation:
        request, problem = self.request, self.request.problem
        name, why_not = self._choose_backend()
        if why_not is not None:
            return self._stop(Status.LAUNCH_ERROR, why_not)
        # The device's own free memory is looked at by the CUDA backend, which can ask the driver.
        too_big = check_memory(plan, name, None)
        if too_big is not None:
            return self._stop(Status.OUT_OF_MEMORY, too_big)
        backend = self.evaluator._backend(name)
        self.stage(f"Executing on the {'GPU' if name == 'cuda' else 'CPU'}")
        inputs = make_inputs(problem, request.seed, request.input_kind)
        options = RunOptions(request.check, request.schedule, request.seed, request.timeout_s)
        result = backend.run(plan, inputs, options)
        self.base = replace(self.base, execution=self._execution(name, result))
        if result.status is not Status.PASSED:
            return self._stop(result.status, result.reason, result.log)
        self.stage("Checking against the float64 reference")
        correctness = self._check(plan, inputs, result)
        if not correctness.passed:
            return replace(
                self.base,
                status=Status.INCORRECT,
                reason=correctness.reason,
                correctness=correctness,
            )
        passed = replace(
            self.base, status=Status.PASSED, reason=correctness.reason, correctness=correctness
        )
        if name == "cuda":
            return self._measure(backend, plan, inputs, passed)
        return self._with_prediction(passed)

    def _execution(self, name: Literal["cpu", "cuda"], result: RunResult) -> Execution:
        request = self.request
        if name == "cuda":
            return Execution("cuda", "device", "device", request.seed, None)
        build: Literal["check", "fast"] = "check" if request.check else "fast"
        return Execution("cpu", build, request.schedule, request.seed, result.execution_ms)

    def _check(self, plan: LaunchPlan, inputs: Any, result: RunResult) -> Correctness:
        from engine.correctness import check_with_maps

        correctness, self.maps = check_with_maps(inputs, result, plan)
        return correctness

    def _with_prediction(self, evaluation: Evaluation) -> Evaluation:
        latency, why = _predict(self.target, self.request.problem, evaluation.passes)
        if latency is not None:
            return replace(evaluation, latency=latency)
        known = " ".join(evaluation.notes)
        notes = evaluation.notes if why in known else (*evaluation.notes, why)
        return replace(evaluation, notes=notes)

    def _measure(
        self, backend: Any, plan: LaunchPlan, inputs: Any, passed: Evaluation
    ) -> Evaluation:
        from engine.backends.sdpa import time_baselines

        self.stage("Measuring")
        try:
            latencies: tuple[Latency, ...] = backend.time(plan, inputs)
            self.stage("Measuring PyTorch SDPA")
            baselines: tuple[BaselineTiming, ...] = time_baselines(self.request.problem, inputs)
        except AttuneError as error:
            return replace(passed, notes=(*passed.notes, f"Not measured: {error}"))
        return replace(
            passed, latency=latencies[0], other_latencies=latencies[1:], baselines=baselines
        )
