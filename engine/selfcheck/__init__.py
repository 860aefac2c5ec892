"""What works on this machine: one check per thing that a measurement or a page rests on."""

from engine.selfcheck.check import CheckResult, State
from engine.selfcheck.run import selfcheck

__all__ = ["CheckResult", "State", "selfcheck"]
