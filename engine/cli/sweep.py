"""`sweep`: run many evaluations, resumably, and rank them. `tuned`: list the saved configs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TextIO

from engine.attention.config import (
    delete_tuned,
    find_variant,
    invalid_values_error,
    load_tuned,
    tuned_path,
    usual_causal,
    usual_dtype,
)
from engine.attention.problem import find_preset
from engine.attention.tensors import NORMAL
from engine.base.errors import ClusterError, InvalidProblem
from engine.base.schema import encode
from engine.base.table import Table, csv_text
from engine.base.units import format_durations, format_us
from engine.choose.auto import chosen_variants
from engine.cli.options import (
    PROBLEM,
    BackendOption,
    FeatureOptions,
    RunOptions,
    features_from,
    fields_from,
    first_given,
)
from engine.cli.output import print_json, print_table, unfiltered
from engine.cuda_source import cache_root
from engine.devices import find_device
from engine.pipeline.request import runs_on_gpu, target_device
from engine.search.autotune import ProblemResult, configs_to_save, save_configs
from engine.search.ranking import SweepRow
from engine.search.results import SHOWN_PLACES, result_tables, row_dict, sweep_frame
from engine.search.space import ProblemAxes, Space, SweepOptions, SweepPoint, parse_values
from engine.search.strategies import StrategyName
from engine.search.sweep.estimate import Estimator, TimeLeft, work_ahead
from engine.search.sweep.journal import Budget, Progress, SweepJournal, SweepSpec, best_key
from engine.search.sweep.run import SweepEnd, rows_of, sweep_here
from engine.sessions.known_times import open_history
from kernels.characters import visible
from kernels.ladder import LADDER
from kernels.variant import AUTO, DTYPES

# Output of `sweep`: plan, progress, ranking and failures.


def plan_dict(points: Sequence[SweepPoint], estimate: TimeLeft) -> dict[str, Any]:
    """Return the points to evaluate, and the reasons why constraints exclude others."""
    reasons = Counter(p.why_not for p in points if p.why_not is not None)
    return {
        "points": len(points),
        "runnable": len(points) - reasons.total(),
        "excluded": reasons.total(),
        "excluded_because": dict(reasons.most_common(5)),
        "estimate_s": round(estimate.expected_s, 1),
        "estimate_between_s": [round(estimate.low_s, 1), round(estimate.high_s, 1)],
    }


def print_plan(points: Sequence[SweepPoint], estimate: TimeLeft, to: TextIO) -> None:
    """Print the number of points and the estimated time, and why points are excluded."""
    plan = plan_dict(points, estimate)
    word = "point" if len(points) == 1 else "points"
    print(
        f"{plan['points']:,} {word}, {plan['runnable']:,} to evaluate and {plan['excluded']:,} "
        f"excluded by constraints; about {format_durations(estimate.low_s, estimate.high_s)} (a "
        "rough estimate until the first points are done).",
        file=to,
    )
    for reason, count in plan["excluded_because"].items():
        print(f"  {count:,} × {reason}", file=to)


class Reporter:
    """Shows progress: a bar on a terminal, else at most one line per second.

    Use as a context manager, which removes the bar at its end.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._next = 0.0
        self._bar: Callable[[Progress, str], None] | None = None
        self._shown = ExitStack()
        self.last: Progress | None = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._bar = self._shown.enter_context(_bar())
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def __call__(self, progress: Progress) -> None:
        self.last = progress
        done = progress.done >= progress.total
        if self._quiet or (time.monotonic() < self._next and not done):
            return
        if self._bar is not None:
            self._bar(progress, _progress_line(progress))
            return
        self._next = time.monotonic() + 1.0
        print(_progress_line(progress), file=sys.stderr)


