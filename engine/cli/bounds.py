"""`occupancy`: CTAs per SM and waves of a kernel. `roofline`: its FLOPs and bytes.

`occupancy` takes given resources or a compiled kernel; `roofline` takes a kernel or all points of a
sweep.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.attention.evaluation import Occupancy, PassReport
from engine.base.errors import InvalidProblem
from engine.base.table import csv_text
from engine.base.units import format_bytes
from engine.cli.options import (
    PROBLEM,
    ConfigOptions,
    DefaultsOption,
    ProblemOptions,
    as_resolved,
    config_from,
    first_given,
    problem_from,
    resolved_with_note,
)
from engine.cli.output import print_figures, print_json, print_table
from engine.devices import limits_for, target_gpu
from engine.model.occupancy import occupancy
from engine.model.roofline import (
    launch_work,
    points_table,
    roofline_points,
    roofs_of,
    roofs_table,
    work_table,
)
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest
from engine.sessions.known_times import open_history


@dataclass(frozen=True)
class OccupancyOptions(ProblemOptions, ConfigOptions, DefaultsOption):
    """The options of `occupancy`."""

    variant: str | None
    gpu: str
    json: bool
    threads: int | None
    registers: int | None
    smem: int | None
    ctas: int | None
    cluster: int | None


def run_occupancy(args: OccupancyOptions) -> int:
    if args.variant is not None:
        return _occupancy_of_variant(args, args.variant)
    if args.threads is None or args.registers is None:
        raise InvalidProblem(
            "Name a variant, for instance auto, or give both --threads and --registers."
        )
    if (named := first_given(args, (*PROBLEM, "config", "defaults_only"))) is not None:
        raise InvalidProblem(f"--{named.replace('_', '-')} needs a variant: name one.")
    return _occupancy_of_resources(args, args.threads, args.registers)


def _occupancy_of_resources(args: OccupancyOptions, threads: int, registers: int) -> int:
    device = target_gpu(args.gpu)
    cluster = 1 if args.cluster is None else args.cluster
    result = occupancy(
        limits_for(device.compute_capability),
        device.num_sms,
        max(1, cluster) if args.ctas is None else args.ctas,
        threads,
        registers,
        args.smem or 0,
        cluster_size=cluster,
    )
    if args.json:
        print_json({"device": device.name, "threads": threads, **_occupancy_dict(result)})
    else:
        print_figures(f"Occupancy on {device.name}", result.rows())
        print(result.reason)
    return 0 if result.ctas_per_sm > 0 else 1


def _occupancy_dict(found: Occupancy) -> dict[str, Any]:
    return asdict(found) | {name: getattr(found, name) for name in found.derived}


def _occupancy_of_variant(args: OccupancyOptions, name: str) -> int:
    """Print each pass's occupancy, with resources from the compiler."""
    for flag in ("threads", "registers", "smem", "ctas", "cluster"):
        if getattr(args, flag) is not None:
            raise InvalidProblem(f"{name} is compiled, which determines --{flag}: leave it out.")
    problem = problem_from(args)
    request = EvaluationRequest(
        name,
        problem,
        config_from(args, name, problem),
        gpu=args.gpu,
        execute=False,
    )
    resolved = resolved_with_note(request, open_history())
    if (kernel := resolved.kernel) is None:
        raise InvalidProblem(resolved.device_reason or "Name a GPU with --gpu.")
    passes = kernel.passes(request.problem)
    if args.json:
        print_json(
            {
                "device": kernel.device.name,
                "variant": kernel.variant.id,
                "config": kernel.config,
                "passes": [
                    {"resources": asdict(p.resources), "occupancy": _occupancy_dict(p.occupancy)}
                    for p in passes
                ],
            }
        )
    else:
        where = f"{kernel.device.name}, {request.problem.label()}"
        for each in passes:
            title = f"{kernel.variant.id} {each.resources.entry} on {where}"
            print_figures(title, [*_resource_rows(each), *each.occupancy.rows()])
            print(each.occupancy.reason)
    return 0 if all(each.occupancy.ctas_per_sm > 0 for each in passes) else 1


