"""An edited file is reloaded at once everywhere, and a broken one does not affect others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_builds import own_cache
from untimed import untimed
from words import raises, says

from engine.attention.config import find_variant
from engine.attention.problem import Problem
from engine.base.errors import InvalidKernel
from engine.cli import main
from engine.pipeline.request import EvaluationRequest, preview
from kernels.ladder import LADDER, Ladder
from kernels.variant import KERNELS_DIR

REQUEST = EvaluationRequest("v08", Problem(1, 2, 64, 32), gpu="L4", execute=False)
THREADS = ('threads = "32 * num_warps"', 'threads = "64 * num_warps"')
MISTAKE = ('threads = "32 * num_warps"', 'threads = "32 * num_warp"')


class Folder:
    """A folder with copies of kernels that a test may edit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def v08(self) -> Path:
        return self.path / "v08_mma_sync.cu"

    def edit(self, old: str, new: str) -> None:
        text = self.v08.read_text(encoding="utf-8")
        assert text.count(old) == 1
        self.v08.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def folder(ladder_of: Callable[..., Path]) -> Folder:
    """Use the copies as the ladder during a test."""
    return Folder(ladder_of("v01", "v05", "v08"))


def threads() -> int:
    plan = preview(REQUEST).plan
    assert plan is not None
    return plan.passes[0].threads


def test_an_edited_block_changes_the_plan(folder: Folder) -> None:
    assert threads() == 128
    folder.edit(*THREADS)
    assert threads() == 256
    folder.edit(*reversed(THREADS))
    assert threads() == 128


def test_an_edit_of_equal_size_and_time_is_noticed(folder: Folder) -> None:
    """Some clocks tick every few milliseconds, so that two saves may have the same time."""
    assert threads() == 128
    stat = folder.v08.stat()
    folder.edit(*THREADS)
    os.utime(folder.v08, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert folder.v08.stat().st_size == stat.st_size
    assert threads() == 256


def test_an_edit_of_the_code_keeps_the_variant_object(folder: Folder) -> None:
    before = find_variant("v08")
    folder.edit('#include "mma.cuh"\n', '#include "mma.cuh"\n// edited\n')
    assert find_variant("v08") is before
    folder.v08.touch()
    assert find_variant("v08_mma_sync") is before


def test_an_error_in_a_description_affects_only_its_variant(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = find_variant("v08")
    folder.edit(*MISTAKE)
    sentence = "v08_mma_sync.cu:24: threads: there is no num_warp: did you mean num_warps?"
    with pytest.raises(InvalidKernel) as caught:
        preview(REQUEST)
    assert str(caught.value) == sentence
    assert [str(error) for error in LADDER.errors] == [sentence]
    assert find_variant("v01").id == "v01"
    assert LADDER[-1] is before  # pages keep their widgets while a file is edited
    assert main(["variants"]) == 1
    output = capsys.readouterr()
    assert "v05_kv_split" in output.out
    assert output.err == f"error: {sentence}\n"
    assert main(["evaluate", "v08", "--seqlen", "64", "--gpu", "L4"]) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"
    folder.edit(*reversed(MISTAKE))
    assert LADDER.errors == ()
    assert threads() == 128


def test_a_file_that_was_never_valid_is_not_listed(folder: Folder) -> None:
    folder.edit(*MISTAKE)
    ladder = Ladder(folder.path)
    assert [variant.id for variant in ladder] == ["v01", "v05"]
    with pytest.raises(KeyError):
        ladder.by_id("v08")
    broken, whole = ladder.find("v08"), ladder.find("v05")
    assert broken is not None
    assert "num_warp" in str(broken.error)
    assert whole is not None
    assert whole.error is None


def test_added_and_removed_files_are_noticed(folder: Folder) -> None:
    assert [variant.id for variant in LADDER] == ["v01", "v05", "v08"]
    shutil.copy(folder.v08, folder.path / "v09_new.cu")
    assert LADDER.by_id("v09").name == "v09_new"
    folder.v08.unlink()
    assert [variant.id for variant in LADDER] == ["v01", "v05", "v09"]
    with pytest.raises(KeyError):
        LADDER.by_id("v08")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"int code;\n"])
def test_arbitrary_content_gives_a_message(folder: Folder, content: bytes) -> None:
    folder.v08.write_bytes(content)
    assert [variant.id for variant in LADDER] == ["v01", "v05"]
    assert str(LADDER.errors[0]).startswith("v08_mma_sync.cu:1: it ")


def test_two_files_of_one_number_are_an_error(folder: Folder) -> None:
    shutil.copy(folder.v08, folder.path / "v08_other.cu")
    assert [variant.name for variant in LADDER][2:] == ["v08_mma_sync"]
    assert len(LADDER.errors) == 1
    error = str(LADDER.errors[0])
    assert error.startswith("v08_other.cu:1: ")
    assert says(error, "rung_number_taken", "v08_mma_sync.cu")


@pytest.mark.slow
def test_the_description_is_that_of_the_source_that_is_launched(tmp_path: Path) -> None:
    """A file without a block, as in old snapshots, uses the ladder's description."""
    for source in (LADDER.by_id("v08").source, *KERNELS_DIR.glob("*.cuh")):
        shutil.copy(source, tmp_path)
    folder = Folder(tmp_path)
    folder.edit('default = 4, meaning = "warps', 'default = 2, meaning = "warps')
    with untimed() as evaluator:
        assert evaluator.evaluate(REQUEST).evaluation.config["num_warps"] == 4
        edited = evaluator.evaluate(REQUEST, source=folder.v08).evaluation
        assert edited.config["num_warps"] == 2
        assert edited.passes[0].resources.threads_per_cta == 64
        text = folder.v08.read_text(encoding="utf-8")
        folder.v08.write_text(text[: text.index("/*")] + text[text.index("*/") + 3 :], "utf-8")
        bare = evaluator.evaluate(REQUEST, source=folder.v08).evaluation
        assert bare.config["num_warps"] == 4
        assert bare.source_sha256 != edited.source_sha256
        folder.v08.write_text(text.replace(*MISTAKE), encoding="utf-8")
        with raises(InvalidKernel, "formula_name", "num_warp"):
            evaluator.evaluate(REQUEST, source=folder.v08)


def test_an_edited_block_compiles_nothing_again(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(own_cache(tmp_path / "cache")))
    with untimed() as evaluator:
        first = evaluator.evaluate(REQUEST).evaluation
        folder.edit('kv_rows = "round_up(seqlen_kv, block_n)"', 'kv_rows = "seqlen_kv"')
        assert not preview(REQUEST).needs_compile
        second = evaluator.evaluate(REQUEST).evaluation
    assert second.passes == first.passes
    assert second.source_sha256 != first.source_sha256  # of the file, not of the cache