@contextmanager
def _bar() -> Iterator[Callable[[Progress, str], None]]:
    """Return a bar at the bottom of the terminal, and its update function."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    line = TextColumn("{task.fields[line]}", markup=False, table_column=Column(no_wrap=True))
    console = Console(file=unfiltered(sys.stderr))
    with Bar(BarColumn(24), line, console=console, refresh_per_second=4) as bar:
        task = bar.add_task("", total=None, line="")

        def renew(progress: Progress, sentence: str) -> None:
            bar.update(task, total=progress.total, completed=progress.done, line=visible(sentence))

        yield renew


def _progress_line(progress: Progress) -> str:
    """Return a progress line such as `12/50 · 80/min · 30 s left · best v05 …`."""
    parts = [f"{progress.done:,}/{progress.total:,}"]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.per_minute is not None:
        parts.append(f"{progress.per_minute:,.0f}/min")
    if progress.eta_s:
        low_s, high_s = progress.eta_range_s or (progress.eta_s, progress.eta_s)
        parts.append(f"{format_durations(low_s, high_s)} left")
    if progress.workers != 1:
        parts.append(f"{progress.workers:,} workers")
    if not progress.passed and progress.under_way:
        parts.append(f"evaluating {progress.under_way}")
    best = _best(progress)
    if best is not None and best.median_us is not None:
        parts.append(
            f"best {best.label()}: {format_us(best.median_us)} {best.origin} "
            f"({best.problem.label()})"
        )
    return " · ".join(parts)


def _best(progress: Progress) -> SweepRow | None:
    """Return the best point so far of the last evaluated problem, on the same GPU if there is
    one."""
    last = progress.last
    if last is None:
        return None
    others = (row for row in progress.best.values() if row.problem == last.problem)
    return progress.best.get(best_key(last)) or next(others, None)


def print_results(
    rows: Sequence[SweepRow],
    results: Sequence[ProblemResult],
    state: str,
    counts: Mapping[str, int],
) -> None:
    """Print a table of the best points of every problem, and one of untimed points with reasons."""
    for table in result_tables(rows, results):
        print_table(table)
    if not results and any(row.device == "unknown" for row in rows):
        print("No point has a latency: name a target GPU with --gpu to have one predicted.")
    how = {"finished": "Finished", "budget": "The budget is spent", "cancelled": "Cancelled"}
    print(
        f"{how[state]}: {counts['passed']:,} passed, {counts['failed']:,} failed, "
        f"{counts['skipped']:,} skipped, {counts['resumed']:,} from an earlier run."
    )


def result_dict(result: ProblemResult, rows: Mapping[str, SweepRow]) -> dict[str, Any]:
    """Return the ranking of one problem's best points, for `--json`."""
    ties = result.ties
    return {
        "device": result.device,
        "problem": asdict(result.problem),
        "origin": result.origin,
        "reason": result.reason,
        "places": [
            {
                "place": p.place,
                "tied": p.place in ties,
                "variant": rows[p.point].variant,
                "config": dict(rows[p.point].config),
                "point": p.point,
                "median_us": p.interval.median,
                "low_us": p.interval.low,
                "high_us": p.interval.high,
                "ratio": p.ratio,
            }
            for p in result.places[:SHOWN_PLACES]
        ],
    }


# Options that define the points of a sweep.
_POINTS = ("variants", *PROBLEM, "tunable")


@dataclass(frozen=True)
class CommandOptions(FeatureOptions, BackendOption, RunOptions):
    """The options of `sweep`."""

    variants: list[str]
    batch: str | None
    heads: str | None
    seqlen: str | None
    head_dim: str | None
    seqlen_kv: str | None
    heads_kv: str | None
    head_dim_v: str | None
    causal: str | None
    dtype: str | None
    preset: list[str]
    tunable: list[str]
    defaults_only: bool
    strategy: StrategyName
    budget_evaluations: int | None
    budget_seconds: float | None
    gpu: str | None
    no_execute: bool
    full: bool
    allow_spills: bool
    dask: str | None
    journal: Path | None
    resume: Path | None
    keep: bool
    all: bool
    dry_run: bool
    json: bool
    csv: bool


def run(args: CommandOptions) -> int:
    from engine.search.cluster.members import parse_address

    if args.dask is not None:
        parse_address(args.dask)
    quiet = args.json or args.csv
    if args.resume is not None:
        _refuse_axes(args)
        book = SweepJournal.open(
            args.resume, "free some disk space or resume a copy in another folder"
        )
        spec = book.spec
    else:
        spec = _spec(args)
        book = (
            SweepJournal(args.journal, "free some disk space or name another file with --journal")
            if args.journal is not None
            else SweepJournal(_default_journal())
        )
        if book.path.exists() and not book.path.is_file():
            raise InvalidProblem(
                f"--journal {book.path} is not a regular file: name another.",
                code="journal_no_regular_file",
            )
        if book.path.exists() and book.path.stat().st_size:
            raise InvalidProblem(
                f"{book.path} exists: continue it with --resume, or name another file.",
                code="journal_exists",
            )
    if args.keep:
        load_tuned()  # report an unreadable file before the sweep
    points = spec.space.points(spec.options)
    on_gpu = bool(points) and runs_on_gpu(points[0].request)
    open_points = [p for p in points if p.id not in book.rows]
    estimate = (
        Estimator(open_points, on_gpu, work_ahead(open_points, open_history()))
        .left()
        .scaled(_limited(spec, open_points), spec.budget.seconds)
    )
    if args.dry_run:
        if args.json:
            print_json(plan_dict(points, estimate))
        else:
            print_plan(points, estimate, sys.stdout)
        return 0
    if not (args.resume or args.all or first_given(args, _POINTS)):
        print_plan(points, estimate, sys.stderr)
        raise InvalidProblem(
            "Without a variant or problem, a sweep tries every variant and config: name variants "
            "or problems, or give --all."
        )
    if not quiet:
        print_plan(points, estimate, sys.stderr)
        print(f"Journal: {book.path}", file=sys.stderr)
    reporter = Reporter(quiet)
    where = f" --dask {args.dask}" if args.dask is not None else ""
    go_on = f"Continue with: attune sweep --resume {book.path}{where}"
    try:
        with reporter:
            if args.dask is not None and points:
                state, results = _on_cluster(args.dask, spec, points, book, reporter)
            else:
                state, results = sweep_here(
                    spec,
                    points,
                    book,
                    reporter,
                    open_history(),
                    on_gpu=on_gpu,
                    open_history=open_history,
                )
    except KeyboardInterrupt:
        print(f"\nStopped. {go_on}", file=sys.stderr)
        return 130
    except ClusterError:
        if book.path.exists():
            print(go_on, file=sys.stderr)
        raise
    rows = rows_of(book, points)
    kept = _save_tuned(spec, rows, results) if args.keep else []
    _print(args, book, rows, results, state, reporter.last, kept)
    progress = reporter.last
    return 0 if progress is not None and progress.passed and not progress.failed else 1


