"""Recommend one kernel and one batch for mixed traffic, with its cost.

A line of traffic gives a problem, its batch today, and its launches per day. The same sequences can
be launched B at a time. Recommended is the smallest batch whose GPU-hours over all lines are close
to the minimum, with the kernel and config that is fastest at that batch. Times are predicted by
`engine.choose.batch.batch_table.predict_curve`, except where one was taken of this kernel. Hours of
measured, recorded and predicted times, their price and interval are summed and written apart
(`by_origin`): "3.1 GPU-hours recorded + 1.2 GPU-hours predicted". A total over several origins only
ranks kernels and batches (`ranking_only`), as `rank_of` does, and is not written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from engine.attention.config import resolve_kernel
from engine.attention.evaluation import METHODS, Latency, Origin
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidProblem
from engine.base.schema import encode
from engine.base.table import Table, Tabular, read_csv
from engine.base.units import format_us, format_usd
from engine.choose.auto import choose
from engine.choose.batch.batch_table import (
    known_latencies,
    largest_launchable,
    memory_feasible,
    predict_curve,
)
from engine.choose.batch.cost import US_PER_HOUR
from engine.devices.spec import DeviceSpec
from engine.history import History
from engine.history.known_time import are_comparable, not_comparable
from engine.model.equations import FloatArray
from engine.model.kernel import Kernel
from engine.model.measured_points import ProblemRow, read_table
from kernels.variant import AUTO

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

MAX_LINES = 200
_CENT = 0.01
_MANY = 64  # a batch that fills a GPU with most problems
_NAMES = {"B": "batch", "H": "num_heads", "S": "seqlen", "D": "head_dim"}
_COLUMNS = ("count", "batch", "num_heads", "seqlen", "head_dim", "causal", "dtype")
_REQUIRED = _COLUMNS[:4]
_OPTIONAL = (*_COLUMNS[4:], "num_heads_kv", "seqlen_kv")


def _gpu_time(hours: float) -> str:
    if hours < 0.1:
        return f"{format_us(hours * US_PER_HOUR)} of GPU"
    text = f"{hours:,.3g}"
    return f"{text} GPU-hour" if text == "1" else f"{text} GPU-hours"


Hours: TypeAlias = dict[str, float]  # GPU-hours a day, by the origin of their times


def _add(parts: Iterable[tuple[Origin, float]]) -> Hours:
    hours: Hours = {}
    for origin, part in parts:
        hours[origin] = hours.get(origin, 0.0) + part
    return hours


def _sums(parts: Hours, total: float, text: Callable[[float], str] = _gpu_time) -> str:
    """Return `3.1 GPU-hours recorded + 1.2 GPU-hours predicted`; of predicted times the total."""
    if parts.keys() <= {"predicted"}:
        return text(total)
    return " + ".join(f"{text(part)} {origin}" for origin, part in parts.items())


@dataclass(frozen=True, slots=True)
class MixLine:
    """A problem as launched today, and its launches per day."""

    count: float
    problem: Problem


@dataclass(frozen=True, slots=True)
class MixProblem:
    """One line at the recommended batch."""

    line: MixLine
    now_us: float  # launch at today's batch, with the recommended kernel
    latency_us: float  # launch with the recommended batch
    launches_per_day: float
    gpu_hours_per_day: float
    own: str  # of the kernels that take all lines, this line's fastest
    own_us: float
    now_origin: Origin = "predicted"
    origin: Origin = "predicted"
    own_origin: Origin = "predicted"


@dataclass(frozen=True, slots=True)
class MixKernel:
    """One kernel for the whole mix, at the recommended batch."""

    kernel: str
    gpu_hours_per_day: float
    plateau_hours_per_day: float  # at its best batch
    by_origin: Hours = field(default_factory=dict)
    plateau_by_origin: Hours = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class MixResult(Tabular):
    """The recommendation: `kernel` (with its splits) launched `batch` at a time. All figures are
    predicted, except for times that a note names: `by_origin` has the parts of each sum, and
    `ranking_only` names the sums of several origins."""

    variant: str
    config: dict[str, int]
    device: str
    batch: int
    target: float
    method: str  # of `METHODS`
    hours_now: float  # GPU-hours a day: every line at today's batch, with this kernel
    hours: float
    low_hours: float  # with every time at the lower end of its 90 % interval
    high_hours: float
    own_hours: float  # with the fastest kernel of each line in place of one for all
    plateau_hours: float  # the minimum over kernels and batches
    usd_per_day: float | None
    usd_per_day_now: float | None
    gpus_needed: int
    problems: tuple[MixProblem, ...]
    kernels: tuple[MixKernel, ...]  # the best first
    # (batch, GPU-hours a day) of the recommended kernel, all predicted
    curve: tuple[tuple[int, float], ...]
    notes: tuple[str, ...]
    by_origin: dict[str, Hours] = field(default_factory=dict)  # of hours and prices, by field

    @property
    def kernel(self) -> str:
        """`v05 num_splits=4 …`."""
        return " ".join([self.variant, *(f"{k}={v}" for k, v in self.config.items())])

    @property
    def basis(self) -> str:
        """Return one sentence on the origin of the times."""
        if any(set(hours) - {"predicted"} for hours in self.by_origin.values()):
            return f"times are predicted by {self.method} unless they say otherwise."
        return f"all times are predicted by {self.method}."

    @property
    def interval(self) -> str:
        """Return the day's GPU time at the ends of every time's 90 % interval, origins apart."""
        return f"{self._sum('low_hours')} to {self._sum('high_hours')}"

    @property
    def ranking_only(self) -> tuple[str, ...]:
        """Return the fields that add times of several origins: no one time or price."""
        mixed = tuple(name for name, parts in self.by_origin.items() if len(parts) > 1)
        return (*mixed, "gpus_needed") if "hours" in mixed else mixed

    @property
    def reason(self) -> str:
        """Return the recommendation in two sentences."""
        each, own = "The fastest kernel below for each line", self._sum("own_hours")
        if mixed := self._not_comparable("own_origin"):
            apart = f"{each} takes {own} ({mixed})."
        elif self.hours < 1.005 * self.own_hours:
            apart = "No line is faster with another kernel below."
        elif "hours" in self.ranking_only:
            apart = f"{each} takes {own}."
        else:
            apart = f"{each} would save {1 - self.own_hours / self.hours:.0%} of that."
        return (
            f"{self.kernel} with B={self.batch:,} answers the mix in {self._sum('hours')} a "
            f"day{self._against_today()}; the least that any batch reaches is "
            f"{self._sum('plateau_hours')}. {apart}"
        )

    def _sum(self, name: str) -> str:
        return _sums(self.by_origin.get(name, {}), getattr(self, name))

    @property
    def ranking_note(self) -> str:
        """Return by what the kernels are ranked if their times have several origins; else empty."""
        parts = ((*k.by_origin, *k.plateau_by_origin) for k in self.kernels)
        origins = dict.fromkeys(chain.from_iterable(parts))
        if len(origins) < 2:
            return ""
        return f"Ranked by {' + '.join(origins)} hours: this total is for ranking only."

    def _not_comparable(self, name: str) -> str:
        """Return why the hours cannot be compared with those of another choice; else empty.

        Args:
            name: field of `MixProblem` with the other origin.
        """
        pairs = ((p.origin, getattr(p, name)) for p in self.problems)
        return next((not_comparable(*pair) for pair in pairs if not are_comparable(*pair)), "")

    def _against_today(self) -> str:
        """Return the gain over today's batches, if any."""
        one_price = self._price("usd_per_day")
        if mixed := self._not_comparable("now_origin"):
            return f"{one_price}, and in {self._sum('hours_now')} with today's batches ({mixed})"
        if abs(self.hours / self.hours_now - 1) < 0.005:
            return f"{one_price}, as much as with today's batches: this batch gains nothing"
        price = self._price("usd_per_day", "usd_per_day_now")
        today = f"{self._sum('hours_now')} with today's batches"
        if "hours" in self.ranking_only:
            return f"{price}, and in {today}"
        if self.hours < self.hours_now:
            return f"{price}, not {today}"
        return f"{price}, and in {today}: keep those"

    def _price(self, *names: str) -> str:
        """Return ` ($2 against $3 a day)` of these fields; below a cent, the cost of a million
        sequences."""
        totals = [getattr(self, name) for name in names]
        if None in totals:
            return ""
        unit, factor = "a day", 1.0
        if min(totals) < _CENT:
            sequences = sum(p.line.count * p.line.problem.batch for p in self.problems)
            unit, factor = "per million sequences", 1e6 / sequences

        def text(usd: float) -> str:
            return format_usd(usd * factor)

        each = (
            _sums(self.by_origin.get(n, {}), usd, text)
            for n, usd in zip(names, totals, strict=True)
        )
        return f" ({' against '.join(each)} {unit})"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `recommend-batch --mix --json`."""
        problems = [
            {**asdict(p), "line": {"count": p.line.count, "problem": encode(p.line.problem)}}
            for p in self.problems
        ]
        summary = {"kernel": self.kernel, "reason": self.reason}
        return {**summary, **asdict(self), "problems": problems, "ranking_only": self.ranking_only}

    def to_frame(self) -> pd.DataFrame:
        """A row for each line: times in µs, GPU-hours a day."""
        rows = (
            {
                "count": p.line.count,
                **{n: getattr(p.line.problem, n) for n in ("batch", "num_heads", "seqlen")},
                "problem": p.line.problem.label(),
                "now_us": p.now_us,
                "latency_us": p.latency_us,
                "launches_per_day": p.launches_per_day,
                "gpu_hours_per_day": p.gpu_hours_per_day,
                "own": p.own,
                "own_us": p.own_us,
                "now_origin": p.now_origin,
                "origin": p.origin,
                "own_origin": p.own_origin,
            }
            for p in self.problems
        )
        return Table.of("Mix", rows).frame(dashes=False)

    def plot(self) -> Figure:
        """Return a Plotly figure of GPU-hours a day over the batch, with the recommended batch."""
        from plotly.graph_objects import Figure

        figure = Figure()
        batches, hours = zip(*self.curve, strict=True)
        figure.add_scatter(x=batches, y=hours, name=self.kernel)
        at = {"x": [self.batch], "y": [dict(self.curve)[self.batch]]}
        figure.add_scatter(**at, mode="markers", name="recommended")
        figure.update_xaxes(title="batch", type="log")
        figure.update_yaxes(title=f"GPU-hours a day, predicted by {self.method}", type="log")
        return figure.update_layout(title=f"The mix on {self.device}")

    def tables(self) -> tuple[Table, ...]:
        """Return tables of the lines and of the kernels."""
        is_one = len({p.origin for p in self.problems}) == 1  # else a share says nothing
        lines = (
            {
                "launches a day now": f"{p.line.count:,g}",
                "problem now": p.line.problem.label(),
                "now": f"{format_us(p.now_us)} {p.now_origin}",
                f"with B={self.batch:,}": f"{format_us(p.latency_us)} {p.origin}",
                "per sequence": format_us(p.latency_us / self.batch),
                "share of the hours": f"{p.gpu_hours_per_day / self.hours:.0%}" if is_one else None,
                "fastest of these kernels": "this one"
                if p.own == self.kernel
                else f"{format_us(p.own_us)} {p.own_origin}: {p.own}",
            }
            for p in self.problems
        )
        others = (
            {
                "kernel": k.kernel,
                f"GPU time a day with B={self.batch:,}": _sums(k.by_origin, k.gpu_hours_per_day),
                "at its best batch": _sums(k.plateau_by_origin, k.plateau_hours_per_day),
            }
            for k in self.kernels
        )
        return (
            Table.of("Mix", lines, self.reason),
            Table.of("Kernels for the whole mix", others, self.ranking_note),
        )


def parse_mix(text: str, name: str = "the mix", **rest: Any) -> tuple[MixLine, ...]:
    """Lines `count,B,H,S[,D[,causal[,dtype]]]`, or CSV with a header of these or of column names.

    Args:
        name: name of the text in error messages.
        rest: fields of `Problem` for lines without them: `head_dim`, `causal`, `dtype`.

    Raises:
        InvalidProblem: the text cannot be parsed; the error names the line.
    """
    first = next((x for x in text.splitlines() if x.strip() and not x.lstrip().startswith("#")), "")
    cells = first.split(",")
    headless = cells[0].strip().replace(".", "", 1).isdigit()
    if headless:
        text = ",".join(_COLUMNS[: len(cells)]) + "\n" + text
    table = read_csv(text, name)
    columns = [_NAMES.get(c, c) for c in table.columns]
    unknown = [c for c in columns if c not in (*_REQUIRED, *_OPTIONAL)]
    missing = [c for c in _REQUIRED if c not in columns]
    if missing or unknown or len(cells) > len(_COLUMNS) + 2:
        extra = f"has unknown or too many columns: {unknown or cells}"
        wrong = f"lacks {missing[0]!r}" if missing else extra
        raise InvalidProblem(
            f"{name} {wrong}. It takes lines count,B,H,S[,D[,causal[,dtype]]], for instance "
            f"1000,4,8,512, or CSV with the columns {', '.join(_REQUIRED)} and optionally "
            f"{', '.join(_OPTIONAL)}."
        )
    lines = []
    for line, cells_of in table.rows:
        named = dict(zip(columns, cells_of.values(), strict=True))
        row = ProblemRow(name, line - headless, named)
        lines.append(MixLine(row.positive("count"), row.problem(**rest)))
    if not 1 <= len(lines) <= MAX_LINES:
        raise InvalidProblem(f"{name} has {len(lines):,} lines: give 1 to {MAX_LINES}.")
    return tuple(lines)


def read_mix(path: str | Path, **rest: Any) -> tuple[MixLine, ...]:
    """Return `parse_mix` of a file. Raises UnknownName if it does not exist."""
    return parse_mix(read_table(path), str(path), **rest)


def recommend_mix(
    lines: Sequence[MixLine],
    device: DeviceSpec,
    history: History,
    *,
    variant: str = AUTO,
    given: Mapping[str, int] | None = None,
    target: float = 0.9,
    max_batch: int = 1024,
    price_usd_per_hour: float | None = None,
    utilisation: float = 1.0,
) -> MixResult:
    """Recommend one kernel, config and batch for all lines.

    Args:
        variant: a variant, whose number of splits is chosen; `auto`: its choices for each line, at
            today's batch and at a large one, with any number of splits.
        given: fixed values of tunables.
        target: sufficient share of the highest throughput, above 0, at most 1.
        price_usd_per_hour: of a GPU; None: the device's list price.
        utilisation: planned share of a GPU's time.

    Raises:
        InvalidProblem: no lines, no kernel that takes all of them, or a batch that does not fit.
        UnknownName, CompileError, ToolMissing: as `recommend_batch`.
    """
    if not lines:
        raise InvalidProblem("A mix has at least one line: count,B,H,S.")
    if not 0 < target <= 1:
        raise InvalidProblem(f"The target is a share above 0 and at most 1, not {target:g}.")
    if not 0 < utilisation <= 1:
        raise InvalidProblem(f"Utilisation is a share above 0 and at most 1, not {utilisation:g}.")
    kernels = _candidates(lines, device, history, variant, dict(given or {}))
    tried, failed = [], []
    for kernel in kernels:
        try:
            tried.append(_Tried.of(kernel, lines, history, max_batch))
        except AttuneError as error:
            failed.append((kernel, error))
    if not tried:
        raise failed[0][1]
    # Assumed CTA times cannot rank kernels, so only simulated kernels are compared if there are
    # any.
    simulated = [t for t in tried if t.method == METHODS[0]] or tried
    fullest = min(simulated, key=lambda t: float(t.hours.min()))
    plateau = float(fullest.hours.min())
    reaching = [t.hours <= plateau / target for t in simulated]
    batch = min(int(np.argmax(reaches)) + 1 for reaches in reaching if reaches.any())
    alike = [t for t in simulated if len(t.hours) >= batch]  # can be launched with this batch
    best = min(alike, key=lambda t: float(t.hours[batch - 1]))
    at = batch - 1
    price = device.price_usd_per_hour if price_usd_per_hour is None else price_usd_per_hour
    hours, now = float(best.hours[at]), best.hours_now
    problems = []
    for i, line in enumerate(lines):
        own = min(alike, key=lambda t: float(t.latency_us[i][at]))
        launches = line.count * line.problem.batch / batch
        us = float(best.latency_us[i][at])
        today = min(line.problem.batch, len(best.hours))
        problems.append(
            MixProblem(
                line,
                now_us=float(best.latency_us[i][today - 1]),
                latency_us=us,
                launches_per_day=launches,
                gpu_hours_per_day=launches * us / US_PER_HOUR,
                own=own.kernel.describe(),
                own_us=float(own.latency_us[i][at]),
                now_origin=best.origin(i, today),
                origin=best.origin(i, batch),
                own_origin=own.origin(i, batch),
            )
        )
    by_origin = {
        "hours": best.by_origin(lines, batch),
        "low_hours": best.by_origin(lines, batch, best.low_us),
        "high_hours": best.by_origin(lines, batch, best.high_us),
        "hours_now": _add((p.now_origin, p.line.count * p.now_us / US_PER_HOUR) for p in problems),
        "own_hours": _add(
            (p.own_origin, p.launches_per_day * p.own_us / US_PER_HOUR) for p in problems
        ),
        "plateau_hours": fullest.by_origin(lines, int(fullest.hours.argmin()) + 1),
    }
    if price is not None:
        for usd, of in (("usd_per_day", "hours"), ("usd_per_day_now", "hours_now")):
            by_origin[usd] = {origin: price * part for origin, part in by_origin[of].items()}
    ranked = sorted(alike, key=lambda t: float(t.hours[at]))
    shown = sorted({*np.geomspace(1, len(best.hours), 48).astype(int).tolist(), batch})
    return MixResult(
        variant=best.kernel.variant.id,
        config=best.kernel.config,
        device=device.name,
        batch=batch,
        target=target,
        method=best.method,
        hours_now=now,
        hours=hours,
        low_hours=sum(by_origin["low_hours"].values()),
        high_hours=sum(by_origin["high_hours"].values()),
        own_hours=sum(p.launches_per_day * p.own_us for p in problems) / US_PER_HOUR,
        plateau_hours=plateau,
        usd_per_day=None if price is None else price * hours,
        usd_per_day_now=None if price is None else price * now,
        gpus_needed=math.ceil(hours / (24 * utilisation)),
        problems=tuple(problems),
        kernels=tuple(
            MixKernel(
                t.kernel.describe(),
                float(t.hours[at]),
                float(t.hours.min()),
                t.by_origin(lines, batch),
                t.by_origin(lines, int(t.hours.argmin()) + 1),
            )
            for t in ranked
        ),
        curve=tuple((b, float(best.predicted_hours[b - 1])) for b in shown),
        notes=(
            *(f"{k.describe()} was left out: {error}" for k, error in failed),
            *(f"Not predicted: {text}." for t in alike for text in t.taken(lines)),
        ),
        by_origin=by_origin,
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    """One kernel on all lines, at all batches from 1."""

    kernel: Kernel
    method: str
    latency_us: tuple[FloatArray, ...]  # of a launch, for each line `[batches]`
    low_us: tuple[FloatArray, ...]  # ends of the 90 % intervals
    high_us: tuple[FloatArray, ...]
    hours: FloatArray  # GPU-hours a day `[batches]`
    predicted_hours: FloatArray  # without known times
    hours_now: float
    known: tuple[Mapping[int, Latency], ...]  # times that are not predicted, by batch, per line

    def origin(self, line: int, batch: int) -> Origin:
        """Return the origin of a line's time at a batch."""
        known = self.known[line].get(batch)
        return "predicted" if known is None else known.origin

    def by_origin(
        self, lines: Sequence[MixLine], batch: int, times_us: Sequence[FloatArray] | None = None
    ) -> Hours:
        """Return the GPU-hours a day at a batch by the origin of their times, `latency_us` if none
        are given."""
        return _add(
            (
                self.origin(i, batch),
                line.count * line.problem.batch / batch * float(us[batch - 1]) / US_PER_HOUR,
            )
            for i, (line, us) in enumerate(zip(lines, times_us or self.latency_us, strict=True))
        )

    def taken(self, lines: Sequence[MixLine]) -> Iterator[str]:
        """Yield the times that are not predicted."""
        for line, known in zip(lines, self.known, strict=True):
            for b, time in known.items():
                what = f"{self.kernel.describe()}, {replace(line.problem, batch=b).label()}"
                yield f"{what}: {format_us(time.median_us)} {time.origin}"

    @classmethod
    def of(
        cls, kernel: Kernel, lines: Sequence[MixLine], history: History, max_batch: int
    ) -> _Tried:
        curves, known, most = [], [], max(max_batch, *(line.problem.batch for line in lines))
        predicted = []
        for line in lines:
            one = replace(line.problem, batch=1)
            most = min(most, largest_launchable(kernel, one, most)[0])
            calibration = history.calibration(kernel, one)
            curve = predict_curve(kernel, one, range(1, most + 1), history, calibration)
            most = min(most, memory_feasible(curve.table["device_bytes"].to_numpy(), kernel.device))
            predicted.append(curve.table["predicted_us"].to_numpy(copy=True))
            known.append(known_latencies(kernel, one, history))
            for b, time in known[-1].items():
                columns = ["predicted_us", "low_us", "high_us"]
                row = curve.table["batch"] == b
                curve.table.loc[row, columns] = time.median_us, time.low_us, time.high_us
            curves.append(curve)
        batch = np.arange(1, most + 1)
        sequences = [line.count * line.problem.batch for line in lines]

        def hours(times: Iterable[FloatArray]) -> FloatArray:
            each = (n * us[:most] / batch for n, us in zip(sequences, times, strict=True))
            total: FloatArray = np.sum([*each], axis=0) / US_PER_HOUR
            return total

        latency, low, high = (
            tuple(c.table[name].to_numpy()[:most] for c in curves)
            for name in ("predicted_us", "low_us", "high_us")
        )
        now = sum(
            line.count * float(us[min(line.problem.batch, most) - 1])
            for line, us in zip(lines, latency, strict=True)
        )
        methods = {c.method for c in curves}
        return cls(
            kernel,
            METHODS[1] if METHODS[1] in methods else METHODS[0],
            latency,
            low,
            high,
            hours(latency),
            hours(predicted),
            now / US_PER_HOUR,
            tuple(known),
        )


