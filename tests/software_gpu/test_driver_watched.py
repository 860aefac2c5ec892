"""The software GPU's driver and emulator, built to abort at the first access out of bounds."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.base.cxx import find_toolchain
from engine.cuda_source import compile_kernel
from engine.cuda_source.toolkit import find_include_dir
from engine.software_gpu.process_environment import (
    cuda_and_cupy,
    driver_arguments,
    software_environment,
)

pytest.importorskip("cuda.bindings", reason="cuda-bindings, which call the driver, are missing")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EMULATOR = ROOT / "engine" / "machine_code" / "native" / "execute.cpp"
WATCHED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
KERNELS = """
__device__ int total = 7;
extern "C" __global__ void add(int* data, int n) { data[threadIdx.x] += n; }
extern "C" __global__ void poke(int* data) { data[0] = total; }
"""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the same kernels for the first device and for another one."""
    folder = tmp_path_factory.mktemp("cubins")
    source = folder / "k.cu"
    source.write_text(KERNELS)
    paths = []
    for arch in ("sm_89", "sm_90"):
        path = folder / f"{arch}.cubin"
        path.write_bytes(compile_kernel(source, (), arch, ("add", "poke")).cubin)
        paths.append(str(path))
    return paths


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process whose driver and emulator are built with sanitizers."""
    folder = tmp_path_factory.mktemp("driver")
    common = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-w", *WATCHED]
    include = find_include_dir((cuda_and_cupy()[0], 0))
    driver = driver_arguments(find_toolchain(), include, folder)
    builds = (
        [*common, *driver, "-o", str(folder / "libcuda.so.1")],
        # As in use: with the processor's vector instructions.
        [*common, "-Wno-psabi", "-march=native", str(EMULATOR), "-o", str(folder / "execute.so")],
    )
    for building in [subprocess.Popen(command) for command in builds]:
        assert building.wait() == 0
    runtimes = [
        subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = software_environment(os.environ, "L4,H200", with_cupy=False)
    reader = "ATTUNE_SOFTWARE_GPU_READER"
    return environment | {
        "LD_LIBRARY_PATH": f"{folder}{os.pathsep}{environment['LD_LIBRARY_PATH']}",
        "ATTUNE_SOFTWARE_GPU_EMULATOR": str(folder / "execute.so"),
        # The cubin reader is a separate Python process with a memory limit.
        reader: "unset LD_PRELOAD; " + environment[reader],
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONPATH": str(ROOT),
    }


def run(watched: dict[str, str], script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        cwd=ROOT,
        env=watched,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[:4_000]
    return done.stdout


@pytest.mark.exhaustive  # a minute of building
def test_driver_calls_access_nothing_out_of_bounds(
    watched: dict[str, str], cubins: list[str]
) -> None:
    found = json.loads(run(watched, "driver_calls.py", *cubins))
    assert (found["added"], found["replayed"], found["variable"]) == (True, True, 7)
    assert found["wrong address"] == "CUDA_ERROR_ILLEGAL_ADDRESS"


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 5))
def test_damaged_cubins_are_refused_or_run_within_their_memory(
    watched: dict[str, str], cubins: list[str], seed: int
) -> None:
    ends = ast.literal_eval(run(watched, "driver_attacks.py", cubins[0], "60", str(seed)))
    assert ends["refused"] > 3
    assert ends["launched"] > 3


@pytest.mark.slow
def test_calls_with_arbitrary_handles_and_sizes(cubins: list[str], tmp_path: Path) -> None:
    """Valid, freed and invalid handles, other contexts, captures: each call returns a code."""
    program = tmp_path / "driver_fuzz"
    include = find_include_dir((cuda_and_cupy()[0], 0))
    flags = ("-std=c++17", "-O0", "-g1", "-w", "-pthread", "-fsanitize=address", f"-I{include}")
    source = str(HERE / "driver_fuzz.cpp")
    subprocess.run(["g++", *flags, source, "-ldl", "-o", str(program)], check=True, timeout=800)
    environment = software_environment(os.environ, "L4,L4", with_cupy=False)
    environment |= {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    for seed in range(1, 5):
        done = subprocess.run(
            [str(program), cubins[0], "6000", str(seed)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[:4_000]
        found = json.loads(done.stdout)
        assert found["succeeded"] > 1000
        assert min(found["kernels"], found["graphs"]) > 10
