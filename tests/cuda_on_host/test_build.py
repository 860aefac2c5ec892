"""Builds: when the cache is used, when a kernel is rebuilt, and errors."""

from __future__ import annotations

import json
import multiprocessing
import shutil

import pytest
from host_kernels import KERNELS
from words import raises, says

from engine.base import cxx
from engine.base.errors import CompileError
from engine.base.files import cache_root, read_entry, write_entry
from engine.cuda_on_host import build
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.client import Client, Job, KernelLaunch

KERNEL = 'extern "C" __global__ void k(float *out) { out[threadIdx.x] = VALUE; }\n'


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "small.cu"
    path.write_text('#include "value.cuh"\n' + KERNEL)
    (tmp_path / "value.cuh").write_text("#define VALUE 1.f\n")
    return path


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    """Use an empty cache that already holds the runtime, which takes seconds to build."""
    build.build_runtime(cxx.find_toolchain())  # a cache hit if another test has built it
    runtime_entries = list((cache_root() / "cpu").glob("attune-cpu-runtime-*"))
    cxx._private_folder.cache_clear()  # set by a test of an unwritable cache
    folder = tmp_path / "cache"
    (folder / "cpu").mkdir(parents=True)
    for file in runtime_entries:
        shutil.copy(file, folder / "cpu")
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(folder))
    return folder / "cpu"


@pytest.mark.usefixtures("fresh_cache")
def test_a_second_build_is_a_cache_hit(source):
    first = build_kernels(source, ["k"])
    again = build_kernels(source, ["k"])
    assert first.build_s > 0
    assert again.build_s == 0
    assert again.path == first.path
    assert first.sources == ("small.cu", "value.cuh")


def test_the_key_covers_all_inputs_of_a_build(source):
    paths = {build_kernels(source, ["k"]).path}
    paths.add(build_kernels(source, ["k"], check=True).path)
    paths.add(build_kernels(source, ["k"], [("SOMETHING", "1")]).path)
    (source.parent / "value.cuh").write_text("#define VALUE 2.f\n")
    paths.add(build_kernels(source, ["k"]).path)
    source.write_text(source.read_text() + "\n// more\n")
    paths.add(build_kernels(source, ["k"]).path)
    assert len(paths) == 5


