"""`recommend-batch`: which batch fills the GPU, why, and what it saves."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.cli.options import (
    DTYPES,
    add_config,
    add_defaults_only,
    add_dtype,
    add_kv_sizes,
    config_from,
    kernel,
)
from engine.cli.output import print_json, print_table
from engine.errors import InvalidProblem
from engine.table import Table
from engine.units import format_bytes, format_us, format_usd
from kernels.variant import AUTO

if TYPE_CHECKING:
    from engine.model.batch.cost import Saving, TrafficUnit
    from engine.model.batch.recommend import BatchResult, Point
    from engine.model.batch.waiting import WaitPlan


def add_parser(commands: Any) -> None:
    p = commands.add_parser("recommend-batch", help="the batch that fills the GPU, and why")
    p.add_argument("variant", type=kernel, help="for instance v01, path/to/my_kernel.cu, or auto")
    p.add_argument("--gpu", required=True, help="target GPU, for instance L4")
    p.add_argument("--seqlen", "-S", type=int, required=True, help="sequence length")
    add_kv_sizes(p)
    p.add_argument("--head-dim", "-D", type=int, default=64, help="head dimension (default 64)")
    p.add_argument("--heads", "-H", type=int, default=1, help="heads per batch element (default 1)")
    p.add_argument(
        "--heads-free", action="store_true", help="vary batch·heads instead of the batch alone"
    )
    p.add_argument("--causal", action="store_true", help="causal mask")
    add_dtype(p)
    add_config(p)
    add_defaults_only(p)
    p.add_argument(
        "--max-batch", type=int, default=4096, help="the largest batch to consider (default 4096)"
    )
    p.add_argument(
        "--target",
        type=_percent,
        action="append",
        metavar="PERCENT",
        help="share of the highest throughput to reach; repeatable (default 70, 90, 95)",
    )
    p.add_argument(
        "--measured",
        metavar="FILE.csv",
        help="calibrate on these points: columns batch, num_heads, seqlen, head_dim, kernel_ms",
    )
    p.add_argument(
        "--predict",
        type=_problem_point,
        action="append",
        default=[],
        metavar="B,H,S",
        help="a further point to predict; repeatable",
    )
    p.add_argument(
        "--measured-kernel",
        default="",
        metavar="NAME",
        help="the points are of this kernel and not of the variant's file, though launched like "
        "it: the answer is then about that kernel",
    )
    p.add_argument("--batch-now", type=int, default=1, help="the batch used today (default 1)")
    p.add_argument(
        "--price",
        type=_price,
        action="append",
        default=[],
        metavar="[GPU=]USD",
        help="your price of a GPU-hour, of this GPU or of one named; repeatable (default: the list "
        "prices of `devices`)",
    )
    traffic = p.add_mutually_exclusive_group()
    for unit, meaning in _TRAFFIC.items():
        traffic.add_argument(f"--{unit}-per-day", type=float, metavar="N", help=meaning)
    p.add_argument(
        "--utilisation",
        type=float,
        default=1.0,
        help="share of a GPU's time to use, 0 to 1 (default 1)",
    )
    p.add_argument(
        "--arrivals-per-s", type=float, help="requests a second: how long to collect a batch"
    )
    p.add_argument("--budget-ms", type=float, help="latency that collecting a batch may add")
    p.add_argument(
        "--alternatives",
        action="store_true",
        help="for a batch that cannot grow: rank other variants and GPUs (compiles them)",
    )
    p.add_argument("--curve", action="store_true", help="with --json: every row of the curve")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(run=run)


_TRAFFIC: dict[TrafficUnit, str] = {
    "requests": "traffic, for the cost: batch elements a day",
    "tokens": "traffic: positions of all requests a day",
    "queries": "traffic: query rows a day, B·H·S of a launch (default 10⁹)",
}


def _price(text: str) -> tuple[str, float]:
    """(GPU, dollars); the GPU is empty for the one at hand."""
    gpu, _, dollars = text.rpartition("=")
    try:
        return gpu.strip(), float(dollars.strip().removeprefix("$"))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"takes dollars or GPU=dollars, for instance T4=0.20, not {text!r}"
        ) from None


def _percent(text: str) -> float:
    return float(text.removesuffix("%")) / 100


def _problem_point(text: str) -> tuple[int, int, int]:
    try:
        batch, heads, seqlen = (int(x) for x in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"takes batch,heads,seqlen, for instance 2,4,128, not {text!r}"
        ) from None
    return batch, heads, seqlen


def run(args: argparse.Namespace) -> int:
    from engine.auto import choose
    from engine.devices import find_device
    from engine.model.batch.recommend import BatchRequest, problem_now, recommend_batch
    from engine.model.batch.table import DEFAULT_TARGETS
    from engine.model.simulated import simulated_batch_curve

    traffic = {unit: getattr(args, f"{unit}_per_day") for unit in _TRAFFIC}
    named = {unit: amount for unit, amount in traffic.items() if amount is not None}
    if args.curve and not args.json:
        raise InvalidProblem("--curve goes with --json: the curve has a row per batch.")
    request = BatchRequest(
        variant=args.variant,
        gpu=args.gpu,
        seqlen=args.seqlen,
        seqlen_kv=args.seqlen_kv,
        heads_kv=args.heads_kv,
        head_dim=args.head_dim,
        heads=args.heads,
        heads_free=args.heads_free,
        causal=args.causal,
        dtype=DTYPES[args.dtype],
        config=config_from(args),
        max_batch=args.max_batch,
        targets=tuple(args.target) if args.target else DEFAULT_TARGETS,
        measured=args.measured,
        measured_kernel=args.measured_kernel,
        predict=tuple(args.predict),
        batch_now=args.batch_now,
        prices={find_device(gpu or args.gpu).name: dollars for gpu, dollars in args.price},
        traffic_per_day=next(iter(named.values()), None),
        traffic_unit=next(iter(named), "queries"),
        utilisation=args.utilisation,
        arrivals_per_s=args.arrivals_per_s,
        budget_ms=args.budget_ms,
        alternatives=args.alternatives,
    )
    note = ""
    if request.variant == AUTO:
        choice = choose(problem_now(request), find_device(args.gpu), request.config)
        note = choice.note()
        request = replace(request, variant=choice.variant.id, config=choice.config)
    result = recommend_batch(request, curve_of=simulated_batch_curve)
    if note:
        result = replace(result, notes=(note, *result.notes))
    if args.json:
        print_json(result.to_dict(with_curve=args.curve))
    else:
        _print_human(result)
    return 0


def _print_human(result: BatchResult) -> None:
    kernel = result.variant
    if result.kernel:
        kernel = f"The kernel {result.kernel} (launched like {result.variant})"
    print(
        f"{kernel} on {result.device}, {result.problem.label()}: every latency here is predicted "
        f"by {result.method} unless it says recorded."
    )
    for sentence in result.calibration_quality():
        print(sentence)
    recommended = (
        {
            "plateau": f"{r.target:.0%}",
            "batch": r.batch,
            "between": _range(r.low_batch, r.high_batch),
            "latency": format_us(r.latency_us),
            "origin": r.origin,
            "per unit": format_us(r.per_unit_us),
            "thread fill": f"{r.thread_fill:.0%}",
            "memory": format_bytes(r.memory_bytes),
        }
        for r in result.recommendations
    )
    print_table(Table.of("Recommended batches", recommended))
    for r in result.recommendations:
        print(f"{r.target:.0%}: {r.reason}")
    print(result.knee)
    if result.next_point is not None:
        print(result.next_point.reason)
    print_table(Table.of("Points", map(_point_record, result.points)))
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
            "speed-up": f"{o.speedup:.2f}×",
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


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} – {high:,}"


def _usd(dollars: float | None) -> str | None:
    return None if dollars is None else format_usd(dollars)


def _print_wait(wait: WaitPlan) -> None:
    records = (
        {
            "batch": p.batch,
            "added at the 95th percentile": format_us(p.added_p95_us),
            "GPU time per request": format_us(p.per_request_us),
            "": "chosen" if p.batch == wait.batch
            else "too slow to keep up" if not p.keeps_up
            else "" if p.in_budget
            else "over the budget",
        }
        for p in wait.curve
    )  # fmt: skip
    print_table(Table.of("Waiting to collect requests", records, f"Waiting: {wait.reason}"))


def _point_record(p: Point) -> dict[str, object]:
    return {
        "B": p.batch,
        "H": p.heads if p.heads_kv is None else f"{p.heads} (KV {p.heads_kv:,})",
        "S": p.seqlen if p.seqlen_kv is None else f"{p.seqlen} (KV {p.seqlen_kv:,})",
        "CTAs": p.ctas,
        "predicted": format_us(p.predicted_us),
        "90 % interval": f"{format_us(p.low_us)} – {format_us(p.high_us)}",
        "measured": None if p.measured_us is None else format_us(p.measured_us),
        "difference": None if p.difference is None else f"{p.difference:+.1%}",
    }


def _print_saving(saving: Saving) -> None:
    records = (
        {
            "": name,
            "per query": format_us(c.per_query_us),
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
