"""The GPU in software: its driver through NVIDIA's bindings, the installed CuPy on it, and that its
times are never recorded as measurements."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from software_nvml import described
from words import raises, says

from engine.backends.cuda import availability
from engine.backends.cuda.backend import CudaBackend
from engine.base.errors import InvalidProblem, MeasureError, ToolMissing, UnknownName
from engine.cuda_source import compile_kernel
from engine.devices import limits_for
from engine.devices.spec import is_software
from engine.jobs.worker import _Stream
from engine.machine_code.cubin import read_cubin
from engine.model.occupancy import ctas_per_sm
from engine.software_gpu import process_environment as environment
from engine.software_gpu.process_environment import cuda_and_cupy, device_table

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")
pytest.importorskip("cuda.bindings.driver", reason="cuda.bindings is not installed")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KERNELS = """
__device__ int total = 7;
extern "C" __global__ void add(int* x, int n) { x[threadIdx.x] += n; }
extern "C" __global__ void poke(int* x) { x[threadIdx.x] = total; }
"""
CUPY = """
import cupy as cp
x = cp.arange(1000, dtype=cp.float32)
double = cp.RawKernel(
    'extern "C" __global__ void k(float* x, int n) {'
    ' int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }', 'k')
double((8,), (128,), (x, cp.int32(1000)))
assert float(x.sum()) == 999000 and float((x + 1).max()) == 1999
try:
    cp.cuda.runtime.deviceSetLimit(0, 1024)
except cp.cuda.runtime.CUDARuntimeError as error:
    assert error.status == 801, error
pool = cp.cuda.MemoryAsyncPool()
with cp.cuda.using_allocator(pool.malloc):
    assert float((cp.ones(1000) * 3).sum()) == 3000
print(cp.cuda.runtime.getDeviceProperties(0)["name"].decode())
"""


ENDLESS = """
import cupy as cp
x = cp.zeros(32, dtype=cp.int32)
spin = cp.RawKernel('''
extern "C" __global__ void spin(volatile int* x) {
  while (x[0] == 0) {}
}''', 'spin')
spin((2,), (32,), (x,))
try:
    cp.cuda.Device().synchronize()
except cp.cuda.runtime.CUDARuntimeError as error:
    print(error.status)
