"""Measure kernels and every SDPA backend side by side, interleaved in one run per problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from engine.attention.config import find_variant, resolve_kernel
from engine.attention.evaluation import ALL_KINDS, Evaluation, Latency, LatencyKind
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import Inputs
from engine.base.errors import MeasureError, Status
from engine.choose.auto import choose
from engine.correctness import inputs_of
from engine.measure.device_lock import measuring
from engine.measure.sampler import SamplerSettings, SamplingRun
from engine.measure.side_by_side import TimingGroup, with_times
from engine.measure.statistics import Comparison
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest, resolve
from kernels.ladder import LADDER

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from engine.devices.spec import DeviceSpec

BENCH = SamplerSettings(mode="sustained", kinds=ALL_KINDS)
# If no kernel is named, a short first run decides which variants of the ladder are measured in
# full.
_HEAT = SamplerSettings(kinds=("device_warm",), min_rounds=6, max_rounds=6)
MAX_FINALISTS = 3


@dataclass(frozen=True, slots=True)
class Entrant:
    """A kernel to benchmark, or `auto`. Missing tunables take their tuned or default values."""

    variant: str
    config: Mapping[str, int]

    @property
    def name(self) -> str:
        """`v05 num_splits=4`."""
        return " ".join([self.variant, *(f"{k}={v}" for k, v in self.config.items())])


@dataclass(frozen=True, slots=True)
class BenchLine:
    """One kernel or SDPA backend on one problem."""

    name: str
    is_baseline: bool
    device: Latency | None
    cold: Latency | None
    end_to_end: Latency | None
    tflops: float | None
    peak_share: float | None  # None if the GPU's peak is not known
    gb_per_s: float | None  # bytes of Q, K, V and O, each once, per second
    against_best: Comparison | None  # its time relative to the best backend's; None for the best
    reason: str  # why there is no time


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The result on one problem: lines from fast to slow, those without a time last."""

    problem: Problem
    device: str
    lines: tuple[BenchLine, ...]
    best_baseline: str | None
    evaluations: tuple[Evaluation, ...]  # of the kernels, including their baselines
    notes: tuple[str, ...]
    stop_reason: str  # why the run ended; empty if nothing could run
    throttled: str

    @property
    def is_complete(self) -> bool:
        """True if every kernel has a valid time."""
        return not self.throttled and all(x.device or x.is_baseline for x in self.lines)


