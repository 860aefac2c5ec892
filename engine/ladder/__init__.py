"""The ladder on one problem and GPU: figures of every rung, and what a rung changed."""

from engine.ladder.rung import Rung, known_rung, work_out_rung
from engine.ladder.tables import ladder_table

__all__ = ["Rung", "known_rung", "ladder_table", "work_out_rung"]
