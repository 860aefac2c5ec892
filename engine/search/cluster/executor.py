"""Run a sweep's evaluations on the workers of a Dask cluster.

All points of a problem run on one GPU, so that its times can be compared; other problems use other
GPUs. If a worker dies, its point is repeated; a point that kills several workers is CRASHED. Each
point gets exactly one row, however often it is evaluated.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engine.attention.problem import Problem
from engine.base.errors import ClusterError, ToolMissing
from engine.history import History
from engine.pipeline.request import EvaluationRequest
from engine.search.autotune import ProblemResult, result_with_final
from engine.search.cluster import dask_worker as worker
from engine.search.cluster.dask_worker import SourcesDiffer, WorkerRestarts
from engine.search.cluster.members import Member, Members, parse_address, send
from engine.search.ranking import SweepRow, by_problem, ranking_origin
from engine.search.sweep.journal import Progress, SweepJournal, SweepSpec
from engine.search.sweep.run import SweepEnd, run_sweep
from kernels.ladder import LADDER

# Calls that are queued or running: their assignment to workers and their results.
#
# Dask's own scheduling does not suffice. Its restrictions name a worker by address, which changes
# when a nanny restarts it; resources added to a running worker do not wake waiting tasks; and when
# a worker dies, all its tasks become suspicious, including queued ones. Therefore each call is sent
# to a specific worker, and deaths are counted here.
#
# The caller's thread does the bookkeeping; answers arrive in the Dask client's thread.

MAX_DEATHS = 3  # of workers during one call
_GPU_PATIENCE_S = 30.0  # time for a nanny to restart a GPU's worker before another GPU is used
_RETRY_S = 1.0  # delay after a worker refused a call because it restarts


class KilledWorkers(BrokenExecutor):
    """A call has killed several workers."""


class _Answer(Future[Any]):
    """A future that can be cancelled while its call is not on the cluster."""

    is_sent = False

    def cancel(self) -> bool:
        return not self.is_sent and super().cancel()


@dataclass(eq=False, slots=True)
class _Task:
    """One call."""

    call: tuple[Any, ...]
    problem: Problem
    gpu: str | None  # None: the GPU of its problem
    answer: _Answer = field(default_factory=_Answer)
    worker: str = ""  # the worker to which it was sent; empty while it is queued here
    sent: Any = None  # the Dask future while it is on the cluster
    turn: int = 0  # a worker runs calls in the order of their turns
    deaths: int = 0

    def take_back(self) -> None:
        """Requeue the task."""
        self.sent, self.answer.is_sent, self.worker = None, False, ""


class Tasks:
    """The unanswered calls, in the order in which they were added.

    Args:
        members: by address; updated by the caller.
        gpu_of: the GPU of each problem that was measured before.
        clock: seconds.
        send: sends a call to a worker.
    """

    def __init__(
        self,
        client: Any,
        members: Mapping[str, Member],
        gpu_of: Mapping[Problem, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        send: Callable[..., Any] = send,
    ) -> None:
        self._client, self._clock, self._send_call = client, clock, send
        self._members = members
        self._tasks: list[_Task] = []
        self._gpu_of = dict(gpu_of)
        self._seen_at = {gpu: clock() for gpu in gpu_of.values()}  # when the GPU last had a worker
        self._turns = itertools.count()
        self._resolving = threading.Lock()
        # Workers whose sources were found to differ, with the reason.
        self.unfit: dict[str, str] = {}

    def add(self, call: tuple[Any, ...], problem: Problem, gpu: str | None = None) -> Future[Any]:
        """Queue `call[0](*call[1:])` for a worker of the problem's GPU, or of the given GPU."""
        task = _Task(call, problem, gpu)
        self._tasks.append(task)
        return task.answer

    def hand_out(self) -> None:
        """Send queued calls to workers with free capacity."""
        now = self._clock()
        self._seen_at |= {member.gpu_key: now for member in self._members.values()}
        self._tasks = [task for task in self._tasks if not task.answer.done()]
        load = Counter(task.worker for task in self._tasks)

        def room(member: Member) -> int:
            return member.max_calls - load[member.address]

        for task in [task for task in self._tasks if not task.worker]:
            gpu = self._place(task, now)
            free = [m for m in self._members.values() if m.gpu_key == gpu and room(m) > 0]
            if free:
                member = max(free, key=room)
                load[member.address] += 1
                self._send(task, member)

    def worker_died(self, address: str) -> None:
        """Requeue the calls of a dead worker; only the running one may have caused its death."""
        running = [t for t in self._tasks if t.worker == address and not t.answer.done()]
        if running:
            suspect = min(running, key=lambda task: task.turn)
            suspect.deaths += 1
            if suspect.deaths >= MAX_DEATHS:
                self._resolve(suspect, error=_killed(suspect.deaths))
        self.take_back(address)

    def take_back(self, *addresses: str) -> None:
        """Requeue the calls of these workers."""
        again = [t for t in self._tasks if t.worker in addresses and not t.answer.done()]
        sent = [task.sent for task in again]
        for task in again:
            task.take_back()
        if sent:
            self._client.cancel(sent)

    def release(self) -> list[Any]:
        """Drop all calls; return the Dask futures of those on the cluster."""
        sent = [task.sent for task in self._tasks if task.sent is not None]
        self._tasks.clear()
        return sent

    def _place(self, task: _Task, now: float) -> str | None:
        """Return the GPU that the task may run on. Wait a limited time for a GPU without
        workers."""
        gpu = task.gpu or self._gpu_of.get(task.problem)
        if gpu is not None and now - self._seen_at.get(gpu, 0.0) < _GPU_PATIENCE_S:
            return gpu
        if task.gpu is not None:
            error = ClusterError("its GPU has left the cluster.", code="gpu_left_cluster")
            self._resolve(task, error=error)
            return None
        workers = Counter(member.gpu_key for member in self._members.values())
        if not workers:
            return None
        calls = Counter(t.gpu or self._gpu_of.get(t.problem) for t in self._tasks)
        self._gpu_of[task.problem] = min(workers, key=lambda key: calls[key] / workers[key])
        return self._gpu_of[task.problem]

    def _send(self, task: _Task, member: Member) -> None:
        task.answer.is_sent = True
        task.worker, task.turn = member.address, next(self._turns)
        task.sent = self._send_call(self._client, member.address, *task.call)
        self._client.loop.add_callback(self._collect, task, task.sent, member.address)

    async def _collect(self, task: _Task, sent: Any, address: str) -> None:
        from distributed import KilledWorker

        try:
            answer = await self._client.gather(sent, asynchronous=True)
        except (CancelledError, WorkerRestarts) as error:  # taken back, or to be repeated
            if isinstance(error, WorkerRestarts):
                await asyncio.sleep(_RETRY_S)
            if task.sent is sent:
                task.take_back()
        except SourcesDiffer as error:
            self.unfit[address] = str(error)
        except KilledWorker as error:  # the scheduler allows fewer deaths
            self._resolve(task, error=_killed(error.allowed_failures + 1))
        except Exception as error:
            self._resolve(task, error=error)
        else:
            self._resolve(task, answer)

    def _resolve(self, task: _Task, answer: Any = None, error: Exception | None = None) -> None:
        """Answer a task once; later answers are ignored."""
        with self._resolving:
            if task.answer.done():
                return
            if error is not None:
                task.answer.set_exception(error)
            else:
                task.answer.set_result(answer)
            task.sent = None


