"""`roofline`: a kernel, or every point of a sweep, beneath the GPU's roofs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from engine.base.errors import InvalidProblem
from engine.base.table import csv_text
from engine.cli.options import as_resolved, config_from, problem_from, resolved_with_note
from engine.cli.output import print_json, print_table
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
from engine.search.sweep.estimate import roofline_frame, roofline_table, sweep_roofs
from engine.search.sweep.journal import SweepJournal
from engine.sessions.known_times import open_history

_MOST_ROWS = 40  # of a sweep, without --csv


def run_roofline(args: argparse.Namespace) -> int:
    if (args.variant is None) == (args.sweep is None):
        raise InvalidProblem("Name either a variant or, with --sweep, the journal of a sweep.")
    if args.sweep is not None:
        return _roofline_of_sweep(args)
    if args.csv:
        raise InvalidProblem("--csv is for the points of a --sweep: take --json.")
    return _roofline_of_variant(args)


def _roofline_of_variant(args: argparse.Namespace) -> int:
    request = EvaluationRequest(
        args.variant, problem_from(args), config_from(args), args.gpu, execute=False
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
    work = launch_work(variant, plan, device, evaluation.main_pass.occupancy.ctas_per_sm)
    taken = history.taken(kernel, request.problem)
    times = [x for x in (taken.latency if taken else None, evaluation.latency) if x is not None]
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


def _roofline_of_sweep(args: argparse.Namespace) -> int:
    rows = list(SweepJournal.open(args.sweep).rows.values())
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
        print_table(roofline_table(frame.head(_MOST_ROWS)))
        if len(frame) > _MOST_ROWS:
            print(f"The first {_MOST_ROWS} of {len(frame):,} lines: --csv prints them all.")
    return 0