"""


def run_softgpu(
    *command: str,
    gpus: str = "L4",
    more: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command on the software GPU; skip the test if CuPy's source is not available."""
    done = subprocess.run(
        [sys.executable, "-m", "engine", "softgpu", "--gpus", gpus, *more, "--", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if "cannot be fetched" in done.stderr:
        pytest.skip(done.stderr.strip())
    return done


def softgpu(*command: str, gpus: str = "L4", more: tuple[str, ...] = ()) -> str:
    """Return what the command prints on the software GPU."""
    done = run_softgpu(*command, gpus=gpus, more=more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cubin")
    source = folder / "k.cu"
    source.write_text(KERNELS)
    made = compile_kernel(source, (), "sm_89", ("add", "poke"))
    path = folder / "k.cubin"
    path.write_bytes(made.cubin)
    other = compile_kernel(source, (), "sm_90", ("add", "poke"))
    path.with_name("other.cubin").write_bytes(other.cubin)
    return path


@pytest.fixture(scope="module")
def answers(cubin: Path) -> dict[str, Any]:
    script = str(HERE / "driver_calls.py")
    more = ("--without-cupy",)
    by_bus = ("env", "CUDA_DEVICE_ORDER=PCI_BUS_ID", sys.executable)
    cubins = (str(cubin), str(cubin.with_name("other.cubin")))
    said = softgpu(*by_bus, script, *cubins, gpus="L4,H200", more=more)
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.slow
def test_names_of_the_devices_say_software(answers: dict[str, Any]) -> None:
    assert answers["names"] == ["software L4", "software H200"]
    assert is_software(answers["nvml_name"])


def test_kernels_give_correct_results(answers: dict[str, Any]) -> None:
    assert (answers["added"], answers["replayed"], answers["variable"]) == (True, True, 7)


def test_the_driver_refuses_what_cuda_refuses(answers: dict[str, Any]) -> None:
    expected = {
        "no such device": "INVALID_DEVICE",
        "no such kernel": "NOT_FOUND",
        "PTX": "INVALID_PTX",
        "damaged cubin": "INVALID_IMAGE",
        "cubin of another GPU": "NO_BINARY_FOR_GPU",
        "copy past the end": "INVALID_VALUE",
        "more memory than there is": "OUT_OF_MEMORY",
        "threads beyond a CTA": "INVALID_VALUE",
        "shared memory beyond the limit": "INVALID_VALUE",
        "waiting in a capture": "STREAM_CAPTURE_UNSUPPORTED",
        "the end of that capture": "STREAM_CAPTURE_INVALIDATED",
        "not there": "NOT_SUPPORTED",
        "not there either": "NOT_SUPPORTED",
        "wrong address": "ILLEGAL_ADDRESS",
        "after it": "ILLEGAL_ADDRESS",
    }
    assert {name: answers[name] for name in expected} == {
        name: f"CUDA_ERROR_{code}" for name, code in expected.items()
    }
    assert answers["damaged headers"] == ["CUDA_ERROR_INVALID_IMAGE"]


def test_missing_driver_functions_are_named(answers: dict[str, Any]) -> None:
    """Also to a program that is linked against the driver."""
    assert answers["not there, linked"] == 801
    assert answers["it says"].count("\n") == 1
    assert "cuMipmappedArrayDestroy" in answers["it says"]


def test_the_driver_refuses_what_its_documentation_refuses(answers: dict[str, Any]) -> None:
    asked = answers["documented"]
    assert len(asked) > 40
    assert {name: pair[0] for name, pair in asked.items() if pair[0] != pair[1]} == {}, asked


def test_tensor_maps_beyond_documented_limits_are_refused(answers: dict[str, Any]) -> None:
    """Alignment of the map (64 bytes) and the tensor (16), and sizes of dimensions and boxes."""
    below, of_9_0 = answers["maps"]["L4"], answers["maps"]["H200"]
    assert set(below.values()) == {"CUDA_ERROR_NOT_SUPPORTED"}
    assert of_9_0.pop("fits") == "CUDA_SUCCESS"
    assert len(of_9_0) == 16
    assert set(of_9_0.values()) == {"CUDA_ERROR_INVALID_VALUE"}, of_9_0


FIRST_OF_CUDA = """
from engine.devices.spec import detect_local
local = detect_local()
print(local.spec.name, local.spec.num_sms, local.spec.l2_bytes >> 20, local.spec.boost_clock_mhz)
for each in local.differences:
    print(each)
print(local.spec.source)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ((), "H200 132 60 1980"),
        (("CUDA_DEVICE_ORDER=PCI_BUS_ID",), "L4 58 48 2040"),
        (("CUDA_VISIBLE_DEVICES=1",), "L4 58 48 2040"),
        (("CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1,0"), "H200 132 60 1980"),
    ],
)
def test_the_default_gpu_is_cudas_first_one(variables: tuple[str, ...], first: str) -> None:
    """With an L4 before an H200 on the bus; by default CUDA puts the fastest first."""
    said = softgpu("env", *variables, sys.executable, "-c", FIRST_OF_CUDA, gpus="L4,H200")
    assert said.splitlines()[0] == first


@pytest.mark.slow
def test_sms_and_l2_of_the_driver_override_the_table() -> None:
    """A board with fewer SMs and less L2 than the table's row."""
    table = "\n".join(
        (described("L4"), described("H200", num_sms=114, l2_bytes=50 << 20, clock_khz=1_830_000))
    )
    variable = f"ATTUNE_SOFTWARE_GPU_TABLE={table}"
    said = softgpu("env", variable, sys.executable, "-c", FIRST_OF_CUDA).splitlines()
    assert said[0] == "H200 (114 SMs) 114 50 1980"
    for line, facts in zip(
        said[1:4],
        (("SMs", "114", "132"), ("L2", "50 MiB", "60 MiB"), ("SM clock", "1,830", "1,980")),
        strict=True,
    ):
        assert says(line, "driver_and_table_differ", *facts)
    assert says(said[4], "l2_driver_reports")


def test_a_fault_names_instruction_line_and_cta(answers: dict[str, Any]) -> None:
    for part in ("poke", "k.cu:4", "STG", "CTA 0, 0, 0"):
        assert part in answers["sentence"], answers["sentence"]


def test_the_driver_counts_occupancy_as_the_model(cubin: Path, answers: dict[str, Any]) -> None:
    entry = read_cubin(cubin.read_bytes()).entries["add"]
    limits = limits_for((8, 9))
    ours = [
        int(ctas_per_sm(limits, threads, entry.registers, smem).resident)
        for threads in (32, 96, 256, 1024)
        for smem in (0, 5000, 40000)
    ]
    assert (answers["registers"], answers["occupancy"]) == (entry.registers, ours)


def test_a_change_of_the_driver_does_not_rebuild_cupys_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building that module takes a minute and a download."""
    native = tmp_path / "native"
    shutil.copytree(environment._NATIVE, native)
    monkeypatch.setattr(environment, "_NATIVE", native)
    kept: list[tuple[Path, ...]] = []

    def keep(*given: Any) -> Path:
        kept.append(tuple(given[3]))
        return tmp_path

    monkeypatch.setattr(environment, "_kept", keep)
    environment.driver_folder()
    environment.runtime_module(tmp_path)
    assert {native / "driver.cpp", native / "cudart.cpp"} <= set(kept[0])
    assert [path.name for path in kept[1]] == ["cudart.cpp", "cuda_profiler_api.h"]


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ({"cupy-cuda12x": "14.2.0", "cuda-bindings": "12.9.10"}, (12, "14.2.0")),
        ({"cupy-cuda13x": "14.2.0", "cupy-cuda12x": "14.1.0"}, (13, "14.2.0")),
        ({"cuda-bindings": "12.9.10"}, (12, "")),
        ({}, (13, "")),
    ],
)
def test_the_driver_has_the_version_of_the_installed_cuda(
    there: dict[str, str], taken: tuple[int, str]
) -> None:
    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    assert environment.cuda_and_cupy(version) == taken
    if not taken[1]:
        with raises(ToolMissing, "software_gpu_needs_cupy", f"cuda{taken[0]}"):
            environment.runtime_module(Path(), taken)


def test_devices_are_the_tables() -> None:
    assert [line.split(";")[0] for line in device_table("H200, l4").splitlines()] == [
        "software H200",
        "software L4",
    ]
    with pytest.raises(UnknownName):
        device_table("Voodoo 2")
    with pytest.raises(InvalidProblem):
        device_table(",")


def test_a_slice_has_its_part_of_the_gpu() -> None:
    name, _, _, sms, _, memory, *_ = device_table("h200 mig 1G.18gb").split(";")
    assert (name, sms, memory) == ("software H200 MIG 1g.18gb", "16", str(18 << 30))
    for wrong in ("L4 MIG 1g.5gb", "H200 MIG 5g.18gb", "H200 MIG 1g.900gb"):
        with raises(UnknownName, "gpu_unknown"):
            device_table(wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "setting", "name", "fact"),
    [
        ("H200 MIG 1g.18gb", "", "", "None 16 18 H200 MIG 1g.18gb 16 18"),
        ("L4 (29 SMs)", "", "", "None 29 22 L4 (29 SMs) 29 22"),
        ("L4", "driver_version=11080", "driver_too_old", f"{cuda_and_cupy()[0]}."),
        ("L4", "cuInit=100", "driver_without_gpu", "nvidia-smi"),
    ],
)
def test_cuda_errors_of_mig_slices_and_old_drivers(
    gpu: str, setting: str, name: str, fact: str
) -> None:
    code = f"""
from engine.backends.cuda import why_not_cuda
from engine.devices import find_device
from engine.devices.spec import detect_local
why = why_not_cuda(find_device("{gpu}"))
print(why)
if why is None:
    import cupy
    found = cupy.cuda.runtime.getDeviceProperties(0)
    print(found["multiProcessorCount"], found["totalGlobalMem"] >> 30)
    spec = detect_local().spec
    print(spec.name, spec.num_sms, spec.memory_bytes >> 30)
"""
    command = ("env", f"ATTUNE_SOFTWARE_GPU_SET={setting}", sys.executable, "-c", code)
    said = softgpu(*command, gpus=gpu)
    assert says(said, name, fact) if name else said.split() == fact.split()


def test_a_software_gpu_counts_as_its_model_without_times(
    set_local_gpu: Callable[..., None],
) -> None:
    backend = CudaBackend.__new__(CudaBackend)
    backend._is_software = True
    passed: Any = type("Passed", (), {"passed": True})
    with pytest.raises(MeasureError), backend.timer(None, None, passed):  # type: ignore[arg-type]
        pass
    runner: Any = SimpleNamespace(
        run=SimpleNamespace(stream=lambda _: None),
        evaluator=SimpleNamespace(backend=lambda _: backend),
    )
    nothing: Any = None
    with raises(MeasureError, "software_gpu_not_timed"):  # the live latency
        _Stream(runner, "job", nothing, nothing, nothing).measure_on_gpu()
    set_local_gpu(name="NVIDIA L4")
    assert not availability.is_software_gpu()


@pytest.mark.slow
def test_libraries_that_need_nvidias_runtime_give_a_message() -> None:
    """CuPy's own error would be an invalid device ordinal."""
    code = """
import cupy
x = cupy.arange(9)
try:
    cupy.sort(x)
except RuntimeError:
    print(int(x.sum()))
"""
    command = ("sh", "-c", 'exec "$0" -c "$1" 2>&1', sys.executable, code)
    why, total = softgpu(*command).splitlines()
    assert total == "36"
    assert why.startswith("software GPU: ")
    assert "Thrust" in why
    assert "cupy/cuda/thrust" in why


@pytest.mark.slow
def test_the_installed_cupy_runs_on_it() -> None:
    assert softgpu(sys.executable, "-c", CUPY) == "software L4\n"


@pytest.mark.exhaustive  # `.ci/run` runs a larger part
def test_some_tests_marked_gpu_pass_on_it() -> None:
    """`pytest --software-gpu` runs all of them."""
    names = "(agrees_with_sdpa and v08 and S65 and D64) or fingerprint or fill_covers or cupy"
    files = ("backends/cuda/test_cuda_gpu", "interface/test_interface", "own_kernels/test_cubins")
    tests = (str(ROOT / "tests" / f"{name}.py") for name in files)
    command = [sys.executable, "-m", "pytest", "--software-gpu", "L4", *tests, "-k", names]
    done = subprocess.run(
        [*command, "-n0", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if "there is no GPU in software" in done.stdout + done.stderr:
        pytest.skip((done.stdout + done.stderr).strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout


# For these, the header of CUDA 13 or 12 has a newer version that the driver lacks.
VERSIONS = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuInit(0) == 0
for name in ("CtxSynchronize", "CtxGetDevice", "LaunchHostFunc", "StreamGetCtx"):
    found, status = ctypes.c_void_p(), ctypes.c_int()
    asked = (f"cu{name}".encode(), ctypes.byref(found), 13000, ctypes.c_uint64(0))
    assert driver.cuGetProcAddress_v2(*asked, ctypes.byref(status)) == 0
    own = ctypes.cast(driver[f"cu{name}"], ctypes.c_void_p)
    print(found.value == own.value)
"""


def test_a_function_is_found_in_the_version_that_is_there() -> None:
    said = softgpu(sys.executable, "-c", VERSIONS, more=("--without-cupy",))
    assert said.splitlines() == ["True"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("way", ["option", pytest.param("variable", marks=pytest.mark.exhaustive)])
def test_an_endless_kernel_of_a_script_is_stopped_with_a_sentence(way: str) -> None:
    option = ("--launch-seconds", "1.5") if way == "option" else ()
    variables = {"ATTUNE_SOFTWARE_GPU_LAUNCH_S": "1.5"} if way == "variable" else {}
    done = run_softgpu(sys.executable, "-c", ENDLESS, more=option, variables=variables)
    assert done.stdout == "702\n", done.stderr  # cudaErrorLaunchTimeout
    (said,) = (x for x in done.stderr.splitlines() if x.startswith("software GPU: "))
    assert says(said, "software_gpu_time_limit", "spin", "1.5 s"), said


def test_an_unknown_software_gpu_gives_a_one_sentence_error() -> None:
    command = [sys.executable, "-m", "pytest", "--software-gpu", "No such GPU", "-n0"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.startswith("ERROR: ")
    assert says(done.stderr, "gpu_unknown", "No such GPU")
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("variant", [pytest.param("v01", marks=pytest.mark.exhaustive), "v17"])
def test_an_evaluation_passes_without_a_measured_time(variant: str) -> None:
    size = ("-B1", "-H2", "-S65", "-D64", "--gpu", "H200", "--json")
    command = (sys.executable, "-m", "engine", "evaluate", variant, "--backend", "cuda", *size)
    said = json.loads(softgpu(*command, gpus="H200"))
    text = json.dumps(said)
    assert '"passed"' in text.lower()
    assert '"measured"' not in text


@pytest.mark.slow
def test_no_time_of_a_software_gpu_is_stored_as_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a sweep's journal, nor as tuned configs, nor in a snapshot."""
    for name in ("DATA_DIR", "SESSIONS", "TUNED"):
        monkeypatch.setenv(f"ATTUNE_{name}", str(tmp_path / name.lower()))
    size = ("v02", "-S", "65", "-D", "32", "-H", "2", "--gpu", "L4", "--backend", "cuda")
    attune = (sys.executable, "-m", "engine")
    keep = ("--budget-evaluations", "2", "--keep", "--journal", str(tmp_path / "journal.jsonl"))
    assert "2 passed" in softgpu(*attune, "sweep", *size, *keep)
    softgpu(*attune, "evaluate", *size, "--save")
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.name == "journal.jsonl" for path in kept)
    assert any(path.name.endswith(".json.gz") for path in kept)
    for path, content in kept.items():
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        assert b'"measured"' not in text, path
