"""Where the headers of the CUDA toolkit are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from words import raises

from engine.base.errors import ToolMissing
from engine.cuda_source.toolkit import choose_include_dir, headers_version, more_headers


def include_dir(folder: Path, cudart_version: int | None) -> Path:
    folder.mkdir(parents=True)
    (folder / "cuda_fp16.h").write_text("")
    if cudart_version is not None:
        text = f"// API\n#define CUDART_VERSION  {cudart_version}\n"
        (folder / "cuda_runtime_api.h").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("layout", "version", "nvrtc"),
    [
        ("nvidia/cu13/include", 13040, (13, 4)),  # wheels of CUDA 13
        ("nvidia/cuda_runtime/include", 12040, (12, 4)),  # wheels of CUDA 12
        ("usr/local/cuda/include", 12080, (12, 4)),  # another minor version is accepted
    ],
)
def test_headers_of_the_same_major_version(
    layout: str, version: int, nvrtc: tuple[int, int], tmp_path: Path
) -> None:
    folder = include_dir(tmp_path / layout, version)
    assert choose_include_dir([tmp_path / "absent", folder], nvrtc) == folder
    assert headers_version(folder) == (version // 1000, version % 1000 // 10)


def test_wheels_of_cuda_12_have_the_compilers_headers_elsewhere(tmp_path: Path) -> None:
    folder = include_dir(tmp_path / "nvidia/cuda_runtime/include", 12090)
    assert more_headers(folder) == ()
    for package, header in (("cuda_nvcc", "crt/mma.h"), ("cuda_cccl", "cuda/std/version")):
        path = tmp_path / "nvidia" / package / "include" / header
        path.parent.mkdir(parents=True)
        path.write_text("")
    names = [found.parent.name for found in more_headers(folder)]
    assert names == ["cuda_cccl", "cuda_nvcc"]


def test_the_first_matching_folder_is_used(tmp_path: Path) -> None:
    old = include_dir(tmp_path / "old", 12080)
    first = include_dir(tmp_path / "first", 13000)
    second = include_dir(tmp_path / "second", 13040)
    assert choose_include_dir([old, first, second], (13, 4)) == first


def test_headers_of_another_major_version_are_named(tmp_path: Path) -> None:
    old = include_dir(tmp_path / "old", 12080)
    facts = ("13.4", "12.8", "pip install -e '.[cuda13]'")
    with raises(ToolMissing, "headers_of_other_version", *facts):
        choose_include_dir([old], (13, 4))


def test_no_headers_at_all(tmp_path: Path) -> None:
    unversioned = include_dir(tmp_path / "unversioned", None)
    for candidates in ([], [tmp_path / "absent"], [unversioned]):
        with raises(ToolMissing, "cuda_headers_missing", "pip install -e '.[cuda12]'"):
            choose_include_dir(candidates, (12, 4))
