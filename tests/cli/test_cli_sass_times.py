"""`sass`: clocks, compile flags, the timeline, and DRAM bytes in `--json`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from words import raises, says

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.cli import main
from engine.cuda_source import compile_kernel
from engine.cuda_source.nvrtc import compiler_flag, toolchain
from engine.cuda_source.toolkit import cuda_folders, more_headers
from engine.devices import find_device
from engine.devices.spec import at_clock
from engine.history import History
from engine.model.kernel import Kernel

SCALE = """
extern "C" __global__ void k(const float* x, float* y, int n) {
  __shared__ float tile[128];
  float sum = 0;
  for (int i = 0; i < n; i++) {
    tile[threadIdx.x] = x[(blockIdx.x * n + i) * 128 + threadIdx.x];
    __syncthreads();
    sum += __expf(tile[127 - threadIdx.x]);
    __syncthreads();
  }
  y[blockIdx.x * 128 + threadIdx.x] = sum / 3.7f;
}
"""
PLAIN = ["--grid", "232", "--block", "128", "--arg", "ptr", "--arg", "ptr", "--arg", "i32:32"]
ON_L4 = [*PLAIN, "--gpu", "L4"]

pytestmark = pytest.mark.usefixtures("sass_in_this_process")


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "k.cu"
    path.write_text(SCALE)
    return str(path)


def printed(capfd: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["sass", *argv, "--json"]) == 0
    result: dict[str, Any] = json.loads(capfd.readouterr().out)
    return result


@pytest.mark.slow
def test_a_time_names_its_clock_and_its_limit(
    source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    boost = printed(capfd, source, *ON_L4, "--timeline", str(file))
    assert (boost["clock_mhz"], boost["clock"]) == (2040, "boost")
    assert boost["dram_bytes"] == boost["dram_us"] == 0  # the data fit in L2
    assert boost["bound"]
    assert says(boost["passes"][0]["notes"][-1], "times_are_at", "boost clock", "2,040 MHz")
    half = printed(capfd, source, *ON_L4, "--clock", "1020")
    assert (half["clock_mhz"], half["clock"]) == (1020, "given")
    assert half["sm_cycles"] == pytest.approx(boost["sm_cycles"], rel=0.01)
    assert half["latency"]["median_us"] > 1.5 * boost["latency"]["median_us"]
    trace = json.loads(file.read_text())
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    ctas = {e["pid"] for e in slices if e.get("cat") == "stall"}
    assert len(ctas) == 4  # of one SM
    for cta in ctas:
        warp = sorted((e["ts"], e["dur"]) for e in slices if e["pid"] == cta and e["tid"] == 1)
        assert all(a + d <= b + 1e-9 for (a, d), (b, _) in pairwise(warp))
    assert {"Long scoreboard", "Barrier"} <= {e["name"] for e in slices}
    assert trace["otherData"]["origin"] == "simulated"
    end = max(e["ts"] + e["dur"] for e in slices)
    assert end <= 1.05 * boost["latency"]["median_us"]


@pytest.mark.slow
def test_several_passes_have_value_and_interval_of_the_prediction(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The second pass reads a table whose contents are not known."""
    told = printed(capfd, "v05", "-S", "16", "--gpu", "L4", "--clock", "1000")["latency"]
    kernel = Kernel.of("v05", at_clock(find_device("L4"), 1_000))
    made = History().estimate(kernel, Problem(1, 1, 16, 64)).latency
    assert made is not None
    assert told == {
        name: getattr(made, name)
        for name in ("median_us", "low_us", "high_us", "origin", "method", "reason")
    }


