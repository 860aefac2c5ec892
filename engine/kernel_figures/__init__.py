"""Figures of the ladder's rungs on one problem and GPU, and the changes of each rung."""

from engine.kernel_figures.rung import Rung, known_rung, ladder_table, work_out_rung

__all__ = ["Rung", "known_rung", "ladder_table", "work_out_rung"]
