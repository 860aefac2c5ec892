"""Common parts of the importers: options, sizes, times and recorded latencies.

An imported figure is *recorded*: Attune neither ran nor checked the kernel, and every evaluation
says so. Values without a field in the schema are stored in the evaluation's notes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from engine.attention.evaluation import BaselineTiming, Evaluation, Latency, LatencyKind
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, SnapshotError, Status, UnknownName
from engine.base.schema import clean_line, file_label
from engine.devices import find_device
from engine.measure.sampler import sampled_latency
from engine.sessions.session import make_snapshot
from engine.sessions.snapshot import MAX_EVALUATIONS, Environment, Goal, Gpu, Snapshot
from kernels.variant import Dtype

NOT_CHECKED = "Recorded elsewhere: Attune neither ran this kernel nor checked its result."
MAX_NOTES_PER_EVALUATION = 64

_US_PER = {"s": Decimal(10**6), "ms": Decimal(1000), "us": Decimal(1), "ns": Decimal("0.001")}

# Names of the sizes of an attention call, in any case and with or without underscores.
_SIZE_NAMES = {
    "batch": {"b", "bs", "batch", "batchsize", "nbatch"},
    "num_heads": {"h", "heads", "numheads", "nheads", "nhead"},
    "seqlen": {"s", "seqlen", "seqlength", "sequencelength", "seqlenq"},
    "head_dim": {"d", "headdim", "dhead", "headsize"},
}
# Only given if K and V have other sizes than Q.
_KV_SIZE_NAMES = {
    "seqlen_kv": {"kv", "skv", "kvlen", "seqlenkv", "seqlenk", "numkeys"},
    "num_heads_kv": {"hkv", "hk", "headskv", "kvheads", "numheadskv", "numkvheads", "nheadskv"}
    | {"numkeyvalueheads", "nheadsk"},
}
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_CAUSAL_NAMES = {"causal", "iscausal"}
_DTYPE_NAMES = {"dtype", "datatype", "precision"}
_DTYPES: dict[str, Dtype] = {
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
    "f32": "float32",
}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Values that the file may lack. Values in the file take precedence."""

    variant: str = ""
    device: str = ""
    batch: int | None = None
    num_heads: int | None = None
    seqlen: int | None = None
    head_dim: int | None = None
    seqlen_kv: int | None = None
    num_heads_kv: int | None = None
    features: Mapping[str, Any] = field(default_factory=dict)  # further fields of a problem
    causal: bool = False
    dtype: Dtype = "float16"
    config: Mapping[str, int] = field(default_factory=dict)
    title: str = ""
    hypothesis: str = ""
    target: Goal | None = None
    notes: str = ""
    provenance: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    when: str = ""  # UTC, ISO 8601: date of the import; empty: now
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class FileLocation:
    """A place in an imported file, for its error messages."""

    file: str
    where: str  # "line 6", "cache entry 3"

    def reject(self, problem: str, *, code: str) -> NoReturn:
        """Raise SnapshotError with the file, the place and what is wrong there."""
        raise SnapshotError(f"{file_label(self.file)}: {self.where}{problem}.", code=code)


def field_kind(name: str) -> str | None:
    """Return the field of a problem with this name: `batch`, `num_heads`, `seqlen` …; else None."""
    key = re.sub(r"[^a-z]", "", name.lower())
    for kind, names in (_SIZE_NAMES | _KV_SIZE_NAMES).items():
        if key in names:
            return kind
    if key in _CAUSAL_NAMES:
        return "causal"
    return "dtype" if key in _DTYPE_NAMES else None


def problem_from(
    values: Mapping[str, Any], options: ImportOptions, location: FileLocation
) -> Problem:
    """Return the problem of one entry: `values` by `field_kind`, completed by the options."""
    sizes: dict[str, Any] = {}
    for name in _SIZE_NAMES:
        value = values.get(name, getattr(options, name))
        if value is None or value == "":
            location.reject(
                f" does not say {name}: give it for the whole file", code="import_size_missing"
            )
        sizes[name] = whole_number(value, location, name)
    for name in _KV_SIZE_NAMES:
        value = values.get(name, getattr(options, name))
        if value not in (None, ""):
            sizes[name] = whole_number(value, location, name)
    causal = _causal(values.get("causal", options.causal), location)
    dtype = _DTYPES.get(str(values.get("dtype") or options.dtype).lower().removeprefix("torch."))
    if dtype is None:
        location.reject(", dtype must be float16 or bfloat16", code="import_dtype")
    try:
        return Problem(**sizes, causal=causal, dtype=dtype, **options.features)
    except InvalidProblem as error:
        location.reject(f": {str(error).rstrip('.')}", code=error.code)


def _causal(value: Any, location: FileLocation) -> bool:
    if isinstance(value, bool):
        return value
    known = _BOOLS.get(str(value).strip().lower())
    if known is None:
        location.reject(", causal must be true or false", code="import_causal")
    return known


