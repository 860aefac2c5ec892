"""Calls that wait for a worker, or run on one: who gets which, and what becomes of them.

Bookkeeping is done by the caller's thread; answers come in on the Dask client's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ClusterError
from engine.problem import Problem
from engine.search.cluster.members import Member, send
from engine.search.cluster.worker import OtherSources, StartsAnew

MAX_DEATHS = 3  # of workers, at one call
_LANE_PATIENCE_S = 30.0  # for a nanny to start a GPU's worker again, before another GPU takes over


class KilledWorkers(BrokenExecutor):
    """A call has taken one worker after another with it."""


class _Answer(Future[Any]):
    """Can be cancelled while its call is not on the cluster, at first or again."""

    is_sent = False

    def cancel(self) -> bool:
        return not self.is_sent and super().cancel()


@dataclass(eq=False, slots=True)
class _Task:
    """One call that somebody waits for."""

    call: tuple[Any, ...]
    problem: Problem
    lane: str | None  # None: the lane of its problem
    answer: _Answer = field(default_factory=_Answer)
    sent: Any = None  # the Dask future, while it is on the cluster
    deaths: int = 0

    def leave(self) -> None:
        """It is not on the cluster any more."""
        self.sent, self.answer.is_sent = None, False


class Tasks:
    """What has been asked for and is not answered yet.

    Args:
        members: by address; the caller keeps it up to date.
        lanes: of problems, from before.
    """

    def __init__(
        self, client: Any, members: Mapping[str, Member], lanes: Mapping[Problem, str]
    ) -> None:
        self._client = client
        self._members = members
        self._waiting: list[_Task] = []
        self._running: dict[str, list[_Task]] = {}  # by worker, in the order they are run there
        self._lanes = dict(lanes)
        self._seen = {lane: time.monotonic() for lane in lanes.values()}  # when it had a worker
        self._settling = threading.Lock()
        self.unfit: dict[str, str] = {}  # workers that turned out to be so, and why

    def add(self, call: tuple[Any, ...], problem: Problem, lane: str | None = None) -> Future[Any]:
        """Have `call[0](*call[1:])` run, on a worker of the problem's lane unless one is named."""
        task = _Task(call, problem, lane)
        self._waiting.append(task)
        return task.answer

    def hand_out(self) -> None:
        """Send what waits to workers that have room."""
        now = time.monotonic()
        self._seen |= {member.lane: now for member in self._members.values()}
        for address, tasks in self._running.items():
            self._running[address] = [t for t in tasks if not t.answer.done()]
        for task in self._waiting[:]:
            if task.answer.done():  # cancelled
                self._waiting.remove(task)
                continue
            lane = self._lane(task, now)
            free = [m for m in self._members.values() if m.lane == lane and self._room(m) > 0]
            if free:
                self._waiting.remove(task)
                self._send(task, max(free, key=self._room))

    def bury(self, address: str) -> None:
        """A worker is gone. What it was evaluating may be why; what waited behind that is not."""
        lost = [t for t in self._running.pop(address, []) if not t.answer.done()]
        for task in lost[:1]:
            task.deaths += 1
            if task.deaths >= MAX_DEATHS:
                self._settle(task, error=_killed(task.deaths))
        self._take_back(lost)

    def recall(self, *addresses: str) -> None:
        """Take everything back from these workers, with no suspicion."""
        self._take_back([t for address in addresses for t in self._running.pop(address, [])])

    def send_again(self) -> None:
        """Take up what the scheduler has forgotten, or a worker would not do."""
        for address, tasks in list(self._running.items()):
            forgotten = [t for t in tasks if t.sent is None and not t.answer.done()]
            self._running[address] = [t for t in tasks if t not in forgotten]
            self._take_back(forgotten)

    def release(self) -> list[Any]:
        """Forget everything; the Dask futures of what is on the cluster."""
        sent = [t.sent for tasks in self._running.values() for t in tasks if t.sent is not None]
        self._waiting.clear()
        self._running.clear()
        return sent

    def _lane(self, task: _Task, now: float) -> str | None:
        """Where the task may run; a lane without workers is waited for, but not for ever."""
        lane = task.lane or self._lanes.get(task.problem)
        if lane is not None and now - self._seen.get(lane, 0.0) < _LANE_PATIENCE_S:
            return lane
        if task.lane is not None:
            self._settle(task, error=ClusterError("its GPU has left the cluster."))
            return None
        load = self._load()
        if not load:
            return None
        self._lanes[task.problem] = min(load, key=lambda name: load[name])
        return self._lanes[task.problem]

    def _load(self) -> dict[str, float]:
        """Of each lane that has workers: calls under way or to come, per worker."""
        workers: dict[str, int] = {}
        for member in self._members.values():
            workers[member.lane] = workers.get(member.lane, 0) + 1
        calls = dict.fromkeys(workers, 0)
        tasks = [*self._waiting, *(t for group in self._running.values() for t in group)]
        for task in tasks:
            lane = task.lane or self._lanes.get(task.problem)
            if lane in calls:
                calls[lane] += 1
        return {lane: calls[lane] / workers[lane] for lane in workers}

    def _room(self, member: Member) -> int:
        """How many calls more the worker may be sent.

        One waits behind the one that runs. Not where there are several threads: which of the two is
        being evaluated could not be told.
        """
        most = 2 if member.threads == 1 else 1
        return most - len(self._running.get(member.address, ()))

    def _send(self, task: _Task, member: Member) -> None:
        task.answer.is_sent = True
        self._running.setdefault(member.address, []).append(task)
        task.sent = send(self._client, member.address, *task.call)
        self._client.loop.add_callback(self._collect, task, task.sent, member.address)

    async def _collect(self, task: _Task, sent: Any, address: str) -> None:
        from distributed import KilledWorker

        try:
            answer = await self._client.gather(sent, asynchronous=True)
        except (CancelledError, StartsAnew):  # by us, or it is to be sent again
            if task.sent is sent:
                task.leave()
        except OtherSources as error:
            self.unfit[address] = str(error)
        except KilledWorker as error:
            self._settle(task, error=_killed(error.allowed_failures + 1))
        except Exception as error:
            self._settle(task, error=error)
        else:
            self._settle(task, answer)

    def _settle(self, task: _Task, answer: Any = None, error: Exception | None = None) -> None:
        """Answer once, whatever comes in later."""
        with self._settling:
            task.leave()
            if task.answer.done():
                return
            if error is not None:
                task.answer.set_exception(error)
            else:
                task.answer.set_result(answer)

    def _take_back(self, tasks: Iterable[_Task]) -> None:
        """To the front of the queue, in their order."""
        again = [t for t in tasks if not t.answer.done()]
        sent = [t.sent for t in again if t.sent is not None]
        for task in again:
            task.leave()
        if sent:
            self._client.cancel(sent)
        self._waiting[:0] = again


def _killed(workers: int) -> KilledWorkers:
    return KilledWorkers(
        f"{workers} workers died one after another while they ran this point (a crash of the "
        "compiler or driver, or out of memory): run it alone to see the log."
    )
