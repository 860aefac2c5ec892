"""NVBench / cuda-bench JSON (`--json FILE`). Times are in seconds, numbers are written as text.

A state is one benchmark on one device with one set of axis values. *Cold* is a kernel after an L2
flush, *batch* many launches in a row. Samples are in separate binary files, which are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.attention.evaluation import Evaluation, Latency
from engine.sessions.importers.common import (
    FileLocation,
    ImportOptions,
    check_count,
    field_kind,
    finite_number,
    note,
    problem_from,
    recorded,
    recorded_evaluation,
    recorded_session,
    split_config,
    time_us,
)
from engine.sessions.snapshot import Snapshot

_COLD = "nv/cold/time/gpu/"
_BATCH = "nv/batch/time/gpu/mean"
_CPU = "nv/cold/time/cpu/mean"
_NOTED = {
    "nv/cold/time/gpu/sample_size": "samples",
    "nv/cold/sample_size": "samples",
    "nv/cold/time/gpu/stdev/relative": "relative standard deviation",
    "nv/cold/bw/global/utilization": "share of the peak memory bandwidth",
    "nv/cold/sm_clock_rate/mean": "mean SM clock in Hz",
}


def is_results(parsed: Any) -> bool:
    """True if this is the object of a results file."""
    return (
        isinstance(parsed, dict)
        and isinstance(parsed.get("benchmarks"), list)
        and isinstance(parsed.get("devices"), list)
    )


def from_results(parsed: Any, options: ImportOptions, *, name: str) -> Snapshot:
    """Return a session from a results object (`is_results`). Axes such as B and seqlen give the
    sizes.

    Raises:
        SnapshotError: a state that cannot be read, named.
    """
    devices = {str(d.get("id")): str(d.get("name") or "") for d in _objects(parsed["devices"])}
    evaluations: list[Evaluation] = []
    skipped: list[str] = []
    for b, bench in enumerate(parsed["benchmarks"]):
        states = bench.get("states") if isinstance(bench, dict) else None
        for s, state in enumerate(states if isinstance(states, list) else []):
            location = FileLocation(name, f"benchmark {b + 1}, state {s + 1}")
            if not isinstance(state, dict):
                location.reject(" is not an object", code="nvbench_state_form")
            if state.get("is_skipped"):
                reason = state.get("skip_reason") or "no reason given"
                skipped.append(f"{location.where} was skipped by NVBench: {reason}")
                continue
            check_count(len(evaluations) + 1, name)
            device = devices.get(str(state.get("device")), "")
            kernel = str(bench.get("name") or "")
            evaluations.append(_evaluation(state, kernel, device, options, location))
    return recorded_session(
        evaluations,
        options,
        name=name,
        kind="NVBench results",
        gpu=next(iter(devices.values()), ""),
        log="\n".join(note("left out", line) for line in skipped[:200]),
    )


def _evaluation(
    state: Mapping[str, Any],
    kernel: str,
    device: str,
    options: ImportOptions,
    location: FileLocation,
) -> Evaluation:
    axes = {
        str(axis.get("name")): axis.get("value")
        for axis in _objects(state.get("axis_values"))
        if axis.get("value") is not None
    }
    summaries = {str(s.get("tag")): _value(s) for s in _objects(state.get("summaries"))}
    sizes = {kind: v for key, v in axes.items() if (kind := field_kind(key)) is not None}
    config, notes = split_config({k: v for k, v in axes.items() if field_kind(k) is None})
    notes += [
        note(label, summaries[tag])
        for tag, label in _NOTED.items()
        if summaries.get(tag) is not None
    ]
    latencies = _latencies(summaries, location)
    if not latencies:
        location.reject(" has no GPU time", code="nvbench_time_missing")
    return recorded_evaluation(
        problem_from(sizes, options, location),
        variant=options.variant or kernel or "nvbench",
        device=device or options.device,
        config=config,
        latency=latencies[0],
        others=latencies[1:],
        notes=notes,
    )


def _latencies(summaries: Mapping[str, Any], location: FileLocation) -> list[Latency]:
    """Return batch (warm), cold and CPU time, if present; the first is the state's latency."""
    latencies = []
    if (batch := summaries.get(_BATCH)) is not None:
        latencies.append(recorded((time_us(batch, "s", location, _BATCH),), "NVBench's batch mean"))
    for statistic in ("median", "mean"):
        if (cold := summaries.get(_COLD + statistic)) is not None:
            us = time_us(cold, "s", location, _COLD + statistic)
            latencies.append(
                recorded(
                    (us,), f"NVBench's cold {statistic}, after an L2 flush", kind="device_cold"
                )
            )
            break
    if (cpu := summaries.get(_CPU)) is not None and latencies:
        us = time_us(cpu, "s", location, _CPU)
        latencies.append(recorded((us,), "NVBench's mean CPU time of a call", kind="end_to_end"))
    return latencies


def _value(summary: Mapping[str, Any]) -> Any:
    """Return the datum `value`; None if NVBench had none (it writes null or a non-number)."""
    for datum in _objects(summary.get("data")):
        if datum.get("name") == "value":
            value = datum.get("value")
            return value if finite_number(value) is not None else None
    return None


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
