"""Bugs that the checker was not tuned on, each with its cause.

The table was written before any of it was run, and `tests/bench/bench_unseen.py` reports how many
are found, and how many named by their cause, for each kind. What the checker says of a bug here is
no reason to change the checker for it: take it to the other tables then, where it is tuned on.

The words of a cause were written with the bugs, as regular expressions on what a message may say;
`planted_bugs.causes` has the names of the messages that they stand for. Unlike in the other tables
the changed line alone names nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from engine.attention.problem import Problem
from planted_bugs.causes import Words
from planted_bugs.mutation import Mutation, Shapes

Kind = Literal[
    "mask",
    "key loop",
    "softmax",
    "fusion",
    "addressing",
    "fragments",
    "precision",
    "barrier",
    "copy",
    "mbarrier",
    "wgmma",
    "registers",
    "store",
    "overflow",
    "pages",
    "descriptors",
    "boxes",
    "LSE",
    "features",
    "elsewhere",
    "backward",
]


@dataclass(frozen=True)
class Unseen(Mutation):
    """A mutation of a kind, with its own problems if it needs some."""

    place_names: ClassVar[bool] = False

    kind: Kind = "mask"
    on: tuple[Problem, ...] = field(default=())

    def problems(self, variant: str) -> tuple[Problem, ...]:
        return self.on or super().problems(variant)


_Row = tuple[str, tuple[str, ...], str, str, Words]


def rows(
    kind: Kind,
    *rows: _Row,
    shapes: Shapes = "odd",
    nth: int | None = None,
    config: dict[str, int] | None = None,
    on: tuple[Problem, ...] = (),
    header: str = "",
) -> Iterator[Unseen]:
    for name, variants, old, new, words in rows:
        for variant in variants:
            yield Unseen(
                name, (variant,), old, new, words, shapes, nth, header, config or {}, kind, on
            )
