"""How sure a recommended batch is: it follows from how sure its latency is.

A recommendation compares batches with the plateau, so what a prediction gets wrong for all of them
alike cancels. Two parts are left. The model's parameters move batches against each other: that is
computed. The rest is what the equations do not know; it is taken as a part of the latency's own
interval, because a model that is unsure of a launch is unsure of its neighbours' ratio too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from engine.base.errors import InvalidProblem
from engine.devices.spec import limits_for
from engine.evaluation import METHODS
from engine.model.equations import BINDS, Calibration, FloatArray, machine, predict_arrays
from engine.model.estimate import resident_ctas
from engine.model.kernel import Kernel, Known
from engine.model.launches import collect_batches
from engine.problem import Problem

if TYPE_CHECKING:
    import pandas as pd


# Assumed: a batch and twice the batch do not share a quarter of the latency's interval (as a
# logarithm); nearer ones share more of it, as the same SMs do nearly the same work.
_NOT_SHARED = 0.25
# The smallest batch that has this share of the best throughput stands for the plateau.
_PLATEAU = 0.98


def share_bounds(table: pd.DataFrame, ends_us: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The 90 % interval of each batch's share of the plateau, `[rows]` each.

    Args:
        table: of `engine.batch.table.batch_table`.
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
    own = distance * (_NOT_SHARED * half) ** 2
    return np.exp(log_share - np.sqrt(below + own)), np.exp(log_share + np.sqrt(above + own))


def _log_share(batch: FloatArray, latency_us: FloatArray) -> FloatArray:
    throughput = np.log(batch / latency_us)
    share: FloatArray = throughput - throughput.max()
    return share


# The predicted latency over many batches of one problem, fast enough to follow a slider.


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
    kernel: Kernel,
    problem: Problem,
    batches: Iterable[int],
    known: Known,
    calibration: Calibration | None = None,
    *,
    by_machine_code: bool = True,
) -> Curve:
    """Predictions over many batches, the rest of `problem` unchanged.

    Args:
        batches: ascending whole numbers from 1; resources do not depend on them.
        known: where resources and CTA times come from.
        by_machine_code: False assumes CTA times.

    Raises:
        InvalidProblem: a batch below 1, a batch that the variant cannot launch, resources that do
            not fit on an SM, or a device without the figures a prediction needs.
    """
    import pandas as pd

    variant, config, device = kernel.variant, kernel.config, kernel.device
    m = machine(device, variant, problem.dtype)
    batches = list(batches)
    if not batches:
        raise InvalidProblem("A curve needs at least one batch.")
    for edge in (min(batches), max(batches)):
        replace(problem, batch=edge)  # rejects what is no batch
    launches = collect_batches(variant, config, problem, np.array(batches, dtype=np.int64))
    resident = resident_ctas(kernel, launches, known.resources(kernel, problem))
    simulated = known.batch_curve(kernel, problem, launches, resident) if by_machine_code else None
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
