"""`recommend-batch`: which batch fills the GPU, why, and what it saves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from engine.cli.options import (
    DTYPES,
    add_config,
    add_defaults_only,
    add_dtype,
    add_kv_sizes,
    config_from,
)
from engine.cli.output import print_json, print_table
from engine.errors import InvalidProblem
from engine.units import format_bytes, format_us

if TYPE_CHECKING:
    from engine.model.batch.cost import Saving
    from engine.model.batch.recommend import BatchResult, Point


def add_parser(commands: Any) -> None:
    p = commands.add_parser("recommend-batch", help="the batch that fills the GPU, and why")
    p.add_argument("variant", help="for instance v01")
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
    p.add_argument("--batch-now", type=int, default=1, help="the batch used today (default 1)")
    p.add_argument(
        "--price",
        type=float,
        metavar="USD",
        help="per GPU-hour (default: the list price in the GPU table)",
    )
    p.add_argument("--queries-per-day", type=float, help="query rows a day, for the cost")
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
    from engine.model.batch.recommend import BatchRequest, recommend_batch
    from engine.model.batch.table import DEFAULT_TARGETS

    if args.curve and not args.json:
        raise InvalidProblem("--curve goes with --json: the curve has a row per batch.")
    result = recommend_batch(
        BatchRequest(
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
            predict=tuple(args.predict),
            batch_now=args.batch_now,
            price_usd_per_hour=args.price,
            queries_per_day=args.queries_per_day,
            utilisation=args.utilisation,
            arrivals_per_s=args.arrivals_per_s,
            budget_ms=args.budget_ms,
            alternatives=args.alternatives,
        )
    )
    if args.json:
        print_json(result.to_dict(with_curve=args.curve))
    else:
        _print_human(result)
    return 0


def _print_human(result: BatchResult) -> None:
    print(f"{result.variant} on {result.device}, {result.problem.label()}: every latency here is "
          "predicted unless it says measured.")  # fmt: skip
    print_table(
        "Recommended batches",
        ("plateau", "batch", "between", "latency", "per unit", "memory"),
        (
            (
                f"{r.target:.0%}",
                r.batch,
                f"{r.low_batch:,} – {r.high_batch:,}",
                format_us(r.latency_us),
                format_us(r.per_unit_us),
                format_bytes(r.memory_bytes),
            )
            for r in result.recommendations
        ),
    )
    for r in result.recommendations:
        print(f"{r.target:.0%}: {r.reason}")
    if result.points:
        print_table(
            "Points",
            ("B", "H", "S", "CTAs", "predicted", "90 % interval", "measured", "difference"),
            (_point_row(p) for p in result.points),
        )
    if result.loo is not None:
        print(
            f"Leave-one-out error of the calibrated model: {result.loo.mean_error:.1%} on average, "
            f"{result.loo.worst_error:.1%} at worst."
        )
    if result.saving is not None:
        _print_saving(result.saving)
    if result.wait is not None:
        print(f"Waiting: {result.wait.reason}")
    if result.options:
        print_table(
            "When the batch cannot grow",
            ("option", "GPU", "latency", "per query", "$ per 10⁹ queries", "speed-up"),
            (
                (
                    o.title,
                    o.device,
                    format_us(o.latency_us),
                    format_us(o.per_query_us),
                    o.usd_per_billion_queries,
                    f"{o.speedup:.2f}×",
                )
                for o in result.options
            ),
        )
        for o in result.options:
            print(f"{o.title}: {o.reason}")
    for warning in result.warnings:
        print(f"Warning: {warning}")
    for note in result.notes:
        print(f"Note: {note}")


def _point_row(p: Point) -> tuple[object, ...]:
    return (
        p.batch,
        p.heads if p.heads_kv is None else f"{p.heads} (KV {p.heads_kv:,})",
        p.seqlen if p.seqlen_kv is None else f"{p.seqlen} (KV {p.seqlen_kv:,})",
        p.ctas,
        format_us(p.predicted_us),
        f"{format_us(p.low_us)} – {format_us(p.high_us)}",
        None if p.measured_us is None else format_us(p.measured_us),
        None if p.difference is None else f"{p.difference:+.1%}",
    )


def _print_saving(saving: Saving) -> None:
    print_table(
        "Cost",
        ("", "per query", "GPU-hours a day", "$ per 10⁹ queries", "$ a day", "$ a year", "GPUs"),
        (
            (
                name,
                format_us(c.per_query_us),
                c.gpu_hours_per_day,
                c.usd_per_billion_queries,
                c.usd_per_day,
                c.usd_per_year,
                c.gpus_needed,
            )
            for name, c in (("now", saving.now), ("recommended", saving.then))
        ),
    )
    print(saving.reason)
