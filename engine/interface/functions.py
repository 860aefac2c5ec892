"""The functions of the interface: `sweep(…)`, `recommend_batch(…)` and `compare(…)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from engine.attention.config import usual_causal
from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.schema import decode
from engine.base.table import Bars, Table, Tabular
from engine.base.units import format_us
from engine.choose.auto import chosen_variants
from engine.choose.batch import recommend
from engine.choose.batch.mix import MixResult, parse_mix, read_mix
from engine.choose.batch.mix import recommend_mix as recommend_mix_of
from engine.choose.batch.types import BatchRequest, BatchResult
from engine.devices.environment import collect_environment
from engine.interface.attention_kernel import (
    AttentionKernel,
    Sizes,
    check_choice,
    check_number,
    dtype_of,
    evaluator,
    kernel,
    named_keywords,
    variant_name,
)
from engine.pipeline.request import BackendChoice, runs_on_gpu, target_device
from engine.search.autotune import ProblemResult
from engine.search.ranking import SweepRow
from engine.search.results import result_tables, sweep_frame
from engine.search.space import ProblemAxes, Space, SweepOptions
from engine.search.strategies import StrategyName
from engine.search.sweep.journal import Budget, Progress, SweepJournal, SweepSpec
from engine.search.sweep.run import SweepEnd, rows_of, sweep_here
from engine.sessions.compare import Pairing, SessionComparison, compare_sessions
from engine.sessions.compare.formats import comparison_tables, rows_frame
from engine.sessions.exporters import exported
from engine.sessions.known_times import open_history
from engine.sessions.lookup import open_session
from engine.sessions.session import make_snapshot
from engine.sessions.snapshot import Snapshot
from kernels.variant import AUTO

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


MIX_OPTIONS = ("max_batch", "price_usd_per_hour", "utilisation")
BATCH_OPTIONS = (
    *(f.name for f in fields(BatchRequest) if f.name not in ("variant", "config")),
    "direction",
)


@named_keywords(*BATCH_OPTIONS)
def recommend_batch(
    of: AttentionKernel | str | Path,
    *,
    gpu: str | None = None,
    seqlen: int,
    head_dim: int = 64,
    targets: float | Sequence[float] = (0.7, 0.9, 0.95),
    dtype: str | None = None,
    **options: Any,
) -> BatchResult:
    """Recommend the smallest batch that reaches a share of the highest throughput, with the reason
    and its memory.

    Args:
        of: a kernel, its name, its file, or "auto".
        gpu: the GPU, where `of` does not say it.
        seqlen, head_dim: of each request.
        targets: one or several shares of the highest throughput, 0 to 1, rising.
        options: further fields of `engine.choose.batch.BatchRequest`: `heads`, `causal`,
            `seqlen_kv`, `heads_kv`, `max_batch`, `measured` (a CSV of times to calibrate
            on), `prices`, …; `direction="backward"` for kernels of the backward pass.

    Raises:
        InvalidProblem: no GPU is named, or as `engine.choose.batch.recommend.recommend_batch`.
        UnknownName, InvalidKernel: as `kernel`.
        CompileError, ToolMissing: it does not compile, or there is no compiler.

    Example:
        >>> import engine as attune
        >>> found = attune.recommend_batch("v01", gpu="L4", seqlen=64, head_dim=32, max_batch=512)
        >>> [r.target for r in found.recommendations]
        [0.7, 0.9, 0.95]
        >>> found.recommended.origin
        'predicted'
        >>> found.to_frame()["batch"].max()
        np.int64(512)
    """
    asked = of if isinstance(of, AttentionKernel) else kernel(of)
    target = gpu or asked.gpu
    if target is None:
        raise InvalidProblem(
            "A batch is recommended for a GPU: name one, for instance gpu='L4'.",
            code="batch_needs_gpu",
        )
    if "direction" in options:
        given = {"direction": options.pop("direction")}
        options["features"] = {**options.get("features", {}), **given}
    options.setdefault("causal", usual_causal([asked.name]))
    request = BatchRequest(
        variant=asked.name,
        gpu=target,
        seqlen=seqlen,
        head_dim=head_dim,
        dtype=dtype_of(dtype, asked.name),
        config=asked.config,
        targets=(targets,) if isinstance(targets, int | float) else tuple(targets),
        **options,
    )
    return recommend.recommend_batch(request, evaluator().history)


@named_keywords(*MIX_OPTIONS)
def recommend_mix(
    lines: str | Path | Sequence[str | Sequence[object]],
    of: AttentionKernel | str | Path = AUTO,
    *,
    gpu: str | None = None,
    target: float = 0.9,
    head_dim: int = 64,
    causal: bool | None = None,
    dtype: str | None = None,
    **options: Any,
) -> MixResult:
    """Recommend one kernel, batch and number of splits for a mix of problems, with the cost.

    Args:
        lines: a file, or lines `count,B,H,S[,D[,causal[,dtype]]]`, each a text or its values:
            launches a day at today's batch.
        of: a kernel, its name, its file, or "auto" to choose among those of each line.
        gpu: the GPU, where `of` does not say it.
        target: the share of the highest throughput that is enough, above 0 to 1.
        head_dim, causal, dtype: of lines that leave them out; without `causal`, what the kernel
            computes.
        options: `max_batch`, `price_usd_per_hour`, `utilisation`.

    Raises:
        InvalidProblem: no GPU is named, or as `engine.choose.batch.mix.recommend_mix`.
        UnknownName, InvalidKernel: as `kernel`, or there is no such file.
        CompileError, ToolMissing: it does not compile, or there is no compiler.

    Example:
        >>> import engine as attune
        >>> traffic = ["1000,1,4,64", (50, 8, 4, 128)]
        >>> found = attune.recommend_mix(traffic, "v01", gpu="L4", head_dim=32, max_batch=256)
        >>> found.batch > 1, found.hours < found.hours_now
        (True, True)
        >>> [p.line.count for p in found.problems]
        [1000.0, 50.0]
    """
    asked = of if isinstance(of, AttentionKernel) or of == AUTO else kernel(of)
    name, given, own_gpu = (
        (asked.name, asked.config, asked.gpu)
        if isinstance(asked, AttentionKernel)
        else (AUTO, {}, None)
    )
    device = target_device(gpu or own_gpu)
    if device is None:
        raise InvalidProblem("A mix is answered for a GPU: name one, for instance gpu='L4'.")
    usual = dtype_of(dtype, name)
    if causal is None:
        causal = usual_causal([name])
    rest: dict[str, Any] = {"head_dim": head_dim, "causal": causal, "dtype": usual}
    if isinstance(lines, Path) or (isinstance(lines, str) and "," not in lines):
        read = read_mix(lines, **rest)
    else:
        listed = [lines] if isinstance(lines, str) else lines
        texts = (x if isinstance(x, str) else ",".join(map(str, x)) for x in listed)
        read = parse_mix("\n".join(texts), **rest)
    return recommend_mix_of(
        read, device, evaluator().history, variant=name, given=given, target=target, **options
    )


# `compare(…)`: compare two sessions or new evaluations, problem by problem.


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Tabular):
    """The result of a comparison; `comparison` is the object that the pages show."""

    comparison: SessionComparison

    @property
    def is_worse(self) -> bool:
        """True if a kernel became incorrect, less accurate or slower, or its counts became
        worse."""
        return self.comparison.exit_code == 1

    def tables(self) -> tuple[Table, ...]:
        """Return tables of regressions, pairs of kernels and the fastest kernels."""
        return tuple(comparison_tables(self.comparison))

    def bars(self) -> Bars:
        """Return a bar chart of speed-ups with intervals, of pairs with times."""
        values = {}
        for row in self.comparison.rows:
            if (speedup := row.speedup) is not None:
                name = f"{row.variant} at {row.problem.label()} on {row.device}, {row.session}"
                ends = row.speedup_low or speedup, row.speedup_high or speedup
                values[name] = (speedup, *ends)
        return Bars("After, beside before", "times as fast", values)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each pair of kernels: times in µs, verdict, figures before and after."""
        return rows_frame(self.comparison)


