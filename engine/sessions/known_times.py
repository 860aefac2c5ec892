"""Times that were really taken: of a kernel or of PyTorch's attention, whichever session holds
them.

Shipped and own snapshots and the sessions being worked on stand behind one index. A time says which
source it was taken of: only those of the very file that stands here today calibrate a prediction of
it (`KnownTimes.calibration_of`); any other is a kernel of its own that has the name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from engine.auto import Taken
from engine.base.errors import AttuneError, CompileError
from engine.base.status import Status
from engine.compiled_plan import variant_sources
from engine.devices.spec import DeviceSpec
from engine.evaluation import Evaluation, Latency
from engine.model.calibrate import calibrate, prepare
from engine.model.equations import Calibration
from engine.model.estimate import CalibrationOf, Footprint, FootprintOf
from engine.model.measurements import Measurement
from engine.names import find_variant
from engine.problem import Problem
from engine.sessions.session import Session, working_folder
from engine.sessions.store.store import SnapshotInfo, Store, default_store
from kernels.variant import Config, Dtype, Variant

# Of the source that a time was taken of: this file, another text, or not known.
SourceMatch: TypeAlias = Literal["this source", "another source", "source not recorded"]
# More kernels than a snapshot's summary lists may be in it all the same.
_SUMMARY_DEVICES = 8
_MOST_FITS = 64


@dataclass(frozen=True, slots=True)
class KnownTime:
    """One time of one launch, with where it is kept.

    `name` is the variant's, or `sdpa <backend>` for PyTorch's attention (`is_sdpa`). `latency` is
    measured or recorded and has no raw samples; `session` is a title, `file` the snapshot's name in
    the store (empty for a session that is still being worked on).
    """

    name: str
    is_sdpa: bool
    config: Mapping[str, int]
    problem: Problem
    device: str
    latency: Latency
    when: str  # UTC, ISO 8601: taken, or known since
    session: str
    file: str
    shipped: bool
    checked: bool  # its result was checked where it was timed
    source_sha256: str

    @property
    def kept(self) -> str:
        """`shipped`, `own snapshot` or `open session`."""
        return "shipped" if self.shipped else "own snapshot" if self.file else "open session"


class KnownTimes:
    """The times of a store and of the open sessions; each file is read once.

    Calls from several threads are safe. A file that cannot be read has no times.
    """

    def __init__(self, store: Store | None = None, working: Path | None = None) -> None:
        self._store = store or default_store()
        self._working = working or working_folder()
        self._infos: list[SnapshotInfo] = []
        self._snapshots: dict[str, tuple[KnownTime, ...]] = {}
        self._sessions: dict[Path, tuple[Session, tuple[KnownTime, ...]]] = {}
        self._calibrations = _Calibrations()
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Take in what was saved, removed or run since."""
        with self._lock:
            try:
                infos = self._store.list()
            except AttuneError:
                infos = []
            # Removed and saved again under one name is another file.
            kept = {(i.name, i.size_bytes, i.updated) for i in self._infos}
            same = {i.name for i in infos if (i.name, i.size_bytes, i.updated) in kept}
            self._snapshots = {n: t for n, t in self._snapshots.items() if n in same}
            self._infos = infos
            paths = sorted(self._working.glob("*.jsonl"))
            self._sessions = {p: s for p, s in self._sessions.items() if p in paths}
            for path in paths:
                self._refresh_session(path)

    def all(self) -> tuple[KnownTime, ...]:
        """Every time there is; opens every snapshot with times."""
        with self._lock:
            return self._times(self._infos)

    def on(self, device: str) -> tuple[KnownTime, ...]:
        """The times of one GPU."""
        with self._lock:
            times = self._times(i for i in self._infos if _may_hold(i, device))
        return tuple(t for t in times if t.device == device)

    def at(self, problem: Problem, device: str) -> tuple[KnownTime, ...]:
        """The times of one problem on one GPU, kernels and PyTorch's attention."""
        return tuple(t for t in self.on(device) if t.problem == problem)

    def taken_at(self, problem: Problem, device: str) -> tuple[Taken, ...]:
        """The warm times of one problem on one GPU that are of our kernels as they stand here."""
        return tuple(
            Taken(t.name, t.config, t.latency.median_us, t.latency.origin, f"session {t.session}")
            for t in self.at(problem, device)
            if not t.is_sdpa and t.latency.kind == "device_warm" and _is_of_this_source(t)
        )

    def of(self, variant: str, config: Config, device: str) -> tuple[KnownTime, ...]:
        """The times of one variant and config on one GPU."""
        wanted = dict(config)
        return tuple(
            t
            for t in self.on(device)
            if t.name == variant and not t.is_sdpa and dict(t.config) == wanted
        )

    def calibration_of(self, footprint_of: FootprintOf) -> CalibrationOf:
        """Calibrations on these times, as a prediction asks for them; a fit is kept.

        Args:
            footprint_of: where the resources of the points' kernels come from; points whose kernel
                is not compiled are left out.
        """

        def of(
            variant: Variant,
            config: Config,
            device: DeviceSpec,
            dtype: Dtype,
            by_machine_code: bool,
        ) -> Calibration | None:
            times = self.of(variant.id, config, device.name)
            if not times:
                return None
            footprint = footprint_of(variant, config, device)
            return self._calibrations.get(
                times, variant, config, device, footprint, dtype, by_machine_code
            )

        return of

    def _times(self, infos: Iterable[SnapshotInfo]) -> tuple[KnownTime, ...]:
        known: list[KnownTime] = []
        for info in infos:
            if info.summary is None or info.summary.origins in ((), ("predicted",)):
                continue
            if info.name not in self._snapshots:
                self._snapshots[info.name] = self._read(info)
            known += self._snapshots[info.name]
        for _, times in self._sessions.values():
            known += times
        return tuple(known)

    def _read(self, info: SnapshotInfo) -> tuple[KnownTime, ...]:
        try:
            snapshot = self._store.open(info.name)
        except AttuneError:
            return ()
        return times_of(
            snapshot.opened(),
            session=info.title,
            file=info.name,
            shipped=info.shipped,
            since=snapshot.created,
        )

    def _refresh_session(self, path: Path) -> None:
        try:
            if path in self._sessions:
                session, times = self._sessions[path]
                before = len(session.evaluations)
                session.refresh()
                if len(session.evaluations) == before:
                    return
            else:
                session = Session(path)
            times = times_of(session.evaluations, session=session.title or "Untitled session")
            self._sessions[path] = session, times
        except AttuneError:
            self._sessions.pop(path, None)


