"""Import measurements of other tools as recorded sessions."""

from __future__ import annotations

from engine.base.errors import SnapshotError
from engine.base.schema import file_label
from engine.sessions.importers import (
    kernel_tuner,
    measurements,
    nsight_compute,
    nvbench,
    own_journal,
)
from engine.sessions.importers.common import ImportOptions
from engine.sessions.snapshot import FORMAT, Snapshot, text_of

__all__ = ["ImportOptions", "import_measurements"]


def import_measurements(
    data: bytes, *, name: str, options: ImportOptions | None = None
) -> Snapshot:
    """Return a recorded session from a file of another tool, whose format is detected from its
    content.

    Supports CSV and JSON tables, Kernel Tuner caches, NVBench results and Nsight Compute exports,
    gzipped or not, and journals of Attune's command line.

    Raises:
        SnapshotError: one sentence with the file, the row or entry, and the column.
    """
    options = options or ImportOptions()
    text = text_of(data, name=name)
    if text.lstrip()[:1] not in ("{", "["):
        is_ncu = nsight_compute.is_export(text)
        read_text = nsight_compute.from_export if is_ncu else measurements.from_csv
        return read_text(text, options, name=name)
    if own_journal.is_journal(text):
        return own_journal.from_journal(text, options, name=name)
    parsed = kernel_tuner.parse(text, name=name)
    for recognised, read in (
        (kernel_tuner.is_cache, kernel_tuner.from_cache),
        (nvbench.is_results, nvbench.from_results),
        (measurements.is_rows, measurements.from_rows),
    ):
        if recognised(parsed):
            return read(parsed, options, name=name)
    if isinstance(parsed, dict) and parsed.get("format") == FORMAT:
        raise SnapshotError(
            f"{file_label(name)} is an Attune snapshot already: open it or add it to the store.",
            code="snapshot_already",
        )
    raise SnapshotError(
        f"{file_label(name)} is not a file that can be imported: a CSV or JSON table, a Kernel "
        "Tuner cache, NVBench results or an Nsight Compute export is expected.",
        code="import_form_unknown",
    )
