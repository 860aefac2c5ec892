"""Where and why an output is wrong, in words."""

from engine.correctness.diagnosis.diagnose import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