def times_of(
    evaluations: Iterable[Evaluation],
    *,
    session: str,
    file: str = "",
    shipped: bool = False,
    since: str = "",
) -> tuple[KnownTime, ...]:
    """The times that these evaluations hold, predictions left out, and those of wrong results.

    Args:
        since: when they became known here, for those that do not say when they were taken.
    """
    known = []
    for e in evaluations:
        if e.status is Status.INCORRECT:
            continue
        timed = [(e.variant, False, x) for x in (e.latency, *e.other_latencies)]
        for baseline in e.baselines:
            timed += [
                (f"sdpa {baseline.name}", True, x)
                for x in (baseline.latency, *baseline.other_latencies)
            ]
        known += [
            KnownTime(
                name=name,
                is_sdpa=is_sdpa,
                config={} if is_sdpa else dict(e.config),
                problem=e.problem,
                device=e.device,
                latency=replace(latency, samples_us=(), sm_clocks_mhz=()),
                when=e.when or since,
                session=session,
                file=file,
                shipped=shipped,
                checked=e.status is Status.PASSED,
                source_sha256="" if is_sdpa else e.source_sha256,
            )
            for name, is_sdpa, latency in timed
            if latency is not None and latency.origin != "predicted"
        ]
    return tuple(known)


def _is_of_this_source(time: KnownTime) -> bool:
    try:
        return source_match(time, find_variant(time.name)) == "this source"
    except AttuneError:  # a kernel that is not here
        return False