def _on_cluster(
    address: str,
    spec: SweepSpec,
    points: Sequence[SweepPoint],
    book: SweepJournal,
    reporter: Reporter,
) -> tuple[SweepEnd, list[ProblemResult]]:
    from engine.search.cluster.executor import connect, sweep_on

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr)

    with connect(address, points[0].request, book.rows.values(), say) as cluster:
        return sweep_on(cluster, spec, book, reporter, open_history=open_history)


def _print(
    args: CommandOptions,
    book: SweepJournal,
    rows: Sequence[SweepRow],
    results: Sequence[ProblemResult],
    state: str,
    progress: Progress | None,
    kept: Sequence[str],
) -> None:
    counts = {
        name: getattr(progress, name) if progress else 0
        for name in ("done", "total", "passed", "skipped", "failed", "resumed")
    }
    if args.csv:
        sys.stdout.write(csv_text(sweep_frame(rows)))
    elif args.json:
        labels = {row.point: row for row in rows}
        print_json(
            {
                "state": state,
                "journal": str(book.path),
                **counts,
                "best": [result_dict(r, labels) for r in results],
                "kept": kept,
                "rows": [row_dict(row) for row in rows],
            }
        )
    else:
        print_results(rows, results, state, counts)
        for sentence in kept:
            print(sentence)


def _save_tuned(
    spec: SweepSpec, rows: Sequence[SweepRow], results: Sequence[ProblemResult]
) -> list[str]:
    """Save each variant's best config; return a sentence for each."""
    return save_configs(configs_to_save(results, rows, spec.strategy))


def _spec(args: CommandOptions) -> SweepSpec:
    tunables = {}
    for item in args.tunable:
        name, equals, values = item.partition("=")
        if not equals:
            raise InvalidProblem(
                f"--tunable takes NAME=VALUES, for instance num_splits=1,2,4: not {item!r}.",
                code="tunable_values_form",
            )
        tunables[name.strip()] = parse_values(values, f"--tunable {name.strip()}")
    problems = _problems(args)
    rungs = dict.fromkeys(v.id for p in problems for v in LADDER.of(p))
    variants = tuple(args.variants) or tuple(rungs)
    if AUTO in variants:
        device, known = target_device(args.gpu), open_history()
        taken = ", ".join(chosen_variants([AUTO], problems, device, known))
        print(f"{AUTO} takes {taken} for these problems.", file=sys.stderr)
        variants = chosen_variants(variants, problems, device, known)
    space = Space(variants, problems, tunables, own_values=not args.defaults_only)
    _check_offered(space)
    return SweepSpec(
        space=space,
        options=SweepOptions(
            **fields_from(args, SweepOptions),
            timeout_s=args.timeout,
            execute=not args.no_execute,
            effort="full" if args.full else "quick",
            input_kind=args.inputs or NORMAL,
            refuse_spills=not args.allow_spills,
        ),
        strategy=args.strategy,
        budget=Budget(args.budget_evaluations, args.budget_seconds),
        seed=args.seed,
    )


def _check_offered(space: Space) -> None:
    """Raise InvalidProblem for a tunable with values that no variant offers: all points would be
    SKIPPED."""
    variants = [find_variant(name) for name in space.variants]
    for name, values in space.tunables.items():
        having = [v for v in variants if name in v.default_config()]
        whys = [v.invalid_values({name: value}) for v in having for value in values]
        if all(whys):
            raise invalid_values_error(str(whys[0]))


