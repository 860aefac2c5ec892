"""How sure a recommended batch is: it follows from how sure its latency is.

A recommendation compares batches with the plateau, so what a prediction gets wrong for all of them
alike cancels. Two parts are left. The model's parameters move batches against each other: that is
computed. The rest is what the equations do not know; it is taken as a part of the latency's own
interval, because a model that is unsure of a launch is unsure of its neighbours' ratio too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.model.equations import FloatArray

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
        table: of `engine.model.batch.table.batch_table`.
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
