"""Kernels of other compilers: a cubin with a description is checked like a source."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from words import raises, says

import engine as attune
from app.tune.machine_code.frames import hottest
from engine.attention.config import VARIABLE, find_variant
from engine.attention.evaluation import Evaluation
from engine.attention.plan import make_plan, resources
from engine.attention.problem import Problem
from engine.backends.cuda import why_not_cuda
from engine.base.errors import InvalidBuild, InvalidCubin, InvalidKernel, Status
from engine.cli import main
from engine.cuda_source import compile_kernel
from engine.gate.trees import find_kernels, open_trees
from engine.history import History
from engine.machine_code.cubin_files import choose_cubin
from engine.model.kernel import compile_plan, variant_sources
from engine.own_kernels.registry import check_kernel, register_kernel
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest, target_device
from engine.pipeline.simulated_launches import read_machine_code
from engine.pipeline.trial import try_kernel, why_arguments_differ
from engine.sessions.rerun import foreign_sources, plan_rerun
from engine.sessions.session import make_snapshot, sources_of
from engine.sessions.snapshot import Environment
from kernels.description import read_own

SOURCE = Path(__file__).with_name("kernels") / "float_rows.cu"
MACROS = (("CAUSAL", "0"), ("HEAD_DIM", "64"))
PROBLEM = Problem(1, 2, 37, 64, dtype="float32")
BLOCK = """/* attune
cubin = ["rows_80.cubin", "rows_89.cubin"]
head_dims = [64]
dtypes = ["float32"]
work = {math_unit = "fma"}
[[passes]]
entry = "attention_rows"
grid = "batch * num_heads * ceil_div(seqlen, 64)"
threads = 64
args = ["q", "k", "v", "out", "num_heads", "seqlen"]
*/
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the description of a kernel compiled for two archs; the data folder is empty."""
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv(VARIABLE, "")
    for number in (80, 89):
        write_cubin(tmp_path / f"rows_{number}.cubin", f"sm_{number}")
    path = tmp_path / "rows.cu"
    path.write_text(BLOCK, encoding="utf-8")
    return path


def write_cubin(path: Path, arch: str, source: Path = SOURCE) -> None:
    path.write_bytes(compile_kernel(source, MACROS, arch, ("attention_rows",)).cubin)


def write_wrong_cubin(path: Path) -> None:
    """Write a cubin of the kernel without its last division."""
    source = path.with_name("wrong_source.cu")
    text = SOURCE.read_text(encoding="utf-8")
    source.write_text(text.replace("acc[d] / l", "acc[d]"), encoding="utf-8")
    write_cubin(path, "sm_89", source)


def evaluate(path: Path, gpu: str | None = "L4", **wanted: object) -> Evaluation:
    request = EvaluationRequest(variant=register_kernel(path).id, problem=PROBLEM, gpu=gpu)
    with Evaluator(History()) as evaluator:
        return evaluator.evaluate(dataclasses.replace(request, **wanted)).evaluation


def test_a_cubin_is_checked_counted_and_timed(kernel: Path) -> None:
    found = evaluate(kernel)
    assert (found.status, found.passes[0].resources.arch) == (Status.PASSED, "sm_89"), found.reason
    assert found.execution is not None
    assert found.execution.backend == "machine-code"
    assert found.latency is not None
    assert found.latency.is_simulated
    assert found.counts is not None
    # The compiler's report of the same source agrees.
    plan = make_plan(read_own(SOURCE), PROBLEM, {})
    (ours,) = resources(plan, compile_plan(plan, "sm_89"))
    assert found.passes[0].resources == ours


def test_a_cubin_is_checked_without_naming_a_gpu(kernel: Path) -> None:
    assert evaluate(kernel, gpu=None).status is Status.PASSED


def test_wrong_machine_code_is_incorrect(kernel: Path) -> None:
    write_wrong_cubin(kernel.with_name("rows_89.cubin"))
    found = evaluate(kernel)
    assert found.status is Status.INCORRECT
    assert not says(found.reason, "host_build")  # a cubin has no host build
    variant = check_kernel(kernel)
    assert why_arguments_differ(make_plan(variant, PROBLEM, {}), ()) == ""
    assert try_kernel(variant, "sm_89").sentence.startswith("INCORRECT")
    assert try_kernel(variant, "sm_80").passed


@pytest.mark.parametrize(
    ("gpu", "wanted", "status", "name", "facts"),
    [
        ("A10", {}, Status.PASSED, "", ()),  # sm_86 runs code of sm_80
        ("T4", {}, Status.SKIPPED, "cubin_of_other_arch", ("sm_75",)),
        (
            "H100",
            {},
            Status.SKIPPED,
            "cubin_of_other_arch",
            ("rows_80.cubin for sm_80", "rows_89.cubin for sm_89"),
        ),
        ("L4", {"backend": "cpu"}, Status.LAUNCH_ERROR, "leave_backend_out", ()),
        ("L4", {"check": True}, Status.PASSED, "", ()),
    ],
)
def test_each_gpu_gets_its_file(
    kernel: Path,
    gpu: str,
    wanted: dict[str, object],
    status: Status,
    name: str,
    facts: tuple[str, ...],
) -> None:
    found = evaluate(kernel, gpu, **wanted)
    assert found.status is status, found.reason
    assert not name or says(found.reason, name, *facts)
    if gpu == "A10":
        assert found.passes[0].resources.arch == "sm_80"


@pytest.mark.parametrize(
    ("old", "new", "name", "facts"),
    [
        ('"attention_rows"', '"attention_row"', "entry_unknown", ["'attention_row'"]),
        (', "seqlen"]', "]", "entry_arguments", ["6"]),
        (
            '"seqlen"]',
            '{name = "seqlen", ctype = "int64"}]',
            "entry_argument_bytes",
            ["4 bytes", "not 8"],
        ),
    ],
)
def test_a_launch_that_the_code_does_not_support(
    kernel: Path, old: str, new: str, name: str, facts: list[str]
) -> None:
    kernel.write_text(BLOCK.replace(old, new), encoding="utf-8")
    found = evaluate(kernel)
    assert found.status is Status.COMPILE_ERROR
    assert found.reason.startswith("rows_89.cubin: ")
    assert says(found.reason, name, *facts)


@pytest.mark.parametrize(
    ("attribute", "name", "facts"),
    [
        ("__launch_bounds__(64)", "cta_threads_of_code", ["64", "128"]),
        ("__block_size__((64, 1, 1))", "cta_block_of_code", ["(64, 1, 1)", "(128, 1, 1)"]),
    ],
)
def test_other_threads_than_the_code_was_compiled_for(
    kernel: Path, attribute: str, name: str, facts: list[str]
) -> None:
    source = kernel.with_name("bounded.cu")
    text = SOURCE.read_text(encoding="utf-8")
    source.write_text(text.replace("__global__ void", f"__global__ void {attribute}"), "utf-8")
    write_cubin(kernel.with_name("rows_89.cubin"), "sm_90", source)
    kernel.write_text(BLOCK.replace("threads = 64", "threads = 128"), encoding="utf-8")
    found = evaluate(kernel, "H100")
    assert found.status is Status.COMPILE_ERROR
    assert says(found.reason, name, *facts)


def test_files_without_machine_code(kernel: Path) -> None:
    cubin = kernel.with_name("rows_89.cubin")
    whole = cubin.read_bytes()
    for data in (b"", b"text", whole[: len(whole) // 2]):
        cubin.write_bytes(data)
        with raises(InvalidCubin, "cubin_file_damaged", "rows_89.cubin: "):
            choose_cubin([cubin], "sm_89")
        found = evaluate(kernel)
        assert (found.status, found.reason.count("rows_89.cubin")) == (Status.COMPILE_ERROR, 1)
    plan = make_plan(check_kernel(kernel), PROBLEM, {})
    cubin.unlink()
    with raises(InvalidCubin, "cubin_file_unreadable", "rows_89.cubin"):
        compile_plan(plan, "sm_89")
    with raises(InvalidKernel, "cubin_file_missing", "rows.cu:2: cubin: "):
        check_kernel(kernel)
    with raises(InvalidBuild, "cubin_of_other_arch", "sm_75"):
        choose_cubin([kernel.with_name("rows_80.cubin")], "sm_75")


@pytest.mark.parametrize("line", ["cubin = 3", "cubin = [3]", 'cubin = ""'])
def test_descriptions_with_a_mistake(kernel: Path, line: str) -> None:
    kernel.write_text(re.sub(r"(?m)^cubin = .*$", line, BLOCK), encoding="utf-8")
    with raises(InvalidKernel, "cubin_name_form", "rows.cu:2: cubin: "):
        check_kernel(kernel)
    both = BLOCK.replace("work =", 'std = "c++20"\nwork =')
    kernel.write_text(both, encoding="utf-8")
    with raises(InvalidKernel, "cubin_is_compiled", "std: "):
        check_kernel(kernel)


def test_another_file_is_another_source(kernel: Path) -> None:
    """Results of the old machine code are not used for the new one."""
    before = evaluate(kernel)
    variant = find_variant("rows")
    (source,) = sources_of(before)
    assert source.sha256 == before.source_sha256
    assert source.text.startswith(BLOCK)
    environment = Environment()
    snapshot = make_snapshot([before], title="t", environment=environment, sources=[source])
    repeats = plan_rerun(snapshot)
    assert foreign_sources(snapshot, repeats) == []
    write_wrong_cubin(kernel.with_name("rows_89.cubin"))
    assert variant_sources(variant).source_sha256 != before.source_sha256
    assert sources_of(before) == []
    assert [s.name for s in foreign_sources(snapshot, repeats)] == ["rows.cu"]


@pytest.mark.slow
def test_a_description_is_drafted_from_machine_code(
    kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cubin = kernel.with_name("rows_89.cubin")
    assert main(["evaluate", str(cubin)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert says(printed.err, "cubin_without_description", "rows_89.cubin")
    assert "\ncausal = [false]  # or [true]" in printed.err + printed.out
    assert printed.err.count("\n") == 1
    pasted = kernel.with_name("rows_89.cu")
    text = printed.out.replace('"float16"', '"float32"').replace("threads = 128", "threads = 64")
    text = re.sub(r"(?m)^grid = \[.*\]", 'grid = "2 * ceil_div(seqlen, 64)"', text)
    # Both numbers have 4 bytes: a person has to assign them.
    text = text.replace('"seqlen",', '"num_heads",').replace('"softmax_scale"', '"seqlen"')
    pasted.write_text(text, encoding="utf-8")
    sizes = "-H 2 -S 37 --dtype fp32 --gpu L4 --json".split()
    assert main(["evaluate", str(cubin), *sizes]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "PASSED"
    os.environ.pop(VARIABLE)


def test_the_gate_reports_a_changed_cubin(kernel: Path, tmp_path: Path) -> None:
    sides = []
    for name in ("before", "after"):
        folder = tmp_path / name
        folder.mkdir()
        for file in (kernel, *kernel.parent.glob("rows_*.cubin")):
            (folder / file.name).write_bytes(file.read_bytes())
        sides.append(folder)
    write_wrong_cubin(sides[1] / "rows_89.cubin")
    with open_trees("before", "after", tmp_path) as trees:
        before, after = (find_kernels(tree, ())["rows"] for tree in trees)
    assert before.digest != after.digest
    assert before.files == ("rows.cu", "rows_80.cubin", "rows_89.cubin")


def test_a_cubin_in_python(kernel: Path) -> None:
    own = attune.kernel(kernel, gpu="L4")
    sizes = {"heads": 2, "seqlen": 37, "dtype": "fp32"}
    assert own.check(**sizes).status == "PASSED"
    assert own.occupancy(**sizes).ctas_per_sm > 0
    assert own.predict(**sizes).method == "machine code"
    assert own.machine_code(**sizes).passes[0].entry.startswith("_Z14attention_rows")
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 37, 64)).astype(np.float32)
    scores = q @ k.swapaxes(-1, -2) / 8
    p = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(own.run(q, k, v), p / p.sum(-1, keepdims=True) @ v, atol=1e-5)
    os.environ.pop(VARIABLE)


@pytest.mark.gpu
def test_cupy_launches_it_on_a_gpu(kernel: Path) -> None:
    """On the local GPU, which may be one in software; the driver loads the file."""
    if (why := why_not_cuda()) is not None:
        pytest.skip(why)
    device = target_device(None)
    assert device is not None
    write_cubin(kernel.with_name("rows_89.cubin"), device.arch)
    found = evaluate(kernel, gpu=None, backend="cuda", effort="none")
    assert (found.status, found.execution and found.execution.backend) == (Status.PASSED, "cuda")


def test_lines_of_another_file_are_not_those_of_the_description(kernel: Path) -> None:
    request = EvaluationRequest(variant=register_kernel(kernel).id, problem=PROBLEM, gpu="L4")
    code = read_machine_code(request, History())
    (report,) = code.passes
    assert {line.file for line in report.lines} == {"float_rows.cu"}
    assert set(report.listing.line) == {0}
    assert any(place.startswith("float_rows.cu:") for place in report.listing.inlined)
    placed = [hint for hint in report.hints if hint.sentence.startswith("float_rows.cu:")]
    assert placed
    assert all(hint.line == 0 for hint in report.hints)
    frame = hottest(report.lines, code.source, code.source_name)
    assert "source" not in frame
    of_source = hottest(report.lines, SOURCE.read_text(encoding="utf-8"), "float_rows.cu")
    assert of_source["source"].str.len().min() > 0
