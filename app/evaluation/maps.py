"""Error maps as DataFrames: from a job's arrays, and from a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from engine.correctness.maps import NOT_COMPARED, ErrorMap, maps_from_arrays
from engine.jobs.manager import manager
from engine.records.snapshot import ErrorMap as StoredMap


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


def _view(found: ErrorMap) -> ErrorMapView:
    rows, columns = found.values.shape
    frame = pd.DataFrame(
        found.values,
        index=np.arange(rows) * found.rows_per_cell,
        columns=np.arange(columns) * found.columns_per_cell,
    )
    axes = (found.row_axis, found.column_axis)
    return ErrorMapView(found.name, *axes, frame, found.values != NOT_COMPARED)


@lru_cache(maxsize=16)
def raw_of_job(job_id: str) -> tuple[ErrorMap, ...]:
    """The maps a job left, which never change; none where it left none."""
    arrays = manager().maps(job_id) if job_id else None
    if arrays is None:
        return ()
    try:
        return maps_from_arrays(arrays)
    except KeyError:
        return ()  # left by another version


def of_job(job_id: str) -> tuple[ErrorMapView, ...]:
    """The maps a job left."""
    return tuple(_view(found) for found in raw_of_job(job_id))


def of_snapshot(stored: StoredMap) -> ErrorMapView:
    """A map of a snapshot."""
    values = np.array([np.nan if v is None else v for v in stored.values], dtype=np.float64)
    return _view(
        ErrorMap(
            stored.name,
            stored.row_axis,
            stored.column_axis,
            values.reshape(stored.rows, stored.columns),
            stored.rows_per_cell,
            stored.columns_per_cell,
        )
    )
