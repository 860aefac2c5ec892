"""Kernel Tuner's cache files (schema 1.0.0 to 1.1.0, and the older ones without a version).

`cache` maps a config to its times in milliseconds, or to the name of an error. During a run, the
file lacks its last two brackets, and is read up to its end.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from engine.attention.evaluation import Evaluation
from engine.base.errors import SnapshotError, Status
from engine.sessions.importers.common import (
    FileLocation,
    ImportOptions,
    check_count,
    field_kind,
    note,
    problem_from,
    recorded,
    recorded_evaluation,
    recorded_session,
    split_config,
    time_us,
)
from engine.sessions.snapshot import Snapshot, parse_json

_FAILURES = {
    "InvalidConfig": (Status.SKIPPED, "Kernel Tuner: the config was not valid for this GPU."),
    "CompilationFailedConfig": (Status.COMPILE_ERROR, "Kernel Tuner: it did not compile."),
    "RuntimeFailedConfig": (Status.LAUNCH_ERROR, "Kernel Tuner: it failed when it was run."),
}
# Bookkeeping of the tuner, not needed here.
_BOOKKEEPING = {"compile_time", "verification_time", "benchmark_time", "strategy_time"} | {
    "framework_time",
    "timestamp",
    "time",
    "times",
    "__error__",
}


def is_cache(parsed: Any) -> bool:
    """True if this is the object of a cache file."""
    return (
        isinstance(parsed, dict)
        and {"tune_params_keys", "kernel_name"} <= set(parsed)
        and isinstance(parsed.get("cache"), dict)
    )


def parse(text: str, *, name: str) -> Any:
    """Parse the JSON of a file, with the brackets that an unfinished run has not written yet."""
    try:
        return parse_json(text.encode(), name=name)
    except SnapshotError:
        if '"tune_params_keys"' not in text:
            raise
        return parse_json((text.rstrip().removesuffix(",") + "}}").encode(), name=name)


def from_cache(parsed: Any, options: ImportOptions, *, name: str) -> Snapshot:
    """Return a session from a cache object (`is_cache`).

    The problem's sizes come from tuned parameters or the options.

    Raises:
        SnapshotError: an entry that cannot be read, named.
    """
    check_count(len(parsed["cache"]), name)
    kernel, device = str(parsed["kernel_name"]), str(parsed.get("device_name") or "")
    keys = [k for k in _as_list(parsed["tune_params_keys"]) if isinstance(k, str)]
    evaluations = [
        _evaluation(
            entry, keys, kernel, device, options, FileLocation(name, f"cache entry {index + 1}")
        )
        for index, entry in enumerate(parsed["cache"].values())
    ]
    size = f"Problem size given to Kernel Tuner: {parsed.get('problem_size')}."
    return recorded_session(
        evaluations,
        options,
        name=name,
        kind="a Kernel Tuner cache",
        file_notes=size,
        gpu=device,
    )


def _evaluation(
    entry: Any,
    keys: list[str],
    kernel: str,
    device: str,
    options: ImportOptions,
    location: FileLocation,
) -> Evaluation:
    if not isinstance(entry, dict):
        location.reject(" is not an object", code="cache_entry_form")
    tuned = {key: entry[key] for key in keys if key in entry}
    sizes = {kind: v for key, v in tuned.items() if (kind := field_kind(key)) is not None}
    config, notes = split_config(tuned)
    extra = {k: v for k, v in entry.items() if k not in _BOOKKEEPING and k not in tuned}
    notes += [note(key, value) for key, value in extra.items()]
    result = entry.get("__error__") or entry.get("time")
    status, reason = Status.SKIPPED, ""
    latency = None
    if isinstance(result, str):
        if result not in _FAILURES:
            location.reject(
                ", time must be a number or the name of an error", code="cache_entry_error"
            )
        status, reason = _FAILURES[result]
    else:
        samples = _as_list(entry.get("times")) or [result]
        times = [time_us(t, "ms", location, "time") for t in samples]
        latency = recorded(times, "Kernel Tuner's times")
    common: dict[str, Any] = {"status": status, "reason": reason} if reason else {}
    return recorded_evaluation(
        problem_from(sizes, options, location),
        variant=options.variant or kernel,
        device=device or options.device,
        config=config,
        latency=latency,
        notes=notes,
        when=_when(entry.get("timestamp")),
        **common,
    )


def _when(stamp: Any) -> str:
    """Return the entry's date in the schema's format; empty if it cannot be parsed."""
    try:
        when = datetime.fromisoformat(str(stamp))
    except ValueError:
        return ""
    if when.tzinfo is None:
        return ""
    return when.astimezone(UTC).isoformat(timespec="seconds")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
