"""`History`: measured, recorded, simulated and predicted times of kernels, returned as `Time`."""

from engine.history.history import History, Time, Work
from engine.history.known_time import KnownTime, Reference, TimeSource

__all__ = ["History", "KnownTime", "Reference", "Time", "TimeSource", "Work"]
