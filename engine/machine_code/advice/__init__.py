"""Advice: what the machine code wastes, at which line, and how much time a fix could gain."""

from __future__ import annotations

from dataclasses import replace

from engine.machine_code.advice.counted import counted_findings
from engine.machine_code.advice.gain import NEXT_WORDS, Advice, AdviceKind, Gain, Rerun
from engine.machine_code.advice.simulated import simulated_findings
from engine.machine_code.analysis import Analysis
from engine.machine_code.footprint import SharedBytes

__all__ = ["NEXT_WORDS", "Advice", "AdviceKind", "Gain", "Rerun", "advise"]

_MIN_GAIN = 0.01  # smaller gains are within the model's rounding


def advise(
    analysis: Analysis, rerun: Rerun | None = None, groups: tuple[SharedBytes, ...] = ()
) -> tuple[Advice, ...]:
    """Advice on a launch, largest gain first, or without a GPU largest share first.

    Args:
        rerun: the launch simulated on one GPU. Without it, only advice from counts is given,
            without gains.
        groups: bytes that its CTAs share.
    """
    counted = list(counted_findings(analysis))
    if rerun is None:
        return tuple(sorted((f.advice for f in counted), key=lambda a: -a.share))
    advice = [replace(f.advice, gain=rerun.gain(*f.changes)) for f in counted]
    advice += [replace(a, gain=gain) for a, gain in simulated_findings(rerun, groups)]
    worth = [a for a in advice if a.gain is None or a.gain.high >= _MIN_GAIN]
    return tuple(sorted(worth, key=lambda a: -(a.gain.high if a.gain else a.share)))
