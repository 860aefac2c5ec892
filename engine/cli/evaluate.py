"""`evaluate`: check, analyse and time one variant on one problem. `profile`: its counters.

`profile` prints the `ncu` command for a kernel, and imports the CSV file that it writes.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from engine.attention.config import find_variant
from engine.attention.coverage import format_ranges
from engine.attention.evaluation import Evaluation
from engine.attention.plan import LaunchPlan
from engine.attention.problem import SHORT_DTYPES, feature_options, features_of
from engine.attention.tensors import NORMAL
from engine.base.errors import FAULTS, InvalidProblem, Status
from engine.base.schema import encode
from engine.base.table import Table
from engine.cli.options import (
    BackendOption,
    ConfigOptions,
    DefaultsOption,
    ProblemOptions,
    RunOptions,
    config_from,
    fields_from,
    problem_from,
    resolved_with_note,
)
from engine.cli.output import print_figures, print_json, print_table
from engine.history import History
from engine.history.known_time import name_of
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest, resolve
from engine.pipeline.simulated_launches import device_of_plan
from engine.pipeline.verdict import verdict_on_run
from engine.sessions.importers import ImportOptions, import_measurements
from engine.sessions.importers.nsight_compute import METRICS, counters_table
from engine.sessions.known_times import open_history
from engine.sessions.lookup import read_file
from engine.sessions.session import save_outcome
from engine.sessions.store import default_store
from engine.sessions.tables import known_times_table


@dataclass(frozen=True)
class EvaluateOptions(ProblemOptions, ConfigOptions, DefaultsOption, BackendOption, RunOptions):
    """The options of `evaluate`."""

    variant: str
    gpu: str | None
    clock: str | None
    coverage: bool
    schedule: str
    software_only: bool
    partial: str
    save: bool
    json: bool


def run(args: EvaluateOptions) -> int:
    if args.coverage and not args.check:
        raise InvalidProblem(
            "--coverage needs --check: only the check build counts lines.",
            code="coverage_without_check",
        )
    problem = problem_from(args)
    request = EvaluationRequest(
        **fields_from(args, EvaluationRequest, "config", "clock"),
        problem=problem,
        config=config_from(args, args.variant, problem),
        timeout_s=args.timeout,
        input_kind=args.inputs or NORMAL,
    )
    history = open_history()
    request = _at_clock(request, args.clock, history)
    tells = not args.json
    outcome = evaluate(
        request, _show_stage if tells else None, history, _show_part if tells else None
    )
    evaluation, config = outcome.evaluation, outcome.config
    times = history.at(evaluation.problem, evaluation.device)
    verdict = verdict_on_run(request, evaluation, history)
    if args.json:
        origins = dict(config.origins) if config is not None else {}
        print_json(
            encode(evaluation, derived=True)
            | {
                "verdict": verdict.encoded(),
                "config_origins": origins,
                "known_times": [
                    asdict(t) | {"kernel": name_of(t), "problem": encode(t.problem)} for t in times
                ],
            }
        )
    else:
        _print_human(evaluation, config.describe() if config is not None else "given")
        if args.coverage:
            _print_coverage(evaluation)
        if times:
            print_table(known_times_table(times, find_variant(evaluation.variant)))
        print(verdict.sentence)
    if args.save:
        print(f"Saved as {save_outcome(outcome)}", file=sys.stderr)
    return 0 if evaluation.status is Status.PASSED else 1


def _at_clock(request: EvaluationRequest, word: str | None, history: History) -> EvaluationRequest:
    """Return the request for times at the requested clock."""
    if word is None:
        return request
    resolved = resolve(request, history)
    if (kernel := resolved.kernel) is None:
        raise InvalidProblem(
            f"--clock needs a GPU, whose times are predicted: {resolved.device_reason}"
        )
    device = device_of_plan(kernel, word, kernel.plan(request.problem))
    return replace(request, clock_mhz=device.boost_clock_mhz, clock=device.clock)


def _show_stage(stage: str) -> None:
    print(f"{stage} …", file=sys.stderr)


def _show_part(part: Evaluation) -> None:
    print(f"{part.status}: {part.reason} The remaining CTAs are running.", file=sys.stderr)


def _print_human(e: Evaluation, config_origin: str) -> None:
    print(f"{e.status}: {e.reason}")
    rows: list[tuple[str, object]] = [
        ("variant", e.variant),
        ("problem", e.problem.label()),
        ("config", ", ".join(f"{k}={v}" for k, v in e.config.items()) or "none"),
        ("config is", config_origin),
        ("device", e.device),
        *e.rows(),
    ]
    print_figures("Evaluation", rows)
    for warning in e.correctness.warnings if e.correctness is not None else ():
        print(f"Warning: {warning}")
    for note in e.notes:
        print(f"Note: {note}")
    if e.status in (FAULTS | {Status.COMPILE_ERROR}) and e.log:
        print(e.log, file=sys.stderr)


def _print_coverage(e: Evaluation) -> None:
    if not e.line_coverage:
        print("Coverage is known only for a kernel that the CPU backend executed completely.")
        return
    records = (
        {
            "file": c.file,
            "lines": c.lines,
            "never ran": ", ".join(format_ranges(c.not_run)),
            "ran in part": ", ".join(format_ranges(c.partly_run)),
            "not compiled (#if)": ", ".join(format_ranges(c.not_compiled)),
        }
        for c in e.line_coverage
    )
    print_table(Table.of("Lines of device code", records))


@dataclass(frozen=True)
class ProfileOptions(ProblemOptions, ConfigOptions, DefaultsOption):
    """The options of `profile`."""

    variant: str
    gpu: str | None
    csv: str | None


def run_profile(args: ProfileOptions) -> int:
    problem = problem_from(args)
    request = EvaluationRequest(
        args.variant, problem, config_from(args, args.variant, problem), gpu=args.gpu
    )
    history = open_history()
    resolved = resolved_with_note(request, history)
    variant = resolved.variant
    if args.csv is None:
        print(ncu_command(resolved.plan(problem)))
        return 0

    path = Path(args.csv)
    known = {f.name for f in fields(problem)}
    options = ImportOptions(
        variant=variant.id,
        device=resolved.device.name if resolved.device is not None else args.gpu or "",
        config=resolved.config,
        title=f"Nsight Compute: {variant.id} on {problem.label()}",
        **{f.name: getattr(problem, f.name) for f in fields(ImportOptions) if f.name in known},
        features=features_of(problem),
    )
    snapshot = import_measurements(read_file(path), name=path.name, options=options)
    print(f"Saved as {default_store().save(snapshot)}.")
    print_table(counters_table(snapshot.opened(), history, snapshot.title))
    return 0


def ncu_command(plan: LaunchPlan) -> str:
    """Return the command, which profiles one launch of each pass and writes a CSV file."""
    problem = plan.problem
    given = {
        "--batch": problem.batch,
        "--heads": problem.num_heads,
        "--heads-kv": problem.num_heads_kv,
        "--seqlen": problem.seqlen,
        "--seqlen-kv": problem.seqlen_kv,
        "--head-dim": problem.head_dim,
        "--dtype": SHORT_DTYPES[problem.dtype],
    }
    evaluate = ["python", "-m", "engine", "evaluate", plan.variant]
    evaluate += [f"{name}={value}" for name, value in given.items() if value is not None]
    evaluate += ["--causal"] if problem.causal else []
    evaluate += feature_options(problem)
    for name, value in plan.config.items():
        evaluate += ["--config", f"{name}={value}"]
    ncu = ["ncu", "--csv", "--page", "raw", "--print-units", "base"]
    ncu += ["--metrics", ",".join(METRICS)]
    ncu += ["--kernel-name", f"regex:^({'|'.join(plan.entries)})$"]
    ncu += ["--launch-count", str(len(plan.passes))]
    ncu += ["--log-file", f"{plan.variant}.csv"]
    return shlex.join([*ncu, *evaluate, "--backend", "cuda"])