@named_keywords(*Sizes.__annotations__)
def compare(
    before: Compared,
    after: Compared,
    *,
    pairing: Pairing = "auto",
    across: bool = False,
    **sizes: Unpack[Sizes],
) -> Comparison:
    """Compare kernels before and after, problem by problem: correctness, speed and resources.

    Args:
        before, after: snapshot files, names in the store, evaluations that `check` returned, what
            `sweep` returned, or kernels, which are checked first.
        pairing: "same" variant and config, the "best" of each side, or "auto": the same if both
            have it, else the best.
        across: also give verdicts across different GPUs, drivers and clocks.
        sizes: the problem of kernels, as `AttentionKernel.check` takes it.

    Raises:
        UnknownName, SnapshotError: there is no such session, or it is damaged.
        InvalidProblem: nothing can be compared, invalid sizes, or sizes without a kernel.

    Example:
        >>> import engine as attune
        >>> one, two = (attune.kernel(name, gpu="L4") for name in ("v01", "v02"))
        >>> found = attune.compare(one, two, seqlen=64, head_dim=32)
        >>> found.to_frame()[["baseline_variant", "variant"]].values.tolist()
        [['v01', 'v02']]
    """
    if sizes and not isinstance(before, AttentionKernel) and not isinstance(after, AttentionKernel):
        raise InvalidProblem(
            "Problem sizes are for kernels, and neither side is a kernel: leave out "
            f"{', '.join(sizes)}.",
            code="sizes_without_a_kernel",
        )
    sessions = {"before": _session(before, sizes), "after": _session(after, sizes)}
    return Comparison(compare_sessions(sessions, "before", pairing=pairing, across=across))


