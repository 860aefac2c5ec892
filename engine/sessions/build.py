"""Make snapshots from evaluations, sources and error maps."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from engine.base.text import (
    MAX_NOTES,
    MAX_SENTENCE,
    MAX_SOURCE,
    clean_line,
    clean_lines,
)
from engine.evaluation import Evaluation
from engine.problem import Problem
from engine.schema import decode, encode
from engine.sessions.snapshot import (
    Attachment,
    Environment,
    Snapshot,
    Source,
    StoredErrorMap,
)

if TYPE_CHECKING:
    from engine.correctness import ErrorMap

MAP_SIDE = 64  # cells per side of a stored error map
UNTITLED = "Untitled session"


def now() -> str:
    """The present, UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def make_snapshot(
    evaluations: Sequence[Evaluation],
    *,
    environment: Mapping[str, Any] | Environment,
    title: str = "",
    hypothesis: str = "",
    notes: str = "",
    provenance: str = "",
    created: str | None = None,
    updated: str | None = None,
    id: str | None = None,  # noqa: A002  (the field's name)
    problems: Iterable[Problem] = (),
    **fields: Any,
) -> Snapshot:
    """A snapshot of `evaluations`. Texts are cleaned and cut to what a file may hold.

    Args:
        problems: further ones, which have no evaluation yet.
        created, updated: now by default.
        fields: further fields of `Snapshot`.

    Raises:
        SnapshotError: something that no file may hold, such as too many evaluations.
    """
    present = now()
    raw = {
        "id": id or uuid.uuid4().hex,
        "title": clean_line(title, 120) or UNTITLED,
        "hypothesis": clean_lines(hypothesis, MAX_SENTENCE),
        "notes": clean_lines(notes, MAX_NOTES),
        "created": created or present,
        "updated": updated or present,
        "provenance": clean_lines(provenance, MAX_SENTENCE),
        "environment": environment,
        "problems": tuple(dict.fromkeys([*(e.problem for e in evaluations), *problems])),
        "evaluations": [encode(evaluation) for evaluation in evaluations],
        **fields,
    }
    return decode(Snapshot, raw, name="This session")


def make_attachment(name: str, text: str) -> Attachment:
    """A file with its hash. SnapshotError when it cannot be stored."""
    return decode(Attachment, _hashed(name, text), name="The attachment")


def make_source(name: str, text: str, flags: Iterable[str] = ()) -> Source:
    """A source with its hash. `text` is kept as it is; SnapshotError when it cannot be stored."""
    kept = text if len(text) <= MAX_SOURCE else clean_lines(text, MAX_SOURCE)
    raw = _hashed(name, kept) | {"flags": [clean_line(flag) for flag in flags]}
    return decode(Source, raw, name="The source")


def _hashed(name: str, text: str) -> dict[str, Any]:
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return {"name": clean_line(name, 120), "text": text, "sha256": sha256}


def missing_sources(evaluations: Iterable[Evaluation], sources: Iterable[Source]) -> str:
    """Which kernels' sources a snapshot lacks, as a sentence a line; empty when none."""
    stored = {source.sha256 for source in sources}
    missing = {
        (e.variant, e.source_sha256)
        for e in evaluations
        if e.source_sha256 and e.source_sha256 not in stored
    }
    return "\n".join(
        f"The source of {variant} (SHA-256 {sha[:12]}…) is missing: it changed on disk before it "
        "was kept."
        for variant, sha in sorted(missing)
    )


def make_error_map(evaluation: int, error_map: ErrorMap) -> StoredErrorMap:
    """`error_map`, pooled further by block maximum to at most `MAP_SIDE` cells per side.

    `evaluation` is the index of the evaluation it belongs to. Values keep four digits.
    """
    from engine.correctness.output_error import pool

    pooled, down, across = pool(error_map.values, MAP_SIDE)
    raw = {
        "evaluation": evaluation,
        "name": error_map.name,
        "row_axis": error_map.row_axis,
        "column_axis": error_map.column_axis,
        "rows": pooled.shape[0],
        "columns": pooled.shape[1],
        "rows_per_cell": error_map.rows_per_cell * down,
        "columns_per_cell": error_map.columns_per_cell * across,
        "values": [
            float(f"{x:.4g}") if math.isfinite(x) else None for x in pooled.ravel().tolist()
        ],
    }
    return decode(StoredErrorMap, raw, name="The error map")
