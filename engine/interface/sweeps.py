"""`sweep(…)`: many evaluations, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from engine.auto import chosen_variants
from engine.base.errors import InvalidProblem
from engine.base.table import Table, Tabular
from engine.environment import collect_environment
from engine.evaluation import Evaluation
from engine.interface.arguments import dtype_of, evaluator, variant_name
from engine.interface.attention_kernel import AttentionKernel
from engine.pipeline.request import BackendChoice, target_device
from engine.problem import Problem
from engine.schema import decode
from engine.search.autotune import ProblemResult
from engine.search.ranking import SweepRow
from engine.search.results import result_tables, sweep_frame
from engine.search.space import ProblemAxes, Space, SweepOptions
from engine.search.strategies import StrategyName
from engine.search.sweep.estimate import runs_on_gpu
from engine.search.sweep.here import rows_of, sweep_here
from engine.search.sweep.journal import Budget, Progress, SweepJournal, SweepSpec
from engine.search.sweep.run import SweepEnd
from engine.sessions.build import make_snapshot
from engine.sessions.exporters import exported

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

OneOrMore: TypeAlias = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class SweepResult(Tabular):
    """What a sweep found: a row for each point, and the places of each problem."""

    rows: tuple[SweepRow, ...]
    results: tuple[ProblemResult, ...]
    end: SweepEnd  # "finished", "budget" or "cancelled"

    @property
    def best(self) -> tuple[SweepRow, ...]:
        """The fastest of each problem on each GPU, in the order of `results`."""
        by_point = {row.point: row for row in self.rows}
        return tuple(by_point[r.places[0].point] for r in self.results if r.places)

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        return tuple(decode(Evaluation, row.result) for row in self.rows)

    def tables(self) -> tuple[Table, ...]:
        """The best of each problem, then what has no time and why."""
        return tuple(t for t in result_tables(self.rows, self.results) if t.rows)

    def to_frame(self) -> pd.DataFrame:
        """A row for each point: times in µs, occupancy, resources, errors; tunables as
        `config.NAME`."""
        return sweep_frame(self.rows)

    def plot(self) -> Figure:
        """Time of every point with its interval, a trace for each problem: a Plotly figure."""
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
        """The times as the text of a Kernel Tuner cache, which is of one kernel on one GPU.

        Args:
            variant: leave the others out.

        Raises:
            InvalidProblem: several kernels or GPUs, or no time that was measured: a predicted one
                would be taken for a measurement.
        """
        snapshot = make_snapshot(self.evaluations, environment=collect_environment())
        return exported(snapshot, "kernel-tuner", variant)


def sweep(
    kernels: str | Path | AttentionKernel | Sequence[str | Path | AttentionKernel],
    *,
    gpu: str | None = None,
    batch: OneOrMore = 1,
    heads: OneOrMore = 1,
    seqlen: OneOrMore = 128,
    head_dim: OneOrMore = 64,
    causal: bool | Sequence[bool] = False,
    dtype: str | Sequence[str] = "fp16",
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
        kernels: names, files, "auto", or what `kernel` made (whose given values then count).
        gpu: the target GPU; None: that of the kernels, or the one in this machine.
        batch, heads, seqlen, head_dim, causal, dtype: one value or several; all combinations.
        problems: instead of these sizes.
        tunables: only these values, by name.
        defaults_only: the tunables that are not given take their defaults alone.
        strategy: "exhaustive", "random", "coordinate", "bayesian" or "simulated".
        evaluations, seconds: when a search ends at the latest.
        execute: False compiles and predicts, and runs nothing.
        journal: where to write what is done, and to go on from; None keeps none.
        on_progress: called after every point.

    Raises:
        UnknownName, InvalidKernel: as `kernel`, or a tunable that no kernel has.
        InvalidProblem: sizes that cannot be, too many points, or kernels for different GPUs.
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
    listed: Sequence[str | Path | AttentionKernel]
    listed = [kernels] if isinstance(kernels, str | Path | AttentionKernel) else kernels
    named = [k for k in listed if isinstance(k, AttentionKernel)]
    gpus = {k.gpu for k in named if k.gpu} | ({gpu} if gpu else set())
    if len(gpus) > 1:
        raise InvalidProblem(f"A sweep is of one GPU, not of {', '.join(sorted(gpus))}.")
    target = next(iter(gpus), None)
    names = [k.name if isinstance(k, AttentionKernel) else variant_name(k) for k in listed]
    axes = ProblemAxes(
        batch=_several(batch),
        num_heads=_several(heads),
        seqlen=_several(seqlen),
        head_dim=_several(head_dim),
        causal=(causal,) if isinstance(causal, bool) else tuple(causal),
        dtype=tuple(dtype_of(d, None) for d in ([dtype] if isinstance(dtype, str) else dtype)),
    )
    asked = tuple(problems) or axes.problems()
    history = evaluator().history
    values: dict[str, tuple[int, ...]] = {name: (value,) for k in named for name, value in k.values}
    values |= {name: _several(given) for name, given in (tunables or {}).items()}
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
            spec, points, book, on_progress or (lambda _: None), history, on_gpu=on_gpu
        )
        return SweepResult(tuple(rows_of(book, points)), tuple(results), end)


def _several(given: OneOrMore) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)
