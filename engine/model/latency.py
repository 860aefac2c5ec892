"""Predict a launch's latency: the model's terms, an interval, and the term that binds.

Always labelled *predicted*. The equations are in `engine.model.equations`; a `Calibration` (see
`engine.model.calibrate`) replaces the priors by what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.devices.spec import DeviceSpec
from engine.evaluation import Latency, Occupancy, Resources
from engine.model.equations import (
    BINDS,
    PARAMETER_NAMES,
    Z90,
    FloatArray,
    Machine,
    Parameters,
    Terms,
    evaluate,
    machine,
    prior_covariance,
)
from engine.model.launches import Launches, collect, unlaunchable
from engine.model.occupancy import IntArray
from engine.problem import Problem
from engine.units import format_us
from kernels.variant import Config, Variant

# Run-to-run noise of a launch's time, as a standard deviation of its logarithm.
NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Calibration:
    """Parameters fitted to measured points, and how sure they are."""

    parameters: Parameters
    covariance: tuple[tuple[float, ...], ...]  # of the logarithms of PARAMETER_NAMES, [4, 4]
    noise: float  # standard deviation of log(measured / predicted) that the fit leaves
    fitted: tuple[str, ...]  # the rest of PARAMETER_NAMES keeps its prior
    points: int
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Explanation:
    """One prediction's terms, for pages and the command line. Times in µs."""

    total_us: float
    floor_us: float
    cta_us: float
    shared_us: float
    ctas: int
    ctas_per_sm: int
    load_per_sm: int
    compute_us: float
    peak_us: float
    exp_us: float
    l2_us: float
    dram_us: float
    fuse_us: float
    binds: str
    reason: str

    def rows(self) -> list[tuple[str, float | int | str]]:
        """(meaning, value) in reading order."""
        return [
            ("predicted total, µs", self.total_us),
            ("launch floor of all passes, µs", self.floor_us),
            ("one CTA alone on an SM, µs", self.cta_us),
            ("what another CTA beside it adds, µs", self.shared_us),
            ("CTAs", self.ctas),
            ("CTAs resident per SM", self.ctas_per_sm),
            ("CTAs of the busiest SM", self.load_per_sm),
            ("the busiest SM's work, µs", self.compute_us),
            ("the same at the math peak, µs", self.peak_us),
            ("the same at the exponential unit's peak, µs", self.exp_us),
            ("L2 traffic, µs", self.l2_us),
            ("DRAM traffic, µs", self.dram_us),
            ("fusion pass, µs", self.fuse_us),
            ("binds", self.binds),
        ]


def predict(
    variant: Variant,
    problem: Problem,
    config: Config,
    device: DeviceSpec,
    resources: tuple[Resources, ...],
    occupancies: tuple[Occupancy, ...],
    calibration: Calibration | None = None,
) -> Latency | str:
    """The predicted latency of one launch, warm, or one sentence why there is none.

    Args:
        resources, occupancies: of each pass, as compiled for `device`.
        calibration: of the same variant and device; None uses the priors, and the interval is wide.
    """
    why = _unpredictable(variant, problem, config, occupancies)
    m = machine(device, variant, problem.dtype)
    if why is not None or isinstance(m, str):
        return why if why is not None else str(m)
    launches = collect(variant, config, [problem])
    resident = np.array([[o.ctas_per_sm] for o in occupancies], dtype=np.int64)
    spread = predict_arrays(variant, launches, resident, m, calibration)
    note = _calibration_note(calibration)
    spills = sum(r.spill_bytes for r in resources)
    if spills:
        note += f" It spills {spills:,} bytes of registers, which the model does not count."
    return Latency(
        origin="predicted",
        median_us=float(spread.terms.total_us[0]),
        low_us=float(spread.low_us[0]),
        high_us=float(spread.high_us[0]),
        reason=f"{binding_sentence(spread.terms, 0, device)} {note}",
    )


