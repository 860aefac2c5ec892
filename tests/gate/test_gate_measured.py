"""`gate --measure`: both versions timed by the sampler on a made-up GPU; and without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from software_nvml import SoftwareNvml, described

from engine.attention.evaluation import Correctness
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import Inputs
from engine.cli import main
from engine.gate import judge
from engine.gate.running import measure_pair
from engine.gate.trees import open_tree, working_tree
from engine.model.kernel import Kernel
from engine.pipeline.evaluate import Evaluator
from engine.versions.figures import GateVerdict, measured_finding, variant_of
from tests.gate.repositories import edit, kernel_file, repository
from tests.pipeline.test_evaluate_cuda import MadeUpCuda, MadeUpTimer
from tests.words import says

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

PROBLEM = Problem(1, 2, 128, 64)
SLOWER = ("unroll 4", "unroll 1")


class Timer(MadeUpTimer):
    def __init__(self, us: float) -> None:
        super().__init__()
        self._us = us

    def graph(self, launches: int, copies: int) -> Any:
        sample = super().graph(launches, copies)
        return lambda: sample() * self._us / 5.0

    def once_us(self) -> float:
        return self._us


class Gpu(MadeUpCuda):
    """A GPU on which dependent loads take 6 µs instead of 5."""

    @contextmanager
    def timer(
        self, plan: LaunchPlan, inputs: Inputs, correctness: Correctness
    ) -> Iterator[MadeUpTimer]:
        assert correctness.passed
        assert inputs.problem == plan.problem
        yield Timer(6.0 if SLOWER[1] in plan.source.read_text() else 5.0)


@pytest.fixture
def gpu(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    set_local_gpu: Callable[..., None],
    software_nvml: SoftwareNvml,
) -> Iterator[Evaluator]:
    monkeypatch.setenv("ATTUNE_LOCK_DIR", str(tmp_path / "locks"))
    set_local_gpu()
    software_nvml.has(described("L4"))
    with Evaluator(backends={"cuda": Gpu()}) as made:
        yield made


def kernel_of(folder: Path) -> Kernel:
    return Kernel.of(variant_of(kernel_file(folder, "v08")), "L4")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = repository(tmp_path / "r", "v08")
    edit(kernel_file(folder, "v08"), SLOWER)
    return folder


@pytest.mark.slow
def test_both_versions_are_timed_in_one_run(
    repo: Path, tmp_path: Path, gpu: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_tree("HEAD", repo, tmp_path / "base")
    sides = kernel_of(before.root), kernel_of(repo)
    slower = measure_pair(*sides, PROBLEM, gpu)
    found = measured_finding(slower)
    assert (str(found.verdict), found.is_regression) == (GateVerdict.MEASURED_SLOWER, True)
    assert "20." in found.what or "19." in found.what
    faster = measured_finding(measure_pair(*sides[::-1], PROBLEM, gpu))
    assert (str(faster.verdict), faster.is_regression) == (GateVerdict.MEASURED_FASTER, False)
    same = measured_finding(measure_pair(sides[0], sides[0], PROBLEM, gpu))
    assert same.verdict is GateVerdict.MEASURED_SAME

    # In the whole run the measured verdict replaces the simulated one.
    monkeypatch.setenv("ATTUNE_KERNELS", "")
    report = judge.judge(before, working_tree(repo), measure=True, evaluator=gpu)
    verdicts = {str(f.verdict) for *_, f in report.verdicts}
    assert GateVerdict.MEASURED_SLOWER in verdicts
    assert not verdicts & {GateVerdict.SIMULATED_SLOWER, GateVerdict.SIMULATED_FASTER}
    assert report.exit_code == 1
    assert any(says(remark, "measured_on_this") for remark in report.remarks)


def test_a_wrong_kernel_is_not_timed(repo: Path, gpu: Evaluator) -> None:
    class Untimed(Gpu):
        def timer(self, *_: object) -> Any:
            pytest.fail("it was timed")

    edit(kernel_file(repo, "v08"), ("row_sum(", "row_sum((("))
    kernel = kernel_of(repo)
    with Evaluator(gpu.history, {"cuda": Untimed()}) as untimed:
        found = measured_finding(measure_pair(kernel, kernel, PROBLEM, untimed))
    assert found.verdict is GateVerdict.NOT_JUDGED
    assert "COMPILE_ERROR" in found.what


@pytest.mark.parametrize(
    ("why", "name", "said"),
    [
        ("No GPU here.", "", "No GPU here."),
        (None, "software L4", "a software GPU"),
    ],
)
def test_without_a_gpu_that_can_be_measured(
    repo: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    set_local_gpu: Callable[..., None],
    why: str | None,
    name: str,
    said: str,
) -> None:
    set_local_gpu(why, name=name)
    monkeypatch.chdir(repo)
    assert main(["gate", "HEAD", "--measure"]) == 3
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("error: --measure takes times on a GPU of this machine: ")
    assert said in out.err
    assert len(out.err.splitlines()) == 1
