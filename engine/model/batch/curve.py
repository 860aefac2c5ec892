"""The predicted latency over many batches of one problem, fast enough to follow a slider."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from engine.devices.limits import limits_for
from engine.devices.spec import DeviceSpec
from engine.errors import InvalidProblem
from engine.evaluation import Resources
from engine.model.equations import BINDS, Machine, machine
from engine.model.latency import Calibration, Spread, predict_arrays
from engine.model.launches import Launches, collect_batches, resident_ctas
from engine.model.occupancy import IntArray
from engine.problem import Problem
from kernels.variant import Config, Variant

if TYPE_CHECKING:
    import pandas as pd


def predict_curve(
    variant: Variant,
    problem: Problem,
    config: Config,
    device: DeviceSpec,
    resources: tuple[Resources, ...],
    batches: Iterable[int],
    calibration: Calibration | None = None,
) -> pd.DataFrame:
    """Predictions over many batches, the rest of `problem` unchanged.

    Args:
        resources: of each pass, as compiled for `device`; they do not depend on the batch.
        batches: ascending whole numbers from 1.

    Returns:
        One row per batch: `batch`, `ctas`, `ctas_per_sm`, `load_per_sm`, `waves`,
        `wave_efficiency`, `sm_fill`, `predicted_us`, `low_us`, `high_us`, `binds`, `device_bytes`,
        `flops`.

    Raises:
        InvalidProblem: a batch below 1, a batch that the variant cannot launch, resources that do
            not fit on an SM, or a device without the figures a prediction needs.
    """
    m = machine(device, variant, problem.dtype)
    if isinstance(m, str):
        raise InvalidProblem(m)
    launches, resident = launch_curve(variant, problem, config, device, resources, batches)
    spread = predict_arrays(variant, launches, resident, m, calibration)
    return curve_frame(launches, resident, m, spread)


def launch_curve(
    variant: Variant,
    problem: Problem,
    config: Config,
    device: DeviceSpec,
    resources: tuple[Resources, ...],
    batches: Iterable[int],
) -> tuple[Launches, IntArray]:
    """Launches over the batches, and CTAs per SM of each pass, `[passes, n]`.

    Raises:
        InvalidProblem: as `predict_curve`.
    """
    batches = list(batches)
    if not batches:
        raise InvalidProblem("A curve needs at least one batch.")
    for edge in (min(batches), max(batches)):
        replace(problem, batch=edge)  # rejects what is no batch
    launches = collect_batches(variant, config, problem, np.array(batches, dtype=np.int64))
    resident = resident_ctas(launches, resources, limits_for(device.compute_capability))
    if (resident == 0).any():
        raise InvalidProblem(f"Not even one CTA of {variant.id} fits on an SM of {device.name}.")
    return launches, resident


def curve_frame(launches: Launches, resident: IntArray, m: Machine, spread: Spread) -> pd.DataFrame:
    """The table that `predict_curve` returns."""
    import pandas as pd

    waves = launches.ctas[0] / (resident[0] * m.num_sms)
    return pd.DataFrame(
        {
            "batch": launches.batch,
            "ctas": launches.ctas[0],
            "ctas_per_sm": resident[0],
            "load_per_sm": spread.terms.load_per_sm,
            "waves": waves,
            "wave_efficiency": waves / np.ceil(waves),
            "sm_fill": np.minimum(launches.ctas[0], m.num_sms) / m.num_sms,
            "predicted_us": spread.terms.total_us,
            "low_us": spread.low_us,
            "high_us": spread.high_us,
            "binds": np.array(BINDS, dtype=object)[spread.terms.binds],
            "device_bytes": launches.device_bytes,
            "flops": launches.flops,
        }
    )
