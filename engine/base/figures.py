"""Bars with intervals: what results show of themselves as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(frozen=True, slots=True)
class Bars:
    """Values by name, each (value, low end, high end); the three are one where there is no
    interval."""

    title: str
    unit: str  # of the axis, with the values' origin: "µs, predicted"
    values: Mapping[str, tuple[float, float, float]]

    def figure(self) -> Figure:
        """As a Plotly figure, the first value at the top."""
        from plotly.graph_objects import Figure

        figure = Figure()
        values = self.values.values()
        figure.add_bar(
            x=[value for value, _, _ in values],
            y=list(self.values),
            error_x={
                "type": "data",
                "array": [high - value for value, _, high in values],
                "arrayminus": [value - low for value, low, _ in values],
            },
            orientation="h",
        )
        figure.update_xaxes(title=self.unit)
        figure.update_yaxes(autorange="reversed")
        return figure.update_layout(title=self.title)
