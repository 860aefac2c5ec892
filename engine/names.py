"""Looking names up, with the nearest ones offered when there is no such name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from engine.base.errors import InvalidKernel, UnknownName
from engine.own_kernels.registry import OWN, all_variants
from kernels.ladder import LADDER
from kernels.variant import AUTO, Variant

_MOST_LISTED = 24


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that is not in its list: nearest names, else the list's first ones."""
    names = list(known)
    code = f"unknown_{kind.replace(' ', '_')}"
    if not names:
        return UnknownName(f"There is no {kind} called {name!r}: there is none at all.", code=code)
    near = get_close_matches(name.casefold(), {n.casefold(): n for n in names}, n=3, cutoff=0.5)
    by_folded = {n.casefold(): n for n in names}
    same = [n for n in names if _unpadded(n) == _unpadded(name)]  # v01 for v1
    offered = same or [by_folded[n] for n in near] or names[:_MOST_LISTED]
    listing = ", ".join(offered)
    if not near and len(names) > _MOST_LISTED:
        listing += f" and {len(names) - _MOST_LISTED} more"
    remedy = f"did you mean {listing}?" if near else f"known are {listing}."
    return UnknownName(f"There is no {kind} called {name!r}: {remedy}", code=code)


def _unpadded(name: str) -> str:
    return re.sub(r"(?<!\d)0+(?=\d)", "", name.casefold())


def find_variant(name: str) -> Variant:
    """The variant with this id (`v05`) or name: of the ladder, or an own kernel.

    Raises:
        UnknownName: there is none; the nearest names are in the text.
        InvalidKernel: there is a mistake in its description.
    """
    file = LADDER.find(name) or OWN.seen(name) or OWN.find(name)
    if file is None and name == AUTO:
        raise UnknownName(
            f"{AUTO} stands for the variant that is chosen for a problem on a GPU: name one here.",
            code="auto_is_no_variant",
        )
    if file is None:
        raise unknown("variant", name, (v.id for v in all_variants()))
    if file.error is not None or file.variant is None:
        raise InvalidKernel(str(file.error), code=file.error.code if file.error is not None else "")
    return file.variant


def variant_from(source: Path, name: str) -> Variant:
    """The variant that a `.cu` file describes, to be launched from that file.

    Sources of older snapshots have no description block: they take that of variant `name`.

    Raises:
        UnknownName: as `find_variant`, for a source without a block.
        InvalidKernel: the file cannot be read, or there is a mistake in its description.
    """
    from kernels.description import parse_variant
    from kernels.source_text import has_block, read_text
    from kernels.toml_block import KernelDescriptionError

    try:
        text = read_text(source)
        if has_block(text):
            return parse_variant(text, source)
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake), code=mistake.code) from None
    return replace(find_variant(name), source=source)
