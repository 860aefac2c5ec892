"""Check batch-invariance: whether a sequence's output has the same bits alone and in a batch.

A server needs it if its answers must not depend on the rest of the batch. The kernel is executed in
several orders of CTAs and with every number of splits. The cost of a fixed number of splits for all
batches is predicted, and the cost of another kernel if this one is not invariant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, RawArray, bits_of, decode, make_inputs
from engine.backends.base import BackendName, RunOptions
from engine.base.errors import AttuneError, ExecutionError, InvalidProblem, Status
from engine.base.schema import Count, NotNegative, Stored
from engine.base.table import Bars, Table, Tabular
from engine.choose.auto import candidates_for
from engine.cuda_on_host.client import Schedule
from engine.history import History
from engine.model.kernel import Kernel
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest, resolve

ORDERS: tuple[Schedule, ...] = ("in_order", "reverse", "random")
SPLITS = "num_splits"  # the tunable that sets how many CTAs share a sequence's keys
_PERSISTENT = "num_ctas"
_SMALLER = (2, 3, 5)  # additional batches: few grids are divisible by all of them
_MAX_BATCH = 8
_MAX_RIVALS = 3  # number of fastest other kernels to execute if this one is not invariant
_MAX_FLOPS = 1e9  # of the executed batch: mostly under a second on two host threads


@dataclass(frozen=True, slots=True)
class Comparison(Stored):
    """One execution compared with the first: the sequence alone, CTAs in order, the requested
    config."""

    batch: Count
    num_splits: Count | None  # None: the kernel has no such tunable
    order: str
    differing: Count  # elements of the sequence's output with other bits
    largest: NotNegative  # largest difference of two such elements


@dataclass(frozen=True, slots=True)
class SplitChoice(Stored):
    """One number of splits for all batches, and its cost relative to the fastest at each batch."""

    num_splits: Count
    cost: NotNegative  # 0.1: the launch takes 10 % longer, at the batch where it costs most
    batch: Count  # that batch


@dataclass(frozen=True, slots=True)
class InvariantAlternative(Stored):
    """An invariant kernel to use instead of one that is not, and its cost."""

    kernel: str  # with its config
    slowdown: NotNegative  # 1.1: its launch takes 10 % longer at that batch
    batch: Count


@dataclass(frozen=True, slots=True, repr=False)
class BatchInvariance(Stored, Tabular):
    """The result for one kernel."""

    variant: str
    problem: Problem  # the compared sequence
    comparisons: tuple[Comparison, ...]  # of the requested config, then of other numbers of splits
    choice: SplitChoice | None  # if another number of splits gives other bits
    instead: InvariantAlternative | None = None  # if the kernel is not invariant

    @property
    def is_invariant(self) -> bool:
        """True if the config gives the same bits in every executed batch and order."""
        return not any(c.differing for c in self._of_the_config())

    @property
    def depends_on_splits(self) -> bool:
        """True if another number of splits gives other bits."""
        asked = self.comparisons[0].num_splits
        return any(c.differing for c in self.comparisons if c.num_splits != asked)

    @property
    def sentence(self) -> str:
        """Return one sentence with the result and what to do."""
        kernel = self.variant
        most = max(c.batch for c in self.comparisons)
        orders = f"alone and in batches of up to {most}, CTAs in order, reversed and at random"
        if not self.is_invariant:
            worst = max(self._of_the_config(), key=lambda c: c.differing)
            return (
                f"{kernel} is not batch-invariant: with B={worst.batch} and CTAs "
                f"{_ORDER_WORDS[worst.order]}, {worst.differing:,} elements of a sequence differ "
                f"from what it gives alone (by up to {worst.largest:.2g}). {self._remedy()}"
            )
        if not self.depends_on_splits:
            return f"{kernel} is batch-invariant: the same bits {orders}."
        words = (
            f"{kernel} gives the same bits {orders}, but only for a fixed num_splits: choose one "
            "number for all batches."
        )
        if self.choice is None:
            return words
        price = (
            f"costs up to {self.choice.cost:.0%} (simulated, at B={self.choice.batch:,})"
            if self.choice.cost >= 0.005
            else "costs nothing (simulated)"
        )
        return f"{words} num_splits={self.choice.num_splits} {price}."

    def _remedy(self) -> str:
        if (other := self.instead) is None:
            return (
                "Take a kernel whose CTAs do not divide a sequence's keys by order of arrival or "
                "by grid size."
            )
        share = other.slowdown - 1.0
        price = "takes as long"
        if abs(share) >= 0.005:
            price = f"takes {abs(share):.0%} {'longer' if share > 0 else 'less time'}"
        return f"{other.kernel} gives the same bits, and {price} (simulated, at B={other.batch:,})."

    def tables(self) -> tuple[Table, ...]:
        """Return a table with a row for each execution."""
        records = (
            {
                "batch": c.batch,
                "num_splits": c.num_splits,
                "CTAs": _ORDER_WORDS[c.order],
                "elements that differ": c.differing,
                "by up to": f"{c.largest:.2g}" if c.differing else None,
            }
            for c in self.comparisons
        )
        return (Table.of("One sequence, alone and in a batch", records, self.sentence),)

    def bars(self) -> Bars:
        """Return a bar chart of the elements that differ from the sequence alone, by execution."""
        values = {
            f"B={c.batch}, num_splits={c.num_splits}, CTAs {_ORDER_WORDS[c.order]}": (
                float(c.differing), float(c.differing), float(c.differing)
            )
            for c in self.comparisons
        }  # fmt: skip
        return Bars(self.sentence, "elements that differ", values)

    def _of_the_config(self) -> Iterable[Comparison]:
        asked = self.comparisons[0].num_splits
        return (c for c in self.comparisons if c.num_splits == asked)


_ORDER_WORDS = {"in_order": "in order", "reverse": "in reverse", "random": "at random"}


def batch_invariance(
    evaluator: Evaluator, request: EvaluationRequest, batches: Iterable[int] = ()
) -> BatchInvariance:
    """Execute a sequence alone and in batches on the CPU, and compare bits.

    One K/V head is executed, with as many positions as take about a second.

    Args:
        request: the kernel and its problem, whose batch is one of those to be served.
        batches: further batches to be served with the same number of splits.

    Raises:
        InvalidProblem, UnknownName, InvalidKernel, CompileError: as in an evaluation.
        ExecutionError: the kernel fails.
    """
    resolved = resolve(request, evaluator.history)
    kernel = resolved.kernel
    if kernel is None:
        raise InvalidProblem(
            f"Batch-invariance is checked for a target GPU: {resolved.device_reason}"
        )
    asked = kernel.config.get(SPLITS)
    executed = _with_few_ctas(kernel)
    whole = _uneven(executed, _one_sequence(request.problem))
    batch = _batch_to_execute(whole, request.problem.batch)
    run = _Run(evaluator, request, resolved.arch, whole)
    first, compared = run.alone_and_in(batch, executed)
    others = [k for k in _with_other_splits(kernel) if k.unsupported(whole) is None]
    compared += [run.compare(other, 1, "in_order", first) for other in others]
    found = BatchInvariance(kernel.variant.id, whole, tuple(compared), None)
    if not found.is_invariant:
        return replace(found, instead=_find_alternative(run, kernel, batch))
    if asked is None or not found.depends_on_splits:
        return found
    problems = [
        replace(request.problem, batch=b) for b in sorted({1, request.problem.batch, *batches})
    ]
    return replace(found, choice=cheapest_splits([kernel, *others], problems, evaluator.history))


@dataclass(frozen=True, slots=True)
class _Run:
    evaluator: Evaluator
    request: EvaluationRequest
    arch: str
    problem: Problem  # one sequence

    def alone_and_in(self, batch: int, kernel: Kernel) -> tuple[RawArray, list[Comparison]]:
        """Return the sequence's output alone, and differences from it in other orders and
        batches."""
        first = self.output(kernel, 1, "in_order")
        launches: list[tuple[int, Schedule]] = [(1, order) for order in ORDERS[1:]]
        launches += [(n, "in_order") for n in _SMALLER if n < batch]
        launches += [(batch, order) for order in ORDERS]
        return first, [self.compare(kernel, n, order, first) for n, order in launches]

    def compare(self, kernel: Kernel, batch: int, order: Schedule, first: RawArray) -> Comparison:
        output = self.output(kernel, batch, order)[_places(batch)]
        dtype = self.problem.dtype
        differs = bits_of(output) != bits_of(first)
        apart = np.abs(decode(output, dtype) - decode(first, dtype))[differs]
        return Comparison(
            batch=batch,
            num_splits=kernel.config.get(SPLITS),
            order=order,
            differing=int(differs.any(axis=0).sum()),
            largest=float(np.nan_to_num(apart, nan=0.0).max(initial=0.0)),
        )

    def output(self, kernel: Kernel, batch: int, order: Schedule) -> RawArray:
        """Return the output, `[batch, …]`.

        Raises:
            ExecutionError: the kernel fails.
        """
        problem = replace(self.problem, batch=batch)
        plan = kernel.plan(problem)
        request = self.request
        options = RunOptions(
            schedule=order,
            seed=request.seed,
            timeout_s=request.timeout_s,
            repeat=False,
            arch=self.arch,
        )
        inputs = _with_the_sequence(make_inputs(problem, request.seed + batch), self._sequence())
        name: BackendName = "machine-code" if plan.cubins else "cpu"
        result = self.evaluator.backend(name).run(plan, inputs, options)
        if result.status is not Status.PASSED or result.out is None:
            raise ExecutionError(f"{kernel.variant.id} with B={batch}: {result.reason}")
        return result.out

    def _sequence(self) -> Inputs:
        return make_inputs(self.problem, self.request.seed)


def _with_the_sequence(inputs: Inputs, sequence: Inputs) -> Inputs:
    """Return a batch in which all sequences but one are the given sequence."""
    tensors = {}
    for name in ("q", "k", "v"):
        tensor = getattr(inputs, name).copy()
        tensor[_places(inputs.problem.batch)] = getattr(sequence, name)
        tensors[name] = tensor
    return replace(inputs, **tensors)


def _places(batch: int) -> list[int]:
    """Return positions of the sequence in the batch: CTAs may split the keys of each
    differently."""
    return [n for n in range(batch) if n != 1 or batch == 2]


def _one_sequence(problem: Problem) -> Problem:
    """Return the problem with one K/V head, halved until it executes in about a second."""
    one = replace(
        problem,
        batch=1,
        num_heads=problem.head_group,
        num_heads_kv=1 if problem.num_heads_kv is not None else None,
    )
    while 2 * one.flops > _MAX_FLOPS and one.seqlen > 1:
        kv = one.seqlen_kv
        one = replace(
            one, seqlen=(one.seqlen + 1) // 2, seqlen_kv=None if kv is None else (kv + 1) // 2
        )
    return one


def _batch_to_execute(one: Problem, batch: int) -> int:
    affordable = int(_MAX_FLOPS // one.flops)
    return max(2, min(batch, affordable, _MAX_BATCH))


def _with_few_ctas(kernel: Kernel) -> Kernel:
    """Return the kernel with the fewest persistent CTAs, so that each takes several tiles, as on
    a full GPU."""
    values = next((t.values for t in kernel.variant.tunables if t.name == _PERSISTENT), None)
    return kernel if values is None else kernel.with_config(**{_PERSISTENT: min(values)})


def _uneven(kernel: Kernel, one: Problem) -> Problem:
    """Return one query tile less if otherwise persistent CTAs divided every batch evenly and
    split no tile."""
    few = kernel.config.get(_PERSISTENT)
    rows = kernel.plan(one).query_rows
    if few is None or one.seqlen <= rows or -(-one.seqlen // rows) % few:
        return one
    return replace(one, seqlen=one.seqlen - rows)


def _with_other_splits(kernel: Kernel) -> list[Kernel]:
    values = next((t.values for t in kernel.variant.tunables if t.name == SPLITS), ())
    asked = kernel.config.get(SPLITS)
    return [kernel.with_config(**{SPLITS: value}) for value in values if value != asked]


def _find_alternative(run: _Run, kernel: Kernel, batch: int) -> InvariantAlternative | None:
    """Return the fastest of `auto`'s candidates that is invariant; None if there is none or its
    cost is not known."""
    asked, history = run.request.problem, run.evaluator.history
    own_us = _simulated_us(kernel, asked, history)
    if own_us is None:
        return None
    others = [
        (us, other)
        for other in candidates_for(asked, kernel.device, history)
        if other.variant.id != kernel.variant.id
        and other.unsupported(run.problem) is None
        and (us := _simulated_us(other, asked, history)) is not None
    ]
    for us, other in sorted(others, key=lambda known: known[0])[:_MAX_RIVALS]:
        executed = _with_few_ctas(other)
        rival = replace(run, problem=_uneven(executed, run.problem))
        if not any(c.differing for c in rival.alone_and_in(batch, executed)[1]):
            return InvariantAlternative(other.describe(), us / own_us, asked.batch)
    return None


def _simulated_us(kernel: Kernel, problem: Problem, history: History) -> float | None:
    try:
        estimate = history.estimate(kernel, problem)
    except AttuneError:
        return None
    found = estimate.latency
    return found.median_us if found is not None and estimate.by_machine_code else None


def cheapest_splits(
    kernels: Iterable[Kernel], problems: Iterable[Problem], history: History
) -> SplitChoice | None:
    """Return the number of splits with the smallest slowdown at its worst batch.

    Returns:
        None unless times of at least two numbers of splits are known.
    """
    times: dict[int, dict[int, float]] = {}
    problems = tuple(problems)
    for kernel in kernels:
        of_batch: dict[int, float] = {}
        for problem in problems:
            if (us := _simulated_us(kernel, problem, history)) is not None:
                of_batch[problem.batch] = us
        if len(of_batch) == len(problems):
            times[kernel.config[SPLITS]] = of_batch
    if len(times) < 2:
        return None
    fastest = {p.batch: min(t[p.batch] for t in times.values()) for p in problems}
    worst = {
        splits: max((us / fastest[batch] - 1.0, batch) for batch, us in of_batch.items())
        for splits, of_batch in times.items()
    }
    chosen = min(worst, key=lambda splits: (worst[splits][0], splits))
    return SplitChoice(chosen, worst[chosen][0], worst[chosen][1])
