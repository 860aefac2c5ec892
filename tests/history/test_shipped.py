"""Shipped figures belong to the present code, kernels, GPUs and simulator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from shared_builds import own_cache
from words import says

from engine.attention.problem import Problem
from engine.choose.auto import choose
from engine.cli import main
from engine.cuda_source.nvrtc import CompiledKernel, toolchain
from engine.devices import find_device
from engine.history import History, shipped, simulation
from engine.kernel_figures import rung as rungs
from engine.kernel_figures.rung import SHIPPED_GPUS, known_rung, request_of, shapes_of
from engine.model.kernel import Kernel
from kernels.ladder import LADDER
from kernels.variant import Variant

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

SHIPPED = shipped.FOLDER
L4, PROBLEM = find_device("L4"), Problem(1, 8, 1024, 64)
v07 = LADDER.by_id("v07")


@pytest.fixture(autouse=True)
def empty_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Use empty caches, except for C++ libraries."""
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(own_cache(tmp_path / "cache", ["cpu"])))
    yield
    shipped._all.cache_clear()


def missing(gpu: str, problem: Problem, variants: Iterable[Variant] = LADDER) -> list[str]:
    """Return the rungs that can run there and whose figures do not ship."""
    found = [known_rung(v, request_of(v, problem, gpu)) for v in variants]
    found = [rung for rung in found if not rung.why_not]
    return [r.variant.id for r in found if not (r.is_shipped and r.is_simulated and r.counts)]


@pytest.mark.parametrize("gpu", SHIPPED_GPUS)
def test_shipped_figures_belong_to_this_code(gpu: str) -> None:
    """Figures of every rung and of what `auto` compares ship; else: attune variants --renew."""
    path = shipped.path_for(gpu)
    if (made_with := json.loads(path.read_text())["compiler"]) != toolchain().exact_name:
        pytest.skip(f"the figures that ship are of {made_with}")
    assert shipped.read(path) is not None, "run attune variants --renew"
    for head_dim, causal in shapes_of(gpu):
        # Some rungs hold all keys at once and support only few.
        for problem in (
            Problem(3, 8, 1000, head_dim, causal),
            Problem(1, 1, 128, head_dim, causal),
        ):
            assert missing(gpu, problem) == [], "run attune variants --renew"
    assert choose(PROBLEM, find_device(gpu), history=History(work="look up")).is_final


def test_shipped_figures_equal_simulated_ones() -> None:
    problem = Problem(1, 1, 64, 64)
    kernel = Kernel.of(v07, L4, request_of(v07, problem, "L4").config)
    mine, theirs = rungs._figures(kernel, problem), shipped.shipped_figures()
    assert mine.ctas
    assert mine.counts
    for name, fields in asdict(mine).items():
        for key, value in fields.items():
            assert flat(getattr(theirs, name)[key]) == pytest.approx(flat(value), rel=1e-6)


