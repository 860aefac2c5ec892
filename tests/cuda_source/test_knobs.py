"""Options of the compiler as tunables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from words import raises, says

from engine.base.errors import CompileError, ToolMissing
from engine.cli import main
from engine.cuda_source import compile_kernel
from engine.cuda_source.compiler import NvrtcLibrary
from engine.cuda_source.nvrtc import Toolchain, options_of, toolchain
from engine.cuda_source.toolkit import other_nvrtc
from engine.machine_code.cubin import read_cubin
from kernels.variant import KERNELS_DIR

SOURCE = """
extern "C" __global__ void sum(const float* x, float* out, int n) {
    float parts[32];
#pragma unroll
    for (int i = 0; i < 32; i++) parts[i] = x[threadIdx.x + i * n];
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++) total += parts[i] * parts[31 - i] / (parts[i] + 1.0f);
    out[threadIdx.x] = total;
}
"""


def built(folder: Path, tools: Toolchain | None = None, **knobs: int) -> tuple[int, int, str]:
    """Return (registers, bytes of the cubin, digest of its code)."""
    source = folder / "sum.cu"
    source.write_text(SOURCE)
    defines = tuple(sorted((name.upper(), str(value)) for name, value in knobs.items()))
    made = compile_kernel(source, defines, "sm_89", ("sum",), tools=tools)
    registers = made.entries["sum"].registers_per_thread
    return registers, len(made.cubin), read_cubin(made.cubin).code_sha256


def test_compiler_options_and_macros_are_both_tunables() -> None:
    defines = (("BLOCK_N", "64"), ("FAST_MATH", "1"), ("MAXRREGCOUNT", "96"), ("PTXAS_LEVEL", "2"))
    assert options_of(defines) == (
        *("-DBLOCK_N=64", "--use_fast_math", "--maxrregcount=96", "--ptxas-options=-O2"),
    )
    assert options_of((("FAST_MATH", "0"), ("MAXRREGCOUNT", "0"))) == ()


def test_each_option_reaches_the_compiler(tmp_path: Path) -> None:
    registers, size, code = built(tmp_path)
    assert built(tmp_path, maxrregcount=0, fast_math=0, ptxas_level=0)[2] == code
    assert built(tmp_path, maxrregcount=24)[0] <= 24 < registers
    assert built(tmp_path, fast_math=1)[1] < size
    assert built(tmp_path, ptxas_level=1)[2] != code


@pytest.mark.slow
def test_a_sweep_ranks_them_by_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for header in KERNELS_DIR.glob("*.cuh"):
        (tmp_path / header.name).write_text(header.read_text())
    text = (KERNELS_DIR / "v08_mma_sync.cu").read_text()
    knob = '[tunables]\nmaxrregcount = {values = [0, 64], default = 0, meaning = "registers"}\n'
    mine = tmp_path / "mine.cu"
    text = text.replace("[tunables]\n", knob)
    mine.write_text(text.replace("__launch_bounds__(NUM_THREADS, 1)", ""))  # else it wins
    options = ["--heads", "2", "--seqlen", "64", "--gpu", "L4", "--no-execute", "--defaults-only"]
    options += ["--tunable", "maxrregcount=0,64", "--strategy", "simulated", "--json"]
    journal = tmp_path / "journal.jsonl"
    code = main(["sweep", str(mine), *options, "--journal", str(journal)])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [p["config"]["maxrregcount"] for p in found["best"][0]["places"]] == [0]
    (refused,) = (row for row in found["rows"] if row["config.maxrregcount"] == 64)
    assert (refused["status"], refused["median_us"]) == ("SKIPPED", None)
    assert says(refused["reason"], "spills_of_config")
    journal.unlink()
    assert main(["sweep", str(mine), *options, "--journal", str(journal), "--allow-spills"]) == 0
    places = json.loads(capsys.readouterr().out)["best"][0]["places"]
    assert [place["config"]["maxrregcount"] for place in places] == [0, 64]
    assert places[1]["median_us"] > places[0]["median_us"]


def test_the_nvrtc_version_is_a_tunable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = toolchain().version
    code = built(tmp_path)[2]
    assert built(tmp_path, nvrtc=version[0] * 100 + version[1])[2] == code
    with raises(ToolMissing, "nvrtc_version_missing", "9.1"):
        built(tmp_path, nvrtc=901)
    # The library that CuPy loads, loaded separately: the same code, the same errors.
    path = other_nvrtc(version)
    assert path.name.startswith("libnvrtc.so")
    other = replace(toolchain(), library=path, archs=NvrtcLibrary(path).archs())
    assert other.archs == toolchain().archs
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path / "cache"))
    assert built(tmp_path, other)[2] == code
    (tmp_path / "sum.cu").write_text(SOURCE.replace("total;", "total"))
    with raises(CompileError, "nvrtc_error", "sum.cu(", '): expected a ";"'):
        compile_kernel(tmp_path / "sum.cu", (), "sm_89", ("sum",), tools=other)
