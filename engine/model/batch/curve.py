"""The predicted latency over many batches of one problem, fast enough to follow a slider."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from engine.devices.spec import DeviceSpec, limits_for
from engine.errors import InvalidProblem
from engine.evaluation import METHODS, Resources
from engine.model.equations import BINDS, Calibration, FloatArray, machine, predict_arrays
from engine.model.estimate import BatchCurveOf, resident_ctas
from engine.model.launches import collect_batches
from engine.problem import Problem
from kernels.variant import Config, Variant

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Curve:
    """Predictions over many batches.

    `table` has one row per batch: `batch`, `ctas`, `useful_ctas` (with keys to visit: waves and
    fills are those), `thread_fill`, `ctas_per_sm`, `load_per_sm`, `waves`,
    `wave_efficiency`, `sm_fill`, `predicted_us`, `low_us`, `high_us`, `binds`, `device_bytes`,
    `flops`.
    """

    table: pd.DataFrame
    ends_us: FloatArray  # [k, rows]: totals with the model's parameters at their 90 % ends
    method: str  # one of METHODS

    def head(self, rows: int) -> Curve:
        """The first rows."""
        return Curve(self.table.head(rows), self.ends_us[:, :rows], self.method)


def predict_curve(
    variant: Variant,
    problem: Problem,
    config: Config,
    device: DeviceSpec,
    resources: tuple[Resources, ...],
    batches: Iterable[int],
    calibration: Calibration | None = None,
    curve_of: BatchCurveOf | None = None,
) -> Curve:
    """Predictions over many batches, the rest of `problem` unchanged.

    Args:
        resources: of each pass, as compiled for `device`; they do not depend on the batch.
        batches: ascending whole numbers from 1.
        curve_of: CTA times by machine code; None assumes them.

    Raises:
        InvalidProblem: a batch below 1, a batch that the variant cannot launch, resources that do
            not fit on an SM, or a device without the figures a prediction needs.
    """
    import pandas as pd

    m = machine(device, variant, problem.dtype)
    batches = list(batches)
    if not batches:
        raise InvalidProblem("A curve needs at least one batch.")
    for edge in (min(batches), max(batches)):
        replace(problem, batch=edge)  # rejects what is no batch
    launches = collect_batches(variant, config, problem, np.array(batches, dtype=np.int64))
    resident = resident_ctas(variant, launches, resources, device)
    simulated = None
    if curve_of is not None:
        simulated = curve_of(variant, config, device, problem, launches, resident)
    spread = predict_arrays(variant, launches, resident, m, calibration, simulated)
    useful = launches.useful_ctas
    waves = useful / (resident[0] * m.num_sms)
    thread_slots = m.num_sms * limits_for(device.compute_capability).max_threads_per_sm
    table = pd.DataFrame(
        {
            "batch": launches.batch,
            "ctas": launches.ctas[0],
            "useful_ctas": useful,
            "ctas_per_sm": resident[0],
            "load_per_sm": spread.terms.load_per_sm,
            "waves": waves,
            "wave_efficiency": waves / np.ceil(waves),
            "sm_fill": np.minimum(useful, m.num_sms) / m.num_sms,
            "thread_fill": useful * launches.threads[0] / thread_slots,
            "predicted_us": spread.terms.total_us,
            "low_us": spread.low_us,
            "high_us": spread.high_us,
            "binds": np.array(BINDS, dtype=object)[spread.terms.binds],
            "device_bytes": launches.device_bytes,
            "flops": launches.flops,
        }
    )
    return Curve(table, spread.ends_us, METHODS[0] if spread.by_machine_code else METHODS[1])
