"""Error maps as DataFrames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from engine.correctness.gradient_check import NAMES
from engine.correctness.output_error import NOT_COMPARED, ErrorMap


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMapView:
    """A map of the largest error of each cell.

    `frame` is rows × columns; its labels are each cell's first index. A cell is NaN where the
    kernel gave NaN or infinity, and `compared` is False where a large problem was only sampled.
    """

    name: str
    row_axis: str
    column_axis: str
    frame: pd.DataFrame
    compared: np.ndarray

    @classmethod
    def of(cls, error_map: ErrorMap) -> ErrorMapView:
        """Return the view of the engine's map."""
        rows, columns = error_map.values.shape
        frame = pd.DataFrame(
            error_map.values,
            index=np.arange(rows) * error_map.rows_per_cell,
            columns=np.arange(columns) * error_map.columns_per_cell,
        )
        return cls(
            error_map.name,
            error_map.row_axis,
            error_map.column_axis,
            frame,
            error_map.values != NOT_COMPARED,
        )

    @property
    def output(self) -> str:
        """Return the shown output: dQ, dK or dV; empty if O is the only one."""
        return NAMES.get(self.name.partition("_")[0], "")

    @property
    def largest(self) -> float:
        """Return the largest finite error of the map."""
        values = self.frame.to_numpy()
        return float(values[np.isfinite(values)].max(initial=0.0))
