"""`bench`: measure kernels and every SDPA backend, interleaved in one run per problem."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.attention.config import check_given, find_variant
from engine.attention.evaluation import Latency, baseline_label
from engine.attention.problem import BENCH_PROBLEMS
from engine.base.errors import MeasureError, ToolMissing
from engine.base.schema import encode
from engine.base.table import Table
from engine.cli.options import kernel, parse_config
from engine.cli.output import print_json, print_table
from engine.measure.sampler import Mode
from engine.measure.statistics import Comparison
from engine.pipeline.evaluate import Evaluator
from engine.sessions.known_times import open_history
from engine.sessions.lookup import check_new, export_evaluations
from kernels.variant import AUTO

if TYPE_CHECKING:
    from engine.pipeline.bench import BenchLine, BenchResult, Entrant


@dataclass(frozen=True)
class BenchOptions:
    """The options of `bench`."""

    against: str
    preset: str
    variant: list[str] | None
    mode: Mode
    seconds: float | None
    out: Path | None
    json: bool


def run(args: BenchOptions) -> int:
    from engine.backends.cuda import why_not_cuda
    from engine.pipeline.bench import BENCH, bench

    entrants = [parse_entrant(text) for text in args.variant] if args.variant else None
    if args.out is not None:
        check_new(args.out)
    if (why := why_not_cuda()) is not None:
        raise ToolMissing(why)
    settings = replace(BENCH, mode=args.mode, max_s=args.seconds or BENCH.max_s)
    results: list[BenchResult] = []
    failures = 0
    try:
        with Evaluator(open_history()) as evaluator:
            for problem in BENCH_PROBLEMS[args.preset]:
                try:
                    show = _show_stage(args.json)
                    result = bench(problem, entrants, evaluator, settings, show)
                except MeasureError as error:
                    failures += 1
                    print(f"error: {error}", file=sys.stderr)
                    if evaluator.gpu_error is not None:
                        break
                    continue
                results.append(result)
                if not args.json:
                    _print_result(result)
    finally:  # an interrupted run keeps its measurements
        _export(args, results)
    if args.json:
        print_json({"preset": args.preset, "results": [_as_dict(r) for r in results]})
    complete = not failures and all(result.is_complete for result in results)
    return 0 if complete else 1


def _export(args: BenchOptions, results: list[BenchResult]) -> None:
    evaluations = [e for result in results for e in result.evaluations]
    if args.out is not None and evaluations:
        title = f"bench {args.preset} against SDPA on {results[0].device}"
        print(export_evaluations(args.out, evaluations, title), file=sys.stderr)


def parse_entrant(text: str) -> Entrant:
    """Parse a kernel with values of tunables: `v05:num_splits=4,block_n=64`.

    Raises:
        InvalidProblem: another form, or a value that the variant does not offer.
        UnknownName: no such variant.
    """
    name, _, rest = text.partition(":")
    usage = "--variant takes NAME:TUNABLE=VALUE, for instance v05:num_splits=4"
    from engine.pipeline.bench import Entrant

    config = parse_config(filter(None, rest.split(",")), usage)
    if name == AUTO:
        return Entrant(AUTO, config)
    variant = find_variant(kernel(name))
    check_given(variant, config)
    return Entrant(variant.id, config)


def _show_stage(quiet: bool) -> Any:
    return (lambda _: None) if quiet else (lambda stage: print(f"{stage} …", file=sys.stderr))


def _print_result(result: BenchResult) -> None:
    timed = [line for line in result.lines if line.device is not None]
    title = f"{result.problem.label()} on {result.device}, measured; {result.stop_reason}"
    print_table(Table.of(title, (_record(line, result.best_baseline) for line in timed)))
    for line in result.lines:
        if line.device is None:
            print(f"{line.name}: {line.reason}")
    for note in result.notes:
        print(f"Note: {note}")
    if result.throttled:
        print(f"THROTTLED: {result.throttled}")


def _record(line: BenchLine, best: str | None) -> dict[str, object]:
    c = line.against_best
    speedup = interval = None
    if c is None:
        speedup = "best SDPA" if line.name == best else None
    elif not isnan(c.ratio):
        speedup, interval = f"{c.speedup:.3f}×", f"{1 / c.high:.3f} – {1 / c.low:.3f}"
    return {
        "kernel": baseline_label(line.name) if line.is_baseline else line.name,
        "device µs": _median(line.device),
        "cold µs": _median(line.cold),
        "end-to-end µs": _median(line.end_to_end),
        "TFLOP/s": line.tflops,
        "% of peak": None if line.peak_share is None else f"{line.peak_share:.1%}",
        "GB/s": None if line.gb_per_s is None else round(line.gb_per_s),
        "speed-up": speedup,
        "95 % interval": interval,
        "verdict": None if c is None else str(c.verdict),
    }


def _median(latency: Latency | None) -> float | None:
    return None if latency is None else latency.median_us


def _as_dict(result: BenchResult) -> dict[str, Any]:
    return {
        "problem": encode(result.problem),
        "device": result.device,
        "best_baseline": result.best_baseline,
        "stop_reason": result.stop_reason,
        "throttled": result.throttled,
        "notes": list(result.notes),
        "lines": [_line_dict(line) for line in result.lines],
    }


def _line_dict(line: BenchLine) -> dict[str, Any]:
    return {
        "name": line.name,
        "is_baseline": line.is_baseline,
        "origin": line.device.origin if line.device else None,
        "device_us": _median(line.device),
        "cold_us": _median(line.cold),
        "end_to_end_us": _median(line.end_to_end),
        "tflops": line.tflops,
        "peak_share": line.peak_share,
        "gb_per_s": line.gb_per_s,
        "against_best": _comparison_dict(line.against_best),
        "reason": line.reason,
    }


def _comparison_dict(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {
        "speedup": comparison.speedup,
        "low": 1 / comparison.high,
        "high": 1 / comparison.low,
        "verdict": str(comparison.verdict),
        "floor": comparison.floor,
        "rounds": comparison.pairs,
        "reason": comparison.reason,
    }