def _killed(workers: int) -> KilledWorkers:
    return KilledWorkers(
        f"{workers} workers died one after another while they ran this point (a crash of the "
        "compiler or driver, or out of memory): run it alone to see the log."
    )


CONNECT_S = 10.0
_DESCRIBE_S = 60.0  # a new worker first imports NumPy and more
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
    """Connect to a scheduler's cluster; cancel running calls at the end.

    Args:
        request: a request like those to be evaluated.
        rows: the sweep's existing rows: a problem stays on the GPU on which it was measured.
        report: called with a sentence when participating or excluded workers change.
        timeout_s: for the scheduler to answer, at first and after a lost connection.

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
            "the machine of every worker.",
            code="distributed_missing",
        ) from error
    if address.startswith("tls:") and not Security().get_connection_args("client")["ssl_context"]:
        raise ClusterError(
            f"{address} needs certificates: name them as distributed.comm.tls in Dask's "
            "configuration, as the scheduler's are.",
            code="scheduler_certificates",
        )
    # A lost scheduler is reported here in a sentence, not by Dask's log.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=timeout_s, set_as_default=False, name="attune-sweep")
    except Exception as error:  # another program may listen there and cause any error
        raise ClusterError(
            f"No Dask scheduler answers at {address} within {timeout_s:g} s: start one with `dask "
            "scheduler`, or correct the address, firewall or tunnel.",
            code="scheduler_silent",
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
    open_history: Callable[[], History] = History,
) -> tuple[SweepEnd, list[ProblemResult]]:
    """Run or continue a sweep and its final round on the cluster. See `run_sweep`.

    Args:
        history: this machine's history; None opens it.
        open_history: a top-level function, called once by each worker.

    Raises:
        ClusterError: the scheduler is lost. The journal is kept and the sweep can be resumed.
    """
    end = run_sweep(
        spec,
        functools.partial(worker.evaluate, worker.fingerprint(), open_history),
        sweep_journal,
        on_progress,
        cluster.watching(should_stop),
        executor=cluster,
        in_flight=cluster.in_flight,
        workers=lambda: cluster.workers,
        problems_at_once=cluster.gpus,
        on_gpu=cluster.measures,
        history=history or open_history(),
    )
    if end == "cancelled":
        return end, []
    ids = {point.id for point in spec.space.points(spec.options)}
    rows = [row for row in sweep_journal.rows.values() if row.point in ids]
    return end, cluster.final_round(rows, should_stop, open_history)


class Cluster(Executor):
    """An executor for `run_sweep`. It makes progress when the function of `watching` is called."""

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
        """Return the number of participating workers."""
        return len(self._members.by_address)

    @property
    def gpus(self) -> int:
        """Return the number of participating GPUs, and hence of problems measured at once."""
        return len({member.gpu_key for member in self._members.by_address.values()}) or 1

    @property
    def measures(self) -> bool:
        """True if evaluations are timed on GPUs."""
        return any(member.about.measures for member in self._members.by_address.values())

    def in_flight(self) -> int:
        """Return how many points to request at once, enough to keep each GPU busy.

        The searches of a problem's variants take turns before those of the next problem.
        """
        ahead = len(LADDER) * self.gpus if self.gpus > 1 else 0
        return max(1, 2 * self.workers) + ahead

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        """Have a worker call `fn(evaluate, request)`, as an executor of `run_sweep`."""
        request: EvaluationRequest = args[-1]
        answer = self._tasks.add((fn, *args), request.problem)
        if self._client.status == "running":
            self._tasks.hand_out()
        return answer

    def watching(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """Wrap `should_stop` so that every call also manages the cluster."""

        def watch_and_ask() -> bool:
            self._watch()
            return should_stop()

        return watch_and_ask

    def final_round(
        self,
        rows: Sequence[SweepRow],
        should_stop: Callable[[], bool] = lambda: False,
        open_history: Callable[[], History] = History,
    ) -> list[ProblemResult]:
        """Return the best of every (GPU, problem), timed side by side on the GPU on which they were
        measured.

        Raises:
            ClusterError: the scheduler is lost.
        """
        groups = by_problem(rows)
        racing: dict[tuple[str, Any], Future[ProblemResult | None]] = {}
        for (name, problem), group in groups.items():
            if ranking_origin(group) != "measured":
                continue
            (gpu,) = {row.measured_on for row in group if row.origin == "measured"}
            if gpu:  # without a recorded GPU, no worker can time them again
                call = (worker.final, open_history, name, group)
                racing[name, problem] = self._tasks.add(call, problem, gpu)
        if racing:
            self._report(
                f"{len(racing)} problems: their best are timed side by side, each on the GPU of "
                "its points."
            )
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
        """Cancel everything queued or running on the cluster."""
        sent = self._tasks.release()
        if sent and self._client.status == "running":
            self._client.cancel(sent)

    def _watch(self) -> None:
        """Track arriving and leaving workers, and send queued calls.

        Raises:
            ClusterError: the scheduler was lost and has not come back in time.
        """
        if self._client.status == "closed":
            raise ClusterError(
                f"The Dask scheduler at {self._address} is gone. Results are kept: start it "
                "again and resume the sweep.",
                code="scheduler_gone",
            )
        if self._client.status != "running":
            self._interrupted = True
            return
        if self._interrupted:  # the scheduler has dropped this client's calls
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
        """Report the number of participating workers if it has changed."""
        if self.workers == 0:
            sentence = f"No worker is left at {self._address}: waiting for one. Results are kept."
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
