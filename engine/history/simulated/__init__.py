"""A CTA's time from its machine code, for the latency equations: simulated once, kept on disk.

The main pass of a variant is emulated at ten lengths or a few more, and queues of its CTAs are
timed on one SM. Between and beyond those lengths time is a straight line over the K/V rows that a
CTA visits, and CTAs of several lengths share their SMs evenly, so that a new problem of a known
kernel takes milliseconds.
"""

from engine.history.simulated.curves import (
    known_batch_curve,
    known_ctas,
    known_launch_curve,
    launch_curve,
)
from engine.history.simulated.launch import known_passes, simulated_passes

__all__ = [
    "known_batch_curve",
    "known_ctas",
    "known_launch_curve",
    "known_passes",
    "launch_curve",
    "simulated_passes",
]
