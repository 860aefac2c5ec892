"""How long the machine code takes: one SM cycle by cycle, and a launch made of it."""

from engine.sass.timing.constants import CONSTANTS, sm_constants
from engine.sass.timing.result import SmTiming, StallReason
from engine.sass.timing.simulate import CtaClass, SimulatedLaunch, simulate_launch
from engine.sass.timing.traffic import Traffic

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
