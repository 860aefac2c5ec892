"""Measured and recorded times of kernels and of PyTorch's attention.

A time names the source that was timed. If that is the variant's present file, it is a time of the
variant; otherwise it is a `Reference`, another kernel with the same launch, with a name of its own
(`kernel_name`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from engine.attention.config import find_variant
from engine.attention.evaluation import Evaluation, Latency, baseline_label
from engine.attention.problem import Problem
from engine.base.errors import WITHOUT_TIME, AttuneError, CompileError, Status, UnknownName
from engine.devices.spec import find_device, with_sms
from engine.model.kernel import variant_sources
from engine.model.measured_points import Measurement
from kernels.variant import Config, Variant

# The timed source: the present file, another text, or not known.
SourceMatch: TypeAlias = Literal["this source", "another source", "source not recorded"]
# Two predicted times on one GPU that differ by more than this are in the right order in at least 95
# % of the pairs of tests/bench/bench_sass_validation.py, which prints how many.
RANKING_ERROR = 0.10
RECORDED = "recorded, not checked here"
_SOURCE_DIGITS = 8  # of a source's SHA-256 in names
_SERIES = "series: "  # prefix of an import's note that names the series of a time


@dataclass(frozen=True, slots=True)
class KnownTime:
    """A known time of a launch, and where it is stored.

    `name` is the variant's, or `sdpa <backend>` for PyTorch's attention (`is_sdpa`). `latency` is
    measured or recorded and has no raw samples; `session` is a title, `file` the snapshot's name in
    the store (empty for an open session).
    """

    name: str
    is_sdpa: bool
    config: Mapping[str, int]
    problem: Problem
    device: str
    latency: Latency
    when: str  # UTC, ISO 8601: when it was measured, else when it became known
    session: str
    file: str
    shipped: bool
    checked: bool  # the output of the timed kernel was checked
    source_sha256: str
    series: str = ""  # series in the imported file; each series is of another kernel

    @property
    def ran_here(self) -> bool:
        """True if it ran as the variant, and was not only recorded elsewhere."""
        return self.checked and bool(self.source_sha256)

    @property
    def stored_in(self) -> str:
        """`shipped`, `own snapshot` or `open session`."""
        return "shipped" if self.shipped else "own snapshot" if self.file else "open session"


@dataclass(frozen=True, slots=True)
class Reference:
    """A time of a source other than the variant's file, with its own name."""

    name: str  # `v08 (source 3f2a91ab)`, `L4 study kernel (series: length)`
    time: KnownTime

    @classmethod
    def of(cls, time: KnownTime) -> Reference:
        """Return a reference: the variant with its source if it ran here, else a kernel of the
        session, distinguished by series, source or variant name."""
        if time.ran_here:
            return cls(with_source(time.name, time.source_sha256[:_SOURCE_DIGITS]), time)
        session, _, _ = time.session.partition(":")
        apart = time.source_sha256[:_SOURCE_DIGITS] or f"given as {time.name}"
        if time.series:
            apart = f"series: {time.series}"
        return cls(f"{session.strip() or 'another'} kernel ({apart})", time)


def kernel_name(evaluation: Evaluation, session: str) -> str:
    """Return the variant's name if its present source was evaluated, else a name of its own.

    `v08 (source 3f2a91ab)` ran as v08, before an edit or from another copy of the file. A time that
    was recorded elsewhere has the name of its `Reference`.

    Args:
        session: its title.
    """
    return with_source(launched_as(evaluation, session), other_source(evaluation))


def with_source(name: str, source: str) -> str:
    """Return `v08 (source 3f2a91ab)`; the name alone for an empty `source`."""
    return f"{name} (source {source})" if source else name


def other_source(evaluation: Evaluation) -> str:
    """Return the first digits of the evaluated source's SHA-256 if it is not the variant's present
    one; empty if it is, or was not recorded, or did not run as the variant."""
    return other_sources([evaluation])[0]


def other_sources(evaluations: Iterable[Evaluation]) -> list[str]:
    """Return `other_source` of each evaluation; the source of each variant is read once."""
    evaluations = list(evaluations)
    present = {name: _present_sha256(name) for name in {e.variant for e in evaluations}}
    return [
        ""
        if e.status is Status.SKIPPED or e.source_sha256 == present[e.variant]
        else e.source_sha256[:_SOURCE_DIGITS]
        for e in evaluations
    ]


def predicted_name(variant: str, sha256: str) -> str:
    """Return the variant's name, or `v08 (source 3f2a91ab)` for a prediction of another source."""
    present = sha256 == _present_sha256(variant)
    return with_source(variant, "" if present else sha256[:_SOURCE_DIGITS])


