"""`sass`: counts and simulated times of variants, sources and cubins; one-sentence errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from words import raises, says

from engine.attention.config import find_variant
from engine.base.errors import ToolMissing
from engine.cli import main
from engine.cuda_source import compile_kernel
from engine.machine_code import analysis
from engine.machine_code import disassembly as nvdisasm

pytestmark = pytest.mark.usefixtures("sass_in_this_process")

GEMM = """
#include <cstdio>
#include "scale.h"
struct Params { const float* a; const float* b; float* c; int n; };
template <int TILE>
__global__ void gemm(Params p, float alpha) {
  __shared__ float a[TILE][TILE], b[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < p.n; k += TILE) {
    a[threadIdx.y][threadIdx.x] = p.a[row * p.n + k + threadIdx.x];
    b[threadIdx.y][threadIdx.x] = p.b[(k + threadIdx.y) * p.n + col];
    __syncthreads();
    for (int i = 0; i < TILE; i++) sum += a[threadIdx.y][i] * b[i][threadIdx.x];
    __syncthreads();
  }
  p.c[row * p.n + col] = alpha * SCALE * sum + OFFSET;
}
__global__ void scale(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= SCALE; }
__global__ void shift(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += SCALE; }
int main() { std::printf("not compiled\\n"); }
"""
LAUNCH = ["--grid", "8,8", "--block", "16,16", "--arg", "bytes:@ptr@ptr@ptr8000000000000000"]
LAUNCH += ["--arg", "f32:0.5"]
PLAIN = ["--grid", "4", "--block", "128", "--arg", "ptr"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "scale.h").write_text("#define SCALE 2.0f\n")
    path = tmp_path / "gemm.cu"
    path.write_text(GEMM)
    return path


def options(source: Path) -> list[str]:
    return ["--include", str(source.parent / "include"), "--define", "OFFSET=1.0f"]


def printed(capfd: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["sass", *argv, "--json"]) == 0
    result: dict[str, Any] = json.loads(capfd.readouterr().out)
    return result


@pytest.mark.slow
def test_a_template_with_a_structure_is_counted_and_timed(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    entry = ["--entry", "gemm<16>", "--gpu", "A100 80GB SXM"]
    result = printed(capfd, str(source), *entry, *options(source), *LAUNCH)
    warps, turns = 64 * 8, 128 // 16
    assert result["arch"] == "sm_80"
    assert result["passes"][0]["counted"]["scalar_math"] >= warps * turns * 16
    assert result["instructions"]["sync"] >= warps * turns * 2
    # Two rows of 16 floats are four sectors: a warp reads A and B in every turn, and writes C.
    assert result["global"]["sectors"] == warps * (2 * turns + 1) * 4
    assert result["global"]["ideal_sectors"] == result["global"]["sectors"]
    assert result["shared"]["wavefronts"] >= result["shared"]["ideal_wavefronts"] > 0
    assert result["resident_ctas"] == 8  # 2,048 threads
    assert result["sm_cycles"] >= result["cta_cycles"] > 0
    assert all(0 <= share <= 1 for share in result["busy"].values())
    latency = result["latency"]
    assert (latency["origin"], latency["method"]) == ("predicted", "machine code")
    assert 0 < latency["low_us"] < latency["median_us"] < latency["high_us"]
    cold = printed(capfd, str(source), *entry, *options(source), *LAUNCH, "--cold")
    assert cold["dram_bytes"] > result["dram_bytes"] == 0
    assert cold["latency"]["median_us"] > latency["median_us"]


@pytest.mark.slow
def test_a_cubin_is_counted_like_its_source(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arch = ["--arch", "sm_89", "--entry", "scale"]
    from_source = printed(capfd, str(source), *arch, *options(source), *PLAIN)
    kernel = compile_kernel(
        source, (("OFFSET", "1.0f"),), "sm_89", (), (source.parent / "include",)
    )
    cubin = source.with_suffix(".cubin")
    cubin.write_bytes(kernel.cubin)
    from_cubin = printed(capfd, str(cubin), "--entry", "scale", *PLAIN)
    assert from_cubin["instructions"] == from_source["instructions"]
    assert "latency" not in from_cubin  # no GPU was named
    assert main(["sass", str(cubin), *PLAIN]) == 2
    assert says(capfd.readouterr().err, "entry_not_chosen", "_Z5scalePf, _Z5shiftPf")
    assert main(["sass", str(cubin), "--entry", "scale", "--gpu", "H200", *PLAIN]) == 2
    assert says(capfd.readouterr().err, "cubin_on_other_gpu", "sm_89", "H200")
    assert main(["sass", str(cubin), "--entry", "scale", "--arch", "sm_80", *PLAIN]) == 2
    assert says(capfd.readouterr().err, "cubin_for_other_arch", "sm_89", "sm_80")
    cubin.write_bytes(kernel.cubin[:5000])
    assert main(["sass", str(cubin), *PLAIN]) == 2
    assert says(capfd.readouterr().err, "cubin_cut_short", "5,000")


@pytest.mark.slow
def test_a_kernel_may_be_described_beside_its_source(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_KERNELS", "")
    kernel = Path(__file__).parents[1] / "own_kernels" / "kernels" / "naive_flash.cu"
    result = printed(capfd, str(kernel), "-S", "32", "-D", "32", "--arch", "sm_80")
    assert sum(result["instructions"].values()) > 0


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_kernel_may_describe_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A .cu file with a description needs no registration, also if its GPU has tuned configs."""
    monkeypatch.setenv("ATTUNE_KERNELS", "")
    kernel = tmp_path / "mine.cu"
    ladder = find_variant("v01").source
    kernel.write_text(ladder.read_text())
    for header in ladder.parent.glob("*.cuh"):
        (tmp_path / header.name).write_text(header.read_text())
    mine = printed(capfd, str(kernel), "-S", "64", "--gpu", "L4")
    assert mine["instructions"] == printed(capfd, "v01", "-S", "64", "--gpu", "L4")["instructions"]
    assert mine["latency"]["median_us"] > 0


