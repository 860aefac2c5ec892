"""Two launches' machine code beside each other: counts, and listings aligned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from engine.sass.report import Listing, PassReport

# Registers and addresses change with every edit; what is done to them says what has changed.
_NAMES = re.compile(r"\b(U?[RP])\d+\b|0x[0-9a-f]{3,}|`\([^)]*\)")


@dataclass(frozen=True, slots=True)
class CountPair:
    """One figure of both launches; None where one of them has none such."""

    name: str
    first: int | None
    second: int | None


def compare_counts(first: PassReport, second: PassReport) -> tuple[CountPair, ...]:
    """The counts of both, in the first one's order; what is 0 in both is left out."""
    a, b = ({c.name: c.count for c in report.counts} for report in (first, second))
    names = dict.fromkeys([*a, *b])
    pairs = (CountPair(name, a.get(name), b.get(name)) for name in names)
    return tuple(pair for pair in pairs if pair.first or pair.second)


def align(
    first: Listing, second: Listing, sources: tuple[str, str]
) -> tuple[tuple[int, int, bool], ...]:
    """Instructions that stand beside each other: (first's index, second's index, alike).

    An index is -1 where one listing has no counterpart. Alike are instructions that differ in
    registers and addresses alone.

    Args:
        sources: the text of each kernel's file: a line that moved is the same line.
    """
    plain = [[_NAMES.sub(r"\1", text) for text in x.text] for x in (first, second)]
    keys = [
        list(zip(_lines(x, source), texts, strict=True))
        for x, source, texts in zip((first, second), sources, plain, strict=True)
    ]
    pairs: list[tuple[int, int, bool]] = []
    matcher = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        common = min(a_end - a, b_end - b)
        alike = kind == "equal"
        pairs += [
            (a + n, b + n, alike or plain[0][a + n] == plain[1][b + n]) for n in range(common)
        ]
        pairs += [(n, -1, False) for n in range(a + common, a_end)]
        pairs += [(-1, n, False) for n in range(b + common, b_end)]
    return tuple(pairs)


def _lines(listing: Listing, source: str) -> Sequence[str]:
    lines = ["", *(line.strip() for line in source.splitlines())]
    return [lines[n] if n < len(lines) else "" for n in listing.line]