def bench(
    problem: Problem,
    entrants: Sequence[Entrant] | None,
    evaluator: Evaluator,
    settings: SamplerSettings = BENCH,
    on_stage: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Check the kernels, then measure them and every SDPA backend side by side.

    Args:
        entrants: kernels to measure. None selects the fastest of the ladder in a short first run,
            each variant with its tuned config if there is one.

    Raises:
        MeasureError: the GPU failed, or no kernel can be measured.
    """
    return _Bench(problem, evaluator, settings, on_stage).result(entrants)


@dataclass
class _Bench:
    problem: Problem
    evaluator: Evaluator
    settings: SamplerSettings
    stage: Callable[[str], None]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        request = EvaluationRequest(LADDER.of(self.problem)[0].id, self.problem)
        self.spec: DeviceSpec | None = resolve(request, self.evaluator.history).device

    def result(self, entrants: Sequence[Entrant] | None) -> BenchResult:
        chosen = self._ladder() if entrants is None else [self._resolved(e) for e in entrants]
        checked = {entrant.name: (entrant, self._check(entrant)) for entrant in chosen}
        purpose = f"bench, {self.problem.label()}"
        with measuring(purpose, self.stage) as read_state, TimingGroup(read_state) as group:
            return self._measure(group, checked, limited=entrants is None)

    def _measure(
        self,
        group: TimingGroup,
        checked: Mapping[str, tuple[Entrant, Evaluation]],
        *,
        limited: bool,
    ) -> BenchResult:
        from engine.backends.sdpa import baseline, baseline_names

        inputs = inputs_of(self.problem)
        for entrant, evaluation in checked.values():
            self._enter(group, entrant, evaluation, inputs)
        finalists = list(group.names)
        if limited and len(finalists) > MAX_FINALISTS:
            finalists = self._fastest_in_short_run(group)
        if not finalists:
            raise MeasureError(self._none_ready(group), code="none_measurable")
        names = baseline_names(self.problem)
        for name in names:
            self.stage(f"Preparing SDPA {name}")
            group.add(name, partial(baseline, name, self.problem, inputs))
        self.stage(f"Measuring {self.problem.label()}")
        backends = [name for name in names if name in group.names]
        run = group.run(finalists[0], self.settings, [*finalists[1:], *backends])
        wanted = finalists if limited else checked
        return self._result(group, run, {n: checked[n][1] for n in wanted}, names)

    def _ladder(self) -> list[Entrant]:
        """Return every variant that supports the problem on this GPU."""
        entrants = []
        for variant in LADDER.of(self.problem):
            request = EvaluationRequest(variant.id, self.problem)
            resolved = resolve(request, self.evaluator.history)
            if resolved.unsupported(self.problem) is None:
                entrants.append(self._resolved(Entrant(variant.id, {})))
        return entrants

    def _resolved(self, entrant: Entrant) -> Entrant:
        """Fill in values that are not the defaults, and replace `auto` by its choice."""
        auto = partial(choose, history=self.evaluator.history)
        made = resolve_kernel(entrant.variant, entrant.config, self.problem, self.spec, auto)
        if made.choice is not None:
            self.notes.append(made.choice.note())
            return Entrant(made.variant.id, made.config.values)
        config = made.config
        if config.error and config.error not in self.notes:
            self.notes.append(config.error)
        if not {"tuned", "fitting"} & set(config.origins.values()):
            return entrant
        self.notes.append(f"The config of {made.variant.id}: {config.describe()}.")
        return replace(entrant, config=config.values)

    def _check(self, entrant: Entrant) -> Evaluation:
        self.stage(f"Checking {entrant.name}")
        request = EvaluationRequest(
            entrant.variant, self.problem, entrant.config, backend="cuda", effort="none"
        )
        return self.evaluator.evaluate(request).evaluation

    def _enter(
        self, group: TimingGroup, entrant: Entrant, checked: Evaluation, inputs: Inputs
    ) -> None:
        if checked.status is not Status.PASSED or checked.correctness is None:
            group.failures[entrant.name] = f"{checked.status}: {checked.reason}"
            return
        plan = make_plan(find_variant(entrant.variant), self.problem, checked.config)
        backend = cast("CudaBackend", self.evaluator.backend("cuda"))
        group.add(entrant.name, partial(backend.timer, plan, inputs, checked.correctness))

    def _fastest_in_short_run(self, group: TimingGroup) -> list[str]:
        """Return the fastest kernels of a short run."""
        self.stage("A first short run")
        names = list(group.names)
        run = group.run(names[0], _HEAT, names[1:])
        medians = {
            name: interval.median
            for name in names
            if name not in group.failures
            and (interval := run.table.interval(name, "device_warm")) is not None
        }
        ordered = sorted(medians, key=lambda name: medians[name])
        for name in ordered[MAX_FINALISTS:]:
            self.notes.append(
                f"{name} took {medians[name]:.4g} µs in a first run of {run.rounds} rounds "
                f"(the fastest {medians[ordered[0]]:.4g} µs) and was not measured further."
            )
        self.notes += [f"{name}: {why}" for name, why in group.failures.items()]
        return ordered[:MAX_FINALISTS]

    def _none_ready(self, group: TimingGroup) -> str:
        if not group.failures:
            return f"No variant of the ladder takes {self.problem.label()} on this GPU."
        name, why = next(iter(group.failures.items()))
        return f"None of the kernels can be measured on {self.problem.label()}; {name}: {why}"

    def _result(
        self,
        group: TimingGroup,
        run: SamplingRun,
        checked: Mapping[str, Evaluation],
        backends: tuple[str, ...],
    ) -> BenchResult:
        kind = self.settings.kinds[0]
        medians = {
            name: latency.median_us
            for name in backends
            if name in group.names and (latency := run.latency(name, kind)) is not None
        }
        best = min(medians, key=lambda name: medians[name], default=None)
        lines = [self._line(group, run, name, name in backends, best) for name in checked]
        lines += [self._line(group, run, name, True, best) for name in backends]
        evaluations = []
        for name, evaluation in checked.items():
            try:
                evaluations.append(with_times(evaluation, group, run, name, backends))
            except MeasureError as error:
                notes = (*evaluation.notes, f"Not measured: {error}")
                evaluations.append(replace(evaluation, notes=notes))
        never = float("inf")
        return BenchResult(
            problem=self.problem,
            device=self.spec.name if self.spec else "this machine's GPU",
            lines=tuple(sorted(lines, key=lambda x: x.device.median_us if x.device else never)),
            best_baseline=best,
            evaluations=tuple(evaluations),
            notes=tuple(self.notes),
            stop_reason=run.stop_reason,
            throttled=run.throttled,
        )

    def _line(
        self, group: TimingGroup, run: SamplingRun, name: str, is_baseline: bool, best: str | None
    ) -> BenchLine:
        by_kind: dict[LatencyKind, Latency] = {x.kind: x for x in group.latencies(run, name)}
        device = by_kind.get(self.settings.kinds[0])
        tflops = self.problem.flops / device.median_us / 1e6 if device else None
        peak = self.spec.tensor_tflops(self.problem.dtype) if self.spec is not None else None
        comparison: Comparison | None = None
        if device is not None and best is not None and name != best:
            comparison = run.table.compare(name, best, self.settings.kinds[0])
        return BenchLine(
            name=name,
            is_baseline=is_baseline,
            device=device,
            cold=by_kind.get("device_cold"),
            end_to_end=by_kind.get("end_to_end"),
            tflops=tflops,
            peak_share=tflops / peak if tflops is not None and peak else None,
            gb_per_s=self.problem.io_bytes / device.median_us / 1e3 if device else None,
            against_best=comparison,
            reason="" if device else group.failures.get(name, "It was not measured."),
        )
