"""Recommend one kernel and one batch for mixed traffic, with its cost.

A line of traffic gives a problem, its batch today, and its launches per day. The same sequences can
be launched B at a time. Recommended is the smallest batch whose GPU-hours over all lines are close
to the minimum, with the kernel and config that is fastest at that batch. Times are predicted by
`engine.choose.batch.batch_table.predict_curve`, except where one was taken of this kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.attention.config import resolve_kernel
from engine.attention.evaluation import METHODS
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
    own: str  # the fastest kernel for this line alone, at this batch
    own_us: float


@dataclass(frozen=True, slots=True)
class MixKernel:
    """One kernel for the whole mix, at the recommended batch."""

    kernel: str
    gpu_hours_per_day: float
    plateau_hours_per_day: float  # at its best batch


@dataclass(frozen=True, slots=True, repr=False)
class MixResult(Tabular):
    """The recommendation: `kernel` (with its splits) launched `batch` at a time. All figures are
    predicted, except for times that a note names."""

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
    curve: tuple[tuple[int, float], ...]  # (batch, GPU-hours a day) of the recommended kernel
    notes: tuple[str, ...]

    @property
    def kernel(self) -> str:
        """`v05 num_splits=4 …`."""
        return " ".join([self.variant, *(f"{k}={v}" for k, v in self.config.items())])

    @property
    def interval(self) -> str:
        """Return the day's GPU time with every time at the ends of its 90 % interval."""
        return f"{_gpu_time(self.low_hours)} to {_gpu_time(self.high_hours)}"

    @property
    def reason(self) -> str:
        """Return the recommendation in two sentences."""
        price = self.hours / self.own_hours - 1
        apart = (
            "No line has a faster kernel of its own."
            if price < 0.005
            else f"The best kernel for each line would save {1 - 1 / (1 + price):.0%} of that."
        )
        return (
            f"{self.kernel} with B={self.batch:,} answers the mix in {_gpu_time(self.hours)} a "
            f"day{self._against_today()}; the least that any batch reaches is "
            f"{_gpu_time(self.plateau_hours)}. {apart}"
        )

    def _against_today(self) -> str:
        """Return the gain over today's batches, if any."""
        if abs(self.hours / self.hours_now - 1) < 0.005:
            price = self._price(self.usd_per_day)
            return f"{price}, as much as with today's batches: this batch gains nothing"
        price = self._price(self.usd_per_day, self.usd_per_day_now)
        today = f"{_gpu_time(self.hours_now)} with today's batches"
        if self.hours < self.hours_now:
            return f"{price}, not {today}"
        return f"{price}, and in {today}: keep those"

    def _price(self, *usd_per_day: float | None) -> str:
        """Return ` ($2 against $3 a day)`; below a cent, the cost of a million sequences."""
        prices = [usd for usd in usd_per_day if usd is not None]
        if not prices:
            return ""
        unit, factor = "a day", 1.0
        if min(prices) < _CENT:
            sequences = sum(p.line.count * p.line.problem.batch for p in self.problems)
            unit, factor = "per million sequences", 1e6 / sequences
        return f" ({' against '.join(format_usd(usd * factor) for usd in prices)} {unit})"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `recommend-batch --mix --json`."""
        problems = [
            {**asdict(p), "line": {"count": p.line.count, "problem": encode(p.line.problem)}}
            for p in self.problems
        ]
        summary = {"kernel": self.kernel, "reason": self.reason}
        return {**summary, **asdict(self), "problems": problems}

    def to_frame(self) -> pd.DataFrame:
        """A row for each line: times in µs, GPU-hours a day."""
        import pandas as pd

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
            }
            for p in self.problems
        )
        return pd.DataFrame(list(rows))

    def plot(self) -> Figure:
        """Return a Plotly figure of GPU-hours a day over the batch, with the recommended batch."""
        from plotly.graph_objects import Figure

        figure = Figure()
        batches, hours = zip(*self.curve, strict=True)
        figure.add_scatter(x=batches, y=hours, name=self.kernel)
        figure.add_scatter(x=[self.batch], y=[self.hours], mode="markers", name="recommended")
        figure.update_xaxes(title="batch", type="log")
        figure.update_yaxes(title=f"GPU-hours a day, predicted by {self.method}", type="log")
        return figure.update_layout(title=f"The mix on {self.device}")

    def tables(self) -> tuple[Table, ...]:
        """Return tables of the lines and of the kernels."""
        lines = (
            {
                "launches a day now": f"{p.line.count:,g}",
                "problem now": p.line.problem.label(),
                "now": format_us(p.now_us),
                f"with B={self.batch:,}": format_us(p.latency_us),
                "per sequence": format_us(p.latency_us / self.batch),
                "share of the hours": f"{p.gpu_hours_per_day / self.hours:.0%}",
                "fastest alone": "this one"
                if p.own == self.kernel
                else f"{format_us(p.own_us)}: {p.own}",
            }
            for p in self.problems
        )
        others = (
            {
                "kernel": k.kernel,
                f"GPU time a day with B={self.batch:,}": _gpu_time(k.gpu_hours_per_day),
                "at its best batch": _gpu_time(k.plateau_hours_per_day),
            }
            for k in self.kernels
        )
        return Table.of("Mix", lines, self.reason), Table.of("Kernels for the whole mix", others)


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
    plateau = min(float(t.hours.min()) for t in simulated)
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
        problems.append(
            MixProblem(
                line,
                now_us=float(best.latency_us[i][min(line.problem.batch, len(best.hours)) - 1]),
                latency_us=us,
                launches_per_day=launches,
                gpu_hours_per_day=launches * us / US_PER_HOUR,
                own=own.kernel.describe(),
                own_us=float(own.latency_us[i][at]),
            )
        )
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
        low_hours=float(best.low_hours[at]),
        high_hours=float(best.high_hours[at]),
        own_hours=sum(p.launches_per_day * p.own_us for p in problems) / US_PER_HOUR,
        plateau_hours=plateau,
        usd_per_day=None if price is None else price * hours,
        usd_per_day_now=None if price is None else price * now,
        gpus_needed=math.ceil(hours / (24 * utilisation)),
        problems=tuple(problems),
        kernels=tuple(
            MixKernel(t.kernel.describe(), float(t.hours[at]), float(t.hours.min())) for t in ranked
        ),
        curve=tuple((b, float(best.hours[b - 1])) for b in shown),
        notes=(
            *(f"{k.describe()} was left out: {error}" for k, error in failed),
            *(f"Not predicted: {text}." for t in alike for text in t.taken),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    """One kernel on all lines, at all batches from 1."""

    kernel: Kernel
    method: str
    latency_us: tuple[FloatArray, ...]  # of a launch, for each line `[batches]`
    hours: FloatArray  # GPU-hours a day `[batches]`
    low_hours: FloatArray
    high_hours: FloatArray
    hours_now: float
    taken: tuple[str, ...] = ()  # times that are not predicted

    @classmethod
    def of(
        cls, kernel: Kernel, lines: Sequence[MixLine], history: History, max_batch: int
    ) -> _Tried:
        curves, taken, most = [], [], max(max_batch, *(line.problem.batch for line in lines))
        for line in lines:
            one = replace(line.problem, batch=1)
            most = min(most, largest_launchable(kernel, one, most)[0])
            calibration = history.calibration(kernel, one)
            curve = predict_curve(kernel, one, range(1, most + 1), history, calibration)
            most = min(most, memory_feasible(curve.table["device_bytes"].to_numpy(), kernel.device))
            for b, time in known_latencies(kernel, one, history).items():
                columns = ["predicted_us", "low_us", "high_us"]
                row = curve.table["batch"] == b
                curve.table.loc[row, columns] = time.median_us, time.low_us, time.high_us
                what = f"{kernel.describe()}, {replace(one, batch=b).label()}"
                taken.append(f"{what}: {format_us(time.median_us)} {time.origin}")
            curves.append(curve)
        batch = np.arange(1, most + 1)
        sequences = [line.count * line.problem.batch for line in lines]

        def hours(column: str) -> FloatArray:
            each = (
                n * c.table[column].to_numpy()[:most] / batch
                for n, c in zip(sequences, curves, strict=True)
            )
            total: FloatArray = np.sum([*each], axis=0) / US_PER_HOUR
            return total

        latency = tuple(c.table["predicted_us"].to_numpy()[:most] for c in curves)
        now = sum(
            line.count * float(us[min(line.problem.batch, most) - 1])
            for line, us in zip(lines, latency, strict=True)
        )
        methods = {c.method for c in curves}
        return cls(
            kernel,
            METHODS[1] if METHODS[1] in methods else METHODS[0],
            latency,
            hours("predicted_us"),
            hours("low_us"),
            hours("high_us"),
            now / US_PER_HOUR,
            tuple(taken),
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
