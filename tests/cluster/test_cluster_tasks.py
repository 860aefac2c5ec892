"""Distribution of calls over workers, and their results, with made-up workers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from typing import Any

import pytest
from search_data import SMALL
from words import raises

from engine.attention.problem import Problem
from engine.base.errors import ClusterError
from engine.search.cluster import dask_worker as worker
from engine.search.cluster.dask_worker import Description
from engine.search.cluster.executor import MAX_DEATHS, Tasks
from engine.search.cluster.members import Member

OTHER = replace(SMALL, seqlen=256)


class MadeUpClient:
    """A Dask client that takes calls and answers none; it is its own `loop`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, tuple[Any, ...]]] = []
        self.cancelled: list[Any] = []
        self.loop = self

    def send(self, _: Any, address: str, *call: Any) -> Any:
        self.sent.append((address, call))
        return call

    def add_callback(self, *_: Any) -> None:
        """Ignore the callback, as tests give the answers."""

    def cancel(self, sent: list[Any]) -> None:
        self.cancelled += sent


class MadeUpWorkers:
    """Tasks on made-up workers, with a clock that tests advance."""

    def __init__(self) -> None:
        self.client = MadeUpClient()
        self.members: dict[str, Member] = {}
        self.now = 0.0
        self.tasks = Tasks(
            self.client, self.members, {}, clock=lambda: self.now, send=self.client.send
        )

    def join(self, address: str, gpu: str, threads: int = 1) -> None:
        about = Description("node", True, gpu, "L4", "")
        self.members[address] = Member(address, threads, about)

    def leave(self, address: str) -> None:
        del self.members[address]
        self.tasks.worker_died(address)

    def ask(self, name: str, problem: Problem = SMALL, gpu: str | None = None) -> Future[Any]:
        return self.tasks.add((name,), problem, gpu)

    def handed_out(self) -> list[tuple[str, str]]:
        """Return (worker, call) for calls handed out since the last time."""
        self.tasks.hand_out()
        new = [(address, call[0]) for address, call in self.client.sent]
        self.client.sent.clear()
        return new

    def answer(self, address: str) -> None:
        """Answer the first call of a worker."""
        task = self.running(address)
        self.tasks._resolve(task, f"{task.call[0]} done")

    def running(self, address: str) -> Any:
        """Return the first unanswered call of a worker."""
        sent = [t for t in self.tasks._tasks if t.worker == address and not t.answer.done()]
        return min(sent, key=lambda task: task.turn)


@pytest.fixture
def workers() -> MadeUpWorkers:
    return MadeUpWorkers()


def test_a_problem_stays_on_its_gpu(workers: MadeUpWorkers) -> None:
    workers.join("w1", "A")
    workers.join("w2", "B")
    for name, problem in (("a1", SMALL), ("a2", SMALL), ("a3", SMALL), ("b1", OTHER)):
        workers.ask(name, problem)
    assert workers.handed_out() == [("w1", "a1"), ("w1", "a2"), ("w2", "b1")]
    workers.answer("w1")
    assert workers.handed_out() == [("w1", "a3")]


def test_workers_of_one_gpu_share_its_problems(workers: MadeUpWorkers) -> None:
    workers.join("w1", "A")
    workers.join("w2", "A", threads=4)
    answers = [workers.ask(name) for name in ("a1", "a2", "a3", "a4")]
    # One call runs and one waits; if calls may overtake each other, only one is sent.
    assert workers.handed_out() == [("w1", "a1"), ("w1", "a2"), ("w2", "a3")]
    workers.answer("w2")
    assert answers[2].result(0) == "a3 done"
    assert workers.handed_out() == [("w2", "a4")]


def test_only_running_points_are_suspected_of_a_crash(workers: MadeUpWorkers) -> None:
    workers.join("w", "A")
    deadly, innocent = workers.ask("deadly"), workers.ask("innocent")
    for death in range(MAX_DEATHS):
        assert workers.handed_out() == [("w", "deadly"), ("w", "innocent")], death
        workers.leave("w")
        workers.join("w", "A")
    with raises(BrokenExecutor, "workers_died_after", f"{MAX_DEATHS}"):
        deadly.result(0)
    assert workers.handed_out() == [("w", "innocent")]
    workers.answer("w")
    assert innocent.result(0) == "innocent done"
    assert len(workers.client.cancelled) == 2 * MAX_DEATHS - 1


def test_a_late_result_is_ignored(workers: MadeUpWorkers) -> None:
    workers.join("w1", "A")
    answer = workers.ask("a")
    workers.handed_out()
    late = workers.running("w1")
    workers.leave("w1")
    workers.join("w2", "A")
    assert workers.handed_out() == [("w2", "a")]
    workers.answer("w2")
    workers.tasks._resolve(late, "once more")
    assert answer.result(0) == "a done"


def test_without_workers_everything_waits_and_can_be_cancelled(workers: MadeUpWorkers) -> None:
    first, second = workers.ask("a"), workers.ask("b")
    assert workers.handed_out() == []
    workers.now = 1e6
    assert workers.handed_out() == []
    assert second.cancel()
    workers.join("w", "A")
    assert workers.handed_out() == [("w", "a")]
    assert not first.cancel()  # it is already sent
    workers.leave("w")
    assert first.cancel()


def test_a_lost_gpu_is_replaced_after_a_delay(workers: MadeUpWorkers) -> None:
    workers.join("w1", "A")
    workers.ask("a1")
    assert workers.handed_out() == [("w1", "a1")]
    workers.leave("w1")
    workers.join("w2", "B")
    workers.now += 29
    assert workers.handed_out() == []  # the nanny may restart the worker
    workers.now += 2
    assert workers.handed_out() == [("w2", "a1")]


def test_a_final_round_runs_only_on_its_gpu(workers: MadeUpWorkers) -> None:
    workers.join("w1", "A")
    workers.join("w2", "B")
    final = workers.ask("final", gpu="B")
    assert workers.handed_out() == [("w2", "final")]
    workers.leave("w2")
    workers.now += 29
    assert workers.handed_out() == []
    workers.now += 2
    assert workers.handed_out() == []
    with raises(ClusterError, "gpu_left_cluster"):
        final.result(0)


def test_forgotten_tasks_are_resubmitted(workers: MadeUpWorkers) -> None:
    workers.join("w", "A")
    workers.ask("a")
    for again in range(MAX_DEATHS + 1):
        assert workers.handed_out() == [("w", "a")], again
        workers.running("w").take_back()


@pytest.mark.parametrize("give_up", [Tasks.take_back, Tasks.worker_died])
def test_an_idle_worker_is_released(
    workers: MadeUpWorkers, give_up: Callable[[Tasks, str], None]
) -> None:
    give_up(workers.tasks, "never seen")
    assert workers.client.cancelled == []


def test_the_fingerprint_covers_sources() -> None:
    assert worker.fingerprint() != hashlib.sha256().hexdigest()[:16]
