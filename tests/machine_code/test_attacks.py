"""A cubin from an untrusted source causes at most an error of one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_fp8_executed import group_source, warp_source

from engine.cuda_source import compile_kernel
from engine.machine_code.execution import _SOURCE as EXECUTES
from engine.machine_code.native_library import _sources

ROOT = Path(__file__).resolve().parents[2]
KERNELS = Path(__file__).with_name("kernels")
_TIME_LIMIT_S = 2_400  # for one run, which takes five minutes on an idle core
ADDRESSES = ["-fsanitize=address"]  # builds in half the time of both
WATCHED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]

# Loads and stores of all widths, shuffles, votes, atomics, conversions, branches, a stack.
EVERYTHING = """
extern "C" __global__ void everything(float4* out, const float4* in, int n, double d, long long w) {
  __shared__ float4 tile[64];
  float stack[64];
  int t = threadIdx.x;
  float4 v = in[t];
  tile[t % 64] = v;
  __syncthreads();
  for (int i = 0; i < n % 9; i++) stack[(i * t) & 63] = v.x + i;
  unsigned lanes = __ballot_sync(~0u, t & 1);
  int sum = __reduce_add_sync(~0u, t) + __shfl_xor_sync(~0u, t, 3) + __popc(lanes);
  atomicAdd(&reinterpret_cast<int*>(tile)[t & 31], sum);
  atomicAdd(&reinterpret_cast<int*>(out)[sum & 7], 1);
  double e = d * t + (double)v.y;
  if (__syncthreads_or(sum > n)) v.z = stack[sum & 63] + (float)e + (float)(w / (t + 1));
  v.w = exp2f(v.x) + rsqrtf(v.y) + (float)(int)v.z + tile[(t + 1) % 64].x;
  out[t] = v;
}
"""


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cubins")
    source = folder / "everything.cu"
    source.write_text(EVERYTHING)
    for arch in ("sm_80", "sm_90", "sm_120"):
        cubin = compile_kernel(source, (), arch, ()).cubin
        (folder / f"everything-{arch}.cubin").write_bytes(cubin)
    tiles = compile_kernel(KERNELS / "flash_wgmma.cu", (), "sm_90a", (), (KERNELS,)).cubin
    (folder / "flash_wgmma.cubin").write_bytes(tiles)
    formats = ("e4m3", "e5m2")
    fp8 = {
        "sm_89": warp_source(formats, 32, "f32"),
        "sm_90a": group_source(formats, "f32", 64, False, (1, 1)),
    }
    for arch, text in fp8.items():
        source.write_text(text)
        (folder / f"fp8-{arch}.cubin").write_bytes(compile_kernel(source, (), arch, ()).cubin)
    return folder


def build_watched(folder: Path, sanitizers: list[str]) -> Path:
    """Build the native libraries so that the first access out of bounds ends the process."""
    for source in (*_sources(), EXECUTES):
        # With the vector instructions of this processor.
        flags = ["-std=c++17", "-O0", "-march=native", "-fPIC", "-shared", "-w", *sanitizers]
        subprocess.run(
            ["g++", *flags, str(source), "-o", str(folder / f"{source.stem}.so")], check=True
        )
    return folder


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_watched(tmp_path_factory.mktemp("watched"), WATCHED)


def watched(folder: Path, libraries: Path, *numbers: int) -> str:
    """Run the attacks with the given counts and seed; return their output."""
    runtimes = [
        subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libstdc++.so")  # the first needs `throw` of the second
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.machine_code.attacks", str(folder), str(libraries),
         *map(str, numbers)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ
        | {
            "LD_PRELOAD": " ".join(runtimes),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "ATTUNE_CACHE_DIR": str(folder / "cache"),
        },
        timeout=_TIME_LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-4_000:]
    return done.stdout


@pytest.mark.exhaustive
@pytest.mark.timeout(_TIME_LIMIT_S + 100)
def test_damaged_cubins_access_nothing_out_of_bounds(cubins: Path, tmp_path: Path) -> None:
    said = watched(cubins, build_watched(tmp_path, ADDRESSES), 5, 8, 6)
    assert "5 random and 8 targeted cubins, 6 executed" in said


@pytest.mark.exhaustive
@pytest.mark.timeout(_TIME_LIMIT_S + 100)
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_damaged_cubins_access_nothing_out_of_bounds(
    cubins: Path, libraries: Path, seed: int
) -> None:
    """Over all seeds: 2,000 random cubins, 512 targeted ones and 800 that are executed."""
    said = watched(cubins, libraries, 250, 64, 100, seed)
    assert "250 random and 64 targeted cubins, 100 executed" in said
