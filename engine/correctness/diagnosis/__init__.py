"""Where and why an output is wrong, in words."""

from engine.correctness.diagnosis.diagnose import diagnose
from engine.correctness.regions import place_of

__all__ = ["diagnose", "place_of"]
