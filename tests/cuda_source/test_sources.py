"""Sources with their headers: includes, missing files, encoding, and time to read them."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from words import raises

from engine.base.errors import CompileError
from engine.cuda_source.sources import (
    files_inside,
    read_sources,
    require_libraries,
    uses_implicit,
)
from kernels.source_text import has_block, read_text


def test_headers_are_found_transitively(data: Path) -> None:
    sources = read_sources(data / "two_entries.cu")
    assert sources.name == "two_entries.cu"
    assert [name for name, _ in sources.headers] == ["inner.cuh", "outer.cuh"]
    assert dict(sources.headers)["inner.cuh"] == (data / "inner.cuh").read_text()
    expected = hashlib.sha256((data / "two_entries.cu").read_bytes()).hexdigest()
    assert sources.source_sha256 == expected


@pytest.mark.parametrize(
    "line", ['#include "h.cuh"', "#include <h.cuh>", '  #  include\t"h.cuh" // why']
)
def test_every_way_to_write_an_include(
    line: str, cuda_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "h.cuh").write_text("#define X 1\n")
    assert read_sources(cuda_file(f"int a;\n{line}\n")).headers == (("h.cuh", "#define X 1\n"),)


def test_headers_that_include_each_other_end(
    cuda_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\n')
    (tmp_path / "b.cuh").write_text('#include "a.cuh"\n')
    names = [name for name, _ in read_sources(cuda_file('#include "a.cuh"\n')).headers]
    assert names == ["a.cuh", "b.cuh"]


def test_toolkit_headers_are_not_followed(cuda_file: Callable[..., Path]) -> None:
    assert read_sources(cuda_file("#include <cuda_fp16.h>\n")).headers == ()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises(CompileError, "source_unreadable", "v99.cu", "No such file"):
        read_sources(tmp_path / "v99.cu")


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.cu").write_bytes(b"// caf\xe9\n")
    with raises(CompileError, "source_not_utf8", "latin.cu", "byte 6"):
        read_sources(tmp_path / "latin.cu")


def test_a_byte_order_mark_is_removed(tmp_path: Path) -> None:
    """Editors on Windows write a byte order mark, which NVRTC rejects."""
    block = '/* attune\ntitle = "x"\n*/\n#include "h.cuh"\n'
    (tmp_path / "h.cuh").write_text("#define X 1\n", encoding="utf-8-sig")
    (tmp_path / "k.cu").write_text(block, encoding="utf-8-sig")
    sources = read_sources(tmp_path / "k.cu")
    assert sources.text == block
    assert sources.headers == (("h.cuh", "#define X 1\n"),)
    assert has_block(read_text(tmp_path / "k.cu"))


# A hundred kilobytes of constructs whose end is missing.
UNENDED = {
    "comments after hashes": "#/*" * 32_000,
    "comments in comments after hashes": "#/*#/**/" * 12_000,
    "strings": '"\\"' * 32_000,
    "characters": "'\\'" * 32_000,
    "raw strings": 'R"a(' * 24_000,
    "includes in a line": "#include" * 12_000,
    "splices": "\\\n#" * 32_000,
    "templates": "template <" * 10_000,
    "words": "a" * 100_000,
    "blanks": "int f()" + " " * 100_000 + "x {}",
    "types": "typedef\n" * 12_000,
    "macros": "".join(f"#define A{n} cub::x\n" for n in range(4_000)),
    "namespaces": "namespace a {" * 4_000 + "}" * 4_000,
    "bodies": "struct a " + "{}" * 40_000,
    "declarations": ";\n" * 24_000,
}


@pytest.mark.parametrize("kind", UNENDED)
def test_sources_are_read_in_linear_time(
    kind: str, cuda_file: Callable[..., Path], tmp_path: Path
) -> None:
    source = cuda_file(f"#include <cub/cub.cuh>\n{UNENDED[kind]}")
    begin = time.process_time()
    sources = read_sources(source)
    uses_implicit(sources)
    with contextlib.suppress(CompileError):
        files_inside(tmp_path, source)
    with contextlib.suppress(CompileError):
        require_libraries(sources, ())
    assert time.process_time() - begin < 2