@pytest.mark.slow
def test_a_vector_access_may_end_within_the_allocation_unit(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass with 8 bytes of shared memory may read them by LDS.128 (allocation granularity)."""
    monkeypatch.setenv("ATTUNE_KERNELS", "")
    kernel = Path(__file__).parents[1] / "own_kernels" / "kernels" / "flash_split.cu"
    result = printed(capfd, str(kernel), "-S", "128", "--gpu", "A100")
    assert all(sum(each["instructions"].values()) > 0 for each in result["passes"])
    assert len(result["passes"]) == 2


@pytest.mark.slow
def test_figures_of_all_passes_are_added(capfd: pytest.CaptureFixture[str]) -> None:
    result = printed(capfd, "v05", "--gpu", "L4", "-H", "2", "-S", "256", "--defaults-only")
    first, second = result["passes"]
    assert (first["entry"], second["entry"]) == ("attention_partial", "attention_fuse")
    for pipe, count in result["instructions"].items():
        assert count == first["instructions"].get(pipe, 0) + second["instructions"].get(pipe, 0)
    together = first["latency"]["median_us"] + second["latency"]["median_us"]
    assert result["latency"]["median_us"] == pytest.approx(together)
    assert main(["sass", "v05", "--gpu", "L4", "-H", "2", "-S", "256", "--listing"]) == 0
    text = capfd.readouterr().out
    assert "counted" in text
    assert "simulated" in text
    assert "BAR.SYNC" in text


@pytest.mark.parametrize(
    ("argv", "name", "facts"),
    [
        (["v17", "--gpu", "L4"], "needs_compute_capability", ("v17", "9")),
        (["v08"], "gpu_or_arch", ()),
        (["v99", "--gpu", "L4"], "unknown_name", ("'v99'",)),
        (["v08", "--gpu", "L5"], "gpu_unknown", ("'L5'",)),
        (["v08", "--gpu", "L4", "--grid", "4"], "option_of_a_file", ("--grid",)),
        (["v08", "--gpu", "L4", "--arg", "ptr"], "option_of_a_file", ("--arg",)),
        (["v08", "--gpu", "L4", "--cold"], "option_of_a_file", ("--cold",)),
        (["k.cu", "--arch", "sm_80", "--cold"], "option_needs_simulation", ("--cold",)),
        (["k.cu", "--arch", "sm_80"], "launch_needs_option", ("k.cu", "--grid")),
        (["k.cu", "--arch", "sm_80", "--config", "a=3"], "option_of_a_variant", ("--config",)),
        (["k.cu", "--arch", "sm_80", "--grid", "4"], "launch_needs_option", ("k.cu", "--block")),
        (
            ["k.cu", "--arch", "sm_80", "--grid", "a", "--block", "32"],
            "extent_form",
            ("--grid", "'a'"),
        ),
        (
            ["k.cu", "--arch", "sm_80", "--grid", "0", "--block", "32"],
            "extent_form",
            ("--grid", "'0'"),
        ),
        (
            ["k.cu", "--arch", "sm_80", "--grid", "1", "--block", "1,2,3,4"],
            "extent_form",
            ("--block", "'1,2,3,4'"),
        ),
        (
            ["k.cu", "--arch", "sm_80", "--grid", "1", "--block", "32", "--arg", "int:3"],
            "argument_form",
            ("'int:3'",),
        ),
        (
            ["k.cu", "--arch", "sm_80", "--grid", "1", "--block", "32", "--smem", "-1"],
            "smem_form",
            ("-1",),
        ),
        (
            ["k.cu", "--arch", "sm_80", "--grid", "1", "--block", "32", "--define", "1=2"],
            "define_form",
            ("'1=2'",),
        ),
        (
            ["k.cu", "--arch", "sm_80", "--grid", "1", "--block", "32", "--include", "nowhere"],
            "include_no_folder",
            ("nowhere",),
        ),
        (["k.cu", "--arch", "80", "--grid", "1", "--block", "32"], "arch_like_sm_89", ("'80'",)),
        (["nowhere.cubin"], "cubin_or_cu_missing", ("nowhere.cubin",)),
        (["nowhere.cu", "--grid", "1", "--block", "32"], "cubin_or_cu_missing", ("nowhere.cu",)),
        (["/"], "cubin_or_cu_missing", ("/",)),
        (
            ["k.cubin", "--grid", "1", "--block", "32", "--define", "A=1"],
            "option_of_a_source",
            ("--define", "k.cubin"),
        ),
    ],
)
def test_invalid_options_give_one_sentence_errors(
    argv: list[str],
    name: str,
    facts: tuple[str, ...],
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(source.parent)
    source.rename("k.cu")
    Path("k.cubin").write_bytes(b"")
    assert main(["sass", *argv]) == 2
    assert says(capfd.readouterr().err, name, *facts)


def test_a_file_that_is_no_cubin_gives_instructions(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "k.cubin"
    path.write_bytes(b"\x7fELF" + bytes(200))
    for data, name in (
        (b"", "no_cubin"),
        (b"text", "no_cubin"),
        (path.read_bytes(), "elf_no_cubin"),
    ):
        path.write_bytes(data)
        assert main(["sass", str(path), *PLAIN]) == 2
        assert says(capfd.readouterr().err, name)


@pytest.mark.slow
def test_a_damaged_cubin_gives_a_one_sentence_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Cubins with a stack of 2 GiB, or with control characters in function names, are refused."""
    source = tmp_path / "k.cu"
    source.write_text('extern "C" __global__ void plain_name(float* x) { x[threadIdx.x] = 1; }')
    whole = compile_kernel(source, (), "sm_89", ()).cubin
    frame = whole.index(b"\x04\x11\x08\x00")  # EIATTR_FRAME_SIZE: a symbol, then the bytes
    damaged = {
        whole[: frame + 8] + (0x7FFFFF01).to_bytes(4, "little") + whole[frame + 12 :]: (
            "stack_too_large",
            "2,147,483,393",
        ),
        whole.replace(b"plain_name", b"pl\x1b[2Jname"): ("unprintable_function",),
        whole.replace(b"plain_name", b"plain\nname"): ("unprintable_function",),
    }
    path = tmp_path / "k.cubin"
    for data, (name, *facts) in damaged.items():
        path.write_bytes(data)
        assert main(["sass", str(path), *PLAIN]) == 2
        said = capfd.readouterr().err
        assert says(said, name, *facts)
        assert said.rstrip("\n").isprintable()
    path.write_bytes(whole)
    assert main(["sass", str(path), *PLAIN]) == 0


def test_missing_nvdisasm_gives_installation_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Ignore listings cached by other tests.
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    analysis._programs.clear()
    monkeypatch.setattr(nvdisasm, "_WHEELS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    nvdisasm.find_nvdisasm.cache_clear()
    try:
        with raises(ToolMissing, "nvdisasm_missing"):
            nvdisasm.find_nvdisasm()
        assert main(["sass", "v01", "--arch", "sm_75", "-S", "64"]) == 1
    finally:
        nvdisasm.find_nvdisasm.cache_clear()
    said = capfd.readouterr().err
    assert says(said, "nvdisasm_missing")
    assert said.count("\n") == 1


@pytest.mark.exhaustive
def test_barriers_of_exited_warps_do_not_block(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """v17's last arrivals at a named barrier have no partner, since the other warps have exited;
    the warps that still wait are not released one by one."""
    argv = ["sass", "v17", "--gpu", "H200", "-S", "2048", "-H", "32", "-D", "128", "--json"]
    assert main(argv) == 0
    assert json.loads(capfd.readouterr().out)["latency"]["median_us"] > 0
