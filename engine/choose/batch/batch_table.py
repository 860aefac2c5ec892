"""Batch table: predicted curve, recommended batches, wave steps and their uncertainty.

The table shows two figures of a launch that are easily confused: its latency rises with the batch,
while the cost of a unit of work (one head of one batch element, B·H of them) falls until the GPU is
full.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.attention.evaluation import METHODS, Latency, Occupancy
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.units import format_bytes, format_us
from engine.devices.spec import DeviceSpec, limits_for
from engine.history import History
from engine.history.known_time import are_comparable, not_comparable
from engine.model.backward import backward_times
from engine.model.equations import TERMS, Calibration, FloatArray, machine, predict_arrays
from engine.model.kernel import Kernel, Known, resident_ctas
from engine.model.launches import Launches, collect_batches
from engine.model.occupancy import IntArray

if TYPE_CHECKING:
    import pandas as pd


# The uncertainty of a recommended batch follows from that of its latency.
#
# A recommendation compares batches with the plateau, so errors common to all batches cancel. Two
# parts remain: the effect of the model's parameters on the ratio of batches, which is computed, and
# the error of the equations, which is assumed as a fraction of the latency's interval.

# Assumed: a quarter of the latency's interval (as a logarithm) is independent between a batch and
# twice the batch, and less between closer batches, whose SMs do nearly the same work.
_NOT_SHARED = 0.25
# The smallest batch with this share of the best throughput represents the plateau.
_PLATEAU = 0.98


def share_bounds(table: pd.DataFrame, ends_us: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the 90 % interval of each batch's share of the plateau, `[rows]` each.

    Args:
        table: of `engine.choose.batch.batch_table.batch_table`.
        ends_us: `[k, rows]`: totals with the model's parameters at the low and the high end of each
            direction in turn.
    """
    batch = table["batch"].to_numpy()
    log_share = _log_share(batch, table["latency_us"].to_numpy())
    # [directions, ends, rows]
    change = np.stack([_log_share(batch, us) for us in ends_us]) - log_share
    change = change.reshape(-1, min(2, len(ends_us)), len(batch))
    below = np.sum(np.minimum(change.min(axis=1), 0.0) ** 2, axis=0)
    above = np.sum(np.maximum(change.max(axis=1), 0.0) ** 2, axis=0)
    plateau = batch[np.argmax(log_share >= np.log(_PLATEAU))]
    distance = np.minimum(1.0, np.abs(np.log2(batch / plateau)))
    half = np.log(table["high_us"].to_numpy() / table["low_us"].to_numpy()) / 2
    # The interval of a known time is of its own measurement, which no other batch shares.
    own = np.where(table["measured_us"].notna(), half**2, distance * (_NOT_SHARED * half) ** 2)
    return np.exp(log_share - np.sqrt(below + own)), np.exp(log_share + np.sqrt(above + own))


def _log_share(batch: FloatArray, latency_us: FloatArray) -> FloatArray:
    throughput = np.log(batch / latency_us)
    share: FloatArray = throughput - throughput.max()
    return share


# Predicted latency over many batches of one problem, fast enough to follow a slider.


@dataclass(frozen=True, slots=True)
class Curve:
    """Predictions over many batches.

    `table` has one row per batch: `batch`, `ctas`, `useful_ctas` (with keys to visit: waves and
    fills are those), `thread_fill`, `ctas_per_sm`, `load_per_sm`, `waves`,
    `wave_efficiency`, `sm_fill`, `predicted_us`, `low_us`, `high_us`, `binds` (the
    limiting term), `device_bytes`, `flops`.
    """

    table: pd.DataFrame
    ends_us: FloatArray  # [k, rows]: totals with the model's parameters at their 90 % ends
    method: str  # one of METHODS

    def head(self, rows: int) -> Curve:
        """Return the first rows."""
        return Curve(self.table.head(rows), self.ends_us[:, :rows], self.method)