def _resource_rows(each: PassReport) -> list[tuple[str, object]]:
    r = each.resources
    return [
        ("threads per CTA", r.threads_per_cta),
        ("registers per thread", r.registers_per_thread),
        ("shared memory per CTA", format_bytes(r.smem_bytes)),
    ]


_MAX_ROWS = 40  # of a sweep, without --csv


@dataclass(frozen=True)
class RooflineOptions(ProblemOptions, ConfigOptions, DefaultsOption):
    """The options of `roofline`."""

    variant: str | None
    sweep: Path | None
    gpu: str | None
    json: bool
    csv: bool


def run_roofline(args: RooflineOptions) -> int:
    if args.sweep is not None and args.variant is None:
        return _roofline_of_sweep(args, args.sweep)
    if args.variant is None or args.sweep is not None:
        raise InvalidProblem("Name either a variant or, with --sweep, the journal of a sweep.")
    if args.csv:
        raise InvalidProblem("--csv is for the points of a --sweep: give --json instead.")
    return _roofline_of_variant(args, args.variant)


def _roofline_of_variant(args: RooflineOptions, name: str) -> int:
    problem = problem_from(args)
    request = EvaluationRequest(
        name, problem, config_from(args, name, problem), args.gpu, execute=False
    )
    history = open_history()
    resolved = resolved_with_note(request, history)
    request = as_resolved(request, resolved)
    if (kernel := resolved.kernel) is None:
        raise InvalidProblem(resolved.device_reason or "Name a GPU with --gpu.")
    evaluation = evaluate(request, history=history).evaluation
    if evaluation.main_pass is None or evaluation.main_pass.occupancy.ctas_per_sm == 0:
        raise InvalidProblem(evaluation.reason)
    variant, device = kernel.variant, kernel.device
    plan = kernel.plan(request.problem)
    roofs = roofs_of(device, variant, request.problem.dtype)
    work = launch_work(kernel, plan, evaluation.main_pass.occupancy.ctas_per_sm)
    known = history.known_time(kernel, request.problem)
    times = [x for x in (known.latency if known else None, evaluation.latency) if x is not None]
    points = roofline_points(roofs, work, [(x.median_us, x.origin) for x in times])
    if args.json:
        print_json(
            {
                "variant": variant.id,
                "problem": asdict(request.problem),
                "config": resolved.config,
                "roofs": asdict(roofs) | {"ridge": roofs.ridges},
                "work": asdict(work) | {"dram_method": work.dram_method},
                "points": [asdict(p) | {"share": p.share} for p in points],
            }
        )
        return 0
    print(f"{variant.id} on {device.name}, {request.problem.label()}")
    for table in (roofs_table(roofs), work_table(work), points_table(points)):
        print_table(table)
    return 0


def _roofline_of_sweep(args: RooflineOptions, journal: Path) -> int:
    from engine.search.results import roofline_frame, roofline_table, sweep_roofs
    from engine.search.sweep.journal import SweepJournal

    rows = list(SweepJournal.open(journal).rows.values())
    roofs = sweep_roofs(rows)
    frame = roofline_frame(rows)
    if args.csv:
        sys.stdout.write(csv_text(frame))
    elif args.json:
        print_json(
            {
                "roofs": [asdict(r) | {"ridge": r.ridges} for r in roofs],
                "points": frame.to_dict("records"),
            }
        )
    else:
        for each in roofs:
            print_table(roofs_table(each))
        print_table(roofline_table(frame.head(_MAX_ROWS)))
        if len(frame) > _MAX_ROWS:
            print(f"The first {_MAX_ROWS} of {len(frame):,} lines: --csv prints them all.")
    return 0
