"""Export a session's times for other tools: Kernel Tuner's cache, NVBench's JSON.

Only measured and recorded times are written, because these tools would read a prediction as a
measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from engine.attention.evaluation import Evaluation, Latency, LatencyKind
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, Status
from engine.history.known_time import under_own_names
from engine.sessions.compare.pairing import latency_of_kind
from engine.sessions.snapshot import Snapshot

Format: TypeAlias = Literal["kernel-tuner", "nvbench"]

# The name in Kernel Tuner's schema 1.1.0 for a config without a time.
_ERRORS = {
    Status.SKIPPED: "InvalidConfig",
    Status.COMPILE_ERROR: "CompilationFailedConfig",
}
_TAGS: tuple[tuple[LatencyKind, str], ...] = (
    ("device_warm", "nv/batch/time/gpu/mean"),
    ("device_cold", "nv/cold/time/gpu/median"),
    ("end_to_end", "nv/cold/time/cpu/mean"),
)


def exported(snapshot: Snapshot, form: Format, variant: str = "", gpu: str = "") -> str:
    """Return the file's text.

    Args:
        variant, gpu: export only these; a Kernel Tuner cache has one kernel and one GPU. Kernels
            of other sources have their own names (`engine.history.known_time.Reference`).

    Raises:
        InvalidProblem: there is nothing to write, or more than such a file can hold.
    """
    named = under_own_names(snapshot.evaluations, snapshot.title)
    chosen = [
        e
        for e, recorded in zip(named, snapshot.evaluations, strict=True)
        if variant in ("", e.variant, recorded.variant) and gpu.casefold() in e.device.casefold()
    ]
    if not any(_taken(e) for e in chosen):
        raise InvalidProblem(
            "The session has no measured or recorded time, and predicted times are not exported, "
            "because the other tool would show them as measured.",
            code="only_predicted_times",
        )
    made = _cache(chosen) if form == "kernel-tuner" else _results(chosen)
    return json.dumps(made, indent=1) + "\n"


def _cache(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    for what, names in (
        ("kernel", {e.variant for e in evaluations}),
        ("GPU", {e.device for e in evaluations}),
    ):
        if len(names) > 1:
            option = "--variant" if what == "kernel" else "--gpu"
            listed = ", ".join(sorted(names))
            raise InvalidProblem(
                f"A Kernel Tuner cache holds one {what}, and the session has {listed}: choose one "
                f"with {option}.",
                code="export_of_several_kernels",
            )
    params = [{**_sizes(e.problem), **e.config} for e in evaluations]
    keys = list(dict.fromkeys(key for each in params for key in each))
    cache = {}
    for e, values in zip(evaluations, params, strict=True):
        entry: dict[str, Any] = dict(values)
        latency = _taken(e)
        if latency is not None:
            entry |= {
                "time": latency.median_us / 1e3,
                "times": [t / 1e3 for t in _samples(latency)],
            }
        elif e.status is Status.PASSED or e.latency is not None:
            continue  # only predicted
        else:
            entry["time"] = _ERRORS.get(e.status, "RuntimeFailedConfig")
        times = dict.fromkeys(
            ("compile_time", "verification_time", "benchmark_time", "strategy_time"), 0
        )
        entry |= times | {"framework_time": 0, "timestamp": e.when}
        cache[",".join(str(values.get(key, "")) for key in keys)] = entry
    return {
        "schema_version": "1.1.0",
        "device_name": evaluations[0].device,
        "kernel_name": evaluations[0].variant,
        "problem_size": [evaluations[0].problem.seqlen, evaluations[0].problem.num_heads],
        "tune_params_keys": keys,
        "tune_params": {key: _values(params, key) for key in keys},
        "objective": "time",
        "cache": cache,
    }


def _results(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    taken = [e for e in evaluations if _taken(e)]
    devices = list(dict.fromkeys(e.device for e in taken))
    benchmarks = []
    for number, name in enumerate(dict.fromkeys(e.variant for e in taken)):
        own = [e for e in taken if e.variant == name]
        params = [{**_sizes(e.problem), **e.config} for e in own]
        states = [
            {
                "name": f"Device={devices.index(e.device)} " + _axes_text(values),
                "device": devices.index(e.device),
                "type_config_index": 0,
                "axis_values": [_axis_value(k, v) for k, v in values.items()],
                "summaries": list(_summaries(e)),
                "is_skipped": False,
            }
            for e, values in zip(own, params, strict=True)
        ]
        keys = dict.fromkeys(key for each in params for key in each)
        axes = [{"name": k, "type": _axis_value(k, _values(params, k)[0])["type"]} for k in keys]
        benchmarks.append(
            {
                "name": name,
                "index": number,
                "devices": sorted({devices.index(e.device) for e in own}),
                "axes": axes,
                "states": states,
            }
        )
    listed = [{"id": number, "name": name} for number, name in enumerate(devices)]
    return {"devices": listed, "benchmarks": benchmarks}


def _summaries(evaluation: Evaluation) -> Iterable[dict[str, Any]]:
    for kind, tag in _TAGS:
        latency = latency_of_kind(evaluation, kind)
        if latency is not None and latency.origin != "predicted":
            seconds = repr(latency.median_us / 1e6)
            datum = {"name": "value", "type": "float64", "value": seconds}
            yield {"tag": tag, "name": tag.rsplit("/", 1)[-1], "data": [datum]}


def _taken(evaluation: Evaluation) -> Latency | None:
    """Return the evaluation's warm time if it was measured or recorded."""
    latency = latency_of_kind(evaluation, "device_warm")
    return None if latency is None or latency.origin == "predicted" else latency


def _samples(latency: Latency) -> Sequence[float]:
    return latency.samples_us or (latency.median_us,)


def _sizes(problem: Problem) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "batch": problem.batch,
        "num_heads": problem.num_heads,
        "seqlen": problem.seqlen,
        "head_dim": problem.head_dim,
        "causal": int(problem.causal),
        "dtype": problem.dtype,
    }
    if problem.seqlen_kv is not None:
        sizes["seqlen_kv"] = problem.seqlen_kv
    if problem.num_heads_kv is not None:
        sizes["num_heads_kv"] = problem.num_heads_kv
    if features := " ".join(problem.feature_words()).removeprefix("causal").strip():
        sizes["features"] = features
    return sizes


def _values(params: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    return list(dict.fromkeys(each[key] for each in params if key in each))


def _axis_value(name: str, value: Any) -> dict[str, Any]:
    kind = "int64" if isinstance(value, int) else "string"
    return {"name": name, "type": kind, "value": str(value)}


def _axes_text(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())
