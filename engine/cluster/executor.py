"""Evaluations of a sweep on the workers of a Dask cluster.

All points of a problem go to one GPU, so that its times can be compared; other problems go to
others. A worker that dies with a point costs a repetition; a point that kills several is CRASHED.
However often a point is evaluated, it is answered once: no row is lost or made twice.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from typing import Any

from engine.base.errors import ClusterError, ToolMissing
from engine.cluster import worker
from engine.cluster.members import Members, parse_address
from engine.cluster.tasks import Tasks
from engine.history import History
from engine.pipeline.request import EvaluationRequest
from engine.search.autotune import ProblemResult, result_with_final
from engine.search.ranking import SweepRow, by_problem, ranking_origin
from engine.search.sweep.journal import Progress, SweepJournal, SweepSpec
from engine.search.sweep.run import SweepEnd, run_sweep
from kernels.ladder import LADDER

CONNECT_S = 10.0
_DESCRIBE_S = 60.0  # a worker that has just started imports NumPy and more
_REFRESH_S = 1.0
_POLL_S = 0.1


@contextmanager
def connect(
    address: str,
    request: EvaluationRequest,
    rows: Iterable[SweepRow] = (),
    report: Callable[[str], None] = lambda _: None,
    timeout_s: float = CONNECT_S,
) -> Iterator[Cluster]:
    """Connect to the cluster of a scheduler; what is under way at the end is cancelled.

    Args:
        request: one like those that will be evaluated.
        rows: that the sweep has already: a problem stays on the GPU it was measured on.
        report: gets a sentence whenever the workers that take part, or are left out, change.
        timeout_s: for the scheduler to answer, now and when the connection is lost.

    Raises:
        ToolMissing: distributed is not installed.
        InvalidProblem: not an address.
        ClusterError: the scheduler is unreachable, or no worker can take part.
    """
    address = parse_address(address)
    try:
        from distributed import Client, Security
    except ImportError as error:
        raise ToolMissing(
            "A sweep on a cluster needs distributed: pip install 'attune[cluster]', here and on "
            "the machine of every worker."
        ) from error
    if address.startswith("tls:") and not Security().get_connection_args("client")["ssl_context"]:
        raise ClusterError(
            f"{address} needs certificates: name them as distributed.comm.tls in Dask's "
            "configuration, as the scheduler's are."
        )
    # What it logs about a lost scheduler is reported here, in a sentence.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=timeout_s, set_as_default=False, name="attune-sweep")
    except Exception as error:  # another program may listen there: it fails in many ways
        raise ClusterError(
            f"No Dask scheduler answers at {address} within {timeout_s:g} s: start one with `dask "
            "scheduler`, or correct the address, firewall or tunnel."
        ) from error
    try:
        members = Members(client, address, request, report)
        members.wait_for_first(_DESCRIBE_S)
        cluster = Cluster(client, address, members, rows, report)
        try:
            yield cluster
        finally:
            cluster.release()
    finally:
        client.close()


def sweep_on(
    cluster: Cluster,
    spec: SweepSpec,
    sweep_journal: SweepJournal,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    history: History | None = None,
) -> tuple[SweepEnd, list[ProblemResult]]:
    """Run a sweep, or go on with it, and its finals, on the cluster. See `run_sweep`.

    Raises:
        ClusterError: the scheduler is gone; what the journal holds stays, and can be gone on with.
    """
    end = run_sweep(
        spec,
        functools.partial(worker.evaluate, worker.fingerprint()),
        sweep_journal,
        on_progress,
        cluster.watching(should_stop),
        executor=cluster,
        in_flight=cluster.in_flight,
        workers=lambda: cluster.workers,
        problems_at_once=cluster.gpus,
        on_gpu=cluster.measures,
        history=history,
    )
    if end == "cancelled":
        return end, []
    ids = {point.id for point in spec.space.points(spec.options)}
    rows = [row for row in sweep_journal.rows.values() if row.point in ids]
    return end, cluster.finals(rows, should_stop)


class Cluster(Executor):
    """An executor for `run_sweep`. It works while the function of `watching` is called."""

    def __init__(
        self,
        client: Any,
        address: str,
        members: Members,
        rows: Iterable[SweepRow],
        report: Callable[[str], None],
    ) -> None:
        self._client = client
        self._address = address
        self._members = members
        self._report = report
        gpu_of = {row.problem: row.measured_on for row in rows if row.measured_on}
        self._tasks = Tasks(client, members.by_address, gpu_of)
        self._next_refresh = 0.0
        self._interrupted = False
        self._last_report = ""
        self._report_workers()

    @property
    def workers(self) -> int:
        """How many take part now."""
        return len(self._members.by_address)

    @property
    def gpus(self) -> int:
        """GPUs that take part: so many problems can be measured at once."""
        return len({member.gpu_key for member in self._members.by_address.values()}) or 1

    @property
    def measures(self) -> bool:
        """Whether evaluations are timed on GPUs."""
        return any(member.about.measures for member in self._members.by_address.values())

    def in_flight(self) -> int:
        """How many points to ask for at once: enough of several problems to keep each GPU busy.

        The searches of a problem's variants take turns before those of the next problem.
        """
        ahead = len(LADDER) * self.gpus if self.gpus > 1 else 0
        return max(1, 2 * self.workers) + ahead

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        """Have a worker call `fn(evaluate, request)`, as `run_sweep` wants it."""
        request: EvaluationRequest = args[-1]
        answer = self._tasks.add((fn, *args), request.problem)
        if self._client.status == "running":
            self._tasks.hand_out()
        return answer

    def watching(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """`should_stop` that looks after the cluster at every call."""

        def watch_and_ask() -> bool:
            self._watch()
            return should_stop()

        return watch_and_ask

    def finals(
        self,
        rows: Sequence[SweepRow],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[ProblemResult]:
        """The best of every (GPU, problem); measured ones timed side by side on that very GPU.

        Raises:
            ClusterError: the scheduler is gone.
        """
        groups = by_problem(rows)
        racing: dict[tuple[str, Any], Future[ProblemResult | None]] = {}
        for (name, problem), group in groups.items():
            if ranking_origin(group) != "measured":
                continue
            (gpu,) = {row.measured_on for row in group if row.origin == "measured"}
            if gpu:  # where it was not recorded, no worker can time them again
                call = (worker.final, name, group)
                racing[name, problem] = self._tasks.add(call, problem, gpu)
        if racing:
            self._report(f"{len(racing)} finals, each on the GPU that its points were measured on.")
        stop = self.watching(should_stop)
        while wait(racing.values(), timeout=_POLL_S, return_when=FIRST_COMPLETED).not_done:
            if stop():
                return []
        results = []
        for (name, problem), group in groups.items():
            race = racing.get((name, problem))
            results.append(result_with_final(name, group, race.result if race else None))
        return [result for result in results if result is not None]

    def release(self) -> None:
        """Cancel everything that waits or runs on the cluster."""
        sent = self._tasks.release()
        if sent and self._client.status == "running":
            self._client.cancel(sent)

    def _watch(self) -> None:
        """Follow the workers that come and go, and hand out what waits.

        Raises:
            ClusterError: the scheduler is gone and has not come back in time.
        """
        if self._client.status == "closed":
            raise ClusterError(
                f"The Dask scheduler at {self._address} is gone. What is evaluated is kept: start "
                "it again and resume the sweep."
            )
        if self._client.status != "running":
            self._interrupted = True
            return
        if self._interrupted:  # the scheduler has dropped what this client had asked for
            self._interrupted = False
            self._tasks.take_back(*self._members.by_address)
        while self._tasks.unfit:
            address, why = self._tasks.unfit.popitem()
            self._members.leave_out(address, why)
            self._tasks.take_back(address)
        if time.monotonic() >= self._next_refresh:
            for address in self._members.refresh():
                self._tasks.worker_died(address)
            self._next_refresh = time.monotonic() + _REFRESH_S
            self._report_workers()
        self._tasks.hand_out()

    def _report_workers(self) -> None:
        """Report how many take part when that has changed."""
        if self.workers == 0:
            sentence = (
                f"No worker is left at {self._address}: waiting for one to come. What is evaluated "
                "is kept."
            )
        else:
            several = self.measures and self.gpus > 1
            sentence = f"{self.workers} worker{'s' if self.workers > 1 else ''} at {self._address}"
            sentence += (
                f" on {self.gpus} GPUs; each problem is measured on one of them, so that its "
                "times can be compared."
                if several
                else "."
            )
        if sentence != self._last_report:
            self._last_report = sentence
            self._report(sentence)