def whole_number(value: Any, location: FileLocation, name: str) -> int:
    """Parse a whole number of 64 bits. Raises SnapshotError for anything else."""
    number = decimal_number(value)
    if number is None or not _is_int64(number):
        location.reject(f", {name} must be a whole number", code="import_no_whole_number")
    return int(number)


def time_us(value: Any, unit: str, location: FileLocation, name: str) -> float:
    """Convert a time to µs; `unit` is s, ms, us or ns. Decimal arithmetic: 2.133 ms are 2133.0
    µs."""
    number = decimal_number(value)
    us = float(number * _US_PER[unit]) if number is not None else 0.0
    if not (0 < us <= 1e15):
        location.reject(f", {name} must be a number above 0", code="import_time")
    return us


def decimal_number(value: Any) -> Decimal | None:
    """Parse a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = str(value).strip()
    if len(text) > 64:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) < 40 else None


def recorded(
    samples_us: Sequence[float],
    reason: str,
    *,
    kind: LatencyKind = "device_warm",
) -> Latency:
    """Return a recorded latency. One sample has no interval, and the reason says so."""
    if len(samples_us) == 1:
        return Latency(
            origin="recorded",
            median_us=samples_us[0],
            low_us=samples_us[0],
            high_us=samples_us[0],
            reason=f"{reason}; a single figure, its spread is not known",
            kind=kind,
        )
    return sampled_latency(tuple(samples_us), kind, reason, "recorded")


def recorded_evaluation(
    problem: Problem,
    *,
    variant: str,
    device: str,
    config: Mapping[str, int],
    latency: Latency | None = None,
    others: Iterable[Latency] = (),
    baselines: Iterable[BaselineTiming] = (),
    notes: Iterable[str] = (),
    when: str = "",
    status: Status = Status.SKIPPED,
    reason: str = NOT_CHECKED,
) -> Evaluation:
    """Return an evaluation made elsewhere. Its status is SKIPPED: nothing was executed here."""
    return Evaluation(
        status=status,
        reason=reason,
        variant=variant,
        problem=problem,
        config=dict(config),
        device=device_name(device),
        when=when,
        latency=latency,
        other_latencies=tuple(others),
        baselines=tuple(baselines),
        notes=tuple(notes)[:MAX_NOTES_PER_EVALUATION],
    )


def device_name(name: str) -> str:
    """Return a GPU's name in the device table if known ("NVIDIA L4" → "L4"), else the given
    name."""
    if not name.strip():
        return "unknown"
    try:
        return find_device(name).name
    except UnknownName:
        return clean_line(name, 120)


def split_config(values: Mapping[str, Any]) -> tuple[dict[str, int], list[str]]:
    """Split values into a config (whole numbers with plain names) and notes."""
    config, notes = {}, []
    for key, value in values.items():
        number = decimal_number(value)
        if _PLAIN_NAME.fullmatch(key) and number is not None and _is_int64(number):
            config[key] = int(number)
        else:
            notes.append(note(key, value))
    return config, notes


def _is_int64(number: Decimal) -> bool:
    return number == number.to_integral_value() and abs(number) < 2**63


def check_count(count: int, name: str) -> None:
    """Raise SnapshotError if a file has more measurements than a session can hold. Called while
    reading."""
    if count > MAX_EVALUATIONS:
        raise SnapshotError(
            f"{file_label(name)} holds more than {MAX_EVALUATIONS:,} measurements, the most a "
            "session has: split the file.",
            code="import_too_long",
        )


def note(name: str, value: Any) -> str:
    """Return a note for a value without a field in the schema."""
    return clean_line(f"{name}: {value}")


def finite_number(value: Any) -> float | None:
    """Return a JSON number or its text as a finite float; None for anything else."""
    number = decimal_number(value)
    return float(number) if number is not None and math.isfinite(float(number)) else None


def recorded_session(
    evaluations: Sequence[Evaluation],
    options: ImportOptions,
    *,
    name: str,
    kind: str,
    file_notes: str = "",
    gpu: str = "",
    log: str = "",
) -> Snapshot:
    """Return the snapshot of an import. `kind` is the kind of file, `gpu` the GPU that it names.

    Raises:
        SnapshotError: it is empty or has more than a snapshot can hold.
    """
    label = file_label(name)
    if not evaluations:
        raise SnapshotError(f"{label} holds no measurement.", code="import_empty")
    environment = dict(options.environment)
    if "gpus" not in environment and (gpu or options.device):
        environment["gpus"] = [Gpu(name=clean_line(gpu or options.device))]
    origin_note = f"Imported from {label} ({kind}). All figures are recorded; none was made here."
    return make_snapshot(
        evaluations,
        title=options.title or f"Imported: {label}",
        hypothesis=options.hypothesis,
        target=options.target,
        notes="\n\n".join(text for text in (options.notes, file_notes) if text),
        provenance=" ".join(text for text in (origin_note, options.provenance) if text),
        environment=Environment(**environment),
        created=options.when or None,
        updated=options.when or None,
        id=options.session_id or None,
        log=log,
    )
