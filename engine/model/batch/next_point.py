"""Measure this next: the one batch whose time would narrow the recommendation most.

A measured point narrows the model's parameters in the direction that moves its own latency. That is
linear algebra on logarithms: no time is needed to know how much a point would tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.model.calibrate import log_parameters, log_total_of, sensitivity
from engine.model.equations import (
    NOISE,
    Z90,
    Calibration,
    CtaCurve,
    Machine,
    priors,
)
from engine.model.launches import Launches
from engine.model.occupancy import IntArray
from kernels.variant import Variant

_MOST_CANDIDATES = 64
_FARTHEST = 8  # times the recommended batch: beyond, a launch tells of other things
_WORTH_MEASURING = 0.9  # of the interval's width that is left


@dataclass(frozen=True, slots=True)
class NextPoint:
    """A batch to measure. Factors: the 90 % interval of the recommended batch's latency is from
    median / factor to median · factor."""

    batch: int
    recommended: int
    factor_now: float
    factor_then: float
    reason: str


def candidates(last: int, recommended: int) -> IntArray:
    """Batches that are looked at: evenly spaced as logarithms, and the recommended one."""
    end = min(last, _FARTHEST * recommended)
    spaced = np.geomspace(1, end, _MOST_CANDIDATES).astype(np.int64)
    return np.unique(np.append(spaced, recommended))


def measure_next(
    variant: Variant,
    launches: Launches,
    resident: IntArray,
    machine: Machine,
    calibration: Calibration | None,
    recommended: int,
    curve: CtaCurve | None = None,
) -> NextPoint | None:
    """The batch that narrows the recommended one's latency and its share of the plateau most.

    Args:
        launches: the candidates; `recommended` and the largest batch are among them.
        resident: CTAs per SM of each, `[passes, n]`.

    Returns:
        None where no point would narrow it noticeably.
    """
    parameters, covariance = priors(variant, curve)
    if calibration is not None:
        parameters, covariance = calibration.parameters, np.array(calibration.covariance)
    noise = NOISE if calibration is None else calibration.noise
    log_total = log_total_of(variant, launches, resident, machine, curve)
    effect = sensitivity(log_total, log_parameters(parameters))
    at = int(np.flatnonzero(launches.batch == recommended)[0])
    # What is to be narrowed: the latency there, and that against the largest batch's.
    goals = np.stack([effect[at], effect[at] - effect[-1]])
    spread = np.einsum("gi,ij,gj->g", goals, covariance, goals)
    along = covariance @ effect.T  # [parameters, candidates]
    told = np.einsum("ci,ic->c", effect, along) + noise**2
    left = spread.sum() - np.sum((goals @ along) ** 2, axis=0) / told
    best = int(np.argmin(left))
    of_latency = spread[0] - (goals[0] @ along[:, best]) ** 2 / told[best]
    now, then = (
        float(np.exp(Z90 * np.sqrt(max(x, 0.0) + noise**2))) for x in (spread[0], of_latency)
    )
    if np.log(then) > _WORTH_MEASURING * np.log(now):
        return None
    batch = int(launches.batch[best])
    return NextPoint(
        batch,
        recommended,
        now,
        then,
        f"Measure B={batch:,} next: of all batches it narrows the recommendation most. The latency "
        f"of B={recommended:,} is known to a factor of {now:.3g} either way, and would be to "
        f"{then:.3g}.",
    )
