"""Times of a backward kernel at many batches, simulated at some of them and interpolated.

A backward launch's time is the sum of its passes, each simulated as a whole launch, at batches 1,
2, 3, 4, 6, 8, 12 and so on. Between these, time grows with the main pass's CTAs on the busiest SM,
and with the batch if that number is equal; beyond the last, with the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.model.equations import FloatArray
from engine.model.kernel import Estimate, Kernel, Known, estimate_backward
from engine.model.occupancy import IntArray

# Rounds of resident CTAs on the busiest SM beyond which time grows with the batch and is not
# simulated.
_MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class BackwardTimes:
    """Times at each batch; µs."""

    us: FloatArray
    low_us: FloatArray
    high_us: FloatArray
    binds: npt.NDArray[np.object_]
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
    rows = _simulated(batches, int(np.sum(load <= _MOST_ROUNDS * resident)))
    found = [known.estimate(kernel, replace(problem, batch=int(batches[i]))) for i in rows]
    by_machine_code = all(e.by_machine_code for e in found)
    if not by_machine_code:  # a curve must not mix two methods
        found = [estimate_backward(kernel, e.plan, e.passes, None) for e in found]
    times = np.array([_times(e) for e in found]).T
    # Time mainly grows when the busiest SM gets another CTA.
    place = load + batches / (batches[-1] + 1)
    us, low_us, high_us = (_between(known_us, rows, place, batches) for known_us in times)
    nearest = np.searchsorted(rows, np.arange(len(batches)), side="right") - 1
    binds = np.array([e.terms.binding() if e.terms else "" for e in found], dtype=object)
    return BackwardTimes(us, low_us, high_us, binds[nearest], by_machine_code)


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
