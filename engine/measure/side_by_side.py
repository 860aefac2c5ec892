"""Measure kernels and baselines side by side on this machine's GPU, in one run of the sampler.

A launch of 3 µs cannot be timed by itself, because events around it read 5 to 6 µs. Therefore n
launches are captured in a CUDA graph, its replay is timed by events, and one sample is the replay's
time divided by n. End-to-end samples time calls from Python. `engine.measure.sampler` decides the
order of samples.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, expm1, isfinite
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from engine.attention.evaluation import ALL_KINDS, BaselineTiming, Evaluation, Latency, LatencyKind
from engine.attention.plan import LaunchPlan
from engine.attention.tensors import Inputs
from engine.base.errors import AttuneError, MeasureError, Status
from engine.devices.nvml import GpuState
from engine.measure.sampler import Sample, SamplerSettings, SamplingRun, run_rounds
from engine.measure.statistics import MIN_SAMPLES

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend

# Minimum time of a replay, so that the 5 µs of its start and events are at most 0.13 % of it.
TARGET_REPLAY_US = 4_000.0
# Maximum nodes of one graph: each costs about 7 µs to capture, and memory for its arguments.
MAX_LAUNCHES = 8_192
# Copies whose total size is this many times that of L2 leave nothing of the previous round in it.
COLD_L2_MULTIPLE = 5
# A memset of this many times L2's size replaces its content.
FLUSH_L2_MULTIPLE = 2

# The clock has reached its maximum when the pilot gets no faster over this much work; from idle,
# this takes boards up to half a second.
SETTLED_US = 50_000.0
MAX_PILOT_US = 1_000_000.0

_PILOT_US = 1_000.0
_MAX_PILOT_LAUNCHES = 64
# One end-to-end sample; a single call of 10 µs would be dominated by the interpreter's noise.
_CALLS_US = 500.0
_MAX_CALLS = 32


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One graph. A sample is the time of one replay divided by the number of launches."""

    launches: int  # in the graph; launch i uses copy i % copies
    copies: int  # of Q, K, V and O
    flush: bool  # overwrite L2 before every replay

    def __post_init__(self) -> None:
        if min(self.launches, self.copies) < 1:
            raise ValueError(f"not a measurement: {self}")
        if self.launches % self.copies:
            raise ValueError("every copy must be used equally often")

    def describe(self) -> str:
        """Return how a sample was taken, for `Latency.reason`."""
        if self.copies == 1:
            inputs = "on the same inputs"
        else:
            inputs = f"rotating over {self.copies:,} copies of the inputs"
        launches = "1 launch" if self.launches == 1 else f"{self.launches:,} launches"
        flushed = ", the L2 written over before each" if self.flush else ""
        return f"each a replay of a CUDA graph of {launches} {inputs}{flushed}"


def pilot_launches(single_launch_us: float) -> int:
    """Return the number of launches in the pilot graph, which estimates the launch time for the
    plans.

    `single_launch_us` is measured by events around one launch, which adds several µs.
    """
    return _clamp(ceil(_PILOT_US / single_launch_us), 1, _MAX_PILOT_LAUNCHES)


def plan_warm(launch_us: float) -> ReplayPlan:
    """Return a plan in which every launch reuses one copy, so data that fit stay in L2."""
    return ReplayPlan(_clamp(ceil(TARGET_REPLAY_US / launch_us), 1, MAX_LAUNCHES), 1, flush=False)


