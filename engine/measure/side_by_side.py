"""Kernels and baselines measured side by side on this machine's GPU, in one run of the sampler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from math import expm1, isfinite
from typing import TYPE_CHECKING, Self

from engine.base.errors import AttuneError, MeasureError, Status
from engine.devices.detect import GpuState
from engine.evaluation import ALL_KINDS, BaselineTiming, Evaluation, Latency, LatencyKind
from engine.measure.replay import Launchable, ReplayDevice
from engine.measure.sampler import Sample, SamplerSettings, SamplingRun, run_rounds
from engine.measure.verdict import MIN_SAMPLES
from engine.plan import LaunchPlan
from engine.tensors import Inputs

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend


# Of a single evaluation, and of the points of a search, which are many and mostly lose.
FULL = SamplerSettings(kinds=ALL_KINDS)
QUICK = SamplerSettings(kinds=("device_warm",), min_rounds=10, max_s=2.0)


# Of one subject in a group: half of them are the incumbent's first runs', half the second runs'.
PLACEMENTS = 6


class TimingGroup:
    """Kernels and baselines that are timed in one run, by name.

    A context manager; leaving it frees their device memory. `failures` gives the reason for each
    that cannot be timed.

    Args:
        kinds: those that runs may ask for; copies and graphs for others are not made.
        placements: in how many places of memory each is measured, in turn. One is enough for times
            that are not compared.
    """

    def __init__(
        self,
        read_state: Callable[[], GpuState],
        kinds: Sequence[LatencyKind] = ALL_KINDS,
        placements: int = PLACEMENTS,
    ) -> None:
        self._placements = placements
        self.device = ReplayDevice(read_state, kinds)
        self.failures: dict[str, str] = {}
        self._stack = ExitStack()
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def add(self, name: str, open_one: Callable[[], AbstractContextManager[Launchable]]) -> bool:
        """Make it ready to be timed; False when that failed, and `failures` then says why.

        Args:
            open_one: called once for each placement. Where memory allows no more of them, those
                that there are rotate.
        """
        try:
            self._open(name, open_one)
        except AttuneError as error:
            self.failures[name] = str(error)
            return False
        self._names.append(name)
        try:
            while self.device.placements(name) < self._placements and self.device.has_room(name):
                self._open(name, open_one)
        except AttuneError:
            pass  # what is wrong beside a lack of memory shows in the run
        return True

    def _open(self, name: str, open_one: Callable[[], AbstractContextManager[Launchable]]) -> None:
        with ExitStack() as own:
            subject = own.enter_context(open_one())
            self.device.add(name, subject, 1 / self._placements)
            self._stack.push(own.pop_all())

    def run(
        self,
        incumbent: str,
        settings: SamplerSettings = FULL,
        candidates: Sequence[str] | None = None,
        on_round: Callable[[Sequence[Sample]], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> SamplingRun:
        """Measure all (or only `candidates`) beside the incumbent, which runs twice a round.

        One whose many launches give another output than a single launch is in `failures`
        afterwards.

        Raises:
            MeasureError: the GPU failed.
            ValueError: the settings ask for a kind that the group was not made for.
        """
        if unprepared := set(settings.kinds) - set(self.device.kinds):
            raise ValueError(f"not prepared: {', '.join(sorted(unprepared))}")
        others = self._names if candidates is None else candidates
        run = run_rounds(self.device, incumbent, others, settings, on_round, should_stop)
        for name in (run.incumbent, *run.candidates):
            try:
                self.device.verify(name)
            except AttuneError as error:
                self.failures[name] = str(error)
        return run

    def latencies(self, run: SamplingRun, name: str) -> tuple[Latency, ...]:
        """One for every kind that was measured; none when it is in `failures`."""
        if name in self.failures:
            return ()
        latencies = []
        for kind in run.settings.kinds:
            latency = run.latency(name, kind)
            if latency is not None:
                how = f"{latency.reason}; {self.device.describe(name, kind)}"
                if (count := self.device.placements(name)) > 1:
                    how += f", in {count} places of memory in turn"
                how += _floor(run, kind) + _dropped(run, name, kind)
                clocks = _clocks_mhz(run, name, kind)
                if len(clocks) != len(latency.samples_us):
                    clocks = ()  # not known for every sample
                latencies.append(replace(latency, reason=how, sm_clocks_mhz=clocks))
        return tuple(latencies)


def _floor(run: SamplingRun, kind: LatencyKind) -> str:
    """What the A/A pair showed."""
    floor = expm1(run.table.floor(kind))
    return f"; identical runs differ by up to {floor:.2%} here" if isfinite(floor) else ""


def _taken(run: SamplingRun, name: str, kind: LatencyKind) -> list[tuple[Sample, str]]:
    """The samples of one and why each was dropped, in the order of `RoundTable.times_us`."""
    taken = [
        (sample, why)
        for sample, why in zip(run.samples, run.table.dropped, strict=True)
        if (sample.candidate, sample.kind) == (name, kind)
    ]
    return sorted(taken, key=lambda pair: (pair[0].round, pair[0].twin))


def _clocks_mhz(run: SamplingRun, name: str, kind: LatencyKind) -> tuple[int, ...]:
    """Of the samples that count, or of all where those are too few to count alone."""
    taken = _taken(run, name, kind)
    counted = [sample for sample, why in taken if not why]
    if len(counted) < MIN_SAMPLES:
        counted = [sample for sample, _ in taken]
    clocks = [sample.state.sm_clock_mhz for sample in counted]
    return tuple(clock for clock in clocks if clock is not None)


def _dropped(run: SamplingRun, name: str, kind: LatencyKind) -> str:
    reasons = Counter(why for _, why in _taken(run, name, kind) if why)
    said = ", ".join(f"{count} for {why}" for why, count in reasons.most_common())
    return f"; dropped {said}" if said else ""


# An evaluation that passed, with the times of it and of the baselines.


def time_evaluation(
    backend: CudaBackend,
    plan: LaunchPlan,
    inputs: Inputs,
    passed: Evaluation,
    read_state: Callable[[], GpuState],
    *,
    full: bool,
    settings: SamplerSettings | None = None,
) -> Evaluation:
    """Measure a plan on the GPU, with the SDPA baselines in the same run when `full`.

    Args:
        passed: the evaluation of this plan, with its verdict.
        settings: how to measure; FULL or QUICK when not given.

    Raises:
        MeasureError: the kernel could not be timed.
    """
    from engine.backends.sdpa import baseline, baseline_names

    assert passed.correctness is not None
    name = plan.variant
    baselines = baseline_names(plan.problem) if full else ()
    settings = settings or (FULL if full else QUICK)
    placements = PLACEMENTS if full else 1
    correctness = passed.correctness
    with TimingGroup(read_state, settings.kinds, placements) as group:
        if not group.add(name, lambda: backend.timer(plan, inputs, correctness)):
            raise MeasureError(group.failures[name])
        for each in baselines:
            group.add(each, partial(baseline, each, plan.problem, inputs))
        run = group.run(name, settings)
        return with_times(passed, group, run, name, baselines)


def with_times(
    passed: Evaluation, group: TimingGroup, run: SamplingRun, name: str, baselines: Sequence[str]
) -> Evaluation:
    """`passed` with the times of a run, its own and the baselines'.

    THROTTLED when the GPU slowed down too often; what was measured stays in it.

    Args:
        name: of this evaluation in the group.
        baselines: names in the group; one that could not take part has its reason.

    Raises:
        MeasureError: it has no time.
    """
    latencies = group.latencies(run, name)
    if not latencies:
        raise MeasureError(group.failures.get(name, "The run ended before it was measured."))
    return replace(
        passed,
        status=Status.THROTTLED if run.throttled else passed.status,
        reason=run.throttled or passed.reason,
        latency=latencies[0],
        other_latencies=latencies[1:],
        baselines=tuple(_baseline(group, run, each) for each in baselines),
    )


def _baseline(group: TimingGroup, run: SamplingRun, name: str) -> BaselineTiming:
    latencies = group.latencies(run, name)
    if not latencies:
        reason = group.failures.get(name, "The run ended before it was measured.")
        return BaselineTiming(name, None, reason)
    return BaselineTiming(name, latencies[0], other_latencies=latencies[1:])
