"""Sweeps on real Dask workers: killed workers, crashing points, lost schedulers, several GPUs."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_cluster import LocalCluster, wait_for
from made_up_gpu import DEADLY_SEQLEN, LOSING_SEQLEN
from words import raises, says

from engine.attention.problem import Problem
from engine.base.errors import ClusterError, InvalidProblem, Status, ToolMissing
from engine.cli import main
from engine.history.history import predictions
from engine.jobs.manager import JobManager
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest
from engine.search.autotune import ProblemResult
from engine.search.cluster.executor import MAX_DEATHS, Cluster, connect, sweep_on
from engine.search.cluster.members import is_loopback, parse_address
from engine.search.space import Space, SweepOptions
from engine.search.sweep.journal import Progress, SweepJournal, SweepSpec
from engine.search.sweep.run import run_sweep
from engine.software_gpu.process_environment import software_environment

distributed = pytest.importorskip("distributed")

ON_CPU = SweepOptions(gpu="L4", backend="cpu")
TINY = SweepSpec(
    Space(
        ("v01", "v05"),
        tuple(Problem(1, 1, s, 32) for s in (16, 33, 64)),
        {"num_splits": (1, 2), "threads_per_row": (2,), "block_n": (32,)},
    ),
    ON_CPU,
)
POINTS = 9


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield two workers and a scheduler without Attune."""
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as made:
        made.add_worker()
        made.add_worker()
        with client_of(made) as client:
            client.wait_for_workers(2, timeout=60)
        yield made


def client_of(cluster: LocalCluster) -> Any:
    return distributed.Client(cluster.address, set_as_default=False)


def first_request(spec: SweepSpec) -> EvaluationRequest:
    return spec.space.points(spec.options)[0].request


def sweep(
    address: str, spec: SweepSpec, path: Path, **how: Any
) -> tuple[str, list[ProblemResult], list[str]]:
    said: list[str] = []
    book = SweepJournal(path)
    book.poll()
    with connect(address, first_request(spec), book.rows.values(), said.append) as found:
        end, results = sweep_on(found, spec, book, **how)
    return end, results, said


def lines_of(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in path.read_text().splitlines() if line]
    return [event for event in events if event["event"] == "evaluation"]


@pytest.mark.exhaustive
def test_a_killed_worker_costs_no_row(cluster: LocalCluster, tmp_path: Path) -> None:
    """If one of two workers is killed, the rows are those of a sweep in one process."""
    path = tmp_path / "cluster.jsonl"
    with client_of(cluster) as client:
        victim = next(iter(client.run(os.getpid).values()))
    told: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        told.append(progress)
        if progress.done == 2:
            os.kill(victim, signal.SIGKILL)

    end, results, said = sweep(cluster.address, TINY, path, on_progress=on_progress)
    assert end == "finished"
    assert Counter(line["point"] for line in lines_of(path)) == Counter(
        p.id for p in TINY.space.points(ON_CPU)
    )
    assert (told[-1].done, told[-1].total, told[-1].passed) == (POINTS, POINTS, POINTS)
    assert says(said, "workers_at", "1 worker"), said
    assert {line["where"]["host"] for line in lines_of(path)} == {os.uname().nodename}
    assert {line["where"]["gpu"] for line in lines_of(path)} == {""}  # not run on a GPU

    alone = SweepJournal(tmp_path / "alone.jsonl")
    with Evaluator() as evaluator:
        run_sweep(TINY, evaluator.evaluate, alone)
    together = SweepJournal.open(path)
    for point, row in together.rows.items():
        same = alone.rows[point]
        assert (row.status, row.config, row.problem) == (same.status, same.config, same.problem)
        assert row.interval == same.interval
        error, expected = row.result["correctness"], same.result["correctness"]
        assert error["max_abs_err"] == expected["max_abs_err"]
    assert {r.origin for r in results} == {"predicted"}
    kept = [(p.problem, dict(p.config), p.latency.median_us) for p in predictions()]
    for row in together.rows.values():
        assert (row.problem, dict(row.config), row.median_us) in kept


