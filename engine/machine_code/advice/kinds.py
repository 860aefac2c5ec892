"""One piece of advice, and what following it may gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.machine_code.disassembly import SourceLine

AdviceKind: TypeAlias = Literal[
    "conflicts",
    "sectors",
    "narrow",
    "conversions",
    "packing",
    "denormals",
    "spills",
    "copy_ahead",
    "barrier",
    "tensor_idle",
    "few_ctas",
    "grid_order",
]

# What to do, in a few words; the advice's sentence says more.
NEXT_WORDS: Mapping[str, str] = {
    "conflicts": "resolve the bank conflicts",
    "sectors": "let neighbouring threads take neighbouring addresses",
    "narrow": "move 16 bytes a thread at once",
    "conversions": "convert between types less often",
    "packing": "copy structs of halves as uint4",
    "denormals": "take ex2.approx.ftz",
    "spills": "avoid what spills to local memory",
    "copy_ahead": "begin the copy of the next tile earlier",
    "barrier": "leave out a barrier",
    "tensor_idle": "fewer instructions for each product",
    "few_ctas": "start more CTAs",
    "grid_order": "exchange the axes of the grid",
}


@dataclass(frozen=True, slots=True)
class Gain:
    """Simulated: the share of the launch's time that goes away, 0 to 1, from `low` to `high`.

    The range is over what the model does not know: one CTA alone on an SM or as many as fit, data
    from L2 or from DRAM, and where code is left out half of it or all.
    """

    low: float
    high: float

    def __str__(self) -> str:
        low, high = f"{100 * self.low:.0f}", f"{100 * self.high:.0f}"
        return f"{high}%" if low == high else f"{low} to {high}%"


@dataclass(frozen=True, slots=True)
class Advice:
    kind: AdviceKind
    source: SourceLine | None  # where; None: the launch as a whole
    share: float  # of the warp instructions, wavefronts, bytes or SMs that it concerns, 0 to 1
    sentence: str
    gain: Gain | None = None  # None where no GPU is named, or where the model cannot tell
