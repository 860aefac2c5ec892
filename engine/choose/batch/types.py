"""Request and result of a batch-size recommendation, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.attention.evaluation import METHODS
from engine.attention.problem import Problem
from engine.base.schema import encode
from engine.base.table import Table, Tabular
from engine.base.units import format_bytes, format_thread_fill, format_us
from engine.choose.batch.alternatives import Option
from engine.choose.batch.batch_table import DEFAULT_TARGETS, Recommendation
from engine.choose.batch.cost import Saving, TrafficUnit, WaitPlan
from engine.choose.batch.validate import NextPoint
from engine.devices.spec import DeviceSpec
from engine.model.calibrate import LeaveOneOut
from engine.model.equations import PARAMETER_NAMES, Calibration, Parameters
from engine.model.measured_points import Measurement
from kernels.variant import Dtype

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

DEFAULT_MAX_BATCH = 4096


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request for a batch size. Missing tunables take their tuned or default values.

    With `heads_free`, the axis is B·H: the table's batch counts units of one head.
    """

    variant: str
    gpu: str | DeviceSpec  # a name of the device table, or a detected GPU's specification
    seqlen: int
    head_dim: int
    heads: int = 1
    heads_free: bool = False
    causal: bool = False
    dtype: Dtype = "float16"
    seqlen_kv: int | None = None  # where there are other keys than queries
    heads_kv: int | None = None  # where query heads share K/V heads
    features: Mapping[str, Any] = field(default_factory=dict)  # as `features_of` a problem
    config: Mapping[str, int] = field(default_factory=dict)
    max_batch: int = DEFAULT_MAX_BATCH
    targets: tuple[float, ...] = DEFAULT_TARGETS
    measured: str | Path | Sequence[Measurement] | None = None  # a CSV file, or points
    # On `measured`; otherwise its points only replace predictions at their batches.
    calibrate: bool = True
    measured_here: bool = False  # the points were measured by this Attune, not recorded elsewhere
    # Name of the points' kernel if it is not the variant's file but has the same launch. The result
    # then describes that kernel. Empty: the variant's file.
    measured_kernel: str = ""
    predict: tuple[tuple[int, int, int], ...] = ()  # further points: (batch, heads, seqlen)
    batch_now: int = 1  # today's batch
    prices: Mapping[str, float] = field(default_factory=dict)  # by GPU; else the device table's
    traffic_per_day: float | None = 1e9  # the study's; None leaves costs out
    traffic_unit: TrafficUnit = "queries"
    utilisation: float = 1.0
    arrivals_per_s: float | None = None  # requests (batch elements) a second, for waiting
    budget_ms: float | None = None  # latency that waiting may add
    alternatives: bool = False  # also compile other variants, and this one for other GPUs


@dataclass(frozen=True, slots=True)
class Point:
    """Prediction and measured time, if known, of one problem."""

    batch: int
    heads: int
    heads_kv: int | None  # where query heads share K/V heads
    seqlen: int
    head_dim: int
    seqlen_kv: int | None  # where there are other keys than queries
    ctas: int
    predicted_us: float
    low_us: float
    high_us: float
    measured_us: float | None
    difference: float | None  # predicted / measured − 1
    sdpa_us: float | None  # PyTorch's attention on the same problem, if measured

    def record(self) -> dict[str, object]:
        """Return the point as a table row."""
        heads, seqlen = self.heads, self.seqlen
        return {
            "B": self.batch,
            "H": heads if self.heads_kv is None else f"{heads} (KV {self.heads_kv:,})",
            "S": seqlen if self.seqlen_kv is None else f"{seqlen} (KV {self.seqlen_kv:,})",
            "CTAs": self.ctas,
            "predicted": format_us(self.predicted_us),
            "90 % interval": f"{format_us(self.low_us)} – {format_us(self.high_us)}",
            "measured": None if self.measured_us is None else format_us(self.measured_us),
            "difference": None if self.difference is None else f"{self.difference:+.1%}",
        }


