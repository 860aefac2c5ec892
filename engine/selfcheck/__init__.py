"""What works on this machine: one check per thing that a measurement or a page rests on."""

from engine.selfcheck.checks import CheckResult, State, selfcheck

__all__ = ["CheckResult", "State", "selfcheck"]