def _session(given: Compared, sizes: Sizes) -> Snapshot:
    if isinstance(given, str | Path):
        return open_session(str(given))
    if isinstance(given, AttentionKernel):
        given = given.check(**sizes)
    elif isinstance(given, SweepResult):
        given = given.evaluations
    evaluations = [given] if isinstance(given, Evaluation) else given
    if not isinstance(evaluations, Sequence) or not all(
        isinstance(one, Evaluation) for one in evaluations
    ):
        raise InvalidProblem(
            "Only sessions, evaluations, sweeps and kernels can be compared, not "
            f"{type(given).__name__}: give a file, or the result of check or sweep.",
            code="not_to_be_compared",
        )
    return make_snapshot(evaluations, environment=collect_environment())


# `sweep(…)`: many evaluations, and the best of them.
Compared: TypeAlias = (
    "str | Path | AttentionKernel | Evaluation | Sequence[Evaluation] | SweepResult"
)
OneOrMore: TypeAlias = int | Sequence[int]


@dataclass(frozen=True, slots=True, repr=False)
class SweepResult(Tabular):
    """The result of a sweep: a row for each point, and the ranking of each problem."""

    rows: tuple[SweepRow, ...]
    results: tuple[ProblemResult, ...]
    end: SweepEnd  # "finished", "budget" or "cancelled"

    @property
    def best(self) -> tuple[SweepRow, ...]:
        """Return the fastest point of each problem and GPU, in the order of `results`."""
        by_point = {row.point: row for row in self.rows}
        return tuple(by_point[r.places[0].point] for r in self.results if r.places)

    def brief(self) -> Table:
        """Return how the sweep ended and the best point of each problem, or why there are no
        times."""
        timed = sum(row.median_us is not None for row in self.rows)
        title = f"Sweep, {self.end}: {len(self.rows):,} evaluated, {timed:,} with a time"
        records = (
            {
                "problem": row.problem.label(),
                "GPU": row.device,
                "best": row.label(),
                "time": f"{format_us(row.interval.median)} {row.origin}",
                "interval": f"{format_us(row.interval.low)} – {format_us(row.interval.high)}",
            }
            for row in self.best
            if row.interval is not None
        )
        best = Table.of(title, records)
        why = () if best.rows else self.tables()[-1:]
        return replace(why[0], title=title) if why else best

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Return the evaluation of each row."""
        return tuple(decode(Evaluation, row.result) for row in self.rows)

    def tables(self) -> tuple[Table, ...]:
        """Return tables of the best points of each problem and of untimed points."""
        return tuple(t for t in result_tables(self.rows, self.results) if t.rows)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each point: times in µs, occupancy, resources, errors; tunables as
        `config.NAME`."""
        return sweep_frame(self.rows)

    def plot(self) -> Figure:
        """Return a Plotly figure of all points' times with intervals, a trace for each problem."""
        from plotly.graph_objects import Figure

        figure, origins = Figure(), set[str]()
        timed = self.to_frame().dropna(subset=["median_us"]).sort_values("median_us")
        for problem, rows in timed.groupby("problem", sort=False):
            origins |= set(rows["origin"])
            above, below = rows["high_us"] - rows["median_us"], rows["median_us"] - rows["low_us"]
            figure.add_scatter(
                x=rows["median_us"],
                y=rows["label"],
                error_x={"type": "data", "array": above, "arrayminus": below},
                mode="markers",
                name=str(problem),
            )
        figure.update_xaxes(title=f"µs, {' or '.join(sorted(origins))}", type="log")
        return figure

    def to_kernel_tuner(self, variant: str = "") -> str:
        """Return the times as a Kernel Tuner cache, which has one kernel and one GPU.

        Args:
            variant: export only this variant.

        Raises:
            InvalidProblem: several kernels or GPUs, or no measured time: a prediction would be read
                as a measurement.
        """
        snapshot = make_snapshot(self.evaluations, environment=collect_environment())
        return exported(snapshot, "kernel-tuner", variant)