def _candidates(
    lines: Sequence[MixLine],
    device: DeviceSpec,
    history: History,
    variant: str,
    given: dict[str, int],
) -> list[Kernel]:
    """Return the kernels that support every line: the chosen ones, each with every number of
    splits."""
    # `auto` chooses kernels without a simulated time by the tables, and does not request their
    # times.
    auto = partial(choose, history=history.doing(history.work))
    chosen: dict[Kernel, None] = {}
    for line in lines:
        for batch in dict.fromkeys((line.problem.batch, _MANY)):
            problem = replace(line.problem, batch=batch)
            made = resolve_kernel(variant, given, problem, device, auto)
            chosen[Kernel.of(made.variant, device, made.config.values)] = None
    spread: dict[Kernel, None] = {}
    for kernel in chosen:
        spread[kernel] = None
        splits = next((t for t in kernel.variant.tunables if t.name == "num_splits"), None)
        for value in splits.values if splits is not None and "num_splits" not in given else ():
            spread[kernel.with_config(num_splits=value)] = None
    refused = [next(filter(None, (k.unsupported(x.problem) for x in lines)), None) for k in spread]
    taking = [k for k, why in zip(spread, refused, strict=True) if why is None]
    if not taking:
        raise InvalidProblem(f"No kernel takes every line of the mix. {refused[0]}")
    return taking