def predict_curve(
    kernel: Kernel,
    problem: Problem,
    batches: Iterable[int],
    known: Known,
    calibration: Calibration | None = None,
    *,
    by_machine_code: bool = True,
) -> Curve:
    """Predict many batches of `problem`.

    Args:
        batches: ascending whole numbers from 1; resources do not depend on them.
        known: gives resources and CTA times.
        by_machine_code: False assumes CTA times.

    Raises:
        InvalidProblem: a batch below 1, a batch that the variant cannot launch, resources that do
            not fit on an SM, or a device without the figures a prediction needs.
    """
    import pandas as pd

    variant, device = kernel.variant, kernel.device
    m = machine(device, variant, problem.dtype)
    batches = list(batches)
    if not batches:
        raise InvalidProblem("A curve needs at least one batch.", code="curve_empty")
    for edge in (min(batches), max(batches)):
        replace(problem, batch=edge)  # rejects invalid batches
    launches = collect_batches(kernel, problem, np.array(batches, dtype=np.int64))
    resident = resident_ctas(kernel, launches, known.resources(kernel, problem))
    if variant.is_backward:
        return _backward_curve(kernel, problem, launches, resident, m.num_sms, known)
    simulated = known.batch_curve(kernel, problem, launches, resident) if by_machine_code else None
    spread = predict_arrays(variant, launches, resident, m, calibration, simulated)
    columns = _launch_columns(device, launches, resident, 0) | {
        "load_per_sm": spread.terms.load_per_sm,
        "predicted_us": spread.terms.total_us,
        "low_us": spread.low_us,
        "high_us": spread.high_us,
        "binds": np.array(TERMS, dtype=object)[spread.terms.limiting],
        "device_bytes": launches.device_bytes,
        "flops": launches.flops,
    }
    method = METHODS[0] if spread.by_machine_code else METHODS[1]
    return Curve(pd.DataFrame(columns), spread.ends_us, method)


