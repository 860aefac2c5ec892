"""Kinds of advice, and the gain that following a piece of advice may bring."""

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

# What to do, in a few words; the text of the advice gives details.
NEXT_WORDS: Mapping[str, str] = {
    "conflicts": "resolve the bank conflicts",
    "sectors": "let neighbouring threads take neighbouring addresses",
    "narrow": "move 16 bytes a thread at once",
    "conversions": "convert between types less often",
    "packing": "copy structs of halves as uint4",
    "denormals": "use ex2.approx.ftz",
    "spills": "avoid spills to local memory",
    "copy_ahead": "start the copy of the next tile earlier",
    "barrier": "remove a barrier",
    "tensor_idle": "fewer instructions for each product",
    "few_ctas": "start more CTAs",
    "grid_order": "swap the axes of the grid",
}


@dataclass(frozen=True, slots=True)
class Gain:
    """Simulated gain: the share of the launch's time that is saved, 0 to 1, from `low` to `high`.

    The range covers what the model does not know: one CTA on an SM or as many as fit, data from L2
    or from DRAM, and, if code is removed, half of it or all.
    """

    low: float
    high: float

    def __str__(self) -> str:
        low, high = f"{100 * self.low:.0f}", f"{100 * self.high:.0f}"
        return f"{high}%" if low == high else f"{low} to {high}%"


@dataclass(frozen=True, slots=True)
class Advice:
    kind: AdviceKind
    source: SourceLine | None  # None: the launch as a whole
    share: float  # of the warp instructions, wavefronts, bytes or SMs affected, 0 to 1
    sentence: str
    gain: Gain | None = None  # None: no GPU is named, or the model cannot tell
