"""An evaluation as a snapshot's JSON holds it: strict, bounded, and back to the frozen noun.

The fields are those of `Evaluation.to_dict()`. Anything else in the file is refused, so nothing
that was not checked is ever shown. A figure that is not a finite number is null in the file and NaN
in the noun (the largest error of an output with a NaN in it, for instance).
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from engine.errors import InvalidProblem
from engine.evaluation import (
    BaselineTiming,
    Correctness,
    Evaluation,
    Execution,
    Finding,
    Latency,
    Limiter,
    Occupancy,
    Origin,
    PassReport,
    Resources,
    Status,
)
from engine.problem import Problem
from engine.records.text import (
    MAX_LOG,
    MAX_SENTENCE,
    Line,
    Log,
    Sentence,
    clean_line,
    clean_lines,
)
from kernels.variant import Dtype

MAX_SAMPLES = 100_000
MAX_COUNT = 2**63 - 1

Count: TypeAlias = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Microseconds: TypeAlias = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Identifier: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]


def _real_date(text: str) -> str:
    if text:
        datetime.fromisoformat(text)  # refuses 31 February
    return text


_UTC = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]{1,6})?(Z|\+00:00)"
# ISO 8601 in UTC, to the second or finer.
Time: TypeAlias = Annotated[str, Field(pattern=f"^{_UTC}$"), AfterValidator(_real_date)]
# The same, and empty where the time is not known.
TimeOrNone: TypeAlias = Annotated[str, Field(pattern=f"^({_UTC})?$"), AfterValidator(_real_date)]

AS_TUPLE = (Field(strict=False), FailFast())  # JSON has lists, the nouns have tuples


class Record(BaseModel):
    """Base of everything in a snapshot: strict types, no unknown fields, immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ProblemRecord(Record):
    batch: int
    num_heads: int
    seqlen: int
    head_dim: int
    causal: bool = False
    dtype: Dtype = "float16"
    seqlen_kv: int | None = None  # since schema version 2, and left out where it is None
    _problem: Problem = PrivateAttr()

    @model_validator(mode="after")
    def _build(self) -> ProblemRecord:
        try:
            self._problem = Problem(**dict(self))
        except InvalidProblem as error:
            raise ValueError(str(error)) from None
        if self.seqlen_kv != self._problem.seqlen_kv:
            raise ValueError("seqlen_kv is left out where it equals seqlen")
        return self

    @model_serializer(mode="wrap")
    def _as_version_1_where_it_can(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        raw: dict[str, Any] = handler(self)
        if self.seqlen_kv is None:
            raw.pop("seqlen_kv", None)
        return raw

    @property
    def problem(self) -> Problem:
        return self._problem


class ResourcesRecord(Record):
    entry: Line
    arch: Line
    threads_per_cta: Count
    registers_per_thread: Count
    static_smem_bytes: Count
    dynamic_smem_bytes: Count
    spill_store_bytes: Count
    spill_load_bytes: Count
    stack_bytes: Count
    smem_bytes: Count
    spill_bytes: Count

    @model_validator(mode="after")
    def _sums(self) -> ResourcesRecord:
        if self.smem_bytes != self.static_smem_bytes + self.dynamic_smem_bytes:
            raise ValueError("smem_bytes is not the sum of static and dynamic shared memory")
        if self.spill_bytes != self.spill_store_bytes + self.spill_load_bytes:
            raise ValueError("spill_bytes is not the sum of spill stores and loads")
        return self

    def build(self) -> Resources:
        fields = dict(self)
        del fields["smem_bytes"], fields["spill_bytes"]
        return Resources(**fields)


class OccupancyRecord(Record):
    ctas: Count
    ctas_per_sm: Count
    active_warps_per_sm: Count
    max_warps_per_sm: Count
    occupancy: Share
    limiter: Limiter
    limits: Annotated[dict[Line, Count], Field(max_length=16)]
    num_sms: Count | None
    waves: NotNegative | None
    tail_ctas: Count | None
    wave_efficiency: NotNegative | None
    sm_fill: NotNegative | None
    thread_fill: NotNegative | None
    ctas_to_fill: Count | None
    reason: Sentence

    def build(self) -> Occupancy:
        return Occupancy(**dict(self))


class PassRecord(Record):
    resources: ResourcesRecord
    occupancy: OccupancyRecord

    def build(self) -> PassReport:
        return PassReport(self.resources.build(), self.occupancy.build())


class FindingRecord(Record):
    pattern: Line
    sentence: Sentence
    share: Share


class CorrectnessRecord(Record):
    passed: bool
    reason: Sentence
    max_abs_err: NotNegative | None
    mean_abs_err: NotNegative | None
    rms_err: NotNegative | None
    cosine: Finite | None
    baseline_err: NotNegative | None
    baseline_name: Line
    tolerance: NotNegative | None
    fixed_bound: NotNegative
    within_fixed_bound: bool
    bad_count: Count
    nonfinite_count: Count
    unwritten_count: Count
    first_bad_index: Annotated[tuple[Count, Count, Count, Count], Field(strict=False)] | None
    inputs_unchanged: bool
    repeatable: bool
    guards_intact: bool
    findings: Annotated[tuple[FindingRecord, ...], Field(max_length=64), *AS_TUPLE]

    def build(self) -> Correctness:
        values = dict(self) | {"findings": tuple(Finding(**dict(f)) for f in self.findings)}
        for name in _CORRECTNESS_FLOATS:
            values[name] = math.nan if values[name] is None else values[name]
        return Correctness(**values)


_CORRECTNESS_FLOATS = (
    "max_abs_err",
    "mean_abs_err",
    "rms_err",
    "cosine",
    "baseline_err",
    "tolerance",
)


class LatencyRecord(Record):
    origin: Origin
    median_us: Microseconds
    low_us: Microseconds
    high_us: Microseconds
    reason: Sentence
    kind: Literal["device_warm", "device_cold", "end_to_end"]
    samples_us: Annotated[tuple[Microseconds, ...], Field(max_length=MAX_SAMPLES), *AS_TUPLE]
    sm_clocks_mhz: Annotated[tuple[Count, ...], Field(max_length=MAX_SAMPLES), *AS_TUPLE] = ()

    @model_validator(mode="after")
    def _ordered(self) -> LatencyRecord:
        if not self.low_us <= self.median_us <= self.high_us:
            raise ValueError("low_us ≤ median_us ≤ high_us does not hold")
        if self.sm_clocks_mhz and len(self.sm_clocks_mhz) != len(self.samples_us):
            raise ValueError("sm_clocks_mhz has not one entry for every sample")
        return self

    def build(self) -> Latency:
        return Latency(**dict(self))


class BaselineRecord(Record):
    name: Line
    latency: LatencyRecord | None
    reason: Sentence
    other_latencies: Annotated[tuple[LatencyRecord, ...], Field(max_length=16), *AS_TUPLE] = ()

    def build(self) -> BaselineTiming:
        return BaselineTiming(
            self.name,
            self.latency.build() if self.latency else None,
            self.reason,
            tuple(x.build() for x in self.other_latencies),
        )


class ExecutionRecord(Record):
    backend: Literal["cuda", "cpu"]
    build: Literal["fast", "check", "device"]
    schedule: Literal["in_order", "random", "reverse", "device"]
    seed: int = Field(ge=-(2**63), le=MAX_COUNT)
    cpu_execution_ms: NotNegative | None


class EvaluationRecord(Record):
    """One object of a snapshot's `evaluations`; `.evaluation` is the noun, as it was written."""

    status: Literal[
        "PASSED",
        "SKIPPED",
        "COMPILE_ERROR",
        "LAUNCH_ERROR",
        "OUT_OF_MEMORY",
        "INCORRECT",
        "CRASHED",
        "TIMEOUT",
        "THROTTLED",
        "CANCELLED",
    ]
    reason: Sentence
    variant: Annotated[Line, Field(min_length=1)]
    problem: ProblemRecord
    config: Annotated[
        dict[Identifier, Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)]], Field(max_length=64)
    ]
    device: Line
    when: TimeOrNone
    resources: ResourcesRecord | None
    occupancy: OccupancyRecord | None
    passes: Annotated[tuple[PassRecord, ...], Field(max_length=16), *AS_TUPLE]
    execution: ExecutionRecord | None
    correctness: CorrectnessRecord | None
    latency: LatencyRecord | None
    other_latencies: Annotated[tuple[LatencyRecord, ...], Field(max_length=16), *AS_TUPLE]
    baselines: Annotated[tuple[BaselineRecord, ...], Field(max_length=16), *AS_TUPLE]
    notes: Annotated[tuple[Sentence, ...], Field(max_length=64), *AS_TUPLE]
    log: Log
    source_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    flags: Annotated[tuple[Line, ...], Field(max_length=128), *AS_TUPLE]
    _evaluation: Evaluation = PrivateAttr()

    @model_validator(mode="after")
    def _build(self) -> EvaluationRecord:
        main = self.passes[0] if self.passes else None
        if self.resources != (main.resources if main else None):
            raise ValueError("resources is not that of the first pass")
        if self.occupancy != (main.occupancy if main else None):
            raise ValueError("occupancy is not that of the first pass")
        self._evaluation = Evaluation(
            status=Status(self.status),
            reason=self.reason,
            variant=self.variant,
            problem=self.problem.problem,
            config=dict(self.config),
            device=self.device,
            when=self.when,
            passes=tuple(p.build() for p in self.passes),
            execution=Execution(**dict(self.execution)) if self.execution else None,
            correctness=self.correctness.build() if self.correctness else None,
            latency=self.latency.build() if self.latency else None,
            other_latencies=tuple(x.build() for x in self.other_latencies),
            baselines=tuple(b.build() for b in self.baselines),
            notes=self.notes,
            log=self.log,
            source_sha256=self.source_sha256,
            flags=self.flags,
        )
        return self

    @property
    def evaluation(self) -> Evaluation:
        return self._evaluation


