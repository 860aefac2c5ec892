"""A kernel is compiled and executed once before it is added."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from words import raises, says

from engine.base.errors import InvalidKernel
from engine.own_kernels.draft import draft_block
from engine.own_kernels.registry import bring_files
from engine.pipeline.trial import try_kernel
from kernels.description import read_own

DATA = Path(__file__).with_name("kernels")

WRONG = [
    ("/ l;", "/ (l + 1.0f);", "incorrect_on", "B1 H2 S37 D64 fp32 causal"),
    ("float m = -INFINITY", "float m = -UNHEARD", "", 'identifier "UNHEARD"'),
    ("if (row >= S) return;", "", "", "OUT_OF_BOUNDS: "),
    ('["float32"]', '["float16"]', "declared_otherwise", "float16"),
    # A row sum goes from a thread to its neighbour without a barrier.
    (
        "    for (int d = 0; d < HEAD_DIM; d++) O[",
        "    __shared__ float sums[64];\n    sums[threadIdx.x ^ 1] = l;\n"
        "    l = sums[threadIdx.x];\n    for (int d = 0; d < HEAD_DIM; d++) O[",
        "",
        "uninitialised shared memory",
    ),
    # All threads write and read one word without a barrier; the output is right.
    ("/ l;", "/ (l * shared_one());", "", "RACE: "),
]
ONE = """__device__ float shared_one() {
  __shared__ float one;
  one = 1.0f;
  return one;
}
"""


def test_a_correct_kernel_is_reported_as_correct() -> None:
    trial = try_kernel(read_own(DATA / "float_rows.cu"), "sm_89")
    assert trial.passed, trial
    assert says(trial.sentence, "runs_and_is_correct", "B1 H2 S37 D64 fp32 causal")


@pytest.mark.parametrize("name", ["extension_rows", "raw_kernel", "host_main"])
def test_the_drafted_description_of_a_file_runs_unchanged(name: str, tmp_path: Path) -> None:
    """An extension of PyTorch with three kernels, a source for CuPy, and a file with main."""
    shutil.copy(DATA / "softmax_bits.cuh", tmp_path)
    source = tmp_path / f"{name}.cu"
    text = (DATA / source.name).read_text(encoding="utf-8")
    source.write_text(draft_block(text, source) + text, encoding="utf-8")
    trial = try_kernel(read_own(source), "sm_89")
    assert trial.passed, trial


@pytest.mark.parametrize(("old", "new", "name", "fact"), WRONG)
def test_errors_are_reported_before_a_kernel_is_added(
    tmp_path: Path, old: str, new: str, name: str, fact: str
) -> None:
    source = tmp_path / "mine.cu"
    text = (DATA / "float_rows.cu").read_text(encoding="utf-8")
    assert old in text
    source.write_text(ONE + text.replace(old, new), encoding="utf-8")
    trial = try_kernel(read_own(source), "sm_89")
    assert not trial.passed
    assert says(trial.sentence, name, fact) if name else fact in trial.sentence


def test_uploaded_files_are_used_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path))
    files = {"mine.cu": b'#include "mine.cuh"\n__global__ void k() {}\n', "mine.cuh": b"// one\n"}
    (source,) = bring_files(files)
    assert source.name == "mine.cu"
    assert (source.parent / "mine.cuh").read_bytes() == b"// one\n"
    assert bring_files(files) == [source]  # the same files share a folder
    (other,) = bring_files(files | {"mine.cuh": b"// two\n"})
    assert other.parent != source.parent
    for names, code in (
        (["mine.cuh"], "no_cu_file"),
        (["../mine.cu"], "file_not_of_source"),
        (["mine.exe"], "file_not_of_source"),
    ):
        with raises(InvalidKernel, code):
            bring_files(dict.fromkeys(names, b""))
    shutil.rmtree(source.parent)
