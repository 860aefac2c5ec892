"""The pipeline of one evaluation, in this order and nowhere else:

    problem + variant + config → constraints (SKIPPED with a sentence) → compile → resources
        → occupancy → run once on poisoned output → correctness (INCORRECT stops here)
        → measure, or predict where there is no GPU → evaluation

Callers: the command line, the job worker, tests. `engine.pipeline.preview` is the quick part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, cast

from engine.backends.base import Backend, BackendName, RunOptions, RunResult
from engine.base.errors import AttuneError, CompileError, InvalidProblem, ToolMissing
from engine.base.status import Status
from engine.config import ResolvedConfig, default_config
from engine.coverage import coverage_of, describe_lines, largest_block
from engine.cuda_on_host.executed import ExecutedStatements
from engine.cuda_on_host.options import Schedule
from engine.evaluation import Correctness, Evaluation, Execution, Latency
from engine.history import History
from engine.input_kinds import HARSH, InputKind, inputs_named, passed_too, told_before
from engine.model.estimate import Estimate, launch_plan
from engine.pipeline.execute import alone_on_gpu
from engine.pipeline.memory import check_host_memory
from engine.pipeline.preview import NO_RESOURCES
from engine.pipeline.request import (
    EvaluationRequest,
    ResolvedRequest,
    choose_backend,
    resolve,
)
from engine.plan import LaunchPlan
from engine.problem import Problem
from engine.tensors import FloatArray, Inputs
from kernels.variant import KERNELS_DIR

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from engine.correctness import ErrorMap, ExpectedOutputs
    from engine.cuda_source import CompiledKernel
    from engine.pipeline.partial import PartialRun

OnStage: TypeAlias = Callable[[str], None]
OnPart: TypeAlias = Callable[[Evaluation], None]
_WHERE: Mapping[BackendName, str] = {
    "cpu": "on the CPU",
    "cuda": "on the GPU",
    "machine-code": "machine code on the CPU",
}


@dataclass(frozen=True, slots=True)
class EvaluationOutcome:
    """The evaluation, its error maps when something was executed, and what was predicted."""

    evaluation: Evaluation
    maps: tuple[ErrorMap, ...] = ()
    # As it is shown, whether it was measured then or not; None where nothing is predicted, or more
    # would be known of the kernel once it is simulated.
    predicted: Latency | None = None
    config: ResolvedConfig | None = None  # where its values come from


class Evaluator:
    """Runs evaluations and keeps what is slow to start: backends and their child processes.

    Use as a context manager, or call `close()`.
    """

    def __init__(self, history: History | None = None) -> None:
        """`history`: what is known of times beforehand; None knows none of sessions."""
        self.history = history or History()
        self._backends: dict[str, Backend] = {}
        self._expected: ExpectedOutputs | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for backend in self._backends.values():
            backend.close()
        self._backends.clear()
        if self._expected is not None:
            self._expected.close()
            self._expected = None

    @property
    def expected(self) -> ExpectedOutputs:
        """Inputs, references and baselines, kept from one evaluation to the next."""
        if self._expected is None:
            from engine.correctness import ExpectedOutputs

            self._expected = ExpectedOutputs()
        return self._expected

    @property
    def gpu_error(self) -> str | None:
        """Why this process can use the GPU no more, or None; only a new process helps."""
        cuda = cast("CudaBackend | None", self._backends.get("cuda"))
        return cuda.gpu_error if cuda is not None else None

    def backend(self, name: BackendName) -> Backend:
        if name not in self._backends:
            if name == "cuda":
                from engine.backends.cuda import CudaBackend

                self._backends[name] = CudaBackend()
            elif name == "machine-code":
                from engine.backends.machine_code import MachineCodeBackend

                self._backends[name] = MachineCodeBackend()
            else:
                from engine.backends.cpu import CpuBackend

                self._backends[name] = CpuBackend()
        return self._backends[name]

    def evaluate(
        self,
        request: EvaluationRequest,
        on_stage: OnStage | None = None,
        *,
        source: Path | None = None,
        simulates: bool = True,
        keeps: bool = True,
        on_part: OnPart | None = None,
    ) -> EvaluationOutcome:
        """Run the whole pipeline. Expected failures come back as statuses.

        Args:
            on_part: gets the evaluation of a few CTAs, in about a second, where executing all of
                them on the CPU takes much longer; not called where they cannot be told apart.
            simulates: False takes CTA times by machine code only where they are known already.
            keeps: writes the prediction down; False leaves that to the caller.
            source: a `.cu` file to take in place of the variant's own, its headers beside it. What
                it says of itself counts; a file without a description takes the variant's.

        Raises:
            UnknownName: the variant or GPU is not in its list.
            InvalidKernel: there is a mistake in the kernel's description.
        """
        stage = on_stage or (lambda _: None)
        resolved = resolve(request, self.history, source)
        outcome = _Run(self, request, resolved, stage, simulates, on_part).outcome()
        if keeps and request.clock == "boost":  # times are measured at the clock a GPU chooses
            self.history.keep(outcome.evaluation, outcome.predicted)
        return outcome


def evaluate(
    request: EvaluationRequest,
    on_stage: OnStage | None = None,
    history: History | None = None,
    on_part: OnPart | None = None,
) -> EvaluationOutcome:
    """One evaluation with backends of its own. See `Evaluator.evaluate`."""
    with Evaluator(history) as evaluator:
        return evaluator.evaluate(request, on_stage, on_part=on_part)


@dataclass
class _Run:
    """One pass through the pipeline; each step fills in more of the evaluation."""

    evaluator: Evaluator
    request: EvaluationRequest
    resolved: ResolvedRequest
    stage: OnStage
    simulates: bool
    on_part: OnPart | None
    estimate: Estimate | None = None
    compiled: CompiledKernel | None = None
    maps: tuple[ErrorMap, ...] = ()

    def __post_init__(self) -> None:
        resolved = self.resolved
        self.base = Evaluation(
            status=Status.SKIPPED,
            reason="Not executed.",
            variant=resolved.variant.id,
            problem=self.request.problem,
            config=resolved.config,
            device=resolved.device.name if resolved.device else "unknown",
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            notes=_notes(resolved),
        )

    def outcome(self) -> EvaluationOutcome:
        evaluation = self._evaluate()
        predicted = None
        if self.estimate is not None and (self.simulates or self.estimate.by_machine_code):
            predicted = self.estimate.latency
        return EvaluationOutcome(evaluation, self.maps, predicted, self.resolved.config_origin)

    def _stop(self, status: Status, reason: str, log: str = "") -> Evaluation:
        return replace(self.base, status=status, reason=reason, log=log or self.base.log)

    def _note(self, sentence: str) -> None:
        self.base = replace(self.base, notes=(*self.base.notes, sentence))

    def _evaluate(self) -> Evaluation:
        resolved = self.resolved
        try:
            plan = launch_plan(
                resolved.variant, self.request.problem, resolved.config, resolved.device
            )
        except InvalidProblem as error:
            return self._stop(Status.SKIPPED, str(error))
        if plan.source.parent != KERNELS_DIR:
            from engine.own_kernels.pointer_types import mistaken_types

            if why := mistaken_types(plan):
                return self._stop(Status.COMPILE_ERROR, why)
        stopped = self._compile(plan)
        if stopped is not None:
            return stopped
        if not self.request.execute:
            return self._with_prediction(plan, self.base)
        return self._execute(plan)

    def _compile(self, plan: LaunchPlan) -> Evaluation | None:
        """Fill in resources and occupancy. Returns an evaluation only when the pipeline stops."""
        from engine.compiled_plan import compile_plan, target_arch

        variant, device = self.resolved.variant, self.resolved.device
        if device is None:
            self._note(
                f"Registers, occupancy and latency are unknown: {self.resolved.device_reason} "
                "Name a target GPU to see them."
            )
            return None
        self.stage(f"Compiling {variant.name} for {target_arch(plan, device.arch)}")
        try:
            compiled: CompiledKernel = compile_plan(plan, device.arch)
        except CompileError as error:
            return self._stop(Status.COMPILE_ERROR, str(error), error.log)
        except ToolMissing as error:
            self._note(f"Registers, occupancy and latency are unknown: {error}")
            return None
        self.compiled = compiled
        self.estimate = made = self._estimate(plan, compiled, simulates=False)
        self.base = replace(
            self.base,
            passes=made.passes,
            log=compiled.log,
            source_sha256=compiled.source_sha256,
            flags=compiled.flags,
        )
        if why := made.misfit or self._refused_spills(plan):
            return self._stop(Status.SKIPPED, why)
        return self._check_register_budgets(plan, compiled)

    def _refused_spills(self, plan: LaunchPlan) -> str:
        """Why a config that spills is not ranked; empty where it is."""
        variant, device = self.resolved.variant, self.resolved.device
        spilled = max((p.resources.spill_bytes for p in self.base.passes), default=0)
        if not self.request.refuse_spills or not spilled or device is None:
            return ""
        usual = default_config(variant, {}, device)
        is_measured = self.request.execute and choose_backend(self.request, device)[0] == "cuda"
        if is_measured or usual == dict(self.resolved.config):
            return ""
        from engine.compiled_plan import compile_plan, resources

        try:
            default = launch_plan(variant, plan.problem, usual, device)
            before = resources(default, compile_plan(default, device.arch))
        except AttuneError:  # there is no default to be better than
            return ""
        if any(each.spill_bytes for each in before):
            return ""
        return (
            f"It spills {spilled:,} bytes per thread, and the default config none: not ranked by a "
            "predicted time (--allow-spills ranks it)."
        )

    def _estimate(self, plan: LaunchPlan, compiled: CompiledKernel, *, simulates: bool) -> Estimate:
        kernel = self.resolved.kernel
        assert kernel is not None  # nothing is compiled for no GPU
        history = self.evaluator.history.doing("simulate" if simulates else "compile")
        return history.estimate_plan(kernel, plan, compiled)

    def _check_register_budgets(
        self, plan: LaunchPlan, compiled: CompiledKernel
    ) -> Evaluation | None:
        """A warpgroup that uses more registers than it holds ends the pipeline."""
        if not any(launch.warpgroup_registers for launch in plan.passes):
            return None
        from engine.compiled_plan import plan_budget_mistake

        why = plan_budget_mistake(plan, compiled)
        return self._stop(Status.COMPILE_ERROR, why) if why is not None else None

    def _execute(self, plan: LaunchPlan) -> Evaluation:
        request, problem = self.request, self.request.problem
        name, why_not = choose_backend(self.request, self.resolved.device)
        if why_not is not None:
            return self._stop(Status.LAUNCH_ERROR, why_not)
        # The device's own free memory is looked at by the CUDA backend, which can ask the driver.
        too_big = check_host_memory(plan, name)
        part = self._part(plan, too_big) if name == "cpu" else None
        if isinstance(part, Evaluation):
            return part
        if too_big is not None and part is None:
            return self._stop(Status.OUT_OF_MEMORY, too_big)
        if name == "cpu" and part is None:
            self._judge_some_ctas_first(plan)
        passed = self._judge(plan, name, part)
        if passed.status is not Status.PASSED:
            return passed
        if name == "cuda" and not cast("CudaBackend", self.evaluator.backend(name)).is_software:
            first = self.evaluator.expected.prepare(problem, request.seed, request.input_kind)
            backend = cast("CudaBackend", self.evaluator.backend(name))
            return self._measure(backend, plan, first.inputs, passed)
        return self._with_prediction(plan, passed)

    def _judge_some_ctas_first(self, plan: LaunchPlan) -> None:
        """Tell what a few CTAs compute, where executing all of them takes long."""
        from engine.backends.cpu import CpuBackend
        from engine.backends.partial import PartialRunError
        from engine.pipeline.partial import PartialRun, first_flops, takes_a_while

        request = self.request
        if self.on_part is None or request.partial == "never":
            return
        if not takes_a_while(plan, request.check):
            return
        before = self.base
        self.stage("Executing a few CTAs first")
        backend = cast(CpuBackend, self.evaluator.backend("cpu"))
        options = self._options(repeat=False)
        try:
            part = PartialRun.choose(backend, plan, options, first_flops(request.check))
        except PartialRunError:
            return
        # What does not compile, the run of all CTAs says.
        if isinstance(part, PartialRun):
            self.on_part(self._judge(plan, "cpu", part))
        self.base, self.maps = before, ()

    def _judge(self, plan: LaunchPlan, name: BackendName, part: PartialRun | None) -> Evaluation:
        """Execute all CTAs, or a part of them, with every kind of inputs, and compare."""
        from engine.correctness import check_against, with_passing_inputs

        request, problem = self.request, self.request.problem
        backend = self.evaluator.backend(name)
        judged: list[Correctness] = []
        executed: ExecutedStatements | None = None
        for kind in self._input_kinds():
            prepared = (
                self.evaluator.expected.prepare(problem, request.seed, kind)
                if part is None
                else part.prepare(request.seed, kind)
            )
            # The second inputs of a thorough check run in another order of threads, too.
            schedule = request.schedule
            if judged and request.check and schedule == "in_order" and part is None:
                schedule = "random" if name == "cpu" else "reverse"
            told = told_before(kind, "" if schedule == request.schedule else schedule)
            self.stage(f"Executing {_WHERE[name]}{inputs_named(kind)}")
            result = (
                self._run(backend, plan, prepared.inputs, schedule, repeat=not judged)
                if part is None
                else part.run(prepared.inputs)
            )
            if not judged:
                self.base = replace(self.base, execution=self._execution(name, result, part))
            if result.status is not Status.PASSED:
                reason = f"{told}{result.reason}{_shared_heads(problem, result.reason)}"
                return self._stop(result.status, reason, result.log)
            if result.executed is not None:
                executed = executed | result.executed if executed else result.executed
                lines = coverage_of(executed, plan.source.name)
                self.base = replace(self.base, line_coverage=lines)
            self.stage("Checking against the float64 reference")
            correctness, maps = check_against(
                prepared.expected.result(), result, plan if part is None else None
            )
            if part is not None:
                correctness, maps = part.relabel(correctness), ()
                told = f"{part.part.sentence()} {told}"
            if not judged or not correctness.passed:
                self.maps = maps
            if correctness.passed and result.lse is not None:
                correctness = self._with_lse(prepared.inputs, result.lse, correctness)
            if not correctness.passed:
                reason = told + correctness.reason
                if judged:  # on other inputs it passes
                    correctness = with_passing_inputs(correctness, plan.source)
                elif name == "machine-code":
                    reason += self._disagreement(plan, prepared.inputs, result)
                incorrect = replace(correctness, reason=reason)
                return replace(self._stop(Status.INCORRECT, reason), correctness=incorrect)
            if not judged and request.check and result.gradients is not None:
                correctness = self._in_other_order(
                    backend, plan, prepared.inputs, result, correctness
                )
            judged.append(correctness)
        if name == "cpu" and request.check and part is None:
            judged[0] = self._with_offsets(judged[0])
        unexecuted = describe_lines(self.base.line_coverage)
        reason = " ".join(
            filter(
                None,
                [
                    part.part.sentence() if part is not None else "",
                    judged[0].reason,
                    *(passed_too(c.max_abs_err, c.tolerance) for c in judged[1:]),
                    unexecuted,
                    self._largest_block(plan.source),
                ],
            )
        )
        return replace(self.base, status=Status.PASSED, reason=reason, correctness=judged[0])

    def _with_lse(self, inputs: Inputs, lse: FloatArray, passed: Correctness) -> Correctness:
        """The verdict on O, and on the LSE that a kernel writes beside it."""
        from engine.correctness.lse import check_lse

        verdict = check_lse(inputs, lse)
        reason = f"{passed.reason} {verdict.sentence}" if verdict.passed else verdict.sentence
        return replace(passed, passed=verdict.passed, reason=reason)

    def _in_other_order(
        self,
        backend: Backend,
        plan: LaunchPlan,
        inputs: Inputs,
        result: RunResult,
        passed: Correctness,
    ) -> Correctness:
        """With what gradients do when CTAs and threads come in another order."""
        if backend.name == "cuda":  # the GPU has an order of its own
            return passed
        self.stage("Executing in another order")
        schedule: Schedule = "random" if backend.name == "cpu" else "reverse"
        other = self._run(backend, plan, inputs, schedule, repeat=False)
        from engine.correctness.gradient_check import with_other_order

        return with_other_order(passed, result, other, is_ordered=plan.repeatable)

    def _disagreement(self, plan: LaunchPlan, inputs: Inputs, result: RunResult) -> str:
        """What the host build says of an output that the machine code got wrong."""
        from engine.backends.cpu import CpuBackend
        from engine.backends.machine_code import MachineCodeBackend
        from engine.pipeline.disagreement import disagreement

        self.stage("Executing the host build to compare")
        said = disagreement(
            cast(CpuBackend, self.evaluator.backend("cpu")),
            cast(MachineCodeBackend, self.evaluator.backend("machine-code")),
            plan,
            inputs,
            self._options(repeat=False),
            result,
        )
        return f" {said}" if said else ""

    def _largest_block(self, source: Path) -> str:
        """Where most of what never ran stands, and what reaches it; empty where all of it ran."""
        if not self.base.line_coverage:
            return ""
        tunables = {t.name: t.values for t in self.resolved.variant.tunables}
        text = source.read_text(encoding="utf-8")
        return largest_block(text, self.base.line_coverage[0], tunables, self.resolved.config)

    def _with_offsets(self, passed: Correctness) -> Correctness:
        """With what is said of the same kernel where offsets pass 2³¹."""
        from engine.backends.cpu import CpuBackend
        from engine.pipeline.large_problem import offset_warning

        self.stage("Executing one CTA of a problem past 2³¹ elements")
        warning = offset_warning(
            cast(CpuBackend, self.evaluator.backend("cpu")),
            self.resolved.variant,
            self.request.problem,
            self.resolved.config,
            self._options(repeat=False),
        )
        if warning is None:
            return passed
        return replace(passed, warnings=(*passed.warnings, warning))

    def _input_kinds(self) -> tuple[InputKind, ...]:
        """The inputs that were asked for, and the harsh ones where the check is thorough."""
        kinds = (
            (self.request.input_kind, HARSH) if self.request.check else (self.request.input_kind,)
        )
        return tuple(dict.fromkeys(kinds))

    def _run(
        self,
        backend: Backend,
        plan: LaunchPlan,
        inputs: Inputs,
        schedule: Schedule,
        *,
        repeat: bool,
    ) -> RunResult:
        options = replace(self._options(repeat=repeat), schedule=schedule)
        with alone_on_gpu(backend.name, self._purpose, self.stage):
            return backend.run(plan, inputs, options)

    def _options(self, *, repeat: bool) -> RunOptions:
        request = self.request
        return RunOptions(
            request.check,
            request.schedule,
            request.seed,
            request.timeout_s,
            repeat,
            self.resolved.arch,
        )

    def _part(self, plan: LaunchPlan, too_big: str | None) -> PartialRun | Evaluation | None:
        """Some CTAs to execute in place of all; None for all, an evaluation where it ends here."""
        from engine.backends.cpu import CpuBackend
        from engine.backends.partial import PartialRunError
        from engine.pipeline.partial import PartialRun, takes_too_long

        request = self.request
        wanted = request.partial == "always" or (
            request.partial == "auto"
            and (too_big is not None or takes_too_long(plan, request.check, request.timeout_s))
        )
        if not wanted:
            return None
        self.stage("Choosing CTAs for a partial run")
        backend = cast(CpuBackend, self.evaluator.backend("cpu"))
        try:
            part = PartialRun.choose(backend, plan, self._options(repeat=False))
        except PartialRunError as error:
            why = f"It cannot be executed in part: {error}."
            if too_big is not None:
                return self._stop(Status.OUT_OF_MEMORY, f"{too_big} {why}")
            if request.partial == "always":
                return self._stop(Status.LAUNCH_ERROR, f"{plan.source.name}: {why}")
            self._note(why)
            return None
        if isinstance(part, RunResult):
            return self._stop(part.status, part.reason, part.log)
        return part

    def _execution(
        self, name: BackendName, result: RunResult, part: PartialRun | None
    ) -> Execution:
        request = self.request
        if name != "cpu":
            return Execution(
                name,
                "device",
                "device",
                request.seed,
                None if name == "cuda" else result.execution_ms,
            )
        build: Literal["check", "fast"] = "check" if request.check else "fast"
        counts = part.part.counts() if part is not None else ""
        return Execution("cpu", build, request.schedule, request.seed, result.execution_ms, counts)

    def _predict(self, plan: LaunchPlan) -> None:
        """Last, as the C++ compiler may be at work on the simulator until then."""
        if self.simulates and self.compiled is not None:
            self.stage("Simulating the machine code")
            self.estimate = self._estimate(plan, self.compiled, simulates=True)

    def _with_prediction(self, plan: LaunchPlan, evaluation: Evaluation) -> Evaluation:
        self._predict(plan)
        if self.estimate is not None and self.estimate.latency is not None:
            return replace(evaluation, latency=self.estimate.latency)
        why = self.estimate.reason if self.estimate else self.resolved.device_reason or NO_RESOURCES
        known = " ".join(evaluation.notes)
        notes = evaluation.notes if why in known else (*evaluation.notes, why)
        return replace(evaluation, notes=notes)

    @property
    def _purpose(self) -> str:
        return f"{self.resolved.variant.id}, {self.request.problem.label()}"

    def _measure(
        self, backend: CudaBackend, plan: LaunchPlan, inputs: Inputs, passed: Evaluation
    ) -> Evaluation:
        from engine.measure.device_lock import measuring
        from engine.measure.side_by_side import time_evaluation

        if self.request.effort == "none":
            return passed
        full = self.request.effort == "full"
        self._predict(plan)  # before its time is known
        try:
            with measuring(self._purpose, self.stage) as read_state:
                self.stage("Measuring")
                return time_evaluation(backend, plan, inputs, passed, read_state, full=full)
        except AttuneError as error:
            return replace(passed, notes=(*passed.notes, f"Not measured: {error}"))


def _notes(resolved: ResolvedRequest) -> tuple[str, ...]:
    """What the request's resolution has to say."""
    chosen = resolved.choice.note() if resolved.choice is not None else ""
    return tuple(filter(None, [chosen, resolved.config_origin.error]))


def _shared_heads(problem: Problem, reason: str) -> str:
    """GQA: what an access past the end of K or V is most likely to be; else empty."""
    if problem.head_group == 1 or not re.search(r"out of bounds.* of buffer '[kv]'", reason):
        return ""
    return (
        f" K and V have {problem.kv_heads:,} heads where Q has {problem.num_heads:,}: one that "
        "takes the query head for the K/V head reads past their end."
    )