def source_match(time: KnownTime, variant: Variant) -> SourceMatch:
    """Whether a time was taken of the file that `variant` is today."""
    if not time.source_sha256:
        return "source not recorded"
    try:
        same = variant_sources(variant).source_sha256 == time.source_sha256
    except CompileError:
        same = False
    return "this source" if same else "another source"


def newest_of(times: Iterable[KnownTime]) -> KnownTime | None:
    """The one to show beside a prediction: warm, measured before recorded, then the newest."""
    warm = [t for t in times if t.latency.kind == "device_warm"]
    return max(warm, key=lambda t: (t.latency.origin == "measured", t.when), default=None)


def taken_of(times: Iterable[KnownTime], variant: Variant, config: Config) -> KnownTime | None:
    """The time of this source and config to show, as `newest_of` picks it."""
    return newest_of(
        t
        for t in times
        if not t.is_sdpa
        and t.name == variant.id
        and dict(t.config) == dict(config)
        and source_match(t, variant) == "this source"
    )


def points_of(times: Iterable[KnownTime]) -> tuple[Measurement, ...]:
    """Warm times as points for the batch model."""
    return tuple(
        Measurement(problem=t.problem, measured_us=t.latency.median_us)
        for t in times
        if t.latency.kind == "device_warm"
    )


class _Calibrations:
    """The last fits: a slider asks for the same one again and again."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Calibration | None] = {}

    def get(
        self,
        times: tuple[KnownTime, ...],
        variant: Variant,
        config: Config,
        device: DeviceSpec,
        footprint: Footprint,
        dtype: Dtype,
        by_machine_code: bool,
    ) -> Calibration | None:
        points = _points_of_source(times, variant, footprint, dtype)
        key = (variant.id, tuple(sorted(config.items())), device.name, dtype, points)
        if by_machine_code:
            fitted = self._kept.get((*key, "simulated"))
            fitted = fitted or _fit(variant, config, device, points, footprint, simulated=True)
            if fitted is not None and fitted.by_machine_code:
                return self._keep((*key, "simulated"), fitted)
        if key in self._kept:
            return self._kept[key]
        return self._keep(key, _fit(variant, config, device, points, footprint))

    def _keep(self, key: tuple[object, ...], fitted: Calibration | None) -> Calibration | None:
        while len(self._kept) >= _MOST_FITS:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[key] = fitted
        return fitted


def _points_of_source(
    times: Iterable[KnownTime], variant: Variant, footprint: Footprint, dtype: Dtype
) -> tuple[Measurement, ...]:
    mine = [
        t for t in times if t.problem.dtype == dtype and source_match(t, variant) == "this source"
    ]
    return tuple(p for p in points_of(mine) if _is_compiled(p.problem, footprint))


def _is_compiled(problem: Problem, footprint: Footprint) -> bool:
    try:
        footprint(problem)
    except AttuneError:
        return False
    return True


def _fit(
    variant: Variant,
    config: Config,
    device: DeviceSpec,
    points: tuple[Measurement, ...],
    footprint: Footprint,
    *,
    simulated: bool = False,
) -> Calibration | None:
    """`simulated`: on top of the points' simulated CTA times; None where one of them has none."""
    from engine.history.simulated import known_curve

    if not points:
        return None
    try:
        prepared = prepare(variant, config, device, points, footprint)
        if simulated:
            problems = [p.problem for p in points]
            curve = known_curve(variant, config, device, problems, prepared.resident[0])
            if curve is None:
                return None
            prepared = replace(prepared, curve=curve)
        return calibrate(variant, device, prepared)
    except AttuneError:  # a time that this GPU cannot have taken, or a GPU without figures
        return None


def _may_hold(info: SnapshotInfo, device: str) -> bool:
    s = info.summary
    return s is not None and (device in s.devices or len(s.devices) >= _SUMMARY_DEVICES)