@pytest.mark.exhaustive
def test_two_launches_are_in_one_trace(
    source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = tmp_path / "slow.cu"
    slow.write_text(SCALE.replace("n; i++", "2 * n; i++"))
    file = tmp_path / "trace.json"
    alone = printed(capfd, source, *ON_L4, "--timeline", str(file))
    first = json.loads(file.read_text())["traceEvents"]
    both = printed(capfd, source, *ON_L4, "--timeline", str(file), "--against", str(slow))
    assert both["latency"] == alone["latency"]  # printed figures are of the first launch
    trace = json.loads(file.read_text())
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [e for e in slices if e["pid"] < 10_000_000] == [e for e in first if e["ph"] == "X"]
    ends = [
        max(e["ts"] + e["dur"] for e in slices if (e["pid"] >= 10_000_000) is second)
        for second in (False, True)
    ]
    assert ends[1] > 1.5 * ends[0]
    named = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert {f"{source}: CTA 0", f"{slow}: CTA 0"} <= named
    assert [each["origin"] for each in trace["otherData"]["launches"]] == ["simulated"] * 2


@pytest.mark.parametrize(
    ("more", "name", "facts"),
    [
        (["--against", "v09"], "against_needs_timeline", ()),
        (["--against", "v08", "--timeline", "t"], "against_itself", ("v08",)),
    ],
)
def test_a_second_launch_needs_a_trace_and_another_kernel(
    more: list[str], name: str, facts: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["sass", "v08", "--gpu", "L4", "-S", "128", *more]) == 2
    assert says(capfd.readouterr().err, name, *facts)


@pytest.mark.slow
def test_flags_reach_the_compiler(source: str, capfd: pytest.CaptureFixture[str]) -> None:
    plain = printed(capfd, source, *PLAIN, "--arch", "sm_89")
    fast = printed(capfd, source, *PLAIN, "--arch", "sm_89", "--flag=--use_fast_math")
    assert sum(fast["instructions"].values()) < sum(plain["instructions"].values())
    assert main(["sass", source, *PLAIN, "--arch", "sm_89", "--flag=--no-such-flag"]) != 0
    assert "no-such-flag" in capfd.readouterr().err


def test_usual_spellings_of_flags() -> None:
    assert compiler_flag("-dlcm=cg") == "--ptxas-options=-dlcm=cg"
    assert compiler_flag("-use_fast_math") == "--use_fast_math"
    assert compiler_flag("-std=c++20") == "--std=c++20"
    assert compiler_flag("--maxrregcount=64") == "--maxrregcount=64"
    with raises(InvalidProblem, "flag_of_attune"):
        compiler_flag("-I/etc")
    with raises(InvalidProblem, "compiler_flag_form"):
        compiler_flag("dlcm")


@pytest.mark.parametrize(
    ("argv", "name", "facts"),
    [
        ([*ON_L4, "--clock", "0"], "clock_range", ("L4", "0 MHz", "100")),
        ([*ON_L4, "--clock", "fast"], "clock_form", ("'fast'",)),
        ([*PLAIN, "--arch", "sm_89", "--clock", "900"], "option_needs_simulation", ("--clock",)),
        (
            [*PLAIN, "--arch", "sm_89", "--timeline", "x"],
            "option_needs_simulation",
            ("--timeline",),
        ),
        ([*ON_L4, "--timeline", "nowhere/x.json"], "timeline_folder_missing", ("nowhere",)),
        ([*PLAIN, "--gpu", "GH200", "--clock", "sustained"], "no_power_limit", ("GH200",)),
    ],
)
def test_invalid_options_give_one_sentence_errors(
    argv: list[str],
    name: str,
    facts: tuple[str, ...],
    source: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["sass", source, *argv]) == 2
    assert says(capfd.readouterr().err, name, *facts)


def test_cuda_headers_are_distinguished_from_a_kernels_own(tmp_path: Path) -> None:
    assert cuda_folders(tmp_path) == ()
    assert more_headers(tmp_path) == ()
    libcu = tmp_path / "cccl"
    (libcu / "cuda" / "std").mkdir(parents=True)
    (libcu / "cuda" / "std" / "version").write_text("")
    assert more_headers(tmp_path) == cuda_folders(tmp_path) == cuda_folders(libcu) == (libcu,)
    (tmp_path / "cuda_fp16.h").write_text("")
    (tmp_path / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 13000\n")
    assert cuda_folders(tmp_path) == (tmp_path, libcu)


def test_libcu_barriers_compile_with_their_include_folder(tmp_path: Path) -> None:
    """Headers of the toolkit are not limited in size like a kernel's source (cuda.h is larger)."""
    cupy = pytest.importorskip("cupy")
    source = tmp_path / "barrier.cu"
    source.write_text(
        "#include <cuda.h>\n#include <cuda/barrier>\n#include <cuda_fp16.h>\n"
        "using Barrier = cuda::barrier<cuda::thread_scope_block>;\n"
        'extern "C" __global__ void wait(__half* x) {\n'
        "  __shared__ Barrier barrier;\n"
        "  if (threadIdx.x == 0) init(&barrier, blockDim.x);\n"
        "  __syncthreads();\n"
        "  barrier.wait(barrier.arrive());\n"
        "  x[threadIdx.x] = __float2half(1.0f);\n"
        "}\n"
    )
    cccl = Path(cupy.__file__).parent / "_core" / "include" / "cupy" / "_cccl"
    folders = (toolchain().include_dir, cccl)
    made = compile_kernel(source, (), "sm_90", ("wait",), include_folders=folders)
    assert made.cubin
