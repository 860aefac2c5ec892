"""Names of snapshot files: they sort by time, say what is inside, and are safe as one path part.

`20261121T024500Z_l4_v05_b1-h1-s128-d64.json.gz`
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from engine.errors import UnknownName
from engine.records.explain import file_label
from engine.records.snapshot import Snapshot

MAX_NAME = 160
SUFFIX = ".json.gz"

# What a person may have put into the folder by hand is listed too, as long as it is plainly a name.
_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+=@,()-]*\.json(\.gz)?")


def is_snapshot_name(name: str) -> bool:
    """Whether `name` is one path part that may be a snapshot: no separators, no hidden files."""
    return len(name) <= MAX_NAME and _ALLOWED.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """`name` itself; UnknownName when it could be anything but a file of the store."""
    if not is_snapshot_name(name):
        raise UnknownName(
            f"{file_label(name)} is not the name of a snapshot: take one from the list."
        )
    return name


def names_for(snapshot: Snapshot) -> Iterator[str]:
    """The names to try for this snapshot, in order; the first one that is free is taken."""
    stem = _stem(snapshot)
    yield stem + SUFFIX
    for number in range(2, 1_000):
        yield f"{stem}_{number}{SUFFIX}"


def _stem(snapshot: Snapshot) -> str:
    when = datetime.fromisoformat(snapshot.updated).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    devices = list(dict.fromkeys(r.device for r in snapshot.evaluations if r.device))
    variants = list(dict.fromkeys(r.variant for r in snapshot.evaluations))
    problems = snapshot.problems
    parts = [
        when,
        _slug(devices[0]) if len(devices) == 1 else _counted(len(devices), "gpus"),
        _slug(variants[0]) if len(variants) == 1 else _counted(len(variants), "variants"),
        _counted(len(problems), "problems"),
    ]
    if len(problems) == 1:
        p = problems[0]
        shape = f"b{p.batch} {p.heads()} {p.lengths()} d{p.head_dim}"
        parts[-1] = shape.lower().replace(" ", "-")
    return "_".join(part for part in parts if part)


def _counted(count: int, noun: str) -> str:
    return f"{count}-{noun}" if count else ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:32].strip("-")
