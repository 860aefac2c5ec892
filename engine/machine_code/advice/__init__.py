"""What the machine code wastes, in words, with the line to look at and what mending it may gain."""

from engine.machine_code.advice.advise import advise
from engine.machine_code.advice.kinds import NEXT_WORDS, Advice, AdviceKind, Gain
from engine.machine_code.advice.rerun import Rerun

__all__ = ["NEXT_WORDS", "Advice", "AdviceKind", "Gain", "Rerun", "advise"]