def flat(value: Any) -> list[float]:
    """Return the numbers in it, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for each in value for number in flat(each)]
    return [] if value is None or isinstance(value, str) else [float(value)]


def test_nothing_ships_for_a_source_that_has_changed(tmp_path: Path) -> None:
    def report_of(variant: Variant) -> object:
        kernel = Kernel(variant, tuple(v07.default_config().items()), L4)
        return History(work="look up").with_shipped().report(kernel, kernel.plan(PROBLEM))

    copy = tmp_path / v07.source.name
    for file in (v07.source, *v07.source.parent.glob("*.cuh")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert report_of(replace(v07, source=copy)) is not None
    copy.write_text(f"{copy.read_text()}// Another line.\n")
    assert report_of(replace(v07, source=copy)) is None


def test_nothing_ships_for_another_gpu_or_dtype() -> None:
    assert missing("L4", PROBLEM, [v07]) == []
    assert missing("L40", PROBLEM, [v07]) == ["v07"]
    assert missing("L4", replace(PROBLEM, dtype="bfloat16"), [v07]) == ["v07"]


@pytest.mark.usefixtures("nothing_ships")
def test_a_file_of_another_simulator_or_a_damaged_one_is_not_read() -> None:
    """Each changed copy of the shipped file is alone in the folder of figures."""
    text = (SHIPPED / "L4.json").read_text()
    shipped.FOLDER.mkdir()
    for now, is_read in (
        (text, True),
        (text.replace(shipped.simulator_digest(), "another"), False),
        (text[: len(text) // 2], False),
    ):
        shipped.path_for("L4").write_text(now)
        shipped._all.cache_clear()
        assert missing("L4", PROBLEM, [v07]) == ([] if is_read else ["v07"])


def test_a_kernel_to_be_simulated_is_compiled_despite_a_shipped_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For an L40, the compiler's report for sm_89 ships, but no time."""
    asked: list[object] = []
    monkeypatch.setattr(simulation, "launch_curve", lambda *args: asked.append(args[2]))
    kernel = Kernel.of(v07, find_device("L40"), request_of(v07, PROBLEM, "L40").config)
    history = History().with_shipped()
    report = history.report(kernel, kernel.plan(PROBLEM))
    assert report is not None
    assert not isinstance(report, CompiledKernel)
    history.estimate(kernel, PROBLEM)
    [compiled] = asked
    assert isinstance(compiled, CompiledKernel)
    assert (compiled.key, compiled.entries) == (report.key, report.entries)


def test_a_reworded_comment_changes_no_simulator() -> None:
    python = '"""What it does."""\n\nx = {"#": 1}  # a number\ny = x\n'
    assert shipped.code_of(".py", python) == 'x = {"#": 1} y = x'
    assert shipped.code_of(".h", "int x;  // a number\n/* of\n two */int y;\n") == "int x; int y;"


@pytest.mark.usefixtures("nothing_ships")
def test_shipped_figures_are_renewed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = shipped.ShippedFigures({"a": {"symbols": {}, "entries": {}}}, {"b": {"x": 1.5}}, {})
    monkeypatch.setattr(rungs, "_wanted", lambda device: [(device.name, None)])
    monkeypatch.setattr(rungs, "_figures", lambda *_: made)
    assert main(["variants", "--renew", "--gpu", "L4"]) == 0
    assert "L4" in capsys.readouterr().out
    assert shipped.read(shipped.path_for("L4")) == made
    assert shipped.shipped_figures() == made
    assert main(["variants", "--renew", "--gpu", "A10"]) == 2
    assert says(capsys.readouterr().err, "no_figures_ship", "A10", "L4")
    assert main(["variants", "--renew", "v08"]) == 2
    assert says(capsys.readouterr().err, "renew_makes_all")


def test_shipped_figures_are_not_shown_without_the_points_that_calibrate_them() -> None:
    """A run compiles the point's kernel and calibrates on it: a table that leaves it out would show
    another time."""
    from agreement_cases import Case, evaluation_of
    from made_up_history import Times

    from engine.history.known_time import times_of

    problem, kernel = Problem(4, 8, 512, 64), Kernel.of("v08", L4)
    if not History().doing("look up").with_shipped().estimate(kernel, problem).by_machine_code:
        pytest.skip("the figures that ship are of another compiler")
    other = replace(problem, head_dim=96)  # whose figures do not ship
    timed = evaluation_of(Case("", "v08", problem, "L4"), other, 140.0)
    known = History(Times({"L4": times_of([timed], session="Mine: test data")}))
    looked_up = known.doing("look up").with_shipped()
    made = looked_up.estimate(kernel, problem)
    assert (made.by_machine_code, made.calibrated_on) == (False, 0)
    assert [(p.head_dim, work) for _, p, work in looked_up.missing] == [(96, "compile")]
    request = request_of(kernel.variant, problem, "L4")
    assert not known_rung(kernel.variant, request, known).is_complete
