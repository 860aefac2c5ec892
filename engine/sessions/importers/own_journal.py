"""Import Attune's journals from another machine: of a session (`bench --out`) or a sweep.

A journal has one JSON object per line. Every line is bounded and validated like the parts of a
snapshot. An incomplete last line is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.attention.evaluation import Evaluation
from engine.base.errors import SnapshotError
from engine.base.schema import decode, file_label
from engine.sessions.importers.common import ImportOptions
from engine.sessions.session import make_snapshot
from engine.sessions.snapshot import Snapshot, Source, parse_json

_MAX_FIRST_BYTES = 4 << 20
_FIRST = ({"kind": "start"}, {"event": "sweep"})


def is_journal(text: str) -> bool:
    """True if the first line is that of a session's or a sweep's journal."""
    line = text.lstrip().split("\n", 1)[0].encode()
    if len(line) > _MAX_FIRST_BYTES:  # one large object of another tool
        return False
    try:
        first = parse_json(line, name="")
    except SnapshotError:
        return False
    return isinstance(first, dict) and any(first.items() >= mark.items() for mark in _FIRST)


def from_journal(text: str, options: ImportOptions, *, name: str) -> Snapshot:
    """Return a snapshot of all evaluations in the journal, with measurements as measured.

    Raises:
        SnapshotError: one sentence with the file and the line.
    """
    title, created = options.title, None
    environment: dict[str, Any] = {}
    evaluations: list[Evaluation] = []
    points: dict[str, int] = {}
    sources: dict[tuple[str, str], Source] = {}
    for where, line in _lines(text, name):
        if line.get("kind") == "start":
            environment, created = line.get("environment", {}), line.get("created")
        elif line.get("kind") == "edit":
            title = title or str(line.get("title", ""))
        elif line.get("kind") == "evaluation":
            evaluations.append(decode(Evaluation, line.get("evaluation"), name=where))
            for raw in line.get("sources", ()):
                source = decode(Source, raw, name=f"A source in {where}")
                sources[source.name, source.sha256] = source
        elif line.get("event") == "evaluation":
            evaluation = decode(Evaluation, line.get("result"), name=where)
            # Of a repeated point, the last result counts.
            at = points.setdefault(str(line.get("point")), len(evaluations))
            evaluations[at : at + 1] = [evaluation]
    if not evaluations:
        raise SnapshotError(
            f"{file_label(name)} is a journal without a single evaluation.", code="journal_empty"
        )
    return make_snapshot(
        evaluations,
        title=title or f"Journal {file_label(name)}",
        created=created,
        environment=environment,
        sources=sources.values(),
    )


def _lines(text: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every line that is an object, with its line number as text."""
    lines = text.split("\n")
    last = max((i for i, line in enumerate(lines) if line.strip()), default=0)
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        where = f"line {i + 1} of {file_label(name)}"
        try:
            parsed = parse_json(line.encode(), name=where)
        except SnapshotError:
            if i == last:  # incomplete because of a crash
                return
            raise
        if not isinstance(parsed, dict):
            raise SnapshotError(f"{where} is not a journal's line.", code="journal_line_form")
        yield where, parsed
