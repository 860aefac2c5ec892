"""A bug to plant, and the variants and problems with which it is tried."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from engine.attention.problem import Problem
from kernels.ladder import LADDER
from planted_bugs.causes import Words
from tests.words import is_name, says

SCALAR = ("v01", "v02", "v05", "v06")
TILED = ("v03", "v04")
LOOPED = (*SCALAR, *TILED, "v08", "v09")  # over key tiles, K and V by load_tile
WARP_SPECIALIZED = ("v16", "v17", "v18")
ONE_TILE = ("v15", *WARP_SPECIALIZED)  # a CTA has one query tile
PERSISTENT = ("v19", "v20")  # on Hopper
HOPPER = tuple(variant.id for variant in LADDER if variant.arch_specific)
ALL = (
    *LOOPED,
    "v07",
    "v10",
    "v11",
    "v12",
    "v13",
    "v14",
    "v21",
    *ONE_TILE,
    *PERSISTENT,
)  # except v22, which masks key by key
SPLIT = ("v05", "v06")
SHARED_KEYS = {"num_warps": 4, "row_warps": 2, "keys_per_warp": 64}  # v12: warps that share K

# Odd sizes; v12 and v22 take at most 128 keys with their default configs.
_ODD = (Problem(1, 3, 200, 64), Problem(2, 2, 77, 64, dtype="bfloat16"))
_CAUSAL = (Problem(1, 2, 200, 64, causal=True), Problem(2, 2, 77, 64, True, "bfloat16"))
_SHORT_ODD = (Problem(1, 3, 113, 64), Problem(2, 2, 77, 64, dtype="bfloat16"))
_SHORT_CAUSAL = (Problem(1, 2, 113, 64, causal=True), Problem(2, 2, 77, 64, True, "bfloat16"))
# One key more than whole tiles.
_ONE_MORE = (Problem(1, 2, 193, 64),)

# One query tile more than a pair.
_ODD_TILES = (Problem(1, 2, 300, 64),)

# Two query heads per K/V head.
_GQA = (Problem(2, 4, 113, 64, num_heads_kv=2),)

_OF_ANY_RUNG = {"one more": _ONE_MORE, "odd tiles": _ODD_TILES, "gqa": _GQA}

Shapes = Literal["odd", "causal", "one more", "odd tiles", "gqa"]


@dataclass(frozen=True)
class Mutation:
    """A change to a kernel's text.

    `words`: one of them must be in what the check says; the line that was changed does as well.
    They are names of messages in tests/words.json, alone or with the values in them, kinds of
    errors (`engine.cuda_on_host.error_kinds`), or terms of CUDA and of the kernel; those of a cause
    that several tables have are in `planted_bugs.causes`.
    """

    place_names: ClassVar[bool] = True  # the line that was changed names the bug as well

    name: str
    variants: tuple[str, ...]
    old: str
    new: str
    words: Words
    shapes: Shapes = "odd"
    nth: int | None = None  # which occurrence; None: all
    header: str = ""  # the file that is changed, if it is not the variant's own
    config: dict[str, int] = field(default_factory=dict)

    def is_named(self, text: str, places: tuple[str, ...]) -> bool:
        """Return whether the message names the bug; `places` are the changed lines."""
        return any(_is_in(text, word) for word in self.words) or (
            self.place_names and any(re.search(rf"{re.escape(place)}\b", text) for place in places)
        )

    def problems(self, variant: str) -> tuple[Problem, ...]:
        """Return the problems that are tried in order until the bug is found."""
        if self.shapes in _OF_ANY_RUNG:
            return _OF_ANY_RUNG[self.shapes]
        if variant in ("v12", "v22"):
            return _SHORT_ODD if self.shapes == "odd" else _SHORT_CAUSAL
        return _ODD if self.shapes == "odd" else _CAUSAL


def _is_in(text: str, word: str | tuple[str, ...]) -> bool:
    if isinstance(word, tuple):
        return says(text, *word)
    if is_name(word):
        return says(text, word)
    if len(word) > len("dO"):
        return word in text
    return re.search(rf"(?<![\w/]){word}(?![\w/])", text) is not None  # a tensor, but not of K/V
