"""`recommend-batch`: recommend a batch size, with reason and savings."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.attention.config import usual_causal
from engine.base.errors import InvalidProblem
from engine.base.schema import encode
from engine.base.table import Table
from engine.base.units import format_us, format_usd
from engine.choose.batch.batch_table import DEFAULT_TARGETS
from engine.choose.batch.cost import Saving, TrafficUnit, WaitPlan
from engine.choose.batch.mix import MixLine, parse_mix, read_mix, recommend_mix
from engine.choose.batch.recommend import (
    BatchRequest,
    BatchResult,
    problem_now,
    recommend_batch,
)
from engine.cli.options import (
    ConfigOptions,
    DefaultsOption,
    KvSizes,
    ScoreOptions,
    config_from,
    dtype_from,
    fields_from,
    first_given,
    given_config,
    number,
    scores_from,
)
from engine.cli.output import print_json, print_table
from engine.devices import find_device, target_gpu
from engine.history import History
from engine.history.known_time import NOT_COMPARABLE
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.invariance import BatchInvariance, batch_invariance
from engine.pipeline.request import EvaluationRequest
from engine.sessions.known_times import open_history

_TRAFFIC: tuple[TrafficUnit, ...] = ("requests", "tokens", "queries")


def price(text: str) -> tuple[str, float]:
    """Parse (GPU, dollars); the GPU is empty for the target GPU."""
    gpu, _, dollars = text.rpartition("=")
    try:
        usd = float(dollars.strip().removeprefix("$"))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"takes dollars or GPU=dollars, for instance T4=0.20, not {text!r}"
        ) from None
    if not 0 <= usd < float("inf"):
        raise argparse.ArgumentTypeError(f"A price per hour is 0 or more, not {dollars.strip()}")
    return gpu.strip(), usd


def percent(text: str) -> float:
    """Convert an argument (`type=`): `90` or `90%` to 0.9."""
    value = number(text.removesuffix("%"))
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 100 %, not {text}")
    return value / 100


def share(text: str) -> float:
    """Convert an argument (`type=`): a number above 0 and at most 1."""
    value = number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {text}")
    return value


def problem_point(text: str) -> tuple[int, int, int]:
    """Convert an argument (`type=`): batch, heads and sequence length."""
    try:
        batch, heads, seqlen = (int(x) for x in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"takes batch,heads,seqlen, for instance 2,4,128, not {text!r}"
        ) from None
    if min(batch, heads, seqlen) < 1:
        raise argparse.ArgumentTypeError(f"takes whole numbers from 1, not {text!r}")
    return batch, heads, seqlen


@dataclass(frozen=True)
class RecommendBatchOptions(KvSizes, ScoreOptions, ConfigOptions, DefaultsOption):
    """The options of `recommend-batch`."""

    variant: str
    gpu: str
    seqlen: int | None
    mix: list[str]
    head_dim: int
    heads: int
    heads_free: bool
    causal: bool
    backward: bool
    dtype: str | None
    max_batch: int
    target: list[float] | None
    measured: str | None
    predict: list[tuple[int, int, int]]
    measured_kernel: str
    batch_now: int
    price: list[tuple[str, float]]
    requests_per_day: float | None
    tokens_per_day: float | None
    queries_per_day: float | None
    utilisation: float
    arrivals_per_s: float | None
    budget_ms: float | None
    alternatives: bool
    invariance: bool
    curve: bool
    json: bool


def run(args: RecommendBatchOptions) -> int:
    if args.mix:
        return _run_mix(args)
    if args.seqlen is None:
        raise InvalidProblem(
            "A recommendation needs a sequence length or a mix of problems: give --seqlen 128, or "
            "--mix COUNT,B,H,S for each."
        )
    traffic = {unit: getattr(args, f"{unit}_per_day") for unit in _TRAFFIC}
    named = {unit: amount for unit, amount in traffic.items() if amount is not None}
    if args.curve and not args.json:
        raise InvalidProblem("--curve needs --json: the curve has a row per batch.")
    if args.measured_kernel and args.measured is None:
        raise InvalidProblem(
            "--measured-kernel names the kernel of the --measured points: give both."
        )
    request = BatchRequest(
        **fields_from(args, BatchRequest, "causal", "dtype", "config", "predict"),
        causal=args.causal or usual_causal([args.variant]),
        dtype=dtype_from(args.dtype, [args.variant]),
        features=scores_from(args) | ({"direction": "backward"} if args.backward else {}),
        config=given_config(args),
        targets=tuple(args.target) if args.target else DEFAULT_TARGETS,
        predict=tuple(args.predict),
        prices={find_device(gpu or args.gpu).name: dollars for gpu, dollars in args.price},
        traffic_per_day=next(iter(named.values()), None),
        traffic_unit=next(iter(named), "queries"),
    )
    config = config_from(args, args.variant, problem_now(request))
    request = replace(request, config=config)
    history = open_history()
    result = recommend_batch(request, history)
    invariance = _invariance(request, result, history) if args.invariance else None
    if args.json:
        extra = {} if invariance is None else {"invariance": _encoded(invariance)}
        print_json(result.to_dict(with_curve=args.curve) | extra)
        return 0
    _print_human(result)
    if invariance is not None:
        print_table(invariance.tables()[0])
    return 0


# Options that do not apply to a mix, or are given in its lines.
_NOT_OF_A_MIX = (
    *("seqlen", "seqlen_kv", "heads_kv", "head_dim_v", "heads_free", "measured", "predict"),
    *("arrivals_per_s", "budget_ms", "alternatives", "invariance", "curve", "window", "softcap"),
    *("alibi", "sinks", "lse", *(f"{unit}_per_day" for unit in _TRAFFIC)),
)


def _run_mix(args: RecommendBatchOptions) -> int:
    if (extra := first_given(args, _NOT_OF_A_MIX)) is not None:
        option = "--" + extra.replace("_", "-")
        raise InvalidProblem(f"{option} is for one problem, not for --mix: leave one out.")
    dtype = dtype_from(args.dtype, [args.variant])
    causal = args.causal or usual_causal([args.variant])
    rest = {"head_dim": args.head_dim, "causal": causal, "dtype": dtype}
    lines: list[MixLine] = []
    for given in args.mix:
        is_line = "," in given and not Path(given).exists()
        lines += parse_mix(given, "--mix", **rest) if is_line else read_mix(given, **rest)
    device = target_gpu(args.gpu)
    prices = {find_device(gpu or args.gpu).name: dollars for gpu, dollars in args.price}
    result = recommend_mix(
        lines,
        device,
        open_history(),
        variant=args.variant,
        given=config_from(args, args.variant, None),
        target=min(args.target) if args.target else 0.9,
        max_batch=args.max_batch,
        price_usd_per_hour=prices.get(device.name),
        utilisation=args.utilisation,
    )
    if args.json:
        print_json(result.to_dict())
        return 0
    print(f"On {device.name}; {result.basis}")
    for table in result.tables():
        print_table(table)
    for note in result.notes:
        print(f"Note: {note}")
    return 0


def _invariance(request: BatchRequest, result: BatchResult, history: History) -> BatchInvariance:
    problem = replace(result.problem, batch=result.recommended.batch)
    gpu = request.gpu if isinstance(request.gpu, str) else request.gpu.name
    asked = EvaluationRequest(result.variant, problem, result.config, gpu=gpu, backend="cpu")
    with Evaluator(history) as evaluator:
        return batch_invariance(evaluator, asked, [result.problem.batch])


def _encoded(found: BatchInvariance) -> dict[str, Any]:
    verdict = {"is_invariant": found.is_invariant, "depends_on_splits": found.depends_on_splits}
    return {"sentence": found.sentence, **verdict, **encode(found)}


def _print_human(result: BatchResult) -> None:
    kernel = result.variant
    if result.kernel:
        kernel = f"The kernel {result.kernel} (launched like {result.variant})"
    print(
        f"{kernel} on {result.device}, {result.problem.label()}: every latency here is predicted "
        f"by {result.method} unless it says otherwise."
    )
    for sentence in result.calibration_quality():
        print(sentence)
    print_table(result.recommended_batches())
    for r in result.recommendations:
        print(f"{r.target:.0%}: {r.reason}")
    print(result.knee)
    if result.next_point is not None:
        print(result.next_point.reason)
    print_table(result.predicted_points())
    if result.saving is not None:
        _print_saving(result.saving)
    if result.wait is not None:
        _print_wait(result.wait)
    options = (
        {
            "option": o.title,
            "GPU": o.device,
            "latency": format_us(o.latency_us),
            "per query": format_us(o.per_query_us),
            "10⁹ queries": _usd(o.usd_per_billion_queries),
            "origin": o.basis,
            "speed-up": NOT_COMPARABLE if o.speedup is None else f"{o.speedup:.2f}×",
        }
        for o in result.options
    )
    print_table(Table.of("When the batch cannot grow", options))
    for o in result.options:
        print(f"{o.title}: {o.reason}")
    for warning in result.warnings:
        print(f"Warning: {warning}")
    for note in (*result.axis_notes, *result.notes):
        print(f"Note: {note}")


def _usd(dollars: float | None) -> str | None:
    return None if dollars is None else format_usd(dollars)


def _print_wait(wait: WaitPlan) -> None:
    records = (
        {
            "batch": p.batch,
            "added at the 95th percentile": format_us(p.added_p95_us),
            "GPU time per request": format_us(p.per_request_us),
            "origin": p.origin,
            "": "chosen" if p.batch == wait.batch
            else "too slow to keep up" if not p.keeps_up
            else "" if p.in_budget
            else "over the budget",
        }
        for p in wait.curve
    )  # fmt: skip
    print_table(Table.of("Waiting to collect requests", records, f"Waiting: {wait.reason}"))


def _print_saving(saving: Saving) -> None:
    records = (
        {
            "": name,
            "per query": format_us(c.per_query_us),
            "origin": c.origin,
            "GPU-hours a day": c.gpu_hours_per_day,
            "10⁶ requests": _usd(c.usd_per_million_requests),
            "10⁶ tokens": _usd(c.usd_per_million_tokens),
            "a day": _usd(c.usd_per_day),
            "a year": _usd(c.usd_per_year),
            "GPUs": c.gpus_needed,
        }
        for name, c in (("now", saving.now), ("recommended", saving.then))
    )
    print_table(Table.of("Cost", records, saving.reason))