def as_recorded(evaluation: Evaluation) -> Evaluation:
    """The evaluation as it is shown once its file is opened: "measured" becomes "recorded"."""
    return replace(
        evaluation,
        latency=_recorded(evaluation.latency) if evaluation.latency else None,
        other_latencies=tuple(map(_recorded, evaluation.other_latencies)),
        baselines=tuple(
            replace(
                baseline,
                latency=_recorded(baseline.latency) if baseline.latency else None,
                other_latencies=tuple(map(_recorded, baseline.other_latencies)),
            )
            for baseline in evaluation.baselines
        ),
    )


def _recorded(latency: Latency) -> Latency:
    return replace(latency, origin="recorded") if latency.origin == "measured" else latency


def storable(evaluation: Evaluation) -> dict[str, Any]:
    """`evaluation.to_dict()` with texts and figures that a snapshot may hold.

    Control characters go, over-long texts are cut and say so, and figures that are not finite
    become null.
    """
    raw: dict[str, Any] = _storable(evaluation.to_dict())
    raw["variant"] = clean_line(evaluation.variant)
    raw["device"] = clean_line(evaluation.device)
    raw["log"] = clean_lines(evaluation.log, MAX_LOG)
    raw["flags"] = [clean_line(flag) for flag in evaluation.flags]
    return raw


def _storable(value: Any, name: str = "") -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if name == "log" else clean_lines(value, MAX_SENTENCE)
    if isinstance(value, dict):
        return {key: _storable(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        # Samples are the bulk of a file, positive and finite by construction.
        return list(value) if name == "samples_us" else [_storable(x) for x in value]
    return value
