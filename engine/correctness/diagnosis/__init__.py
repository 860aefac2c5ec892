"""Describe where and why an output is wrong."""

from engine.correctness.diagnosis.diagnose import diagnose
from engine.correctness.regions import place_of

__all__ = ["diagnose", "place_of"]
