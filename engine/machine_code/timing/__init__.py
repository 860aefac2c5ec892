"""Timing model of machine code: cycle-level simulation of an SM, and launch times from it."""

from engine.machine_code.timing.constants import CONSTANTS, SmTiming, StallReason, sm_constants
from engine.machine_code.timing.simulate import CtaClass, SimulatedLaunch, simulate_launch
from engine.machine_code.timing.traffic import Traffic

__all__ = [
    "CONSTANTS",
    "CtaClass",
    "SimulatedLaunch",
    "SmTiming",
    "StallReason",
    "Traffic",
    "simulate_launch",
    "sm_constants",
]
