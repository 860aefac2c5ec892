"""The ladder on one problem and GPU: figures of every rung, and what a rung changed."""

from engine.kernel_figures.rung import Rung, known_rung, ladder_table, work_out_rung

__all__ = ["Rung", "known_rung", "ladder_table", "work_out_rung"]