@pytest.mark.slow
@pytest.mark.exhaustive
def test_cancelling_releases_what_is_on_the_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    end, results, _ = sweep(
        cluster.address, TINY, path, should_stop=lambda: path.exists() and len(lines_of(path)) >= 2
    )
    assert (end, results) == ("cancelled", [])
    done = len(lines_of(path))
    assert 2 <= done < POINTS

    def tasks(dask_scheduler: Any) -> list[str]:
        return [key for key in dask_scheduler.tasks if str(key).startswith("attune")]

    with client_of(cluster) as client:
        wait_for(lambda: client.run_on_scheduler(tasks) == [])
    end, _, _ = sweep(cluster.address, TINY, path)
    assert end == "finished"
    assert len(lines_of(path)) == POINTS


@pytest.mark.slow
def test_the_command_line_on_a_cluster(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = str(tmp_path / "s.jsonl")
    argv = ["sweep", "v01", "-S", "16,33", "-D", "32", "--gpu", "L4", "--backend", "cpu"]
    assert main([*argv, "--journal", journal, "--dask", cluster.address]) == 0
    shown = capsys.readouterr()
    assert "4 passed" in shown.out
    assert says(shown.err, "workers_at", cluster.address)
    assert main(["sweep", "--resume", journal, "--dask", cluster.address, "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["resumed"], out["passed"]) == (4, 4)
    assert {row["host"] for row in out["rows"]} == {os.uname().nodename}


@pytest.mark.slow
def test_a_job_on_a_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    manager = JobManager(tmp_path / "jobs")
    try:
        job_id = manager.submit_sweep(TINY, cluster=cluster.address)
        wait_for(lambda: (job := manager.status(job_id)) is not None and job.is_over)
        job = manager.status(job_id)
        assert job is not None
        assert (job.state, job.end) == ("done", "finished"), job.error + job.log
        assert job.cluster == cluster.address
        assert says(job.stage, "workers_at", cluster.address)
        assert job.progress is not None
        assert (job.progress.passed, job.progress.workers) == (POINTS, 2)
        assert len(manager.rows(job_id)) == POINTS
    finally:
        manager.close()


FAKE = "import made_up_gpu\nmade_up_gpu.install()\n"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_several_gpus_are_never_mixed_and_a_deadly_point_is_crashed(tmp_path: Path) -> None:
    """With two GPUs of one model, all points and the final round of a problem use one of them."""
    seqlens = (32, DEADLY_SEQLEN, 64, LOSING_SEQLEN, 128)
    tunables = {"threads_per_row": (4,), "block_n": (64,), "num_splits": (4, 8)}
    problems = tuple(Problem(1, 1, s, 64) for s in seqlens)
    spec = SweepSpec(Space(("v05",), problems, tunables), SweepOptions())
    path = tmp_path / "s.jsonl"
    gpus = ("GPU-0000000a", "GPU-0000000b")
    with LocalCluster(tmp_path) as made:
        for gpu in gpus:
            made.add_worker(preload=FAKE, env={"FAKE_GPU": gpu})
        with client_of(made) as client:
            client.wait_for_workers(2, timeout=60)
        end, results, said = sweep(made.address, spec, path)
    assert end == "finished", made.log()
    rows = SweepJournal.open(path).rows
    assert Counter(line["point"] for line in lines_of(path)) == dict.fromkeys(rows, 1)
    assert len(rows) == spec.space.count()
    (crashed,) = (row for row in rows.values() if row.status is not Status.PASSED)
    assert (crashed.status, crashed.problem.seqlen) == (Status.CRASHED, DEADLY_SEQLEN)
    assert says(crashed.reason, "workers_died_after", f"{MAX_DEATHS}")
    measured_on: dict[int, set[str]] = {}
    for row in rows.values():
        if row.status is Status.PASSED:
            measured_on.setdefault(row.problem.seqlen, set()).add(row.measured_on)
    assert set(measured_on) == set(seqlens)
    assert all(len(found) == 1 for found in measured_on.values())
    assert set.union(*measured_on.values()) == set(gpus)
    assert len(results) == len(measured_on)  # one result for each problem, of one GPU
    for result in results:
        (gpu,) = measured_on[result.problem.seqlen]
        assert gpu in result.device
        assert says(result.reason, "measured_side_by_side")
        assert rows[result.winners[0]].config["num_splits"] == 8
    assert any("2 GPUs" in sentence for sentence in said), said
    assert says(made.log(), "process_can_longer")


@pytest.mark.exhaustive
def test_two_gpus_in_software_share_a_sweep_and_one_dies_in_mid_launch(tmp_path: Path) -> None:
    """Without measured times points are ranked by predicted ones, separately for each GPU model."""
    problems = tuple(Problem(1, 2, s, 32) for s in (65, 129, 193, 257))
    space = Space(("v02",), problems, {"block_n": (32, 64)})
    spec = SweepSpec(space, SweepOptions(backend="cuda"))
    path = tmp_path / "s.jsonl"
    with LocalCluster(tmp_path) as made:
        try:
            gpus = software_environment(made.environment, "L4,H200")
        except ToolMissing as missing:
            pytest.skip(str(missing))
        for number in "01":
            made.add_worker(env=gpus | {"CUDA_VISIBLE_DEVICES": number})
        with client_of(made) as client:
            client.wait_for_workers(2, timeout=60)
            processes = list(client.run(os.getpid).values())

        def kill_one(progress: Progress) -> None:
            if progress.done == 2 and processes:
                os.kill(processes.pop(), signal.SIGKILL)

        end, results, said = sweep(made.address, spec, path, on_progress=kill_one)
    assert end == "finished", made.log()
    rows = SweepJournal.open(path).rows
    assert Counter(line["point"] for line in lines_of(path)) == dict.fromkeys(rows, 1)
    assert len(rows) == spec.space.count()
    assert {row.status for row in rows.values()} == {Status.PASSED}
    assert any("2 GPUs" in sentence for sentence in said), said
    where: dict[int, set[str]] = {problem.seqlen: set() for problem in problems}
    for line in lines_of(path):
        where[rows[line["point"]].problem.seqlen].add(line["where"]["gpu"])
    assert all(len(found) == 1 for found in where.values()), where
    assert len(set.union(*where.values())) == 2, where
    assert {result.origin for result in results} == {"predicted"}
    assert '"measured"' not in path.read_text()


OTHER_SOURCES = """
from engine.search.cluster import dask_worker as worker
worker.fingerprint = lambda: "0123456789abcdef"
"""


@pytest.mark.slow
def test_excluded_workers_are_reported_with_reason(tmp_path: Path) -> None:
    request = first_request(TINY)
    with LocalCluster(tmp_path) as made:
        with raises(ClusterError, "scheduler_without_workers"):
            _use(made.address, request)
        made.add_worker(nanny=False, preload=OTHER_SOURCES)
        made.add_worker(nanny=False, attune=False)
        with client_of(made) as client:
            client.wait_for_workers(2, timeout=60)
        with pytest.raises(ClusterError) as refused:
            _use(made.address, request)
        assert "(0123456789abcdef there," in str(refused.value)
        assert says(str(refused.value), "sources_not_mixed")
        assert says(str(refused.value), "no_attune_of")
        # One suitable worker is enough; the others are left out.
        made.add_worker(nanny=False)
        with client_of(made) as client:
            client.wait_for_workers(3, timeout=60)
        said: list[str] = []
        with connect(made.address, request, report=said.append) as found:
            assert found.workers == 1
        assert sum(says(sentence, "left_out") for sentence in said) == 2


@pytest.mark.exhaustive
def test_a_sweep_waits_until_a_worker_joins(tmp_path: Path) -> None:
    """If the only worker dies, the sweep waits for another, which evaluates its point."""
    path = tmp_path / "s.jsonl"
    said: list[str] = []
    with LocalCluster(tmp_path) as made:
        made.add_worker(nanny=False)
        with client_of(made) as client:
            client.wait_for_workers(1, timeout=60)
            (only,) = client.run(os.getpid).values()

        def say(sentence: str) -> None:
            said.append(sentence)
            if says(sentence, "no_worker_left"):
                made.add_worker(nanny=False)

        def on_progress(progress: Progress) -> None:
            if progress.done == 2:
                os.kill(only, signal.SIGKILL)

        book = SweepJournal(path)
        with connect(made.address, first_request(TINY), report=say) as found:
            end, _ = sweep_on(found, TINY, book, on_progress)
    assert end == "finished"
    first, second, third = said
    assert says(first, "workers_at", "1 worker")
    assert says(second, "no_worker_left")
    assert says(third, "workers_at", "1 worker")
    assert Counter(line["point"] for line in lines_of(path)) == dict.fromkeys(book.rows, 1)
    assert [row.status for row in book.rows.values()] == [Status.PASSED] * POINTS


@pytest.mark.exhaustive
def test_a_lost_scheduler_ends_the_sweep_without_losing_rows(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    said: list[str] = []
    book = SweepJournal(path)
    with LocalCluster(tmp_path) as made:
        made.add_worker(nanny=False)
        with client_of(made) as client:
            client.wait_for_workers(1, timeout=60)

        def on_progress(progress: Progress) -> None:
            if progress.done == 2:
                made.scheduler.kill()

        with (
            raises(ClusterError, "scheduler_gone"),
            connect(made.address, first_request(TINY), report=said.append, timeout_s=1.0) as found,
        ):
            sweep_on(found, TINY, book, on_progress)
    kept = SweepJournal.open(path).rows
    assert 2 <= len(kept) < POINTS
    with Evaluator() as evaluator:
        again = SweepJournal.open(path)
        run_sweep(TINY, evaluator.evaluate, again)
    assert Counter(line["point"] for line in lines_of(path)) == dict.fromkeys(again.rows, 1)
    assert len(again.rows) == POINTS
    assert all(again.rows[point] == row for point, row in kept.items())


def _use(address: str, request: EvaluationRequest, timeout_s: float = 10.0) -> Cluster:
    with connect(address, request, timeout_s=timeout_s) as found:
        return found


def test_no_scheduler_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with raises(ClusterError, "scheduler_silent", "tcp://"):
        _use(f"127.0.0.1:{port}", first_request(TINY), timeout_s=0.5)


def test_encryption_needs_certificates() -> None:
    with raises(ClusterError, "scheduler_certificates"):
        _use("tls://127.0.0.1:8786", first_request(TINY))


def test_missing_distributed_gives_installation_instructions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with raises(ToolMissing, "distributed_missing"):
        _use("tcp://127.0.0.1:8786", first_request(TINY))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://gpu-box:8786", "tcp://gpu-box:8786"),
        (" 10.0.0.1:8786 ", "tcp://10.0.0.1:8786"),
        ("tls://[::1]:8786", "tls://[::1]:8786"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "gpu-box", "tcp://", "tcp://gpu-box", "tcp://h:x", "tcp://h:0", "tcp://h:99999"),
        *("http://h:8786", "inproc://h:1", "tcp://h:1/x", "tcp://a b:1", "tcp://me@h:1"),
        "tcp://[h:1",
    ],
)
def test_invalid_addresses(text: str) -> None:
    with raises(InvalidProblem, "scheduler_address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        *(("localhost:8786", True), ("tls://127.0.0.1:1", True), ("[::1]:1", True)),
        *(("gpu-box:1", False), ("127.0.0.1.evil.example:1", False), ("tcp://0.0.0.0:1", False)),
    ],
)
def test_addresses_of_this_machine(text: str, alone: bool) -> None:
    assert is_loopback(text) is alone