def plan_cold(launch_us: float, copy_bytes: int, l2_bytes: int, free_bytes: int) -> ReplayPlan:
    """Return a plan in which no launch finds its inputs in L2.

    Launches rotate through copies of at least five times L2's size. If that needs too many copies
    (a tiny problem on a large L2) or more than half of the free memory, each copy is used once per
    replay, and L2 is overwritten before every replay.

    Args:
        copy_bytes: device memory of one copy of Q, K, V and O.
        free_bytes: free device memory for copies; the first copy exists already.
    """
    affordable = _clamp(free_bytes // 2 // copy_bytes, 1, MAX_LAUNCHES)
    wanted = ceil(COLD_L2_MULTIPLE * l2_bytes / copy_bytes)
    timed = _clamp(ceil(TARGET_REPLAY_US / launch_us), 1, MAX_LAUNCHES)
    if wanted <= affordable:
        copies = max(wanted, 1)
        rounds = max(1, min(ceil(timed / copies), MAX_LAUNCHES // copies))
        return ReplayPlan(rounds * copies, copies, flush=False)
    copies = min(affordable, timed)
    return ReplayPlan(copies, copies, flush=True)


def call_count(call_us: float) -> int:
    """Return the number of calls in one end-to-end sample, which is their mean."""
    return _clamp(int(_CALLS_US / call_us), 1, _MAX_CALLS)


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


Replay: TypeAlias = Callable[[], float]


class Launchable(Protocol):
    """Something on a GPU that is launched over copies of its Q, K, V and O.

    Errors of the library are raised unchanged; `failed` converts them.
    """

    @property
    def copy_bytes(self) -> int:
        """Return the device memory of one copy."""
        ...

    @property
    def l2_bytes(self) -> int: ...

    def free_bytes(self) -> int:
        """Return the free device memory for more copies."""
        ...

    def make_copies(self, count: int) -> None:
        """Allocate copies until there are `count`."""
        ...

    def once_us(self) -> float:
        """Return the device time between events around one launch on the first copy, in µs."""
        ...

    def graph(self, launches: int, copies: int) -> Replay:
        """Capture launches, the i-th on copy i % copies. Calling the result replays them once and
        returns the device time in µs."""
        ...

    def flush_l2(self, size: int) -> None:
        """Queue an overwrite of `size` bytes of other memory."""
        ...

    def call_us(self, calls: int) -> float:
        """Return the mean host wall time of synchronous launches on the first copy, as in a user's
        code, in µs."""
        ...

    def verify(self) -> None:
        """Check the output of all those launches.

        Raises:
            MeasureError: it differs from the output of a single launch.
        """
        ...

    def failed(self, error: Exception) -> MeasureError:
        """Turn a launch error into a MeasureError; re-raise our own bugs."""
        ...


@dataclass(frozen=True, slots=True)
class _Ready:
    """A subject with its captured graphs."""

    subject: Launchable
    settle: Replay  # one launch before a warm sample, to fill L2 as a launch does
    warm: Replay
    warm_plan: ReplayPlan
    cold: Replay | None  # None if no cold samples are taken
    cold_plan: ReplayPlan | None
    calls: int


class ReplayDevice:
    """This machine's GPU for the sampler. Satisfies `engine.measure.sampler.TimedDevice`.

    Args:
        read_state: reads the GPU's state through NVML.
        kinds: kinds of samples to prepare for.
    """

    def __init__(
        self, read_state: Callable[[], GpuState], kinds: Sequence[LatencyKind] = ALL_KINDS
    ) -> None:
        self._read_state = read_state
        self.kinds = tuple(kinds)
        self._ready: dict[str, list[_Ready]] = {}

    def add(self, name: str, subject: Launchable, memory_share: float = 1.0) -> None:
        """Estimate the launch time and capture the graphs of one placement; call once for each
        placement.

        Args:
            memory_share: share of the free device memory that its copies may use.

        Raises:
            MeasureError: it cannot be launched, or not captured in a graph.
        """
        placements = self._ready.get(name, [])
        first = placements[0] if placements else None
        cold = "device_cold" in self.kinds
        try:
            ready = _prepare(subject, first, memory_share, cold=cold)
        except Exception as error:
            raise subject.failed(error) from error
        self._ready[name] = [*placements, ready]

    def placements(self, candidate: str) -> int:
        return len(self._ready[candidate])

    def has_room(self, name: str) -> bool:
        """True if one more set of buffers fits and leaves as much free.

        Raises:
            MeasureError: the GPU failed.
        """
        first = self._ready[name][0]
        copies = 1 if first.cold_plan is None else first.cold_plan.copies
        subject = first.subject
        try:
            return subject.free_bytes() >= 2 * copies * subject.copy_bytes
        except Exception as error:
            raise subject.failed(error) from error

    def time_once(self, candidate: str, kind: LatencyKind, placement: int = 0) -> float:
        ready = self._ready[candidate][placement]
        try:
            return _sample(ready, kind)
        except Exception as error:
            raise ready.subject.failed(error) from error

    def state(self) -> GpuState:
        return self._read_state()

    def now_s(self) -> float:
        return time.perf_counter()

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def verify(self, name: str) -> None:
        """Check the output of a subject's launches.

        Raises:
            MeasureError: outputs of repeated launches are wrong, so the measured time is
                meaningless.
        """
        for ready in self._ready[name]:
            try:
                ready.subject.verify()
            except Exception as error:
                raise ready.subject.failed(error) from error

    def describe(self, candidate: str, kind: LatencyKind) -> str:
        """Return how one sample of this kind is taken."""
        ready = self._ready[candidate][0]
        if kind == "device_warm":
            return ready.warm_plan.describe()
        if kind == "device_cold":
            assert ready.cold_plan is not None
            return ready.cold_plan.describe()
        each = "one call" if ready.calls == 1 else f"the mean of {ready.calls} calls"
        return f"each {each} from Python, launch and wait"


def _prepare(
    subject: Launchable, first: _Ready | None, memory_share: float, *, cold: bool
) -> _Ready:
    """Capture the graphs, with the sizes of the first placement's if there is one."""
    subject.call_us(1)  # load the kernel before capture and timing
    cold_plan, cold_graph = None, None
    if first is not None:
        warm_plan, cold_plan = first.warm_plan, first.cold_plan
    else:
        launch_us = _pilot_us(subject)
        warm_plan = plan_warm(launch_us)
        if cold:
            free = int(subject.free_bytes() * memory_share)
            cold_plan = plan_cold(launch_us, subject.copy_bytes, subject.l2_bytes, free)
    warm = subject.graph(warm_plan.launches, 1)
    settle = subject.graph(1, 1)
    if cold_plan is not None:
        subject.make_copies(cold_plan.copies)
        cold_graph = subject.graph(cold_plan.launches, cold_plan.copies)
    return _Ready(
        subject=subject,
        settle=settle,
        warm=warm,
        warm_plan=warm_plan,
        cold=cold_graph,
        cold_plan=cold_plan,
        calls=first.calls if first else call_count(min(subject.call_us(1) for _ in range(3))),
    )


def _pilot_us(subject: Launchable) -> float:
    """Return the device time of one launch after the GPU has left its idle clocks, in µs.

    At idle clocks a launch takes several times as long, which would make the graphs too small.
    Therefore the pilot graph is replayed until it gets no faster.
    """
    launches = pilot_launches(subject.once_us())
    pilot = subject.graph(launches, 1)
    fastest = before = busy = pilot()
    unchanged = 0.0
    while unchanged < SETTLED_US and busy < MAX_PILOT_US:
        time_us = pilot()
        busy += time_us
        fastest = min(fastest, time_us)
        unchanged += time_us
        if fastest < 0.99 * before:
            before, unchanged = fastest, 0.0
    return fastest / launches


def _sample(ready: _Ready, kind: LatencyKind) -> float:
    """µs of one launch, just after a launch of another candidate."""
    if kind == "device_warm":
        ready.settle()
        return ready.warm() / ready.warm_plan.launches
    if kind == "device_cold":
        assert ready.cold is not None
        assert ready.cold_plan is not None
        if ready.cold_plan.flush:
            ready.subject.flush_l2(FLUSH_L2_MULTIPLE * ready.subject.l2_bytes)
        return ready.cold() / ready.cold_plan.launches
    ready.subject.call_us(1)
    return ready.subject.call_us(ready.calls)


# FULL is for single evaluations, QUICK for the many points of a search.
FULL = SamplerSettings(kinds=ALL_KINDS)
QUICK = SamplerSettings(kinds=("device_warm",), min_rounds=10, max_s=2.0)


# Placements of one subject; the incumbent uses half for its first and half for its second runs.
PLACEMENTS = 6


class TimingGroup:
    """Kernels and baselines to time in one run, by name.

    A context manager, which frees their device memory at its end. `failures` has the reason for
    each subject that cannot be timed.

    Args:
        kinds: kinds of samples to prepare copies and graphs for.
        placements: number of memory placements of each subject, used in turn. One is enough for
            times that are not compared.
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
        """Return the names of the subjects that can be timed."""
        return tuple(self._names)

    def add(self, name: str, open_one: Callable[[], AbstractContextManager[Launchable]]) -> bool:
        """Prepare a subject for timing. Return False if that failed; `failures` has the reason.

        Args:
            open_one: called once for each placement, as long as memory suffices.
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
            pass  # errors other than a lack of memory show in the run
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
        """Measure all subjects (or only `candidates`) beside the incumbent, which runs twice a
        round.

        A subject whose repeated launches give another output than a single launch is then in
        `failures`.

        Raises:
            MeasureError: the GPU failed.
            ValueError: the settings have a kind that the group was not prepared for.
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
        """Return a latency for every measured kind; none if the subject is in `failures`."""
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
                    clocks = ()  # only if known for every sample
                latencies.append(replace(latency, reason=how, sm_clocks_mhz=clocks))
        return tuple(latencies)


def _floor(run: SamplingRun, kind: LatencyKind) -> str:
    """Return a sentence on the noise floor of the A/A pair."""
    floor = expm1(run.table.floor(kind))
    return f"; identical runs differ by up to {floor:.2%} here" if isfinite(floor) else ""


def _taken(run: SamplingRun, name: str, kind: LatencyKind) -> list[tuple[Sample, str]]:
    """Return a subject's samples with drop reasons, in the order of `RoundTable.times_us`."""
    taken = [
        (sample, why)
        for sample, why in zip(run.samples, run.table.dropped, strict=True)
        if (sample.candidate, sample.kind) == (name, kind)
    ]
    return sorted(taken, key=lambda pair: (pair[0].round, pair[0].twin))


def _clocks_mhz(run: SamplingRun, name: str, kind: LatencyKind) -> tuple[int, ...]:
    """Return the SM clocks of the valid samples, or of all samples if too few are valid."""
    taken = _taken(run, name, kind)
    counted = [sample for sample, why in taken if not why]
    if len(counted) < MIN_SAMPLES:
        counted = [sample for sample, _ in taken]
    clocks = [sample.state.sm_clock_mhz for sample in counted]
    return tuple(clock for clock in clocks if clock is not None)


def _dropped(run: SamplingRun, name: str, kind: LatencyKind) -> str:
    reasons = Counter(why for _, why in _taken(run, name, kind) if why)
    listed = ", ".join(f"{count} for {why}" for why, count in reasons.most_common())
    return f"; dropped {listed}" if listed else ""


# Add the times of the kernel and of baselines to an evaluation that passed.


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
    """Measure a plan on the GPU, with the SDPA baselines in the same run if the effort is "full".

    Args:
        passed: the evaluation of this plan, with its verdict.
        settings: how to measure; FULL or QUICK by default.

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
    """Return `passed` with the times of a run: the kernel's and the baselines'.

    It is THROTTLED if the GPU slowed down too often, and then also has the times.

    Args:
        name: of this evaluation in the group.
        baselines: names in the group; those that failed are recorded with the reason.

    Raises:
        MeasureError: the kernel has no time.
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
