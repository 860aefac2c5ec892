"""By which factor each row of an output is off: the part of an error that all its columns share."""

from __future__ import annotations

import numpy as np

from engine.correctness.reference import Float64Array


def row_factor_rms(error: Float64Array, reference: Float64Array) -> float:
    """RMS over the rows of the slope of a row's error on its reference, weighted by its size.

    Args:
        error: output less reference, `[slices, rows, head_dim]`; finite.
        reference: the same shape.
    """
    products, power = (np.einsum("srd,srd->sr", x, reference) for x in (error, reference))
    rows = power > 0
    if not rows.any():
        return 0.0
    return float(np.sqrt((products[rows] ** 2 / power[rows]).sum() / power.sum()))
