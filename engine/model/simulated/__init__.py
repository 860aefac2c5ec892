"""A CTA's time from its machine code, for the latency equations: simulated once, kept on disk.

The main pass of a variant is emulated at two or three lengths and timed on one SM; between and
beyond them a CTA's time is a straight line over the K/V rows it visits, so that a new problem of a
known kernel costs a few multiplications.
"""

from engine.model.simulated.curves import (
    known_batch_curve,
    known_curve,
    known_simulated_of,
    simulated_batch_curve,
    simulated_of,
)
from engine.model.simulated.store import known_ctas

__all__ = [
    "known_batch_curve",
    "known_ctas",
    "known_curve",
    "known_simulated_of",
    "simulated_batch_curve",
    "simulated_of",
]