def launched_as(evaluation: Evaluation, session: str) -> str:
    """Return the name by which evaluations are paired and matched with targets: the variant's, for
    all its sources, or that of a `Reference` for a time that was recorded elsewhere.

    Comparing the sources of a variant before and after an edit is what sessions are for; tables
    show `kernel_name`.
    """
    if evaluation.status is not Status.SKIPPED and evaluation.source_sha256:
        return evaluation.variant
    times = times_of([evaluation], session=session)
    mine = next((time for time in times if not time.is_sdpa), None)
    if mine is None or evaluation.status is Status.PASSED or is_of_this_source(mine):
        return evaluation.variant
    return Reference.of(mine).name


def has_present_source(evaluation: Evaluation) -> bool:
    """False if another source than the variant's present file was evaluated or timed."""
    return kernel_name(evaluation, "") == evaluation.variant


def under_own_names(evaluations: Iterable[Evaluation], session: str) -> list[Evaluation]:
    """The evaluations with `kernel_name` for their variant and `timed_device` for their GPU, so
    that another kernel's time is not shown as the variant's, nor a slice's as the whole GPU's.
    """
    return with_sources(as_launched(evaluations, session))


def was_recorded_elsewhere(evaluation: Evaluation) -> bool:
    """True for a time that Attune has from a file: it neither ran the kernel nor checked its
    result."""
    times = (evaluation.latency, *(b.latency for b in evaluation.baselines))
    return evaluation.status is Status.SKIPPED and any(
        time is not None and time.origin != "predicted" for time in times
    )


def status_label(evaluation: Evaluation) -> str:
    """Return the status to show: `PASSED`, or `RECORDED` for a time that was recorded elsewhere."""
    return RECORDED if was_recorded_elsewhere(evaluation) else str(evaluation.status)


def as_launched(evaluations: Iterable[Evaluation], session: str) -> list[Evaluation]:
    """The evaluations with `launched_as` for their variant and `timed_device` for their GPU, to be
    paired."""
    return [_named(e, launched_as(e, session)) for e in on_timed_devices(evaluations)]


def with_sources(launched: Iterable[Evaluation]) -> list[Evaluation]:
    """The evaluations of `as_launched` with `kernel_name` for their variant, to be shown."""
    launched = list(launched)
    return [
        _named(e, with_source(e.variant, other))
        for e, other in zip(launched, other_sources(launched), strict=True)
    ]