def _problems(args: CommandOptions) -> tuple[Any, ...]:
    """Return the presets, plus the product of the axes if an axis is given or there is no
    preset."""
    presets = tuple(find_preset(name).problem for name in args.preset)
    axes: dict[str, Any] = {}
    for field, option in (
        ("batch", "batch"),
        ("num_heads", "heads"),
        ("seqlen", "seqlen"),
        ("seqlen_kv", "seqlen_kv"),
        ("num_heads_kv", "heads_kv"),
        ("head_dim", "head_dim"),
    ):
        if (text := getattr(args, option)) is not None:
            axes[field] = parse_values(text, f"--{option.replace('_', '-')}")
    if args.causal is not None:
        axes["causal"] = {"no": (False,), "yes": (True,), "both": (False, True)}[args.causal]
    if args.dtype is not None:
        axes["dtype"] = tuple(_dtype(name.strip()) for name in args.dtype.split(","))
    elif axes or not presets:
        axes["dtype"] = (usual_dtype(args.variants),)
    if args.causal is None and (axes or not presets):
        axes["causal"] = (usual_causal(args.variants),)
    problems = presets
    if axes or not presets:
        problems = tuple(dict.fromkeys((*presets, *ProblemAxes(**axes).problems())))
    features = features_from(args)
    return tuple(replace(problem, **features) for problem in problems) if features else problems


def _dtype(name: str) -> Any:
    if name not in DTYPES:
        raise InvalidProblem(
            f"--dtype takes {', '.join(sorted(DTYPES))}, not {name!r}.", code="dtype_of_option"
        )
    return DTYPES[name]


def _refuse_axes(args: CommandOptions) -> None:
    """Refuse options that would change a resumed sweep, because its journal defines it."""
    fixed = ("all", "defaults_only", "gpu", "no_execute", "check", "full", "inputs")
    named = first_given(args, (*_POINTS, *fixed))
    if named is not None:
        what = named if named == "variants" else f"--{named.replace('_', '-')}"
        raise InvalidProblem(
            f"--resume continues what its journal was started for: leave out {what}.",
            code="resume_with_choice",
        )


def _default_journal() -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = cache_root() / "sweeps"
    free = (folder / f"{stamp}{suffix}.jsonl" for suffix in ("", *(f"-{i}" for i in range(2, 999))))
    return next(path for path in free if not path.exists())


def _limited(spec: SweepSpec, points: Sequence[SweepPoint]) -> float:
    """Return the points within the budget."""
    runnable = sum(p.why_not is None for p in points)
    limit = spec.budget.evaluations
    return 1.0 if limit is None or runnable == 0 else min(1.0, limit / runnable)


@dataclass(frozen=True)
class TunedOptions:
    """The options of `tuned`."""

    variant: str | None
    gpu: str | None
    problem_class: str | None
    forget: bool
    json: bool


def run_tuned(args: TunedOptions) -> int:
    kept = load_tuned()
    variant, gpu = args.variant, args.gpu
    # A saved config may belong to a removed kernel or GPU; any other unknown name is an error.
    if variant is not None and all(entry.variant != variant for entry in kept):
        variant = find_variant(variant).id
    if gpu is not None and all(entry.gpu != gpu for entry in kept):
        gpu = find_device(gpu).name
    entries = [
        entry
        for entry in kept
        if variant in (None, entry.variant)
        and gpu in (None, entry.gpu)
        and args.problem_class in (None, entry.problem_class)
    ]
    if args.forget:
        if args.variant is None and args.gpu is None and args.problem_class is None:
            raise InvalidProblem(
                "--forget takes a variant, --gpu or --class, so that nothing is deleted by "
                f"accident; to delete everything remove {tuned_path()}.",
                code="forget_names_nothing",
            )
        entries = [entry for entry in entries if delete_tuned(entry)]
    if args.json:
        print_json([encode(entry) for entry in entries])
        return 0
    if not entries:
        which = " like that" if args.variant or args.gpu or args.problem_class else ""
        print(f"No tuned config{which} is saved in {tuned_path()}: `sweep --keep` saves the best.")
        return 0
    records = (
        {
            "variant": entry.variant,
            "GPU": entry.gpu,
            "class of problems": entry.problem_class,
            "config": entry.values(),
            "tuned for": entry.describe(),
            "by": f"{entry.strategy}, {entry.evaluations:,} evaluated",
            "when": entry.when,
        }
        for entry in entries
    )
    print_table(Table.of("Forgotten" if args.forget else "Tuned configs", records))
    return 0
