"""Compiling with NVRTC: resources, errors with file and line, and the cache."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from words import raises

from engine.base.errors import CompileError, InvalidBuild, ToolMissing, UnknownName
from engine.cuda_source import compile_kernel
from engine.cuda_source.nvrtc import Toolchain, cached_compile, toolchain

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

TILE = (("TILE", "96"),)
ENTRIES = ("staged", "plain")


@pytest.fixture
def fresh_toolchain() -> Iterator[None]:
    """Detect the compiler anew, now and after the test."""
    toolchain.cache_clear()
    yield
    toolchain.cache_clear()


def cached_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_resources_are_those_of_the_source(data: Path) -> None:
    kernel = compile_kernel(data / "two_entries.cu", TILE, "sm_89", ENTRIES)
    assert kernel.arch == "sm_89"
    assert kernel.cubin.startswith(b"\x7fELF")
    assert kernel.entries["staged"].static_smem_bytes == 4 * 96
    assert kernel.entries["plain"].static_smem_bytes == 0
    assert 1 <= kernel.entries["plain"].registers_per_thread <= 32
    assert all(x.spill_store_bytes == x.spill_load_bytes == 0 for x in kernel.entries.values())
    assert kernel.flags[0] == "--gpu-architecture=sm_89"
    assert kernel.flags[-1] == "-DTILE=96"
    assert not any(flag.startswith("-I") for flag in kernel.flags)


def test_spills_are_reported(data: Path) -> None:
    spills = compile_kernel(data / "spills.cu", (), "sm_80", ("spills",)).entries["spills"]
    assert spills.registers_per_thread == 64
    assert spills.spill_store_bytes > 0
    assert spills.spill_load_bytes > 0
    assert spills.stack_bytes > 0


def test_every_arch_this_nvrtc_knows(data: Path) -> None:
    archs = [f"sm_{number}" for number in toolchain().archs if 75 <= number <= 120]
    assert {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90"} <= set(archs)
    for arch in [*archs, "sm_90a"]:
        kernel = compile_kernel(data / "two_entries.cu", TILE, arch, ENTRIES)
        assert kernel.entries["staged"].static_smem_bytes >= 4 * 96, arch
        assert f"for '{arch}'" in kernel.log


def test_the_arch_specific_target_accepts_its_instructions(cuda_file: Callable[..., Path]) -> None:
    source = cuda_file(
        'extern "C" __global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }\n'
    )
    assert compile_kernel(source, (), "sm_90a", ("k",)).arch == "sm_90a"
    with raises(CompileError, "nvrtc_error", "kernel.cu(1): in PTX: ", "wgmma.fence"):
        compile_kernel(source, (), "sm_90", ("k",))


def test_a_syntax_error_has_file_and_line(cuda_file: Callable[..., Path]) -> None:
    source = cuda_file('// ⌈S / 64⌉\n\nextern "C" __global__ void k() {\n    int x = ;\n}\n')
    with raises(CompileError, "nvrtc_error") as error:
        compile_kernel(source, (), "sm_89", ("k",))
    assert str(error.value) == "kernel.cu(4): expected an expression"
    assert "int x = ;" in error.value.log


def test_an_error_in_a_header_names_the_header(
    cuda_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "part.cuh").write_text("\n\n__device__ float f() { return UNKNOWN; }\n")
    with raises(CompileError, "nvrtc_error", 'part.cuh(3): identifier "UNKNOWN" is undefined'):
        compile_kernel(cuda_file('#include "part.cuh"\n'), (), "sm_89", ())


def test_errors_in_a_headers_host_code_come_after_those_of_the_kernel(
    cuda_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Host code is kept if a bracket is missing, and is then compiled first."""
    (tmp_path / "part.cuh").write_text("void free_all(float* p) {\n  cudaFree(p);\n")
    source = cuda_file('#include "part.cuh"\n}\n__global__ void k() { UNKNOWN; }\n')
    with raises(CompileError, "nvrtc_error", 'kernel.cu(3): identifier "UNKNOWN" is undefined'):
        compile_kernel(source, (), "sm_89", ())


def test_an_error_in_inline_ptx_has_its_source_line(cuda_file: Callable[..., Path]) -> None:
    source = cuda_file(
        'extern "C" __global__ void first(int* x) { *x = 1; }\n'
        'extern "C" __global__ void k(int* x) {\n'
        '    asm volatile("add.u32 %0, %1, 1;" : "=r"(x[1]) : "r"(x[0]));\n'
        '    asm volatile("bogus.u32 %0, 1;" : "=r"(*x));\n'
        "}\n"
    )
    with raises(CompileError, "nvrtc_error", "kernel.cu(4): in PTX: ", "'bogus'") as error:
        compile_kernel(source, (), "sm_75", ("k",))
    assert "kernel.cu(4): error:" in error.value.log


def test_a_static_assert_gives_its_reason(cuda_file: Callable[..., Path]) -> None:
    source = cuda_file('static_assert(BLOCK_M % 16 == 0, "mma takes 16 rows");\n')
    with raises(CompileError, "nvrtc_error", "kernel.cu(1): ", '"mma takes 16 rows"'):
        compile_kernel(source, (("BLOCK_M", "24"),), "sm_89", ())


def test_a_missing_entry_names_those_there_are(data: Path) -> None:
    with raises(InvalidBuild, "entry_missing", "fuse", "plain, staged"):
        compile_kernel(data / "two_entries.cu", TILE, "sm_89", ("staged", "fuse"))


