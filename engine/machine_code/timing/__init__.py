"""How long the machine code takes: one SM cycle by cycle, and a launch made of it."""

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