def test_the_key_does_not_depend_on_the_folder(source, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in (source, source.parent / "value.cuh"):
        shutil.copy(file, elsewhere)
    assert build_kernels(source, ["k"]).path == build_kernels(elsewhere / "small.cu", ["k"]).path


@pytest.mark.usefixtures("fresh_cache")
def test_a_damaged_library_is_rebuilt(source):
    library = build_kernels(source, ["k"]).path
    good = library.read_bytes()
    library.write_bytes(good[: len(good) // 2])
    rebuilt = build_kernels(source, ["k"])
    assert rebuilt.build_s > 0
    assert rebuilt.path.read_bytes() == good  # builds are reproducible
    rebuilt.path.unlink()
    assert build_kernels(source, ["k"]).build_s > 0


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_damaged_entry_is_rebuilt(source, fresh_cache, content):
    library = build_kernels(source, ["k"]).path
    (entry,) = fresh_cache.glob("small-*.entry")
    if content is None:  # intact, but its library is missing
        record = json.loads(read_entry(entry) or b"")
        assert write_entry(entry, json.dumps(record | {"library": "gone.so"}).encode())
    else:
        entry.write_bytes(content)
    assert build_kernels(source, ["k"]).build_s > 0
    assert library.exists()


def test_the_cache_holds_only_the_library(source, fresh_cache):
    build_kernels(source, ["k"])
    names = sorted(file.name for file in fresh_cache.iterdir() if file.name.startswith("small"))
    assert len(names) == 2
    assert not [f for f in fresh_cache.iterdir() if f.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_cache")
def test_two_processes_build_the_same_thing(source):
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        paths = pool.starmap(_build_in_process, [(source, i) for i in range(4)])
    assert len(set(paths)) == 1
    assert build_kernels(source, ["k"]).build_s == 0


def _build_in_process(source, _number):
    return str(build_kernels(source, ["k"]).path)


@pytest.mark.exhaustive
def test_a_cache_that_cannot_be_written(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path / "file"))
    built = build_kernels(source, ["k"])
    assert built.path.exists()
    assert build_kernels(source, ["k"]).build_s == 0
    assert not str(built.path).startswith(str(tmp_path))


def test_compile_error_names_the_line_first(tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text(
        "__device__ int f() { return 1; }\n"
        'extern "C" __global__ void k(float *out) {\n'
        "  __shared__ float s[4];\n  out[0] = s[0] + missing;\n}\n"
    )
    with pytest.raises(CompileError) as error:
        build_kernels(source, ["k"])
    assert str(error.value).startswith("wrong.cu:4: ")
    assert "missing" in str(error.value)
    assert "error" in error.value.log


def test_error_in_a_header_names_the_header(source):
    (source.parent / "value.cuh").write_text("\n#error no value\n")
    with pytest.raises(CompileError, match=r"^value\.cuh:2: "):
        build_kernels(source, ["k"])


def test_static_assert_gives_its_reason(tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text('static_assert(BLOCK_N == 32, "block_n must be 32");\n' + KERNEL)
    with pytest.raises(CompileError, match=r"^wrong\.cu:1: .*block_n must be 32"):
        build_kernels(source, ["k"], [("BLOCK_N", "48"), ("VALUE", "0")])


def test_missing_kernel(source):
    with raises(CompileError, "no_such_entry", "small.cu", "'absent'"):
        build_kernels(source, ["absent"])


def test_a_warning_is_no_error():
    assert build_kernels(KERNELS / "faults.cu", ["null_pointer"], [("IS_BF16", "0")]).path.exists()


@pytest.fixture
def pretend_compiler(tmp_path, monkeypatch):
    """Return a function that installs a C++ compiler that runs a line of shell."""

    def make(line):
        path = tmp_path / "pretend-c++"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo g++ 12 && exit\n{line}\n')
        path.chmod(0o755)
        monkeypatch.setenv("ATTUNE_CXX", str(path))

    return make


def test_a_compiler_without_output_is_reported(source, pretend_compiler):
    pretend_compiler("exit 0")
    with raises(CompileError, "compiler_wrote_nothing"):
        build_kernels(source, ["k"])


def test_a_compilers_output_is_capped(source, pretend_compiler):
    pretend_compiler("echo 'small.cu:7:1: error: first'; yes x | head -c 9000000; exit 1")
    with pytest.raises(CompileError, match=r"^small\.cu:7: first$") as caught:
        build_kernels(source, ["k"])
    assert len(caught.value.log) == cxx.MAX_COMPILER_LOG_BYTES


def test_a_compiler_that_hangs_is_stopped(tmp_path):
    with raises(CompileError, "host_compile_time_limit", "small.cu", "0.3 s"):
        cxx.run_compiler(["sh", "-c", "sleep 100"], tmp_path, "small.o", "small.cu", timeout_s=0.3)


def test_an_update_of_attune_during_a_process_is_reported(source, monkeypatch):
    """Headers newer than the runtime would make correct kernels fail."""
    library = build_kernels(source, ["k"])
    client = Client(1)
    monkeypatch.setattr(build, "_digest_now", lambda: "of other files")
    assert build_kernels(source, ["k"]).path == library.path  # a build in the cache remains valid
    source.write_text(source.read_text() + "// another")
    with raises(CompileError, "attune_changed_under_way"):
        build_kernels(source, ["k"])
    result = client.run(Job(library, (), (KernelLaunch("k", (1, 1, 1), (1, 1, 1), ()),)))
    assert result.reason.startswith("small.cu ")
    assert says(result.reason, "attune_files_changed")
    assert client.process_id is None


@pytest.mark.skipif(cxx.find_toolchain().family != "gcc", reason="of GCC alone")
def test_precompiled_headers_keep_line_numbers_of_errors(tmp_path, monkeypatch):
    build.precompile_headers()
    commands = []
    run = build.run_compiler
    monkeypatch.setattr(
        build,
        "run_compiler",
        lambda c, *rest, **given: commands.append(c) or run(c, *rest, **given),
    )
    source = tmp_path / "halves.cu"
    kernel = (
        "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
        'extern "C" __global__ void k(__half *out) {\n'
        '    float x; asm("ex2.approx.f32 %0, %1;" : "=f"(x) : "f"(2.f));\n'
        "    out[0] = __float2half(x);\n}\n"
    )
    source.write_text(f"{kernel}// {tmp_path}: no cache has it\n")
    assert build_kernels(source, ["k"]).entries == ("k",)
    assert any("-fpch-preprocess" in command for command in commands)
    text = source.read_text()
    source.write_text(text.replace("__float2half(x)", "undeclared(x)"))
    with pytest.raises(CompileError, match=r"^halves\.cu:5: .*undeclared"):
        build_kernels(source, ["k"])
