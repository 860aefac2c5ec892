"""Own kernels: their sources, precedence, and what does not add one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from words import raises, says

from engine.attention.config import OWN, VARIABLE, added_kernels, all_variants, find_variant
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import InvalidKernel, UnknownName
from engine.cli import main
from engine.kernel_figures.changes import fork_diff
from engine.own_kernels.registry import (
    check_kernel,
    forget_kernel,
    fork_kernel,
    parent_of,
    register_kernel,
    use_kernel,
)
from kernels.ladder import LADDER
from kernels.variant import KERNELS_DIR

DATA = Path(__file__).with_name("kernels")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a folder with one own kernel without results; the data folder is empty."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    for file in DATA.glob("naive_flash.*"):
        shutil.copy(file, tmp_path)
    return tmp_path


def own_ids() -> list[str]:
    return [variant.id for variant in all_variants()[len(LADDER.every()) :]]


def test_a_folder_in_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_ids() == []
    (folder / "undescribed.cu").write_text("__global__ void k() {}\n")  # not a kernel of attention
    monkeypatch.setenv(VARIABLE, str(folder))
    assert own_ids() == ["naive_flash"]
    assert OWN.errors == ()
    assert find_variant("naive_flash").source == folder / "naive_flash.cu"
    assert find_variant("v01") is LADDER.by_id("v01")


def test_a_registered_path_is_used_here_and_in_later_processes(folder: Path) -> None:
    with raises(UnknownName, "unknown_variant", "'naive_flash'"):
        find_variant("naive_flash")
    assert use_kernel(folder / "naive_flash.cu").id == "naive_flash"
    assert find_variant("naive_flash").title == "naive_flash"
    assert os.environ[VARIABLE] == str(folder / "naive_flash.cu")
    os.environ.pop(VARIABLE)
    assert own_ids() == []


def test_a_name_is_never_a_path(folder: Path) -> None:
    """Names from a snapshot or link are only looked up, never opened as files."""
    with pytest.raises(UnknownName):
        find_variant(str(folder / "naive_flash.cu"))


def test_registered_kernels_are_stored(folder: Path) -> None:
    register_kernel(folder / "naive_flash.cu")
    assert own_ids() == ["naive_flash"]
    assert added_kernels() == [folder / "naive_flash.cu"]
    other = folder / "elsewhere"
    other.mkdir()
    shutil.copy(folder / "naive_flash.cu", other)
    shutil.copy(folder / "naive_flash.attune.toml", other)
    with raises(InvalidKernel, "variant_name_taken", "naive_flash"):
        register_kernel(other / "naive_flash.cu")
    forget_kernel("naive_flash")
    assert own_ids() == []
    assert (folder / "naive_flash.cu").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kernels": 3}', '{"kernels": [1]}', "\0"])
def test_a_damaged_list_is_an_empty_one(folder: Path, content: str) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "kernels.json").write_text(content)
    assert own_ids() == []
    assert len(json.dumps(own_ids())) == 2


def test_edits_of_source_and_description_are_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(folder))
    before = find_variant("naive_flash")
    assert find_variant("naive_flash") is before
    sidecar = folder / "naive_flash.attune.toml"
    text = sidecar.read_text(encoding="utf-8")
    sidecar.write_text(text.replace("[32, 64, 128]", "[64]"), encoding="utf-8")
    assert find_variant("naive_flash").head_dims == (64,)
    sidecar.write_text(text.replace("threads = 32", 'threads = "warps"'), encoding="utf-8")
    with raises(InvalidKernel, "formula_name", "attune.toml:8: threads: ", "warps") as caught:
        find_variant("naive_flash")
    assert [str(error) for error in OWN.errors] == [str(caught.value)]
    sidecar.write_text(text, encoding="utf-8")
    assert OWN.errors == ()
    source = folder / "naive_flash.cu"
    source.write_text(f"/* attune\n{text}*/\n{source.read_text('utf-8')}", encoding="utf-8")
    with raises(InvalidKernel, "described_twice", "naive_flash.attune.toml"):
        find_variant("naive_flash")
    sidecar.unlink()
    assert find_variant("naive_flash").head_dims == (32, 64, 128)


def test_names_of_the_ladder_are_reserved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(KERNELS_DIR / "v01_fa1_baseline.cu", folder)
    path = folder / "v01_fa1_baseline.cu"
    with raises(InvalidKernel, "variant_name_of_ladder", "v01_fa1_baseline"):
        use_kernel(path)
    monkeypatch.setenv(VARIABLE, str(folder))
    assert says(str(OWN.errors[0]), "name_is_of_ladder")
    assert find_variant("v01_fa1_baseline").source.parent == KERNELS_DIR
    assert use_kernel(KERNELS_DIR / "v01_fa1_baseline.cu") is LADDER.by_id("v01")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nothing.cu", "no_such_cu_file"),
        ("", "kernel_is_a_folder"),
        ("kernels.txt", "no_kernel_source"),
        ("flash.cubin", "no_cubin"),
        ("odd name.cu", "kernel_name_form"),
    ],
)
def test_paths_that_are_no_kernel(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, error: str
) -> None:
    (folder / "kernels.txt").write_text("")
    (folder / "flash.cubin").write_bytes(b"\x7fELF")
    if name.startswith("odd"):
        shutil.copy(folder / "naive_flash.cu", folder / name)
        shutil.copy(folder / "naive_flash.attune.toml", folder / "odd name.attune.toml")
    assert main(["evaluate", str(folder / name)]) == 2
    said = capsys.readouterr().err
    assert says(said, error)
    assert name.partition(".")[0] in said


def test_a_missing_description_is_drafted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The block that is printed is a description of the kernel, ready to be tried."""
    (folder / "naive_flash.attune.toml").unlink()
    source = folder / "naive_flash.cu"
    assert main(["evaluate", str(source)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert says(printed.err, "description_missing", "naive_flash.cu")
    assert printed.err.count("\n") == 1
    assert printed.out.startswith("/* attune\n")
    source.write_text(printed.out + source.read_text("utf-8"), encoding="utf-8")
    variant = use_kernel(source)
    assert [str(a) for a in variant.passes[0].args[:3]] == ["q", "k", "v"]
    assert variant.lse is not None
    os.environ.pop(VARIABLE)


def test_the_list_of_variants_has_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(folder))
    assert main(["variants", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [v["id"] for v in listed][-1] == "naive_flash"


def test_kernels_are_added_and_forgotten_by_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["variants", "--add", str(folder / "naive_flash.cu")]) == 0
    assert "naive_flash" in capsys.readouterr().out
    assert main(["variants", "--forget", "naive_flsh"]) == 2
    assert "naive_flash?" in capsys.readouterr().err
    assert main(["variants", "--forget", "naive_flash"]) == 0
    assert "naive_flash" not in capsys.readouterr().out


def test_the_block_of_the_readme_is_a_description(folder: Path) -> None:
    readme = (KERNELS_DIR / "README.md").read_text(encoding="utf-8")
    block = readme[readme.index("/* attune\n") : readme.index("*/", readme.index("/* attune")) + 3]
    path = folder / "readme.cu"
    path.write_text(block, encoding="utf-8")
    common = folder.parent / "common"
    common.mkdir(exist_ok=True)
    variant = check_kernel(path)
    plan = make_plan(variant, Problem(2, 4, 100, 128, causal=True), {})
    assert plan.passes[0].entry == "flash::fwd<128, 64, true, __half>"
    assert plan.defines == (("BLOCK", "64"),)


@pytest.mark.usefixtures("folder")
def test_a_fork_copies_its_headers_and_shows_its_changes() -> None:
    made = fork_kernel(find_variant("v08"))
    assert made.id == "my_v08"
    here = {path.name for path in made.source.parent.iterdir()}
    assert {"my_v08.cu", "mma.cuh", "exp2.cuh"} <= here
    unchanged = fork_diff(made.source)
    assert unchanged is not None
    assert (unchanged[0], unchanged[1].text) == ("v08", "")
    for name in ("my_v08.cu", "mma.cuh"):  # headers count as well
        path = made.source.with_name(name)
        path.write_text(path.read_text() + "// mine\n")
    changed = fork_diff(made.source)
    assert changed is not None
    assert (changed[1].added, changed[1].removed) == (2, 0)
    again = fork_kernel(find_variant("my_v08"))
    assert again.id == "my_v08_2"
    assert parent_of(find_variant("v08").source) is None
