"""Evaluations as a file for another machine: a snapshot, or a session's journal without pydantic.

A machine that only measures has no pydantic and cannot make a snapshot. It writes the journal of a
working session instead, one JSON object a line, which the one with the screen imports.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.environment import collect_environment
from engine.errors import CompileError, StoreError
from engine.evaluation import Evaluation

_MAX_TEXT = 2_000
_MAX_LOG = 60_000


def export_evaluations(path: Path, evaluations: Sequence[Evaluation], title: str) -> str:
    """Write a new file and say in one sentence what it is.

    `.jsonl` asks for the journal; any other name gets a snapshot where pydantic is installed.

    Raises:
        StoreError: the file is there already, or cannot be written.
        SnapshotError: more than one snapshot may hold.
    """
    if path.suffix == ".jsonl" or not _has_pydantic():
        target = path if path.suffix == ".jsonl" else Path(f"{path}.jsonl")
        _write(target, _journal(evaluations, title))
        return (
            f"Wrote {target}: a session's journal, which python -m engine sessions import makes a "
            "snapshot of."
        )
    _write(path, _snapshot(path, evaluations, title))
    return f"Wrote {path}: a snapshot."


def exists_already(path: Path) -> StoreError:
    """The error for a file that is there; ask before measuring for an hour."""
    return StoreError(f"{path} exists already and is not overwritten: name another file.")


def _has_pydantic() -> bool:
    try:
        import pydantic  # noqa: F401
    except ImportError:
        return False
    return True


def _write(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise exists_already(path) from None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error.strerror}): name another file."
        ) from error


def _snapshot(path: Path, evaluations: Sequence[Evaluation], title: str) -> bytes:
    from engine.records.codec import dumps
    from engine.sessions.build import make_snapshot
    from engine.sessions.session import sources_of

    sources = {(s.name, s.sha256): s for e in evaluations for s in sources_of(e)}
    snapshot = make_snapshot(
        evaluations, title=title, environment=collect_environment(), sources=sources.values()
    )
    return dumps(snapshot, compress=path.suffix == ".gz")


def _journal(evaluations: Sequence[Evaluation], title: str) -> bytes:
    """What `engine.sessions.session.Session` reads."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    events: list[dict[str, Any]] = [
        {
            "kind": "start",
            "id": uuid.uuid4().hex,
            "created": created,
            "environment": collect_environment(),
        },
        {"kind": "edit", "title": title},
    ]
    seen: set[tuple[str, str]] = set()
    for evaluation in evaluations:
        sources = [s for s in _sources(evaluation) if (s["name"], s["sha256"]) not in seen]
        seen |= {(s["name"], s["sha256"]) for s in sources}
        events.append(
            {
                "kind": "evaluation",
                "key": uuid.uuid4().hex,
                "evaluation": _plain(evaluation.to_dict()),
                "maps": [],
                "sources": sources,
            }
        )
    lines = (json.dumps(e, separators=(",", ":"), allow_nan=False) for e in events)
    return ("\n".join(lines) + "\n").encode()


def _sources(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The kernel's source and headers, while they are still those that were evaluated."""
    import hashlib

    from engine.compile.sources import read_sources
    from engine.names import find_variant

    try:
        found = read_sources(find_variant(evaluation.variant).source)
    except CompileError:
        return []
    if found.source_sha256 != evaluation.source_sha256:
        return []
    texts = [(found.name, found.text, list(evaluation.flags)), *((*h, []) for h in found.headers)]
    return [
        {
            "name": name,
            "text": text,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "flags": flags,
        }
        for name, text, flags in texts
    ]


def _plain(value: Any, name: str = "") -> Any:
    """JSON as a snapshot may hold it: finite figures, bounded texts without control characters."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        text = "".join(c for c in value if c.isprintable() or c in "\n\t")
        return text[-_MAX_LOG:] if name == "log" else text[:_MAX_TEXT]
    if isinstance(value, dict):
        return {key: _plain(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