def _backward_curve(
    kernel: Kernel,
    problem: Problem,
    launches: Launches,
    resident: IntArray,
    num_sms: int,
    known: Known,
) -> Curve:
    """Return `predict_curve` of a backward kernel, whose second pass is the main one."""
    import pandas as pd

    main = min(1, len(resident) - 1)
    load = -(-launches.ctas[main] // num_sms)
    times = backward_times(kernel, problem, launches.batch, load, resident[main], known)
    one = kernel.plan(replace(problem, batch=1))
    columns = _launch_columns(kernel.device, launches, resident, main) | {
        "load_per_sm": load,
        "predicted_us": times.us,
        "low_us": times.low_us,
        "high_us": times.high_us,
        "binds": times.limited_by,
        # All tensors and sums are proportional to the batch.
        "device_bytes": one.device_bytes * launches.batch,
        "flops": one.problem.flops * launches.batch,
    }
    method = METHODS[0] if times.by_machine_code else METHODS[1]
    # The ratio of two batches does not depend on the parameters.
    return Curve(pd.DataFrame(columns), np.stack([times.us, times.us]), method)


def _launch_columns(
    device: DeviceSpec, launches: Launches, resident: IntArray, main: int
) -> dict[str, Any]:
    """Return occupancy columns of the main pass at each batch."""
    assert device.num_sms is not None  # `machine` has checked it
    useful = launches.ctas[main] if main else launches.useful_ctas
    waves = useful / (resident[main] * device.num_sms)
    thread_slots = device.num_sms * limits_for(device.compute_capability).max_threads_per_sm
    return {
        "batch": launches.batch,
        "ctas": launches.ctas[main],
        "useful_ctas": useful,
        "ctas_per_sm": resident[main],
        "waves": waves,
        "wave_efficiency": waves / np.ceil(waves),
        "sm_fill": np.minimum(useful, device.num_sms) / device.num_sms,
        "thread_fill": useful * launches.threads[main] / thread_slots,
    }


DEFAULT_TARGETS = (0.7, 0.9, 0.95)
# A batch gets a warning if a smaller one is cheaper per unit by more than this.
_WORTH_SAYING = 0.01
# A unit that costs this many times as much from DRAM as from L2 is told.
_LEAVES_L2 = 1.1
# A launch that is longer by at most this share counts as equally long.
_NO_LONGER = 0.005
# Columns that a recommendation copies from its row of the table.
_OF_ROW = (
    *("batch", "latency_us", "origin", "low_us", "high_us", "per_unit_us", "per_query_us"),
    *("speedup_per_unit", "ctas", "useful_ctas", "waves", "sm_fill", "thread_fill"),
    *("memory_share", "binds"),
)
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def known_latencies(kernel: Kernel, problem: Problem, history: History) -> dict[int, Latency]:
    """Return batch → the known time of this kernel at it, which the history prefers to a
    prediction."""
    batches = (
        history.known_time(kernel, p.problem)
        for p in history.points(kernel, problem)
        if replace(p.problem, batch=1) == replace(problem, batch=1)
    )
    return {time.problem.batch: time.latency for time in batches if time is not None}


def batch_table(
    curve: pd.DataFrame,
    problem: Problem,
    device: DeviceSpec,
    measured: Mapping[int, Latency] | None = None,
) -> pd.DataFrame:
    """Return the curve with all derived columns.

    Args:
        curve: the table of `engine.choose.batch.batch_table.Curve`, batches ascending from 1.
        problem: its problem; the batch does not matter.
        device: its device.
        measured: batch → time of this kernel, measured or recorded. A prediction does not overrule
            it.

    Returns:
        The curve's columns and `latency_us`, `low_us`, `high_us`, `origin` (of the measured or
        recorded time where there is one, else of the prediction), `measured_us` (NaN where there
        is none), `predicted_low_us`, `predicted_high_us`,
        `units` (B·H), `queries` (B·H·S, query rows), `per_unit_us`, `per_query_us`,
        `queries_per_s`, `tokens_per_s` (B·S), `tflops`, `percent_of_peak` (NaN where the peak is
        unknown), `speedup_per_unit` (against the first row; NaN where the two origins are not
        comparable), `memory_share` (NaN where the memory
        is unknown), `step` (this batch starts another CTA per SM or wave), and `cheaper_batch` (the
        smaller batch that is cheapest per unit, 0 when there is none worth saying).
    """
    table = curve.copy()
    measured = measured or {}

    def known(name: str) -> pd.Series:
        return table["batch"].map({b: getattr(time, name) for b, time in measured.items()})

    table["measured_us"] = known("median_us").astype(float)
    table["latency_us"] = table["measured_us"].fillna(table["predicted_us"])
    table["origin"] = known("origin").astype(object).fillna("predicted")
    for end in ("low_us", "high_us"):
        table[f"predicted_{end}"] = table[end]
        table[end] = known(end).astype(float).fillna(table[end])
    total_us = table["latency_us"].to_numpy()
    batch = table["batch"].to_numpy()
    units = batch * problem.num_heads
    queries = units * problem.seqlen
    peak = device.tensor_tflops(problem.dtype)
    tflops = table["flops"].to_numpy() / total_us / 1e6
    per_unit_us = total_us / units
    table["units"] = units
    table["queries"] = queries
    table["per_unit_us"] = per_unit_us
    table["per_query_us"] = total_us / queries
    table["queries_per_s"] = queries / total_us * 1e6
    table["tokens_per_s"] = batch * problem.seqlen / total_us * 1e6
    table["tflops"] = tflops
    table["percent_of_peak"] = np.nan if peak is None else 100 * tflops / peak
    is_like_first = [are_comparable(str(table["origin"].iloc[0]), x) for x in table["origin"]]
    table["speedup_per_unit"] = np.where(is_like_first, per_unit_us[0] / per_unit_us, np.nan)
    memory = device.memory_bytes
    table["memory_share"] = np.nan if memory is None else table["device_bytes"] / memory
    table["step"] = np.diff(table["load_per_sm"].to_numpy(), prepend=table["load_per_sm"][0]) > 0
    table["cheaper_batch"] = _cheaper_batches(batch, per_unit_us)
    return table


def _cheaper_batches(batch: np.ndarray[Any, Any], per_unit_us: FloatArray) -> FloatArray:
    best_so_far = np.minimum.accumulate(per_unit_us)
    where_best = np.where(per_unit_us <= best_so_far, np.arange(len(batch)), 0)
    cheapest = batch[np.maximum.accumulate(where_best)]
    worth = per_unit_us > (1 + _WORTH_SAYING) * best_so_far
    chosen: FloatArray = np.where(worth, cheapest, 0)
    return chosen


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The batch for a share of the plateau: the end of the wave in which the smallest batch lies
    that reaches it.

    Batches are ranked by their times in the table, in which a measured or recorded time comes
    before a prediction. A share of times that are not comparable ranks, but is not given.
    """

    target: float
    batch: int
    enough_batch: int  # the smallest batch that reaches the share
    low_batch: int  # 90 % interval of the batch, see `engine.choose.batch.batch_table`
    high_batch: int
    same_latency_up_to: int  # the largest batch whose launch takes no longer
    latency_us: float
    origin: str  # of the latency
    low_us: float
    high_us: float
    per_unit_us: float
    per_query_us: float
    speedup_per_unit: float | None  # relative to the table's first batch; None: not comparable
    share_of_plateau: float | None  # of the throughput, 0..1; None: not comparable
    plateau_origin: str  # of the time of the batch with the most throughput
    ctas: int
    useful_ctas: int
    waves: float
    sm_fill: float
    thread_fill: float
    memory_bytes: int
    memory_share: float | None
    binds: str
    reason: str
    warning: str  # why a neighbouring batch is better, or empty


def recommended_batches(
    table: pd.DataFrame,
    ends_us: FloatArray,
    device: DeviceSpec,
    targets: Sequence[float] = DEFAULT_TARGETS,
) -> tuple[Recommendation, ...]:
    """Return for each target the smallest batch that reaches it, and the end of its wave.

    Args:
        table: of `batch_table`, only batches that fit in memory.
        ends_us: `[k, rows]`, the totals with the model's parameters at their 90 % ends.
        targets: shares of the plateau, the most units per second that any batch of the table has.

    Raises:
        InvalidProblem: a target that is not above 0 and at most 1, or none.
    """
    if not targets:
        raise InvalidProblem(
            "Name at least one share of the plateau to reach, such as 0.9.", code="no_target"
        )
    for target in targets:
        if not 0 < target <= 1:
            raise InvalidProblem(
                f"A target is a share of the plateau above 0 and at most 1 (0.9 for 90 %), not "
                f"{target:g}.",
                code="target_range",
            )
    throughput = table["batch"].to_numpy() / table["latency_us"].to_numpy()
    # A measured time does not depend on the parameters.
    ends_us = np.where(table["measured_us"].notna(), table["measured_us"], ends_us)
    low, high = share_bounds(table, ends_us)
    shares = (throughput / throughput.max(), high, low)
    return tuple(
        _recommendation(table, device, target, throughput, [_first(s, target) for s in shares])
        for target in sorted(targets)
    )


def _first(share: FloatArray, target: float) -> int:
    """Return the index of the first batch that reaches the share, else of the largest share.

    Rounding errors are tolerated.
    """
    reached = share >= target - 1e-12
    return int(np.argmax(reached)) if reached.any() else int(np.argmax(share))


def _recommendation(
    table: pd.DataFrame,
    device: DeviceSpec,
    target: float,
    throughput: FloatArray,
    indices: list[int],
) -> Recommendation:
    total_us = table["latency_us"].to_numpy()
    enough = int(table["batch"].iloc[indices[0]])
    i, *ends = (_same_latency_up_to(total_us, index) for index in indices)
    row: Any = table.iloc[i]
    plateau_origin = str(table["origin"].iloc[int(throughput.argmax())])
    share = None
    if are_comparable(row.origin, plateau_origin):
        share = float(throughput[i] / throughput.max())
    figures: Any = table.iloc[[i]][list(_OF_ROW)].to_dict("records")[0]  # as Python numbers
    for name in ("memory_share", "speedup_per_unit"):
        if np.isnan(figures[name]):
            figures[name] = None
    free = ""
    enough_origin = str(table["origin"].iloc[indices[0]])
    if enough < row.batch and share is not None and are_comparable(row.origin, enough_origin):
        free = f" B={enough:,} is enough for {target:.0%}; up to B={row.batch:,} costs nothing."
    return Recommendation(
        target=target,
        enough_batch=enough,
        low_batch=int(table["batch"].iloc[min(i, *ends)]),
        high_batch=int(table["batch"].iloc[max(i, *ends)]),
        same_latency_up_to=int(table["batch"].iloc[_same_latency_up_to(total_us, i)]),
        share_of_plateau=share,
        plateau_origin=plateau_origin,
        memory_bytes=int(row.device_bytes),
        reason=_reason(table, i, share, plateau_origin, device) + free,
        warning=step_warning(table, int(row.batch)),
        **figures,
    )


def _same_latency_up_to(total_us: FloatArray, i: int) -> int:
    """Return the index of the last batch whose launch takes no longer than that of batch i."""
    longer = np.flatnonzero(total_us[i:] > (1 + _NO_LONGER) * total_us[i])
    return len(total_us) - 1 if len(longer) == 0 else i + int(longer[0]) - 1


def _reason(
    table: pd.DataFrame, i: int, share: float | None, plateau_origin: str, device: DeviceSpec
) -> str:
    """Return one sentence why this batch is recommended: idle SMs, waves, bandwidth or the
    plateau."""
    first: Any = table.iloc[0]
    row: Any = table.iloc[i]
    if share is None:
        mixed, amount = not_comparable(row.origin, plateau_origin), "the target share"
    else:
        mixed, amount = "", f"{share:.0%}"
    reached = f"B={row.batch:,} reaches {amount} of the plateau"
    if i == 0:
        why = f" ({mixed})" if mixed else ""
        return f"{reached} at once{why}: a larger batch would not use the GPU better."
    now, at_first = (
        f"{format_us(x.per_unit_us)}{_origin_if_other(table, x.origin)}" for x in (row, first)
    )
    gain = f"a unit costs {now} instead of {at_first} at B={first.batch:,}"
    if mixed:
        gain = f"{mixed}; {gain}"
    if row.binds in ("DRAM", "L2"):
        limit = f"{row.binds} bandwidth is the limit"
        return f"{reached} ({gain}): from here {limit}, and time grows with B."
    if row.binds == "launch floor":
        return f"{reached} ({gain}): launch overhead is the largest part, and more units share it."
    if first.sm_fill < 1 and row.load_per_sm == 1:
        return (
            f"{reached} ({gain}): SMs were idle (B={first.batch:,} gives work to "
            f"{first.sm_fill:.0%} of {device.num_sms}), and its {row.useful_ctas:,} CTAs fill "
            f"{row.sm_fill:.0%} of them at almost no extra latency."
        )
    if row.wave_efficiency < 0.9 and row.waves > 1:
        return (
            f"{reached} ({gain}): wave quantization costs the rest, as the last of "
            f"{int(np.ceil(row.waves))} waves is not full ({row.wave_efficiency:.0%} efficiency)."
        )
    return (
        f"{reached} ({gain}): every SM has {row.load_per_sm:,} "
        f"CTA{'s' if row.load_per_sm > 1 else ''} to work through, and more CTAs add time almost "
        f"in proportion."
    )


def _origin_if_other(table: pd.DataFrame, origin: str) -> str:
    """Return the origin to show after a time if the table's times have several origins."""
    return f" {origin}" if table["origin"].nunique() > 1 else ""


def explain_knee(main: Occupancy, table: pd.DataFrame, device: DeviceSpec) -> str:
    """Explain the knee of the curve: it depends on the CTAs that run at once, not on thread slots.

    Args:
        main: occupancy of the main pass at any batch.
        table: of `batch_table`, from its first batch.

    Returns:
        A sentence or two; empty where the device's SMs are not known.
    """
    first: Any = table.iloc[0]
    if device.num_sms is None or main.ctas_to_fill is None or not main.ctas_per_sm:
        return ""
    at_once = main.ctas_per_sm * device.num_sms
    per_batch = first.useful_ctas / first.batch
    word = "CTA fits" if main.ctas_per_sm == 1 else "CTAs fit"
    words = (
        f"The knee: {main.ctas_per_sm} {word} on an SM (limited by {main.limited_by()}), so the "
        f"{device.num_sms} SMs run {at_once:,} at once, which is {_as_batch(at_once, per_batch)}."
        " Further CTAs wait."
    )
    if main.ctas_to_fill > at_once:
        words += (
            f" Filling every thread slot would take {main.ctas_to_fill:,} CTAs "
            f"({_as_batch(main.ctas_to_fill, per_batch)}), but no more than {at_once:,} are "
            f"resident at once: at the knee thread fill is {at_once / main.ctas_to_fill:.0%}."
        )
    return words + _beyond_l2(table)


def _beyond_l2(table: pd.DataFrame) -> str:
    """Return a sentence on the batch from which on a unit costs more, because it comes from DRAM;
    empty if none does."""
    per_unit_us = table["per_unit_us"].to_numpy()
    from_dram = np.flatnonzero(table["binds"].to_numpy() == "DRAM")
    i = int(from_dram[0]) if len(from_dram) else 0
    if i == 0 or per_unit_us[i] < _LEAVES_L2 * per_unit_us[i - 1]:
        return ""
    row, before = table.iloc[i], table.iloc[i - 1]
    if not are_comparable(row.origin, before.origin):
        return ""
    return (
        f" From B={row.batch:,} on, the tensors do not stay in L2 from launch to launch: a unit "
        f"costs {format_us(row.per_unit_us)} instead of {format_us(before.per_unit_us)} at "
        f"B={before.batch:,}, limited by DRAM bandwidth."
    )


def _as_batch(ctas: int, per_batch: float) -> str:
    """Return a number of CTAs as batches: `B=58`, `B=14.5`, or a share of B=1."""
    batches = ctas / per_batch
    if batches < 1:
        return f"{batches:.0%} of the {per_batch:,.0f} of B=1"
    return f"B={batches:,.1f}".removesuffix(".0")


def step_warning(table: pd.DataFrame, batch: int) -> str:
    """Return one sentence why a smaller batch is cheaper per unit; empty if none is.

    Raises:
        InvalidProblem: the batch is not in the table.
    """
    at = np.flatnonzero(table["batch"].to_numpy() == batch)
    if len(at) == 0:
        raise InvalidProblem(f"B={batch:,} is not in the table.", code="batch_not_in_table")
    row: Any = table.iloc[int(at[0])]
    cheaper = int(row.cheaper_batch)
    if cheaper == 0:
        return ""
    other: Any = table.iloc[int(np.flatnonzero(table["batch"].to_numpy() == cheaper)[0])]
    waves, before = int(np.ceil(row.waves)), int(np.ceil(other.waves))
    if row.binds == "DRAM" and other.binds != "DRAM":
        what = "exceeds L2 and is limited by DRAM bandwidth"
    elif waves > before:
        what = f"costs a {_ordinal(waves)} wave"
    else:
        what = f"puts a {_ordinal(int(row.load_per_sm))} CTA on some SMs"
    return (
        f"B={batch:,} {what}: {cheaper:,} is cheaper per unit "
        f"({format_us(other.per_unit_us)}{_origin_if_other(table, other.origin)} against "
        f"{format_us(row.per_unit_us)}{_origin_if_other(table, row.origin)})."
    )


def _ordinal(n: int) -> str:
    if n <= len(_ORDINALS):
        return _ORDINALS[n - 1]
    tens, units = divmod(n, 10)
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(units, "th") if tens % 10 != 1 else "th"
    return f"{n:,}{suffix}"


def memory_feasible(device_bytes: np.ndarray[Any, Any], device: DeviceSpec) -> int:
    """Return how many of the first batches fit in the GPU's memory. Bytes must grow with the batch.

    Raises:
        InvalidProblem: not even the first one fits.
    """
    if device.memory_bytes is None:
        return len(device_bytes)
    fitting = int(np.searchsorted(device_bytes, device.memory_bytes, side="right"))
    if fitting == 0:
        raise InvalidProblem(
            f"No batch fits: B=1 needs {format_bytes(int(device_bytes[0]))} and {device.name} has "
            f"{format_bytes(device.memory_bytes)}: choose fewer heads, a shorter sequence, or a "
            f"larger GPU.",
            code="no_batch_fits",
        )
    return fitting


def largest_launchable(kernel: Kernel, problem: Problem, max_batch: int) -> tuple[int, str]:
    """Return the largest batch that can be launched, and why no larger one can; empty if
    `max_batch` can.

    Found by bisection: if CUDA's grid limits or the variant refuse a batch, they refuse larger
    ones.
    """

    variant, config = kernel.variant, kernel.config

    def refused(batch: int) -> str:
        return variant.unsupported(replace(problem, batch=batch), config) or ""

    most = 1 + bisect_left(range(2, max_batch + 1), True, key=lambda batch: bool(refused(batch)))
    return most, refused(most + 1) if most < max_batch else ""
