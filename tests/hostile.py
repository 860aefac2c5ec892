"""Helpers for tests of untrusted files: a valid file, all places in it, and ways to damage it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sessions_data import snapshot_maker

from engine.base.errors import SnapshotError
from engine.sessions.importers import ImportOptions, import_measurements
from engine.sessions.snapshot import Snapshot, dumps, loads

VALID = dumps(snapshot_maker(), compress=False)
SIZES = ImportOptions(variant="v", batch=1, num_heads=1, seqlen=8, head_dim=8)


def plain(sentence: str) -> str:
    """Check that the sentence is safe to show anywhere, and return it."""
    assert sentence.isprintable(), sentence
    assert sentence.endswith(".")
    assert len(sentence) < 500
    return sentence


def outcome(data: bytes, name: str = "evil.json") -> str:
    """Return the error of reading `data`, checked to be one safe sentence; "" if it is valid."""
    try:
        loads(data, name=name)
    except SnapshotError as error:
        return plain(str(error))
    return ""


def whole() -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(VALID)
    return raw


Place = tuple[str | int, ...]


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the path of every value in a JSON value, including containers."""
    yield path
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from places(item, (*path, key))


def put(path: Place, value: Any) -> bytes:
    raw: Any = whole()
    if not path:
        return json.dumps(value).encode()
    at = raw
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    return json.dumps(raw).encode()


ALL = list(places(whole()))


def value_at(path: Place) -> Any:
    at: Any = whole()
    for part in path:
        at = at[part]
    return at


STRINGS = [p for p in ALL if isinstance(value_at(p), str)]
NUMBERS = [p for p in ALL if type(value_at(p)) in (int, float) or value_at(p) is None]


def import_outcome(data: bytes) -> None:
    """Check that importing gives one safe sentence, or a snapshot that can be saved and read."""
    try:
        snapshot = import_measurements(data, name="x", options=SIZES)
    except SnapshotError as error:
        plain(str(error))
    else:
        assert loads(dumps(snapshot), name="x") == snapshot


HOSTILE_TEXTS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "![x](https://example.org/track.png)",
    "[click](javascript:alert(1))",
    "$$\\href{javascript:alert(1)}{x}$$",
    "../../../../etc/passwd",
    "{{7*7}} ${7*7} %s %n {0}",
    "'; DROP TABLE info; --",
]
ACTING_TEXTS = ["\x1b[2Jgone", "nul\x00", "\u202eright to left", "\u2066isolate", "\x9b31m"]

# One of each kind of formatting, short enough for a title.
PROBE = (
    "![evil](http://evil/p) <img src=http://evil/q> **evil** `evil` $evil$ :red[evil] "
    ":material/evil: :100: www.evil.x a@evil.x"
)


def probe_snapshot() -> Snapshot:
    """Return a snapshot with the probe in every text that accepts it, names of limits included."""
    raw = filled(PROBE, STRINGS)
    for of in raw["evaluations"][0]["passes"]:
        of["occupancy"]["limits"][PROBE] = 1
    return loads(json.dumps(raw).encode(), name="evil.json")


def filled(value: Any, paths: Iterable[Place]) -> dict[str, Any]:
    """Yield the valid file with `value` at each of these places in turn, if it stays valid."""
    raw = whole()
    for path in paths:
        at: Any = raw
        for part in path[:-1]:
            at = at[part]
        before, at[path[-1]] = at[path[-1]], value
        if outcome(json.dumps(raw).encode()):
            at[path[-1]] = before
    return raw
