"""`occupancy`: the calculator for resources as given, or for a kernel as it is compiled."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from engine.base.errors import InvalidProblem
from engine.base.units import format_bytes
from engine.cli.options import PROBLEM, config_from, first_given, problem_from, resolved_with_note
from engine.cli.output import print_figures, print_json
from engine.devices import find_device, limits_for
from engine.evaluation import PassReport
from engine.model.occupancy import occupancy
from engine.pipeline.request import EvaluationRequest
from engine.sessions.known_times import open_history


def run_occupancy(args: argparse.Namespace) -> int:
    if args.variant is not None:
        return _occupancy_of_variant(args)
    if args.threads is None or args.registers is None:
        raise InvalidProblem(
            "Name a variant, for instance auto, or give both --threads and --registers."
        )
    if (named := first_given(args, (*PROBLEM, "config", "defaults_only"))) is not None:
        raise InvalidProblem(f"--{named.replace('_', '-')} is of a variant: name one.")
    return _occupancy_of_resources(args)


def _occupancy_of_resources(args: argparse.Namespace) -> int:
    device = find_device(args.gpu)
    cluster = 1 if args.cluster is None else args.cluster
    result = occupancy(
        limits_for(device.compute_capability),
        device.num_sms,
        max(1, cluster) if args.ctas is None else args.ctas,
        args.threads,
        args.registers,
        args.smem or 0,
        cluster_size=cluster,
    )
    if args.json:
        print_json({"device": device.name, "threads": args.threads, **asdict(result)})
    else:
        print_figures(f"Occupancy on {device.name}", result.rows())
        print(result.reason)
    return 0 if result.ctas_per_sm > 0 else 1


def _occupancy_of_variant(args: argparse.Namespace) -> int:
    """Each pass, with the resources that the compiler gave it."""
    for flag in ("threads", "registers", "smem", "ctas", "cluster"):
        if getattr(args, flag) is not None:
            raise InvalidProblem(f"{args.variant} is compiled, which says what --{flag} is.")
    request = EvaluationRequest(
        args.variant, problem_from(args), config_from(args), gpu=args.gpu, execute=False
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
                "passes": [asdict(each) for each in passes],
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