def test_an_arch_nvrtc_does_not_know(data: Path) -> None:
    with raises(CompileError, "arch_not_compiled", "sm_77", "sm_89"):
        compile_kernel(data / "two_entries.cu", TILE, "sm_77", ENTRIES)
    with raises(CompileError, "arch_without_variant", "sm_89a"):
        compile_kernel(data / "two_entries.cu", TILE, "sm_89a", ENTRIES)


@pytest.mark.parametrize("arch", ["", "L4", "sm_", "sm_89; rm", "compute_89", "SM_89", "sm_89ab"])
def test_invalid_archs(arch: str, data: Path) -> None:
    with raises(UnknownName, "arch_form"):
        compile_kernel(data / "two_entries.cu", TILE, arch, ENTRIES)


def test_the_second_compile_is_a_cache_hit(data: Path, cache_dir: Path) -> None:
    first = compile_kernel(data / "two_entries.cu", TILE, "sm_89", ENTRIES)
    assert len(cached_files(cache_dir)) == 1
    assert cached_compile(data / "two_entries.cu", TILE, "sm_89", ENTRIES) == first


def test_the_key_covers_everything_that_matters(
    cuda_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "h.cuh").write_text("#define ONE 1\n")
    text = '#include "h.cuh"\nextern "C" __global__ void k(int* x) { *x = ONE + EXTRA; }\n'
    source = cuda_file(text)

    def key(arch: str = "sm_89", extra: str = "1", tools: Toolchain | None = None) -> str:
        return compile_kernel(source, (("EXTRA", extra),), arch, ("k",), tools=tools).key

    start = key()
    assert key() == start
    keys = {start, key(arch="sm_80"), key(extra="2")}
    source.write_text(text + "// changed\n")
    keys.add(key())
    source.write_text(text)
    (tmp_path / "h.cuh").write_text("#define ONE 2\n")
    keys.add(key())
    (tmp_path / "h.cuh").write_text("#define ONE 1\n")
    assert key() == start
    keys.add(key(tools=dataclasses.replace(toolchain(), release="99.0.0")))
    assert len(keys) == 6


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other", "empty"])
def test_a_damaged_entry_is_rebuilt(damage: str, data: Path, cache_dir: Path) -> None:
    def compiled() -> bytes:
        return compile_kernel(data / "two_entries.cu", TILE, "sm_89", ENTRIES).cubin

    expected = compiled()
    (entry,) = cached_files(cache_dir)
    content = entry.read_bytes()
    if damage == "truncated":
        entry.write_bytes(content[:-1])
    elif damage == "flipped":
        entry.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "empty":
        entry.write_bytes(b"")
    else:  # intact, but of another kernel
        compile_kernel(data / "spills.cu", (), "sm_89", ("spills",))
        (other,) = (p for p in cached_files(cache_dir) if p != entry)
        entry.write_bytes(other.read_bytes())
    damaged = entry.read_bytes()
    assert compiled() == expected
    assert entry.read_bytes() != damaged


def test_an_unwritable_cache_does_not_prevent_compiling(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert compile_kernel(data / "two_entries.cu", TILE, "sm_89", ENTRIES).cubin


@pytest.mark.slow
def test_two_processes_that_compile_the_same_are_safe(data: Path, cache_dir: Path) -> None:
    code = (
        "import sys, hashlib; from pathlib import Path\n"
        "from engine.cuda_source import compile_kernel\n"
        "for arch in ('sm_75', 'sm_80', 'sm_86', 'sm_89', 'sm_90'):\n"
        f"    k = compile_kernel(Path({str(data / 'two_entries.cu')!r}), {TILE!r}, arch, ())\n"
        "    print(hashlib.sha256(k.cubin).hexdigest())\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].split()) == 5
    assert len(cached_files(cache_dir)) == 5  # and no temporary file


@pytest.mark.usefixtures("fresh_toolchain")
def test_missing_cupy_gives_a_one_sentence_error(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with raises(ToolMissing, "cupy_import", "pip install -e '.[cuda13"):
        compile_kernel(data / "two_entries.cu", TILE, "sm_89", ENTRIES)


@pytest.mark.usefixtures("fresh_toolchain")
def test_missing_nvrtc_gives_a_one_sentence_error(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cupy.cuda import nvrtc

    def missing() -> tuple[int, int]:
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file\nsecond line")

    monkeypatch.setattr(nvrtc, "getVersion", missing)
    with raises(ToolMissing, "nvrtc_load"):
        compile_kernel(data / "two_entries.cu", TILE, "sm_89", ENTRIES)


def test_missing_toolkit_headers_give_a_one_sentence_error(data: Path, tmp_path: Path) -> None:
    bare = dataclasses.replace(toolchain(), include_dir=tmp_path)
    with raises(ToolMissing, "cuda_header_missing", "cuda_bf16.h"):
        compile_kernel(data / "two_entries.cu", TILE, "sm_89", ENTRIES, tools=bare)


def test_a_header_of_libcupp_is_another_package(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text('#include <nv/nothing>\nextern "C" __global__ void k() {}\n')
    with raises(ToolMissing, "cuda_header_missing"):
        compile_kernel(source, (), "sm_89", ("k",))


def test_a_template_named_without_its_arguments(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text("template <int N> __global__ void scale(float* x) { x[N] = 1; }\n")
    with raises(InvalidBuild, "entry_by_name_alone", "scale<128>"):
        compile_kernel(source, (), "sm_89", ("scale",))


def test_importing_the_compiler_imports_no_cupy() -> None:
    code = "import sys, engine.cuda_source; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
