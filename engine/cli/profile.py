"""`profile`: print the `ncu` command for a kernel, and import the CSV file that it writes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path

from engine.attention.plan import make_plan
from engine.attention.problem import SHORT_DTYPES, Problem, feature_options, features_of
from engine.cli.options import (
    ConfigOptions,
    DefaultsOption,
    ProblemOptions,
    config_from,
    problem_from,
    resolved_with_note,
)
from engine.cli.output import print_table
from engine.pipeline.request import EvaluationRequest
from engine.sessions.importers import ImportOptions, import_measurements
from engine.sessions.importers.nsight_compute import METRICS, counters_table
from engine.sessions.known_times import open_history
from engine.sessions.lookup import read_file
from engine.sessions.store import default_store
from kernels.variant import Variant


@dataclass(frozen=True)
class ProfileOptions(ProblemOptions, ConfigOptions, DefaultsOption):
    """The options of `profile`."""

    variant: str
    gpu: str | None
    csv: str | None


def run(args: ProfileOptions) -> int:
    problem = problem_from(args)
    request = EvaluationRequest(
        args.variant, problem, config_from(args, args.variant), gpu=args.gpu
    )
    history = open_history()
    resolved = resolved_with_note(request, history)
    variant = resolved.variant
    if args.csv is None:
        make_plan(variant, problem, resolved.config)  # reports an unsupported problem at once
        print(ncu_command(variant, problem, resolved.config))
        return 0

    path = Path(args.csv)
    known = {f.name for f in fields(problem)}
    options = ImportOptions(
        variant=variant.id,
        device=resolved.device.name if resolved.device is not None else args.gpu or "",
        config=resolved.config,
        title=f"Profile of {variant.id} on {problem.label()}",
        **{f.name: getattr(problem, f.name) for f in fields(ImportOptions) if f.name in known},
        features=features_of(problem),
    )
    snapshot = import_measurements(read_file(path), name=path.name, options=options)
    print(f"Kept as {default_store().save(snapshot)}.")
    print_table(counters_table(snapshot.opened(), history))
    return 0


def ncu_command(variant: Variant, problem: Problem, config: dict[str, int]) -> str:
    """Return the command, which profiles one launch of each pass and writes a CSV file."""
    entries = "|".join(launch.entry for launch in variant.passes)
    given = {
        "--batch": problem.batch,
        "--heads": problem.num_heads,
        "--heads-kv": problem.num_heads_kv,
        "--seqlen": problem.seqlen,
        "--seqlen-kv": problem.seqlen_kv,
        "--head-dim": problem.head_dim,
        "--dtype": SHORT_DTYPES[problem.dtype],
    }
    evaluate = ["python", "-m", "engine", "evaluate", variant.id]
    evaluate += [f"{name}={value}" for name, value in given.items() if value is not None]
    evaluate += ["--causal"] if problem.causal else []
    evaluate += feature_options(problem)
    for name, value in config.items():
        evaluate += ["--config", f"{name}={value}"]
    ncu = ["ncu", "--csv", "--page", "raw", "--print-units", "base"]
    ncu += ["--metrics", ",".join(METRICS)]
    ncu += ["--kernel-name", f"regex:^({entries})$", "--launch-count", str(len(variant.passes))]
    ncu += ["--log-file", f"{variant.id}.csv"]
    return shlex.join([*ncu, *evaluate, "--backend", "cuda"])