def on_timed_devices(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """The evaluations with `timed_device` for their GPU."""
    named = ((e, timed_device(e)) for e in evaluations)
    return [e if name == e.device else replace(e, device=name) for e, name in named]


def _named(evaluation: Evaluation, name: str) -> Evaluation:
    return evaluation if name == evaluation.variant else replace(evaluation, variant=name)


def _present_sha256(variant: str) -> str:
    """Return the hash of a variant's present source; empty if this machine cannot read it."""
    try:
        return variant_sources(find_variant(variant)).source_sha256
    except AttuneError:
        return ""


class TimeSource(Protocol):
    """Interface to known times; `engine.sessions.known_times.KnownTimes` implements it."""

    def on(
        self, device: str, problem: Problem | None = None, name: str = ""
    ) -> tuple[KnownTime, ...]:
        """Return the times of one GPU, newest session first, optionally of one problem or kernel
        name.
        """
        ...


def times_of(
    evaluations: Iterable[Evaluation],
    *,
    session: str,
    file: str = "",
    shipped: bool = False,
    since: str = "",
) -> tuple[KnownTime, ...]:
    """Return the times in these evaluations, without predictions, incorrect results and faults.

    Args:
        since: when they became known here, for evaluations without a date.
    """
    known = []
    for e in evaluations:
        if e.status in WITHOUT_TIME:
            continue
        timed = [(e.variant, False, x) for x in (e.latency, *e.other_latencies)]
        for baseline in e.baselines:
            timed += [
                (f"sdpa {baseline.name}", True, x)
                for x in (baseline.latency, *baseline.other_latencies)
            ]
        series = next((n.removeprefix(_SERIES) for n in e.notes if n.startswith(_SERIES)), "")
        device = timed_device(e)
        known += [
            KnownTime(
                name=name,
                is_sdpa=is_sdpa,
                config={} if is_sdpa else dict(e.config),
                problem=e.problem,
                device=device,
                latency=replace(latency, samples_us=(), sm_clocks_mhz=()),
                when=e.when or since,
                session=session,
                file=file,
                shipped=shipped,
                checked=e.status in (Status.PASSED, Status.THROTTLED),
                source_sha256="" if is_sdpa else e.source_sha256,
                series="" if is_sdpa else series,
            )
            for name, is_sdpa, latency in timed
            if latency is not None and latency.origin != "predicted"
        ]
    return tuple(known)


def timed_device(e: Evaluation) -> str:
    """Return the name of the GPU, or of the part of it that was used, which old files do not give:
    they name the whole GPU and the SMs."""
    if e.occupancy is None:
        return e.device
    try:
        return with_sms(find_device(e.device), e.occupancy.num_sms).name
    except UnknownName:
        return e.device


def source_match(time: KnownTime, variant: Variant) -> SourceMatch:
    """Return whether a time belongs to the present source file of `variant`."""
    if not time.source_sha256:
        return "source not recorded"
    try:
        same = variant_sources(variant).source_sha256 == time.source_sha256
    except CompileError:
        same = False
    return "this source" if same else "another source"


def is_of_this_source(time: KnownTime) -> bool:
    """True if the time belongs to the present source of a kernel on this machine."""
    if time.is_sdpa or not time.source_sha256:
        return False
    return time.source_sha256 == _present_sha256(time.name)


def references_in(times: Iterable[KnownTime]) -> tuple[Reference, ...]:
    """Return the warm times of other sources, without PyTorch's."""
    return tuple(
        Reference.of(t)
        for t in times
        if not t.is_sdpa and t.latency.kind == "device_warm" and not is_of_this_source(t)
    )


def name_of(time: KnownTime) -> str:
    """Return the name of the timed kernel: `SDPA flash`, `v08`, or the reference's name."""
    if time.is_sdpa:
        return baseline_label(time.name)
    return time.name if is_of_this_source(time) else Reference.of(time).name


def newest_of(times: Iterable[KnownTime]) -> KnownTime | None:
    """Return the time to show beside a prediction: warm, measured before recorded, then the
    newest."""
    warm = [t for t in times if t.latency.kind == "device_warm"]
    return max(warm, key=lambda t: (t.latency.origin == "measured", t.when), default=None)


def known_time_of(times: Iterable[KnownTime], variant: Variant, config: Config) -> KnownTime | None:
    """Return the time of this source and config that `newest_of` selects."""
    return newest_of(
        t
        for t in times
        if not t.is_sdpa
        and t.name == variant.id
        and dict(t.config) == dict(config)
        and source_match(t, variant) == "this source"
    )


def preferred(known: KnownTime | None, predicted: Latency | None) -> Latency | None:
    """Return the latency to show of a kernel: a known time of this source, else the prediction."""
    return predicted if known is None else known.latency


def known_first(latency: Latency) -> tuple[int, float]:
    """Return a sort key for what a session holds: known times first, then the fastest.

    `rank_of` orders kernels by the one time that `History` prefers of each. A session may hold
    times of some kernels and predictions of others, and a prediction does not outrank a time.
    """
    return int(latency.origin == "predicted"), latency.median_us


def points_of(times: Iterable[KnownTime]) -> tuple[Measurement, ...]:
    """Return warm times as points for the batch model."""
    return tuple(
        Measurement(problem=t.problem, measured_us=t.latency.median_us)
        for t in times
        if t.latency.kind == "device_warm"
    )


# Comparability of times.


def are_comparable(basis: str, other: str) -> bool:
    """Whether a ratio of two times says something, by their `Latency.basis` or origin.

    That of a predicted and a known time does not, nor that of two that were predicted by
    different methods, or of which one alone is calibrated: such a ratio is never written.
    """
    return basis == other or not (_is_predicted(basis) or _is_predicted(other))


def _is_predicted(basis: str) -> bool:
    return basis.startswith("predicted")


NOT_COMPARABLE = "not comparable"


def not_comparable(basis: str, other: str) -> str:
    """Return the text in place of a ratio: `predicted ÷ recorded, not comparable`.

    Methods are named where both are predicted: `predicted by roofline ÷ predicted by machine code`.
    Of times of two kinds, pass the kinds: `device cold ÷ device warm, not comparable`.
    """
    if _is_predicted(basis) and _is_predicted(other):
        return f"{basis} ÷ {other}, {NOT_COMPARABLE}"
    first, second = (text.split()[0] for text in (basis, other))
    if first == second:  # both recorded elsewhere
        return f"timed in unknown ways, {NOT_COMPARABLE}"
    if second == "predicted":
        first, second = second, first
    return f"{first} ÷ {second}, {NOT_COMPARABLE}".replace("_", " ")
