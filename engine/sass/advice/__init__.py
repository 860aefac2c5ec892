"""What the machine code wastes, in words, with the line to look at and what mending it may gain."""

from engine.sass.advice.advise import advise
from engine.sass.advice.kinds import Advice, AdviceKind, Gain
from engine.sass.advice.rerun import Rerun

__all__ = ["Advice", "AdviceKind", "Gain", "Rerun", "advise"]
