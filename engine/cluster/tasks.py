"""Calls that wait for a worker or run on one: which worker gets which, and how each ends.

Dask's own means do not serve here. Its restrictions name a worker by its address, which a nanny's
new process does not keep; resources that a running worker is given wake no task that waits for
them; and a worker that dies makes every task sent to it suspect, the one behind included. So each
call is sent to one worker and deaths are counted here.

Bookkeeping is done by the caller's thread; answers come in on the Dask client's own.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from engine.base.errors import ClusterError
from engine.cluster.members import Member, send
from engine.cluster.worker import SourcesDiffer, WorkerRestarts
from engine.problem import Problem

MAX_DEATHS = 3  # of workers, at one call
_GPU_PATIENCE_S = 30.0  # for a nanny to restart a GPU's worker, before another GPU takes over
_RETRY_S = 1.0  # after a worker refused a call because it restarts


class KilledWorkers(BrokenExecutor):
    """A call has killed one worker after another."""


class _Answer(Future[Any]):
    """Can be cancelled while its call is not on the cluster."""

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
    worker: str = ""  # whose queue it is in; empty while it waits here
    sent: Any = None  # the Dask future, while it is on the cluster
    turn: int = 0  # calls are run by a worker in the order of their turns
    deaths: int = 0

    def take_back(self) -> None:
        """Requeue the task."""
        self.sent, self.answer.is_sent, self.worker = None, False, ""


class Tasks:
    """The calls that are not answered yet, in the order in which they were added.

    Args:
        members: by address; the caller keeps it up to date.
        gpu_of: the GPU of each problem that was measured before.
    """

    def __init__(
        self, client: Any, members: Mapping[str, Member], gpu_of: Mapping[Problem, str]
    ) -> None:
        self._client = client
        self._members = members
        self._tasks: list[_Task] = []
        self._gpu_of = dict(gpu_of)
        self._seen_at = {gpu: time.monotonic() for gpu in gpu_of.values()}  # when it had a worker
        self._turns = itertools.count()
        self._resolving = threading.Lock()
        self.unfit: dict[str, str] = {}  # workers whose sources differ after all, and the sentence

    def add(self, call: tuple[Any, ...], problem: Problem, gpu: str | None = None) -> Future[Any]:
        """Have `call[0](*call[1:])` run by a worker of the problem's GPU, or of this one."""
        task = _Task(call, problem, gpu)
        self._tasks.append(task)
        return task.answer

    def hand_out(self) -> None:
        """Send what waits to workers that have room."""
        now = time.monotonic()
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
        """Take back its calls. The one it was running may be why; those behind that are not."""
        running = [t for t in self._tasks if t.worker == address and not t.answer.done()]
        if running:
            suspect = min(running, key=lambda task: task.turn)
            suspect.deaths += 1
            if suspect.deaths >= MAX_DEATHS:
                self._resolve(suspect, error=_killed(suspect.deaths))
        self.take_back(address)

    def take_back(self, *addresses: str) -> None:
        """Let the calls of these workers wait again."""
        again = [t for t in self._tasks if t.worker in addresses and not t.answer.done()]
        sent = [task.sent for task in again]
        for task in again:
            task.take_back()
        if sent:
            self._client.cancel(sent)

    def release(self) -> list[Any]:
        """Forget everything; returns the Dask futures of what is on the cluster."""
        sent = [task.sent for task in self._tasks if task.sent is not None]
        self._tasks.clear()
        return sent

    def _place(self, task: _Task, now: float) -> str | None:
        """The GPU that the task may run on. One without workers is waited for, but not for ever."""
        gpu = task.gpu or self._gpu_of.get(task.problem)
        if gpu is not None and now - self._seen_at.get(gpu, 0.0) < _GPU_PATIENCE_S:
            return gpu
        if task.gpu is not None:
            self._resolve(task, error=ClusterError("its GPU has left the cluster."))
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
        task.sent = send(self._client, member.address, *task.call)
        self._client.loop.add_callback(self._collect, task, task.sent, member.address)

    async def _collect(self, task: _Task, sent: Any, address: str) -> None:
        from distributed import KilledWorker

        try:
            answer = await self._client.gather(sent, asynchronous=True)
        except (CancelledError, WorkerRestarts) as error:  # taken back, or to be sent again
            if isinstance(error, WorkerRestarts):
                await asyncio.sleep(_RETRY_S)
            if task.sent is sent:
                task.take_back()
        except SourcesDiffer as error:
            self.unfit[address] = str(error)
        except KilledWorker as error:  # the scheduler allows fewer deaths than we do
            self._resolve(task, error=_killed(error.allowed_failures + 1))
        except Exception as error:
            self._resolve(task, error=error)
        else:
            self._resolve(task, answer)

    def _resolve(self, task: _Task, answer: Any = None, error: Exception | None = None) -> None:
        """Answer once; what comes in later changes nothing."""
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
