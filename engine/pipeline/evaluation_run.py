"""The steps of one evaluation; each fills in more fields. See `engine.pipeline.evaluate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias, cast

from engine.attention.config import ResolvedConfig, fitting_config
from engine.attention.coverage import Block, describe_lines, largest_block
from engine.attention.evaluation import Correctness, Evaluation, Latency
from engine.attention.plan import LaunchPlan, target_arch
from engine.attention.tensors import (
    EXTREME,
    FloatArray,
    InputKind,
    Inputs,
    extreme_inputs_passed,
    inputs_clause,
    inputs_suffix,
)
from engine.backends.base import Backend, BackendName, RunOptions
from engine.base.errors import AttuneError, CompileError, InvalidProblem, Status, ToolMissing
from engine.cuda_on_host.client import RunResult, Schedule
from engine.cuda_on_host.instrument import ExecutedStatements
from engine.model.kernel import Estimate, Kernel, compile_plan, count_plan, plan_budget_mistake
from engine.pipeline.execute import (
    NOT_HERE,
    PartialRun,
    alone_on_gpu,
    coverage_of,
    disagreement,
    execution_of,
    first_flops,
    shared_heads,
    takes_a_while,
    takes_too_long,
    too_long,
    where_to_execute,
)
from engine.pipeline.request import (
    EvaluationRequest,
    ResolvedRequest,
    check_host_memory,
    choose_backend,
)
from kernels.variant import KERNELS_DIR

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from engine.correctness import ErrorMap
    from engine.cuda_source import CompiledKernel
    from engine.pipeline.evaluate import Evaluator
    from engine.pipeline.other_problems import OtherProblem

OnStage: TypeAlias = Callable[[str], None]
OnPart: TypeAlias = Callable[[Evaluation], None]
_WHERE: Mapping[BackendName, str] = {
    "cpu": "on the CPU",
    "cuda": "on the GPU",
    "machine-code": "machine code in software",
}


@dataclass(frozen=True, slots=True)
class EvaluationOutcome:
    """The evaluation, its error maps if the kernel was executed, and the prediction."""

    evaluation: Evaluation
    maps: tuple[ErrorMap, ...] = ()
    # The prediction as shown, also if the kernel was measured afterwards; None without a
    # prediction, or if simulating the kernel would give a better one.
    predicted: Latency | None = None
    config: ResolvedConfig | None = None  # origin of each value
    spent_s: Mapping[str, float] = field(default_factory=dict)  # of `compile` and `simulate`


@dataclass
class EvaluationRun:
    """One run of the steps; each fills in more fields of the evaluation."""

    evaluator: Evaluator
    request: EvaluationRequest
    resolved: ResolvedRequest
    stage: OnStage
    simulates: bool
    counts: bool
    on_part: OnPart | None
    estimate: Estimate | None = None
    compiled: CompiledKernel | None = None
    maps: tuple[ErrorMap, ...] = ()
    executed: ExecutedStatements | None = None  # in all runs so far
    is_predicted: bool = False  # the run came to its prediction, which is shown
    is_elsewhere: bool = False  # the problem differs from the requested one
    spent_s: dict[str, float] = field(default_factory=dict)

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
            notes=resolved.notes,
        )

    def outcome(self) -> EvaluationOutcome:
        """Run all steps and return their result."""
        evaluation = self._evaluate()
        predicted = None
        if self.estimate is not None and (self.simulates or self.estimate.by_machine_code):
            predicted = self.estimate.latency if self.is_predicted else None
        return EvaluationOutcome(
            evaluation, self.maps, predicted, self.resolved.config_origin, self.spent_s
        )

    def _stop(self, status: Status, reason: str, log: str = "") -> Evaluation:
        return replace(self.base, status=status, reason=reason, log=log or self.base.log)

    def _note(self, sentence: str) -> None:
        self.base = replace(self.base, notes=(*self.base.notes, sentence))

    def _evaluate(self) -> Evaluation:
        try:
            plan = self.resolved.plan(self.request.problem)
        except InvalidProblem as error:
            return self._stop(Status.SKIPPED, str(error))
        if plan.source.parent != KERNELS_DIR:
            from engine.pipeline.trial import mistaken_types

            if why := mistaken_types(plan):
                return self._stop(Status.COMPILE_ERROR, why)
        with self._spends("compile"):
            stopped = self._compile(plan)
        if stopped is not None:
            return stopped
        if not self.request.execute:
            return self._with_prediction(plan, self.base)
        return self._execute(plan)

    @contextmanager
    def _spends(self, what: str) -> Iterator[None]:
        begin_s = time.monotonic()
        try:
            yield
        finally:
            self.spent_s[what] = self.spent_s.get(what, 0.0) + time.monotonic() - begin_s

    def _compile(self, plan: LaunchPlan) -> Evaluation | None:
        """Fill in resources and occupancy. Return an evaluation only if the run stops here."""
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
        """Return why a config that spills registers is not ranked; empty if it is ranked."""
        kernel = self.resolved.kernel
        spilled = max((p.resources.spill_bytes for p in self.base.passes), default=0)
        if not self.request.refuse_spills or not spilled or kernel is None:
            return ""
        variant, device = kernel.variant, kernel.device
        usual = Kernel.of(variant, device, fitting_config(variant, {}, plan.problem, device))
        is_measured = self.request.execute and choose_backend(self.request, device)[0] == "cuda"
        if is_measured or usual == kernel:
            return ""
        try:
            before = usual.resources(plan.problem)
        except AttuneError:  # no default config to compare with
            return ""
        if any(each.spill_bytes for each in before):
            return ""
        return (
            f"It spills {spilled:,} bytes per thread and the default config none, so it is not "
            "ranked by a predicted time (--allow-spills ranks it)."
        )

    def _estimate(self, plan: LaunchPlan, compiled: CompiledKernel, *, simulates: bool) -> Estimate:
        kernel = self.resolved.kernel
        assert kernel is not None  # compiling needs a target GPU
        history = self.evaluator.history.doing("simulate" if simulates else "compile")
        return history.estimate_plan(kernel, plan, compiled)

    def _check_register_budgets(
        self, plan: LaunchPlan, compiled: CompiledKernel
    ) -> Evaluation | None:
        """Stop the run if a warpgroup uses more registers than its budget."""
        if not any(launch.warpgroup_registers for launch in plan.passes):
            return None
        why = plan_budget_mistake(plan, compiled)
        return self._stop(Status.COMPILE_ERROR, why) if why is not None else None

    def _execute(self, plan: LaunchPlan) -> Evaluation:
        request, problem = self.request, self.request.problem
        name, why_not = where_to_execute(request, self.resolved, plan)
        if why_not is not None:
            return self._stop(Status.LAUNCH_ERROR, why_not)
        if name == "machine-code" and request.backend == "auto" and not plan.cubins:
            if self.compiled is not None:
                judged = self._judge_machine_code(plan)
                if judged is not None:
                    return judged
            name = "cpu"
        # The CUDA backend checks the GPU's free memory, because it can ask the driver.
        too_big = check_host_memory(plan, name)
        part = self._part(plan, too_big) if name == "cpu" else None
        if isinstance(part, Evaluation):
            return part
        if too_big is not None and part is None:
            return self._stop(Status.OUT_OF_MEMORY, too_big)
        if part is None and name != "cuda":
            self._judge_some_ctas_first(plan, name)
        passed = self._judge(plan, name, part)
        if passed.status is not Status.PASSED:
            return passed
        if name == "cuda" and not cast("CudaBackend", self.evaluator.backend(name)).is_software:
            first = self.evaluator.expected.prepare(problem, request.seed, request.input_kind)
            backend = cast("CudaBackend", self.evaluator.backend(name))
            return self._measure(backend, plan, first.inputs, passed)
        return self._with_prediction(plan, passed)

    def _judge_machine_code(self, plan: LaunchPlan) -> Evaluation | None:
        """Return the verdict on the executed machine code; None if it cannot be executed here."""
        before = self.base
        self._judge_some_ctas_first(plan, "machine-code")
        judged = self._judge(plan, "machine-code", None)
        if judged.status is Status.PASSED:
            return self._with_prediction(plan, judged)
        if judged.status not in NOT_HERE:
            return judged
        self.base = before
        self._note(f"Executed by a host build, because its machine code cannot be: {judged.reason}")
        return None

    def _judge_some_ctas_first(self, plan: LaunchPlan, name: BackendName) -> None:
        """Report the verdict on a few CTAs first if executing all of them takes long."""
        from engine.backends.cpu import CpuBackend
        from engine.backends.machine_code import MachineCodeBackend
        from engine.backends.partial import PartialRunError

        request = self.request
        if self.on_part is None or request.partial == "never":
            return
        if not takes_a_while(plan, name, request.check):
            return
        before = self.base
        self.stage("Executing a few CTAs first")
        self.evaluator.expected.begin(request.problem, request.seed, self._input_kinds()[0])
        backend = cast(CpuBackend | MachineCodeBackend, self.evaluator.backend(name))
        options = self._options(repeat=False)
        try:
            part = PartialRun.choose(backend, plan, options, first_flops(request.check))
        except (PartialRunError, AttuneError):
            return
        # The later run of all CTAs reports compile errors and faults of machine code.
        if isinstance(part, PartialRun):
            judged = self._judge(plan, name, part)
            if name == "cpu" or judged.status in (Status.PASSED, Status.INCORRECT):
                self.on_part(judged)
        self.base, self.maps = before, ()

    def _judge(self, plan: LaunchPlan, name: BackendName, part: PartialRun | None) -> Evaluation:
        """Execute all or some CTAs with every kind of inputs, and check the output."""
        from engine.correctness import check_against, with_passing_inputs

        request, problem = self.request, self.request.problem
        backend = self.evaluator.backend(name)
        judged: list[Correctness] = []
        for kind in self._input_kinds():
            prepared = (
                self.evaluator.expected.prepare(problem, request.seed, kind)
                if part is None
                else part.prepare(request.seed, kind)
            )
            # In a thorough check, the second inputs also run in another order of threads.
            schedule = request.schedule
            if judged and request.check and schedule == "in_order" and part is None:
                schedule = "random" if name == "cpu" else "reverse"
            told = inputs_clause(kind, "" if schedule == request.schedule else schedule)
            self.stage(f"Executing {_WHERE[name]}{inputs_suffix(kind)}")
            result = (
                self._run(backend, plan, prepared.inputs, schedule, repeat=not judged)
                if part is None
                else part.run(prepared.inputs)
            )
            if not judged:
                counts = part.part.counts() if part is not None else ""
                execution = execution_of(request, name, result, counts)
                self.base = replace(self.base, execution=execution)
            if result.status is not Status.PASSED:
                reason = f"{told}{result.reason}{shared_heads(problem, result.reason)}"
                return self._stop(result.status, reason, result.log)
            if result.executed is not None:
                self._add_executed(plan, result.executed)
            if result.repeated:
                self._note(result.repeated)
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
                if part is None and not request.check:
                    correctness = self._wrong_in_other_order(
                        backend, plan, prepared.inputs, result, correctness
                    )
                if judged:  # it passes on other inputs
                    correctness = with_passing_inputs(correctness, plan.source)
                elif name == "machine-code" and part is None and self._has_host_build(plan):
                    reason += self._disagreement(plan, prepared.inputs, result)
                incorrect = replace(correctness, reason=reason)
                return replace(self._stop(Status.INCORRECT, reason), correctness=incorrect)
            if not judged and request.check and result.gradients is not None:
                correctness = self._in_other_order(
                    backend, plan, prepared.inputs, result, correctness
                )
            judged.append(correctness)
        too = (extreme_inputs_passed(c.max_abs_err, c.tolerance) for c in judged[1:])
        of_part = part.part.sentence() if part is not None else ""
        reason = " ".join(filter(None, [of_part, judged[0].reason, *too]))
        passed = replace(self.base, status=Status.PASSED, reason=reason, correctness=judged[0])
        if name != "cpu" or not request.check or self.is_elsewhere:
            return passed
        return self._judge_elsewhere(plan, passed)

    def _add_executed(self, plan: LaunchPlan, executed: ExecutedStatements) -> None:
        self.executed = self.executed | executed if self.executed else executed
        lines = coverage_of(self.executed, plan.source.name)
        self.base = replace(self.base, line_coverage=lines)

    def _judge_elsewhere(self, plan: LaunchPlan, passed: Evaluation) -> Evaluation:
        """Check further problems, as part of a thorough check."""
        from engine.backends.cpu import CpuBackend
        from engine.pipeline.other_problems import judge_elsewhere, offset_warning

        options, variant = self._options(repeat=False), self.resolved.variant
        judged = judge_elsewhere(variant, plan, passed, self._judge_at, self._largest_block)
        if judged.status is not Status.PASSED:
            return judged
        self.stage("Executing one CTA of a problem past 2³¹ elements")
        backend = cast(CpuBackend, self.evaluator.backend("cpu"))
        warning = offset_warning(backend, variant, plan, options)
        right = judged.correctness
        if warning is not None and right is not None:
            right = replace(right, warnings=(*right.warnings, warning))
        block, lines = self._largest_block(plan), self.base.line_coverage
        said = (judged.reason, describe_lines(lines), block.sentence if block else "")
        reason = " ".join(filter(None, said))
        return replace(judged, reason=reason, correctness=right, line_coverage=lines)

    def _judge_at(self, other: OtherProblem) -> Evaluation:
        origin = replace(self.resolved.config_origin, values=dict(other.config))
        run = replace(
            self,
            request=replace(self.request, problem=other.problem, partial="never"),
            resolved=replace(self.resolved, config_origin=origin),
            stage=lambda text: self.stage(f"{text}, also at {other.label()}"),
            executed=None,
            is_elsewhere=True,
        )
        evaluation = run._judge(other.plan, "cpu", None)
        if run.executed is not None and self.executed is not None:
            self._add_executed(other.plan, run.executed)
        return evaluation

    def _with_lse(self, inputs: Inputs, lse: FloatArray, passed: Correctness) -> Correctness:
        """Return the verdict on O, and on the LSE if the kernel writes it."""
        from engine.correctness.gradient_check import check_lse

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
        """Judge gradients, with a second run of CTAs and threads in another order."""
        if backend.name == "cuda":  # the GPU determines the order
            return passed
        self.stage("Executing in another order")
        other = self._run(backend, plan, inputs, _other_order(backend, self.request), repeat=False)
        from engine.correctness.gradient_check import with_other_cta_order

        return with_other_cta_order(passed, result, other, is_ordered=plan.repeatable)

    def _wrong_in_other_order(
        self,
        backend: Backend,
        plan: LaunchPlan,
        inputs: Inputs,
        result: RunResult,
        wrong: Correctness,
    ) -> Correctness:
        """Judge a wrong output again after a quick run with threads in another order: the output of
        a kernel that lacks a barrier is accidental, and no cause must be derived from it."""
        from engine.correctness import with_order_of_threads

        request = self.request
        if backend.name == "cuda" or takes_a_while(plan, backend.name, request.check):
            return wrong
        self.stage("Executing in another order")
        other = self._run(backend, plan, inputs, _other_order(backend, request), repeat=False)
        return with_order_of_threads(wrong, result, other, request.problem.dtype)

    def _has_host_build(self, plan: LaunchPlan) -> bool:
        return not self.request.software_only and not plan.cubins

    def _disagreement(self, plan: LaunchPlan, inputs: Inputs, result: RunResult) -> str:
        """Compare a wrong output of the machine code with the host build's."""
        from engine.backends.cpu import CpuBackend
        from engine.backends.machine_code import MachineCodeBackend

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

    def _largest_block(self, plan: LaunchPlan) -> Block | None:
        """Return the largest block that never ran, and its condition; None if every line ran."""
        if not self.base.line_coverage:
            return None
        tunables = {t.name: t.values for t in self.resolved.variant.tunables}
        text = plan.source.read_text(encoding="utf-8")
        return largest_block(text, self.base.line_coverage[0], tunables, self.resolved.config)

    def _input_kinds(self) -> tuple[InputKind, ...]:
        """Return the requested inputs, plus the extreme ones in a thorough check."""
        kinds = (
            (self.request.input_kind, EXTREME) if self.request.check else (self.request.input_kind,)
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
        return self.request.run_options(self.resolved.arch, repeat=repeat)

    def _part(self, plan: LaunchPlan, too_big: str | None) -> PartialRun | Evaluation | None:
        """Choose CTAs for a partial run. Return None to run all, or an evaluation if the run
        stops here."""
        from engine.backends.cpu import CpuBackend
        from engine.backends.partial import PartialRunError

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
            if request.partial == "always":  # not a fault of the kernel
                return self._stop(Status.SKIPPED, f"{plan.source.name}: {why}")
            return self._stop(Status.TIMEOUT, f"{too_long(plan, request)} {why}")
        if isinstance(part, RunResult):
            return self._stop(part.status, part.reason, part.log)
        return part

    def _predict(self, plan: LaunchPlan, evaluation: Evaluation) -> Evaluation:
        """Predict the time. This is the last step, because the simulator may still be compiling.

        Returns:
            The evaluation, with counts of the simulated machine code.
        """
        self.is_predicted = True
        if not self.simulates or self.compiled is None:
            return evaluation
        is_known = self.estimate is not None and self.estimate.by_machine_code
        if self.on_part is not None and evaluation.execution is not None and not is_known:
            self.on_part(evaluation)  # report the verdict before the time is known
        self.stage("Simulating the machine code")
        with self._spends("simulate"):
            self.estimate = self._estimate(plan, self.compiled, simulates=True)
        if not self.estimate.by_machine_code or not self.counts:
            return evaluation
        try:
            counted = count_plan(plan, self.compiled)
        except AttuneError:  # the time is cached, but a tool is missing
            return evaluation
        note = self.estimate.power_limit_note(counted.tensor_flops, counted.instructions)
        notes = (*evaluation.notes, note) if note else evaluation.notes
        return replace(evaluation, counts=counted.counts, notes=notes)

    def _with_prediction(self, plan: LaunchPlan, evaluation: Evaluation) -> Evaluation:
        evaluation = self._predict(plan, evaluation)
        if self.estimate is not None and self.estimate.latency is not None:
            return replace(evaluation, latency=self.estimate.latency)
        # Without an estimate the notes say why there is none.
        why = self.estimate.reason if self.estimate else ""
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
        settings = self.evaluator.samplers.get(self.request.effort)
        passed = self._predict(plan, passed)  # before the measurement
        try:
            with measuring(self._purpose, self.stage) as read_state:
                self.stage("Measuring")
                return time_evaluation(
                    backend, plan, inputs, passed, read_state, full=full, settings=settings
                )
        except AttuneError as error:
            return replace(passed, notes=(*passed.notes, f"Not measured: {error}"))


def _other_order(backend: Backend, request: EvaluationRequest) -> Schedule:
    """Return an order of threads other than the request's."""
    if request.schedule != "in_order":
        return "in_order"
    return "random" if backend.name == "cpu" else "reverse"
