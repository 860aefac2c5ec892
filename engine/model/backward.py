"""Predicted times of a backward launch: the sum of its passes, also at many batches.

Each pass is simulated as a whole launch, for many batches at 1, 2, 3, 4, 6, 8, 12 and so on.
Between these, time grows with the main pass's CTAs on the busiest SM, and with the batch if that
number is equal; beyond the last, with the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np
import numpy.typing as npt

from engine.attention.evaluation import Latency, PassReport
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US
from engine.model.equations import Z90, FloatArray, Parameters, Terms, machine, method_note
from engine.model.kernel import Estimate, Kernel, Known, backward_roofline, misfit_of, outer_end
from engine.model.occupancy import IntArray


@dataclass(frozen=True, slots=True)
class PassTime:
    """One pass of a backward kernel, simulated separately; µs."""

    us: float  # without the launch floor
    sm_us: float  # the busiest SM
    cta_us: float  # the longest CTA, alone on an SM
    dram_us: float
    spread: float  # standard deviation of the logarithm of its error


# For a backward kernel that is not simulated: assumed share of the math peak, and its uncertainty.
_ASSUMED_EFFICIENCY, _ASSUMED_FACTOR = 0.3, 4.0


def estimate_backward(
    kernel: Kernel,
    plan: LaunchPlan,
    passes: tuple[PassReport, ...],
    times: Sequence[PassTime] | None,
) -> Estimate:
    """Return occupancy and predicted latency of a backward launch: the sum of its passes.

    Args:
        times: simulated time of each pass; None assumes a share of the math units' peak.
    """
    if why := misfit_of(kernel, passes):
        return Estimate(kernel, plan, passes, why, None, None, why)
    try:
        m = machine(kernel.device, kernel.variant, plan.problem.dtype)
    except InvalidProblem as error:
        return Estimate(kernel, plan, passes, "", None, None, str(error))
    peak_us, dram_us = backward_roofline(plan, m)
    if times is not None:
        floor_us = len(times) * LAUNCH_FLOOR_US
        compute_us, sm_us = sum(t.us for t in times), sum(t.sm_us for t in times)
        cta_us, dram_us = max(t.cta_us for t in times), sum(t.dram_us for t in times)
        factor = exp(Z90 * max(t.spread for t in times))
        largest = max(range(len(times)), key=lambda i: times[i].us)
        entry, share = plan.passes[largest].entry, times[largest].us / max(compute_us, 1e-9)
        what = f"{entry} takes {share:.0%} of its {len(times)} passes."
    else:
        floor_us = len(passes) * Parameters().floor_us
        compute_us = sm_us = max(peak_us, dram_us) / _ASSUMED_EFFICIENCY
        cta_us, factor = 0.0, _ASSUMED_FACTOR
        what = (
            f"Its products are assumed to run at {_ASSUMED_EFFICIENCY:.0%} of the math units' peak."
        )
    total_us = floor_us + compute_us
    note = method_note(None, None)
    if times is not None:
        note = (
            "By machine code: the sum of the passes, each simulated by itself; the interval comes "
            "from kernels that were both measured and simulated."
        )
    reason = f"{what} {note} At {kernel.device.clock_label}."
    if spilled := sum(p.resources.spill_bytes for p in passes):
        reason += f" It spills {spilled:,} bytes of registers, which the model does not count."
    clock = kernel.device.clock
    latency = Latency(
        origin="predicted",
        median_us=total_us,
        low_us=outer_end(total_us, total_us / factor, clock),
        high_us=outer_end(total_us, total_us * factor, clock),
        reason=reason,
    )
    main = passes[min(1, len(passes) - 1)].occupancy

    def one(value: float) -> FloatArray:
        return np.array([value])

    zero, ctas = one(0.0), np.array([main.ctas])
    terms = Terms(
        total_us=one(total_us),
        floor_us=one(floor_us),
        cta_us=one(cta_us),
        shared_us=zero,
        ctas=ctas,
        ctas_per_sm=np.array([main.ctas_per_sm]),
        load_per_sm=-(-ctas // m.num_sms),
        compute_us=one(sm_us),
        peak_us=one(peak_us),
        exp_us=zero,
        l2_us=zero,
        dram_us=one(dram_us),
        fuse_us=zero,
    )
    by_machine_code = times is not None
    return Estimate(kernel, plan, passes, "", latency, terms, reason, by_machine_code)


# Rounds of resident CTAs on the busiest SM beyond which time grows with the batch and is not
# simulated.
_MAX_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class BackwardTimes:
    """Times at each batch; µs."""

    us: FloatArray
    low_us: FloatArray
    high_us: FloatArray
    limited_by: npt.NDArray[np.object_]
    by_machine_code: bool


def backward_times(
    kernel: Kernel,
    problem: Problem,
    batches: IntArray,
    load: IntArray,
    resident: IntArray,
    known: Known,
) -> BackwardTimes:
    """Return times at ascending batches of `problem`.

    Args:
        load: CTAs of the main pass that the busiest SM has, at each batch.
        resident: its CTAs that an SM holds at once.

    Raises:
        InvalidProblem: no time can be predicted.
        UnknownName, CompileError, ToolMissing: as `Known.estimate`.
    """
    rows = _simulated(batches, int(np.sum(load <= _MAX_ROUNDS * resident)))
    found = [known.estimate(kernel, replace(problem, batch=int(batches[i]))) for i in rows]
    by_machine_code = all(e.by_machine_code for e in found)
    if not by_machine_code:  # a curve must not mix two methods
        found = [estimate_backward(kernel, e.plan, e.passes, None) for e in found]
    times = np.array([_times(e) for e in found]).T
    # Time mainly grows when the busiest SM gets another CTA.
    place = load + batches / (batches[-1] + 1)
    us, low_us, high_us = (_between(known_us, rows, place, batches) for known_us in times)
    nearest = np.searchsorted(rows, np.arange(len(batches)), side="right") - 1
    limited_by = np.array([e.terms.limited_by() if e.terms else "" for e in found], dtype=object)
    return BackwardTimes(us, low_us, high_us, limited_by[nearest], by_machine_code)


def _simulated(batches: IntArray, among: int) -> IntArray:
    """Return the rows of batches to simulate among the first `among`, at least two if possible."""
    last = min(max(among, 2), len(batches)) - 1
    doubling = 2 ** np.arange(int(batches[last]).bit_length())
    wanted = np.minimum(np.concatenate([doubling, 3 * doubling]), batches[last])
    return np.unique(np.append(np.searchsorted(batches[: last + 1], wanted), last))


def _times(found: Estimate) -> tuple[float, float, float]:
    if found.latency is None:
        raise InvalidProblem(found.reason)
    return found.latency.median_us, found.latency.low_us, found.latency.high_us


def _between(
    known_us: FloatArray, rows: IntArray, place: FloatArray, batches: IntArray
) -> FloatArray:
    """Interpolate the times of all batches from those at some rows."""
    us: FloatArray = np.interp(place, place[rows], known_us)
    if len(rows) > 1:
        # Slope from about half the batch on, because nearby batches differ by the end of their last
        # round.
        last = rows[-1]
        start = max(0, int(np.searchsorted(batches[rows], batches[last] / 2, side="right")) - 1)
        start = min(start, len(rows) - 2)
        slope = (known_us[-1] - known_us[start]) / (batches[last] - batches[rows[start]])
        us[last:] = known_us[-1] + slope * (batches[last:] - batches[last])
    return us