def explain(
    variant: Variant,
    problem: Problem,
    config: Config,
    device: DeviceSpec,
    occupancies: tuple[Occupancy, ...],
    calibration: Calibration | None = None,
) -> Explanation | str:
    """The terms of `predict`, or one sentence why there is no prediction."""
    why = _unpredictable(variant, problem, config, occupancies)
    m = machine(device, variant, problem.dtype)
    if why is not None or isinstance(m, str):
        return why if why is not None else str(m)
    launches = collect(variant, config, [problem])
    resident = np.array([[o.ctas_per_sm] for o in occupancies], dtype=np.int64)
    parameters = calibration.parameters if calibration else Parameters()
    terms = evaluate(variant, launches, resident, m, parameters)
    figures: dict[str, Any] = {
        name: getattr(terms, name)[0].item() for name in Terms.__slots__ if name != "binds"
    }
    return Explanation(
        **figures, binds=BINDS[int(terms.binds[0])], reason=binding_sentence(terms, 0, device)
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """Terms of n launches, their 90 % interval, and the totals that made it."""

    terms: Terms
    low_us: FloatArray  # [n]
    high_us: FloatArray  # [n]
    # [k, n]: totals with the parameters at the ends of their own 90 % intervals.
    ends_us: FloatArray


def predict_arrays(
    variant: Variant,
    launches: Launches,
    resident: IntArray,
    m: Machine,
    calibration: Calibration | None,
) -> Spread:
    """Terms and interval for n launches.

    The parameters' uncertainty is carried through the model itself: each principal direction of
    their covariance is moved to both of its 90 % ends and the changes add in quadrature.
    """
    if calibration is None:
        parameters, covariance, noise = Parameters(), prior_covariance(variant), NOISE
    else:
        parameters = calibration.parameters
        covariance, noise = np.array(calibration.covariance), calibration.noise
    terms = evaluate(variant, launches, resident, m, parameters)
    ends_us = np.stack(
        [
            evaluate(variant, launches, resident, m, moved).total_us
            for moved in _parameter_ends(parameters, covariance)
        ]
    )
    middle = np.log(terms.total_us)
    # [directions, ends, n]
    change = np.log(ends_us).reshape(-1, 2, launches.size) - middle
    least = (Z90 * noise) ** 2
    below = least + np.sum(np.minimum(change.min(axis=1), 0.0) ** 2, axis=0)
    above = least + np.sum(np.maximum(change.max(axis=1), 0.0) ** 2, axis=0)
    return Spread(
        terms=terms,
        low_us=np.exp(middle - np.sqrt(below)),
        high_us=np.exp(middle + np.sqrt(above)),
        ends_us=ends_us,
    )


def _parameter_ends(parameters: Parameters, covariance: FloatArray) -> list[Parameters]:
    """Both 90 % ends of every principal direction, low before high."""
    center = np.log([getattr(parameters, name) for name in PARAMETER_NAMES])
    variances, directions = np.linalg.eigh(covariance)
    return [
        Parameters(*np.exp(center + sign * Z90 * np.sqrt(max(variance, 0.0)) * direction).tolist())
        for variance, direction in zip(variances, directions.T, strict=True)
        for sign in (-1.0, 1.0)
    ]


def _unpredictable(
    variant: Variant, problem: Problem, config: Config, occupancies: tuple[Occupancy, ...]
) -> str | None:
    why = unlaunchable(variant, config, problem)
    if why is None and any(o.ctas_per_sm == 0 for o in occupancies):
        return f"No latency is predicted for {variant.id}: not even one CTA fits on an SM."
    return why


def _calibration_note(calibration: Calibration | None) -> str:
    if calibration is None:
        return "Not calibrated: the interval is wide, because nothing of this kernel was measured."
    s = "s" if calibration.points > 1 else ""
    return f"Calibrated on {calibration.points} measured point{s}."


def binding_sentence(terms: Terms, i: int, device: DeviceSpec) -> str:
    """The term that binds the i-th launch, in words."""
    load, resident = int(terms.load_per_sm[i]), int(terms.ctas_per_sm[i])
    ctas = int(terms.ctas[i])
    binds = BINDS[int(terms.binds[i])]
    if binds == "launch floor":
        return f"The launch itself takes most of it ({format_us(float(terms.floor_us[i]))})."
    if binds == "one CTA":
        idle = (device.num_sms or 0) - ctas
        rest = f" while {idle:,} of {device.num_sms} SMs idle" if idle > 0 else ""
        return (
            f"One CTA's own serial work takes most of it "
            f"({format_us(float(terms.cta_us[i]))}){rest}."
        )
    if binds == "CTAs per SM":
        return (
            f"The busiest SM works through {load:,} CTAs, {min(load, resident)} at a time "
            f"({format_us(float(terms.compute_us[i]))})."
        )
    if binds == "math peak":
        return f"The math units at their peak bind ({format_us(float(terms.peak_us[i]))})."
    if binds == "exp peak":
        return f"The exponential units at their peak bind ({format_us(float(terms.exp_us[i]))})."
    if binds == "L2":
        return f"L2 bandwidth binds ({format_us(float(terms.l2_us[i]))})."
    if binds == "DRAM":
        return f"DRAM bandwidth binds ({format_us(float(terms.dram_us[i]))})."
    return f"Fusing the partial results binds ({format_us(float(terms.fuse_us[i]))})."
