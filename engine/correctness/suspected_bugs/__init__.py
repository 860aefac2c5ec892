"""Bugs whose output can be computed, and which of them explains a wrong one."""

from engine.correctness.suspected_bugs.bug import SuspectedBug
from engine.correctness.suspected_bugs.case import MAX_CASES, Case, choose_cases
from engine.correctness.suspected_bugs.match import Match, best_match

__all__ = ["MAX_CASES", "Case", "Match", "SuspectedBug", "best_match", "choose_cases"]