@named_keywords()
def sweep(
    kernels: str | Path | AttentionKernel | Sequence[str | Path | AttentionKernel],
    *,
    gpu: str | None = None,
    batch: OneOrMore = 1,
    heads: OneOrMore = 1,
    seqlen: OneOrMore = 128,
    head_dim: OneOrMore = 64,
    causal: bool | Sequence[bool] | None = None,
    dtype: str | Sequence[str] | None = None,
    problems: Sequence[Problem] = (),
    tunables: Mapping[str, OneOrMore] | None = None,
    defaults_only: bool = False,
    strategy: StrategyName = "exhaustive",
    evaluations: int | None = None,
    seconds: float | None = None,
    execute: bool = True,
    backend: BackendChoice = "auto",
    seed: int = 0,
    journal: Path | str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> SweepResult:
    """Evaluate every combination of kernels, problems and values of tunables, and rank them.

    Args:
        kernels: names, files, "auto", or results of `kernel`, whose given values are used.
        gpu: the target GPU; None: that of the kernels, or this machine's.
        batch, heads, seqlen, head_dim, causal, dtype: one value or several; all combinations.
            Without `causal`: no mask, except for kernels that only support causal ones.
            dtype is fp16, or what the kernels take, where left out.
        problems: instead of these sizes.
        tunables: only these values, by name.
        defaults_only: tunables that are not given only take their defaults.
        strategy: "exhaustive", "random", "coordinate", "bayesian" or "simulated".
        evaluations, seconds: limits of the search.
        execute: False only compiles and predicts.
        journal: file to record results in and to resume from; None: no file.
        on_progress: called before and after every point.

    Raises:
        UnknownName, InvalidKernel: as `kernel`, or no such tunable, strategy or backend.
        InvalidProblem: invalid sizes or limits, too many points, no kernel, or kernels for
            different GPUs.
        StoreError: the journal cannot be written, or another process runs this sweep.
        ToolMissing: the strategy needs a package that is not installed.

    Example:
        >>> import engine as attune
        >>> found = attune.sweep(
        ...     "v01", gpu="L4", seqlen=[64, 70], head_dim=32, tunables={"block_n": 64}
        ... )
        >>> found.end, len(found.rows), [row.problem.seqlen for row in found.best]
        ('finished', 2, [64, 70])
        >>> sorted(set(found.to_frame()["origin"]))
        ['predicted']
    """
    check_choice("strategy", strategy, StrategyName)
    check_choice("backend", backend, BackendChoice)
    check_number("seed", seed, least=0, whole=True)
    if evaluations is not None:
        check_number("evaluations", evaluations, least=1, whole=True)
    if seconds is not None:
        check_number("seconds", seconds, least=0.1)
    if (other := next((p for p in problems if not isinstance(p, Problem)), None)) is not None:
        raise InvalidProblem(
            f"problems are attune.Problem(batch, num_heads, seqlen, head_dim), not {other!r}.",
            code="no_problem_of_a_sweep",
        )
    listed: Sequence[str | Path | AttentionKernel]
    listed = kernels if isinstance(kernels, list | tuple) else [kernels]  # type: ignore[list-item]
    if not listed:
        raise InvalidProblem(
            "A sweep has no kernel: name one or more.", code="sweep_without_kernel"
        )
    named = [k for k in listed if isinstance(k, AttentionKernel)]
    gpus = {k.gpu for k in named if k.gpu} | ({gpu} if gpu else set())
    if len(gpus) > 1:
        raise InvalidProblem(f"A sweep is for one GPU, not for {', '.join(sorted(gpus))}.")
    target = next(iter(gpus), None)
    names = [k.name if isinstance(k, AttentionKernel) else variant_name(k) for k in listed]
    if causal is None:
        causal = usual_causal(names)
    masks = (causal,) if isinstance(causal, bool) else tuple(causal)
    axes = ProblemAxes(
        batch=_several("batch", batch),
        num_heads=_several("heads", heads),
        seqlen=_several("seqlen", seqlen),
        head_dim=_several("head_dim", head_dim),
        causal=masks,
        dtype=tuple(
            dtype_of(d, *names)
            for d in ([dtype] if dtype is None or isinstance(dtype, str) else dtype)
        ),
    )
    asked = tuple(problems) or axes.problems()
    history = evaluator().history
    values: dict[str, tuple[int, ...]] = {name: (value,) for k in named for name, value in k.values}
    values |= {name: _several(name, given) for name, given in (tunables or {}).items()}
    space = Space(
        chosen_variants(names, asked, target_device(target), history),
        asked,
        values,
        own_values=not defaults_only,
    )
    options = SweepOptions(
        gpu=target, backend=backend, execute=execute, seed=seed, refuse_spills=True
    )
    spec = SweepSpec(space, options, strategy, Budget(evaluations, seconds), seed)
    with TemporaryDirectory(prefix="attune-sweep-") as folder:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        book = SweepJournal(Path(journal) if journal else Path(folder) / f"{stamp}.jsonl")
        points = spec.space.points(spec.options)
        on_gpu = bool(points) and runs_on_gpu(points[0].request)
        end, results = sweep_here(
            spec,
            points,
            book,
            on_progress or (lambda _: None),
            history,
            on_gpu=on_gpu,
            open_history=open_history,
        )
        return SweepResult(tuple(rows_of(book, points)), tuple(results), end)


def _several(name: str, given: OneOrMore) -> tuple[int, ...]:
    values = (
        tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    )
    if not values:
        raise InvalidProblem(f"{name} has no value: give one or more.", code="axis_without_value")
    return values
