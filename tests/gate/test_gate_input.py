"""Input of the gate: revisions, folders, files, settings, and invalid ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from words import raises, says

from engine.attention.problem import Problem
from engine.base.errors import BadInput, CompileError
from engine.cli import main
from engine.cuda_source.sources import OutsideFolder, files_inside
from engine.gate.judge import judge
from engine.gate.running import check_output
from engine.gate.settings import parse_problem, read_settings
from engine.gate.trees import (
    NoTree,
    find_kernels,
    open_tree,
    open_trees,
    pair_kernels,
    working_tree,
)
from engine.model.kernel import Kernel
from engine.versions.figures import GateVerdict, variant_of
from tests.gate.repositories import commit, edit, git, kernel_file, repository


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("repo") / "r", "v01", "v08")


def gate(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        code = main(["gate", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_revision_contains_kernels_headers_and_settings(repo: Path, tmp_path: Path) -> None:
    tree = open_tree("HEAD", repo, tmp_path / "base")
    assert tree.commit == git(repo, "rev-parse", "HEAD").strip()
    assert "attune-gate.toml" in tree.names
    assert {"v01", "v08"} == set(find_kernels(tree, ()))
    source = kernel_file(repo, "v08")
    assert (tree.root / "kernels" / source.name).read_bytes() == source.read_bytes()


def test_a_kernel_changes_with_its_text_its_headers_and_its_description(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", "v01", "v08")
    before = find_kernels(open_tree("HEAD", repo, tmp_path / "base"), ())

    def changed() -> set[str]:
        now = find_kernels(working_tree(repo), ())
        return {k for k, found in now.items() if found.digest != before[k].digest}

    assert changed() == set()
    edit(repo / "kernels" / "mma.cuh", ("#pragma once", "#pragma once\n"))
    assert changed() == {"v08"}
    git(repo, "checkout", "-q", ".")
    edit(kernel_file(repo, "v01"), ("default = 64", "default = 32"))
    assert changed() == {"v01"}


def test_links_and_files_outside_are_not_followed(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", "v01")
    secret = tmp_path / "secret.cuh"
    secret.write_text("// secret\n")
    (repo / "kernels" / "link.cuh").symlink_to(secret)
    edit(kernel_file(repo, "v01"), ("#include", f'#include "{secret}"\n#include'))
    commit(repo, "A link and a path")
    tree = open_tree("HEAD", repo, tmp_path / "head")
    assert not any("link" in name for name in tree.names)
    fault = find_kernels(tree, ())["v01"].fault
    assert "secret.cuh" in fault
    assert "outside" in fault


@pytest.mark.parametrize(
    "lines",
    [
        '#define FILE "/etc/hostname"\n#include FILE\n',
        "#include FILE\n",
        '#include "../../secret.cuh"\n',
        '#include "attune-gate.toml"\n',  # in the working directory, not beside the kernel
        '%:include "/etc/hostname"\n',
        '#inc\\\nlude "../secret.cuh"\n',
        '/* */ #include/**/"../secret.cuh"\n',
        '#if __has_include("/etc/hostname")\n#endif\n',
    ],
)
def test_includes_outside_the_repository_are_refused(
    repo: Path, tmp_path: Path, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repo)
    inside = repository(tmp_path / "r", "v01")
    source = kernel_file(inside, "v01")
    edit(source, ("#include", f"// Not: #include FILE\n{lines}#include"))
    with pytest.raises(OutsideFolder):
        files_inside(inside, source)


def test_a_kernel_is_followed_under_another_name(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", "v01", "v08")
    kernels = repo / "kernels"
    kernel_file(repo, "v01").rename(kernels / "a.cu")
    kernel_file(repo, "v08").rename(kernels / "fwd.cu")
    commit(repo, "Own names")
    first = find_kernels(open_tree("HEAD", repo, tmp_path / "base"), ())
    (kernels / "fwd.cu").rename(kernels / "forward.cu")
    edit(kernels / "forward.cu", ("unroll 4", "unroll 1"))
    (repo / "also").mkdir()
    shutil.copy(kernels / "a.cu", repo / "also" / "a.cu")
    edit(repo / "also" / "a.cu", ("#include", "// Another kernel of this name.\n#include"))
    second = find_kernels(working_tree(repo), ())
    paired, renamed = pair_kernels(first, second)
    assert {second[i].name: old.name for i, old in paired.items()} == {
        "kernels/a.cu": "kernels/a.cu",  # also/a.cu is a new file
        "kernels/forward.cu": "kernels/fwd.cu",
    }
    assert renamed == {"forward": "kernels/fwd.cu"}
    gone, _ = pair_kernels(first, {"forward": second["forward"]})
    assert {i: old.name for i, old in gone.items()} == {
        "forward": "kernels/fwd.cu",
        "a": "kernels/a.cu",
    }


def test_links_and_submodules_inside_are_read_of_both_sides(tmp_path: Path) -> None:
    library = repository(tmp_path / "library", settings="")
    repo = repository(tmp_path / "r", "v08")
    for header in (repo / "kernels").glob("*.cuh"):
        header.unlink()
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "lib")
    for name in ("exp2.cuh", "lse.cuh", "rows.cuh"):
        (repo / "kernels" / name).symlink_to(f"../lib/kernels/{name}")
    edit(kernel_file(repo, "v08"), ('"mma.cuh"', '"../lib/kernels/mma.cuh"'))
    commit(repo, "Headers of another repository")
    tree = open_tree("HEAD", repo, tmp_path / "base")
    before = find_kernels(tree, ())["v08"]
    assert before.fault == ""
    assert find_kernels(working_tree(repo), ())["v08"].digest == before.digest
    edit(repo / "lib" / "kernels" / "mma.cuh", ("#pragma once", "#pragma once\n"))
    commit(repo / "lib", "Newer")
    commit(repo, "Newer headers")
    after = find_kernels(open_tree("HEAD", repo, tmp_path / "head"), ())["v08"]
    assert (after.fault, after.digest == before.digest) == ("", False)


def test_a_submodule_that_is_not_checked_out_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = repository(tmp_path / "library", settings="")
    repo = repository(tmp_path / "r", "v01", "v08", "v14")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "lib")
    edit(kernel_file(repo, "v08"), ('"mma.cuh"', '"../lib/kernels/mma.cuh"'))
    (repo / "kernels" / "mma.cuh").unlink()
    (repo / "kernels" / "mma.cuh").symlink_to("../lib/kernels/mma.cuh")
    commit(repo, "Headers of another repository")
    edit(kernel_file(repo, "v08"), ("#include", "// A comment.\n#include"))
    commit(repo, "A comment")
    git(tmp_path, "clone", "-q", str(repo), "clone")
    clone = tmp_path / "clone"
    what = "includes ../lib/kernels/mma.cuh of the submodule lib (commit "
    for name, head in (("HEAD~1", None), ("HEAD~1", "HEAD")):
        with open_trees(name, head, clone) as trees:
            for tree in trees:
                kernels = find_kernels(tree, ())
                assert what in kernels["v08"].unknown
                assert says(kernels["v14"].unknown, "includes_of_the", "mma.cuh", "lib")
                assert kernels["v01"].unknown == ""
    monkeypatch.chdir(clone)
    assert main(["gate", "HEAD~1", "--json"]) == 3
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert (verdict["kernel"], verdict["verdict"]) == ("v08", GateVerdict.NOT_JUDGED)
    assert what in verdict["what"]
    # Another commit of the submodule is another kernel, even if neither is checked out.
    edit(library / "kernels" / "mma.cuh", ("#pragma once", "#pragma once\n"))
    newer = commit(library, "Newer")
    git(clone, "update-index", "--cacheinfo", f"160000,{newer},lib")
    git(clone, "commit", "-q", "-m", "Another commit of lib")
    with open_trees("HEAD~1", "HEAD", clone) as (base, after):
        one, other = (find_kernels(tree, ())["v08"] for tree in (base, after))
        assert one.digest != other.digest


def test_changes_of_the_base_branch_are_ignored(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", "v01")
    left = git(repo, "rev-parse", "HEAD").strip()
    git(repo, "checkout", "-q", "-b", "change")
    git(repo, "checkout", "-q", "main")
    edit(kernel_file(repo, "v01"), ("#include", "// On main.\n#include"))
    commit(repo, "On main")
    git(repo, "checkout", "-q", "change")
    with open_trees("main...", None, repo) as (base, _):
        assert base.commit == left
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repo}", "shallow")
    with (
        raises(NoTree, "no_revision", "shallow"),
        open_trees("HEAD~1", None, tmp_path / "shallow"),
    ):
        pass


@pytest.mark.parametrize("name", ["nowhere", "HEAD~99", "--upload-pack=x", "./nowhere", "a.cu"])
def test_an_unknown_revision_is_reported(repo: Path, name: str, tmp_path: Path) -> None:
    with raises(NoTree, "no_revision"):
        open_tree(name, repo, tmp_path / "x")


def test_outside_of_a_repository(tmp_path: Path) -> None:
    with raises(NoTree, "no_repository_nor_folder"), open_trees("HEAD", None, tmp_path):
        pass


def test_a_file_alone_needs_another(repo: Path) -> None:
    name = f"kernels/{kernel_file(repo, 'v01').name}"
    with raises(NoTree, "one_file_of_two"), open_trees(name, None, repo):
        pass


def test_exit_codes_of_bad_usage(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repo)
    for arguments in (["nowhere"], [], ["HEAD", "nowhere"]):
        code, out, err = gate(*arguments, capsys=capsys)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")


def test_options_without_effect_are_refused(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repo)
    for arguments in (
        ["HEAD", "--accept"],
        ["--accept", "--measure"],
        ["--history", "v01", "--run"],
        ["--history", "v01", "--kernel", "v01"],
        ["--history", "v01", "--markdown", "x.md"],
    ):
        code, out, err = gate(*arguments, capsys=capsys)
        assert (code, out) == (2, "")
        assert says(err, "gate_options")


def test_an_unchanged_ladder_costs_no_compile(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repo)
    code, out, _ = gate("HEAD", "--json", capsys=capsys)
    found = json.loads(out)
    assert code == 0
    assert found["verdicts"] == []
    assert found["unchanged"] == ["v01", "v08"]


def test_a_repository_without_kernels_gives_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository(tmp_path / "r", settings=""))
    code, out, _ = gate("HEAD", capsys=capsys)
    assert code == 0
    assert says(out, "neither_side_holds")


@pytest.mark.parametrize(
    ("text", "name", "facts"),
    [
        ("gpus = 3", "list_of_texts", ("gpus",)),
        ('gpus = ["Q4"]', "gpu_unknown", ("'Q4'",)),
        ('problems = ["B4 X8"]', "no_word_of_a_problem", ("'X8'",)),
        ('problems = ["B0"]', "size_too_small", ("batch", "0")),
        ("colour = 1", "setting_unknown", ("'colour'",)),
        ("[thresholds]\nspeed = 0.1", "threshold_unknown", ("'speed'",)),
        ("[thresholds]\nsimulated = 0", "simulated_threshold_range", ()),
        ("[thresholds]\ninstructions = -1", "threshold_range", ("instructions", "-1")),
        ("[config.v08]\nnum_warps = 'x'", "gate_config_form", ("[config.v08]",)),
        ("[limits]\nseconds = 0", "gate_limit_range", ("seconds",)),
        ('[[budget]]\nkernel = "v08"', "budget_names", ("gpu",)),
        ('[[budget]]\nkernel = "v08"\ngpu = "L4"\nproblem = "B1"', "budget_without_limits", ()),
        (
            '[[budget]]\nkernel = "v08"\ngpu = "L4"\nproblem = "B1"\nregisters = "x"',
            "budget_limit_form",
            ("registers", "'x'"),
        ),
        ("gpus = [", "no_toml", ()),
    ],
)
def test_an_error_in_the_settings_gives_one_sentence(
    tmp_path: Path, text: str, name: str, facts: tuple[str, ...]
) -> None:
    (tmp_path / "attune-gate.toml").write_text(text)
    with pytest.raises(BadInput) as raised:
        read_settings(tmp_path)
    assert says(str(raised.value), name, "attune-gate.toml", *facts)


def test_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / "attune-gate.toml").write_text(
        'gpus = ["L4"]\nproblems = ["B4 H32 HKV8 S1 KV4096 D128 bf16"]\n'
        "[thresholds]\nsimulated = 0.05\nregisters = 0.1\n"
        '[[budget]]\nkernel = "v08"\ngpu = "L4"\nproblem = "B4 H8 S512"\nsimulated_us = 45\n'
    )
    found = read_settings(tmp_path)
    assert found.gpus == ("L4",)
    assert found.problems == (
        Problem(4, 32, 1, 128, dtype="bfloat16", seqlen_kv=4096, num_heads_kv=8),
    )
    assert found.thresholds.simulated == 0.05
    assert found.thresholds.counted["registers"] == 0.1
    assert found.thresholds.counted["instructions"] == 0.02
    assert found.budgets[0].limits == {"simulated_us": 45}


def test_a_problem_reads_back_from_its_label() -> None:
    for problem in (Problem(4, 8, 512, 64, causal=True), Problem(1, 32, 1, 128, seqlen_kv=4096)):
        assert parse_problem(problem.label()) == problem


@pytest.mark.slow
def test_a_wrong_result_is_found_without_native_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(*_: object, **__: object) -> None:
        raise AssertionError("native code of the kernel was built")

    source = kernel_file(repository(tmp_path, "v08"), "v08")
    edit(source, ("softmax_scale * LOG2_E", "softmax_scale * 0.5f * LOG2_E"))
    monkeypatch.setattr("engine.backends.cpu.CpuBackend.run", ran)
    kernel = Kernel.of(variant_of(source), "L4")
    found = check_output(kernel, Problem(1, 1, 64, 64), native=False)
    assert found.passed is False
    assert not says(found.sentence, "host_build")


@pytest.mark.slow
def test_a_wrong_kernel_has_no_time(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", "v08")
    wrong = ("softmax_scale * LOG2_E", "softmax_scale * 0.5f * LOG2_E")
    edit(kernel_file(repo, "v08"), wrong, ("unroll 4", "unroll 1"))
    with open_trees("HEAD", None, repo) as trees:
        report = judge(*trees)
    (kernel,) = report.kernels
    assert GateVerdict.INCORRECT in [finding.verdict for finding in kernel.findings]
    (row,) = kernel.rows
    assert row.before.figures is not None
    assert row.after.figures is not None
    assert row.before.figures.simulated_us is not None
    assert row.after.figures.simulated_us is None
    assert {finding.verdict for finding in row.findings} == {GateVerdict.COUNTED_WORSE}


def test_a_failed_build_of_the_emulator_is_not_blamed_on_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "Compiling execute.cpp did not finish within 300 s."

    def fails(*_: object, **_named: object) -> None:
        raise CompileError(why)

    source = kernel_file(repository(tmp_path, "v08"), "v08")
    monkeypatch.setattr("engine.machine_code.execution.load_library", fails)
    kernel = Kernel.of(variant_of(source), "L4")
    found = check_output(kernel, Problem(1, 1, 64, 64), native=False)
    assert found.passed is None
    assert why in found.sentence
