"""All that is known beforehand of kernels' times: `History`, and the one `Time` that it answers."""

from engine.history.history import History, Time, Work
from engine.history.known_time import KnownTime, Reference, TakenTimes

__all__ = ["History", "KnownTime", "Reference", "TakenTimes", "Time", "Work"]
