"""Error maps as DataFrames: from a job's arrays, and from a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from engine.correctness.maps import NOT_COMPARED, ErrorMaps
from engine.errors import AttuneError
from engine.jobs.manager import manager
from engine.sessions.schema import ErrorMap as StoredMap


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMapView:
    """One map of largest errors.

    `frame` is rows × columns; its labels are each cell's first index. A cell is NaN where the
    kernel gave NaN or infinity, and `compared` is False where a large problem was only sampled.
    """

    name: str
    row_axis: str
    column_axis: str
    frame: pd.DataFrame
    compared: np.ndarray

    @property
    def largest(self) -> float:
        """The largest finite error of the map."""
        values = self.frame.to_numpy()
        return float(values[np.isfinite(values)].max(initial=0.0))


def _view(
    name: str,
    axes: tuple[str, str],
    values: np.ndarray,
    per_cell: tuple[int, int],
) -> ErrorMapView:
    rows, columns = values.shape
    frame = pd.DataFrame(
        values,
        index=np.arange(rows) * per_cell[0],
        columns=np.arange(columns) * per_cell[1],
    )
    return ErrorMapView(name, *axes, frame, values != NOT_COMPARED)


@lru_cache(maxsize=16)
def of_job(job_id: str) -> tuple[ErrorMapView, ...]:
    """The maps a job left, which never change; none where it left none."""
    arrays = manager().maps(job_id) if job_id else None
    if arrays is None:
        return ()
    try:
        found = ErrorMaps.from_arrays(arrays)
    except (KeyError, AttuneError):
        return ()
    return tuple(
        _view(m.name, (m.row_axis, m.column_axis), m.values, (m.rows_per_cell, m.columns_per_cell))
        for m in found.maps()
    )


def of_snapshot(stored: StoredMap) -> ErrorMapView:
    """A map of a snapshot."""
    values = np.array([np.nan if v is None else v for v in stored.values], dtype=np.float64)
    return _view(
        stored.name,
        (stored.row_axis, stored.column_axis),
        values.reshape(stored.rows, stored.columns),
        (stored.rows_per_cell, stored.columns_per_cell),
    )
