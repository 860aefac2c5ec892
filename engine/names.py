"""Looking names up, with the nearest ones offered when there is no such name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from engine.errors import UnknownName
from kernels.ladder import LADDER, by_id
from kernels.variant import Variant


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that is not in its list: nearest names, or the whole list if short."""
    names = list(known)
    near = get_close_matches(name.casefold(), {n.casefold(): n for n in names}, n=3, cutoff=0.5)
    by_folded = {n.casefold(): n for n in names}
    offered = [by_folded[n] for n in near] or names[:12]
    listing = ", ".join(offered)
    lead = "did you mean" if near else "known are"
    return UnknownName(f"There is no {kind} called {name!r}: {lead} {listing}.")


def find_variant(name: str) -> Variant:
    """The variant with this id (`v05`) or name.

    Raises:
        UnknownName: not on the ladder; the nearest names are in the text.
    """
    try:
        return by_id(name)
    except KeyError:
        raise unknown("variant", name, (v.id for v in LADDER)) from None