@dataclass(frozen=True, slots=True, repr=False)
class BatchResult(Tabular):
    """A recommendation. `table` has a row per batch (see `batch_table.batch_table`)."""

    variant: str
    device: str
    config: dict[str, int]
    problem: Problem  # at `batch_now`
    method: str  # method of the predictions: "machine code" or "roofline"
    table: pd.DataFrame
    points: tuple[Point, ...]
    recommendations: tuple[Recommendation, ...]
    calibration: Calibration | None
    loo: LeaveOneOut | None
    kernel: str  # name of the described kernel if it is not the variant's file; else empty
    knee: str  # explanation of the curve's knee
    next_point: NextPoint | None  # what to measure next
    saving: Saving | None  # at the middle target, if traffic is given
    wait: WaitPlan | None
    options: tuple[Option, ...]
    warnings: tuple[str, ...]
    axis_notes: tuple[str, ...]  # why the batches end there
    notes: tuple[str, ...]

    @property
    def recommended(self) -> Recommendation:
        """Return the batch size of the middle target."""
        return self.recommendations[len(self.recommendations) // 2]

    @property
    def is_bound(self) -> bool:
        """True if times are only by roofline, whose assumed CTA times are no prediction."""
        return self.method == METHODS[1] and self.calibration is None

    def recommended_batches(self) -> Table:
        """Return a row for each target."""
        records = (
            {
                "plateau": f"{r.target:.0%}",
                "batch": r.batch,
                "enough": r.enough_batch,
                "between": f"{r.low_batch:,}"
                if r.low_batch == r.high_batch
                else f"{r.low_batch:,} – {r.high_batch:,}",
                "latency": format_us(r.latency_us),
                "origin": r.origin,
                "per unit": format_us(r.per_unit_us),
                "thread fill": format_thread_fill(r.thread_fill),
                "memory": format_bytes(r.memory_bytes),
            }
            for r in self.recommendations
        )
        return Table.of("Recommended batches", records)

    def predicted_points(self) -> Table:
        """Return a row for each requested or measured point."""
        return Table.of("Points", (p.record() for p in self.points))

    def tables(self) -> tuple[Table, ...]:
        """Return tables of the recommended batches and of the points."""
        first = replace(self.recommended_batches(), remark=f"{self.recommended.reason} {self.knee}")
        return tuple(t for t in (first, self.predicted_points()) if t.rows)

    def to_frame(self) -> pd.DataFrame:
        """`table`: a row for each batch."""
        return self.table

    def plot(self) -> Figure:
        """Return a Plotly figure of the time per unit over the batch, with the recommended
        batches."""
        from plotly.graph_objects import Figure

        figure = Figure()
        units = self.table["units"]
        figure.add_scatter(
            x=self.table["batch"],
            y=self.table["predicted_us"] / units,
            name=f"predicted by {self.method}",
        )
        for origin, known in self.table[self.table["measured_us"].notna()].groupby("origin"):
            low, us, high = (known[x] / known["units"] for x in ("low_us", "latency_us", "high_us"))
            figure.add_scatter(
                x=known["batch"],
                y=us,
                error_y={"symmetric": False, "array": high - us, "arrayminus": us - low},
                mode="markers",
                name=str(origin),
            )
        figure.add_scatter(
            x=[r.batch for r in self.recommendations],
            y=[r.per_unit_us for r in self.recommendations],
            text=[f"{r.target:.0%}" for r in self.recommendations],
            mode="markers+text",
            textposition="top center",
            name="recommended",
        )
        figure.update_xaxes(title="batch", type="log")
        figure.update_yaxes(title="µs per unit of batch", type="log")
        return figure.update_layout(title=f"{self.variant} on {self.device}")

    def calibration_quality(self) -> tuple[str, ...]:
        """Return sentences on the model's accuracy, the error on unseen points first."""
        calibration, loo = self.calibration, self.loo
        if calibration is None:
            return ()
        s = "" if calibration.points == 1 else "s"
        first = f"Calibrated on {calibration.points} known time{s}"
        if loo is None and calibration.points > 1:  # of sessions
            return (f"{first} of sessions.", *calibration.notes)
        if loo is None:
            return (f"{first}: too few to say how well it predicts others.", *calibration.notes)
        return (
            f"{first}. Each point predicted from the others: {loo.mean_error:.1%} off on average, "
            f"{loo.worst_error:.1%} at worst ({loo.worst_place}); {sum(loo.inside)} of "
            f"{len(loo.inside)} inside their 90 % interval, which is a factor of {loo.width:.2g} "
            "wide.",
            *calibration.notes,
        )

    def to_dict(self, with_curve: bool = False) -> dict[str, Any]:
        """The JSON object of `recommend-batch --json`; `with_curve` adds every row."""
        data: dict[str, Any] = {
            "variant": self.variant,
            "device": self.device,
            "config": self.config,
            "problem": encode(self.problem),
            "points": [asdict(p) for p in self.points],
            "recommendations": [asdict(r) for r in self.recommendations],
            "model": self._model(),
            "kernel": self.kernel,
            "knee": self.knee,
            "measure_next": None if self.next_point is None else asdict(self.next_point),
            "cost": None if self.saving is None else self.saving.to_dict(),
            "wait": None if self.wait is None else asdict(self.wait),
            "options": [asdict(o) for o in self.options],
            "warnings": list(self.warnings),
            "notes": [*self.axis_notes, *self.notes],
        }
        if with_curve:
            # NaN means "unknown" in a DataFrame and does not exist in JSON.
            table = self.table.astype(object).where(self.table.notna(), None)
            data["curve"] = table.to_dict(orient="records")
        return data

    def _model(self) -> dict[str, Any]:
        calibration, loo = self.calibration, self.loo
        parameters = calibration.parameters if calibration else Parameters()
        return {
            "origin": "predicted",
            "method": self.method,
            "calibrated": calibration is not None,
            "parameters": {name: getattr(parameters, name) for name in PARAMETER_NAMES},
            "fitted": list(calibration.fitted) if calibration else [],
            "points": calibration.points if calibration else 0,
            "noise": calibration.noise if calibration else None,
            "loo_error": loo.mean_error if loo else None,
            "loo_worst_error": loo.worst_error if loo else None,
            "loo_worst_point": loo.worst_place if loo else None,
            "loo_interval_width": loo.width if loo else None,
            "loo_inside": sum(loo.inside) / len(loo.inside) if loo else None,
            "notes": list(calibration.notes) if calibration else [],
        }


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The calibration on a request's measured points, valid for every sequence length and batch.

    Without points, the calibration is on times of sessions, and `loo` is None.
    """

    measurements: tuple[Measurement, ...]
    calibration: Calibration | None
    loo: LeaveOneOut | None
    is_callers: bool = False  # on points that the history does not have
