"""`selfcheck`: its results with and without a GPU, and that each check can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from words import says

from engine.backends.cuda import why_not_cuda
from engine.base.errors import MeasureError, ToolMissing
from engine.cli import main
from engine.pipeline import selfcheck as checks
from engine.pipeline.selfcheck import CheckResult, State, perform, selfcheck

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

ON_THE_GPU = ["launch", "guard zones", "graph timing", "occupancy", "NVML", "SDPA", "A/A floor"]


@pytest.mark.slow
def test_selfcheck_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if why_not_cuda() is None:
        pytest.skip("this machine has a GPU")
    assert main(["selfcheck", "--gpu", "L4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["environment"]["python"]
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert list(states)[-8:] == ["driver", *ON_THE_GPU]
    assert {states[name] for name in ("driver", *ON_THE_GPU)} == {"NOT POSSIBLE HERE"}
    assert {states[name] for name in ("versions", "NVRTC", "CPU backend")} == {"OK"}
    assert all(check["sentence"].endswith(".") for check in report["checks"])


@pytest.mark.gpu
def test_nothing_fails_on_a_gpu() -> None:
    if (why := why_not_cuda()) is not None:
        pytest.skip(why)
    assert [x for x in selfcheck() if x.state is State.FAILED] == []


def test_an_unknown_gpu_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selfcheck", "--gpu", "Wonder 9"]) == 2
    assert says(capsys.readouterr().err, "gpu_unknown", "Wonder 9")


def test_a_failure_is_named_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def results(_: str | None) -> list[CheckResult]:
        return [
            CheckResult("one", State.OK, "Works."),
            CheckResult("two", State.FAILED, "Does not work: " + "mend it " * 20),
        ]

    monkeypatch.setattr("engine.cli.machine.selfcheck", results)
    assert main(["selfcheck"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["one", "OK", "Works."]
    assert lines[-1] == "Failed: two."
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize(
    ("raised", "state"),
    [
        (ToolMissing("There is none: install one."), State.NOT_POSSIBLE),
        (MeasureError("It was too slow."), State.FAILED),
        (RuntimeError("a\nbug"), State.FAILED),
    ],
)
def test_exceptions_of_a_check_are_its_result(raised: Exception, state: State) -> None:
    def check() -> str:
        raise raised

    found = perform("x", check)
    assert found.state is state
    assert "\n" not in found.sentence


def test_a_missing_compiler_is_reported_by_the_selfcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_CXX", "/nonexistent/c++")
    for check in (checks.host_compiler, lambda: checks.cpu_execution(checks._target("L4"))):
        assert perform("x", check).state is State.NOT_POSSIBLE


def test_a_missing_browser_gives_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ATTUNE_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = perform("browser", checks.browser)
    assert found.state is State.NOT_POSSIBLE
    assert "ATTUNE_CHROMIUM" in found.sentence
