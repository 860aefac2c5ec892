"""Environment variables that make a process use the software GPU, and the libraries it loads."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from engine.base import files
from engine.base.cxx import Toolchain, build_library, find_toolchain
from engine.base.errors import CompileError, InvalidProblem, ToolMissing
from engine.base.files import cache_root, make_private
from engine.cuda_on_host.client import worker_threads
from engine.cuda_source.toolkit import find_include_dir, more_headers
from engine.devices import find_device, limits_for
from engine.devices.spec import SOFTWARE, DeviceSpec

# The software GPU's libraries, built into the cache at first use.

_NATIVE = Path(__file__).with_name("native")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-w", "-shared", "-pthread")
_TIMEOUT_S = 600.0
_CUPY = {13: "cupy-cuda13x", 12: "cupy-cuda12x"}  # by CUDA major version
_PYX = "cupy_backends/cuda/api/runtime.pyx"
_NAME = re.compile(r"\bcuda[A-Z]\w+")
_DECLARED = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(")
_CALL = re.compile(_NAME.pattern + r"(?=\()")
_TRANSLATE = """
import sys
from Cython.Compiler.Main import CompilationOptions, compile
root, pyx, target, cuda, cython = sys.argv[1:]
options = CompilationOptions(
    include_path=[root], language_level=3, cplus=True, output_file=target,
    compiler_directives={"binding": True},
    compile_time_env={
        "CUPY_USE_CUDA_PYTHON": False, "CUPY_CUFFT_STATIC": False, "CUPY_HIP_VERSION": 0,
        "CUPY_CUDA_VERSION": int(cuda), "CUPY_CYTHON_VERSION": cython})
sys.exit(compile([f"{root}/{pyx}"], options).num_errors)
"""
_VERSIONS = """
import cupy
from cupy._util import cython_build_ver
print(cupy.cuda.driver.get_build_version(), cython_build_ver)
"""


def cuda_and_cupy(
    version_of: Callable[[str], str] = importlib.metadata.version,
) -> tuple[int, str]:
    """Return the CUDA major version to build the driver for, and the version of the installed CuPy.

    CuPy's version is empty if none is installed. Driver functions differ between CUDA versions."""
    for cuda, package in _CUPY.items():
        with suppress(importlib.metadata.PackageNotFoundError):
            return cuda, version_of(package)
    with suppress(importlib.metadata.PackageNotFoundError):
        return int(version_of("cuda-bindings").partition(".")[0]), ""
    return next(iter(_CUPY)), ""


def driver_folder() -> Path:
    """Return a folder with libcuda.so.1 and libnvidia-ml.so.1.

    Raises:
        ToolMissing: there is no C++ compiler, or CUDA's headers are missing.
        CompileError: they do not compile, or cannot be written to the cache.
    """
    toolchain, include = find_toolchain(), find_include_dir((cuda_and_cupy()[0], 0))

    def build(folder: Path) -> None:
        # Only libcuda has a soname, so that NVML, loaded by its path, does not replace another one.
        _compile(toolchain, driver_arguments(toolchain, include, folder), folder / "libcuda.so.1")
        nvml = [str(_NATIVE / "nvml.cpp"), f"-I{include}"]
        _compile(toolchain, nvml, folder / "libnvidia-ml.so.1")

    request = _NATIVE.parents[1] / "machine_code" / "native" / "request.h"
    sources = (request, *sorted(_NATIVE.rglob("*")))
    return _kept("driver", build, toolchain, sources, str(include))


def driver_arguments(toolchain: Toolchain, include: Path, folder: Path) -> list[str]:
    """Return the C++ compiler's arguments that build libcuda.so.1, apart from its general flags.

    Args:
        include: the folder of cuda.h.
        folder: where a source with the functions that are not implemented is written.

    Raises:
        CompileError: cuda.h does not compile.
    """
    missing = folder / "missing.cpp"
    missing.write_text(_missing_of_driver(toolchain, include), encoding="utf-8")
    linked = ("-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-ldl")
    return [str(_NATIVE / "driver.cpp"), str(missing), f"-I{include}", *linked]


def _missing_of_driver(toolchain: Toolchain, include: Path) -> str:
    """Write weak definitions of all functions that cuda.h declares, which report their name.

    A definition of the driver replaces the weak one."""
    done = subprocess.run(
        [*toolchain.command, "-x", "c++", "-E", "-P", f"-I{include}", "-"],
        input="#include <cuda.h>\n",
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    names = sorted(set(_DECLARED.findall(done.stdout)))
    if done.returncode != 0 or not names:
        raise CompileError("cuda.h of the software GPU does not compile.", log=done.stderr)
    lines = ['extern "C" {', "int softwareGpuMissing(const char* name);"]
    for name in names:
        answer = f'{{ return softwareGpuMissing("{name}"); }}'
        lines.append(f'__attribute__((visibility("hidden"))) int missing_{name}() {answer}')
        lines.append(f'int {name}() __attribute__((weak, alias("missing_{name}")));')
    answers = ", ".join(f"(const void*)missing_{name}" for name in names)
    lines.append(f"extern const void* const softwareGpuMissingOnes[] = {{{answers}, 0}};")
    return "\n".join([*lines, "}", ""])


def runtime_module(driver: Path, cuda: tuple[int, str] | None = None) -> Path:
    """Return a build of CuPy's runtime module that uses the public driver API.

    It is compiled from the sdist of the installed version, with `native/cudart.cpp` instead of
    NVIDIA's runtime.

    Args:
        driver: the folder of libcuda.so.1.
        cuda: CUDA's major version and CuPy's version; default: those of `cuda_and_cupy`.

    Raises:
        ToolMissing: CuPy for CUDA 13 or 12 is not installed, or its source cannot be fetched.
        CompileError: it does not compile.
    """
    major, version = cuda or cuda_and_cupy()
    if not version:
        raise ToolMissing(
            f"The software GPU needs CuPy, and its package {_CUPY[major]} is not installed: "
            f"pip install -e '.[cuda{major}]'.",
            code="software_gpu_needs_cupy",
        )
    toolchain, include = find_toolchain(), find_include_dir((major, 0))

    def build(folder: Path) -> None:
        cuda, cython = _run([sys.executable, "-c", _VERSIONS], "CuPy does not import").split()[-2:]
        tools = folder / "tools"
        _pip({}, "install", "--no-deps", "--target", str(tools), f"Cython=={cython}", "setuptools")
        sources = _fetch_cupy(version, folder, tools)
        translated = folder / "runtime.cpp"
        _run(
            [sys.executable, "-c", _TRANSLATE, str(sources), _PYX, str(translated), cuda, cython],
            "Cython does not translate CuPy's runtime module",
            {"PYTHONPATH": str(tools)},
        )
        missing = folder / "missing.cpp"
        missing.write_text(_missing(translated.read_text(encoding="utf-8")), encoding="utf-8")
        paths = [_NATIVE / "compat", include, *more_headers(include)]
        paths.append(Path(sysconfig.get_path("include")))
        paths.append((sources / _PYX).parent)
        _compile(
            toolchain,
            [
                *(str(file) for file in (translated, _NATIVE / "cudart.cpp", missing)),
                *(f"-I{path}" for path in paths),
                f"-DCUPY_CUDA_BUILD_VERSION={cuda}",
                "-O0",  # it only forwards calls
                "-Wl,-Bsymbolic",
                f"-L{driver}",
                "-l:libcuda.so.1",
            ],
            folder / _module_name(),
        )

    key = (str(include), version, sys.version)
    # The driver is linked when the module is loaded, so its sources do not belong to the key.
    sources = (_NATIVE / "cudart.cpp", *sorted((_NATIVE / "compat").iterdir()))
    return _kept("runtime", build, toolchain, sources, *key) / _module_name()


def _module_name() -> str:
    return f"runtime{sysconfig.get_config_var('EXT_SUFFIX')}"


def _missing(translated: str) -> str:
    """Write the CUDA runtime functions that CuPy uses and `cudart.cpp` lacks, as errors."""
    own = set(_NAME.findall((_NATIVE / "cudart.cpp").read_text(encoding="utf-8")))
    lines = ['extern "C" {', "int software_gpu_missing(const char* name);"]
    lines += [
        f'int {name}() {{ return software_gpu_missing("{name}"); }}'
        for name in sorted(set(_CALL.findall(translated)) - own)
    ]
    return "\n".join([*lines, "}", ""])


def _fetch_cupy(version: str, folder: Path, tools: Path) -> Path:
    """Fetch and unpack CuPy's sources.

    pip runs CuPy's setup to read the package's name; it uses the installed `tools`, because
    fetching others takes most of a minute."""
    _pip(
        # Makes that setup not look for CUDA.
        {"READTHEDOCS": "True", "PYTHONPATH": str(tools)},
        *("download", "--no-deps", "--no-build-isolation", "--no-binary", "cupy"),
        *("-d", str(folder), f"cupy=={version}"),
    )
    archive = next(folder.glob("cupy-*.tar.gz"))
    with tarfile.open(archive) as content:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
            content.extraction_filter = tarfile.data_filter
        content.extractall(folder)
    return folder / f"cupy-{version}"


def _pip(more: dict[str, str], *arguments: str) -> None:
    _run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments],
        "CuPy's source, which the software GPU compiles one module of, cannot be fetched by pip",
        more,
    )


def _run(command: Sequence[str], what: str, more: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            env=os.environ | (more or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolMissing(f"{what}: it did not end within {_TIMEOUT_S:.0f} s.") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise ToolMissing(f"{what}: {said[-1].strip().rstrip('.') if said else 'no reason given'}.")
    return done.stdout


def _compile(toolchain: Toolchain, arguments: Sequence[str], target: Path) -> None:
    command = [*toolchain.command, *_FLAGS, *arguments, "-o", str(target)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise CompileError(
            f"{target.name} of the software GPU does not compile: "
            f"{errors[0] if errors else 'the compiler failed without a message'}",
            log=done.stderr,
        )


def _kept(
    name: str,
    build: Callable[[Path], None],
    toolchain: Toolchain,
    sources: Sequence[Path],
    *key: str,
) -> Path:
    """Return the folder that `build` fills, from the cache if it exists."""
    digest = hashlib.sha256()
    for part in (*toolchain.command, toolchain.version, *_FLAGS, *key):
        digest.update(f"{part}\0".encode())
    for file in (Path(__file__), *sources):
        if file.is_file():
            digest.update(f"{file.name}\0".encode() + file.read_bytes())
    root = cache_root() / "software_gpu"
    try:
        if not make_private(root):
            raise OSError(f"{root} is not this user's alone")
        folder = root / f"{name}-{digest.hexdigest()[:20]}"
        with files.lock(root / f"{name}.lock"):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(prefix="building-", dir=root) as scratch:
                    made = Path(scratch, "made")
                    made.mkdir()
                    build(made)
                    made.rename(folder)
    except OSError as error:
        raise CompileError(
            f"The software GPU cannot be kept in {root} ({error}): set ATTUNE_CACHE_DIR to a "
            "folder that can be written."
        ) from error
    return folder


CHOICE = "ATTUNE_SOFTWARE_GPU"  # names in the device table, separated by commas
_DEFAULT = "L4"
_MAX_DEVICES = 16
_ROOT = Path(__file__).resolve().parents[2]
_EXECUTE = _ROOT / "engine" / "machine_code" / "native" / "execute.cpp"


def software_environment(
    given: Mapping[str, str],
    gpus: str = "",
    *,
    with_cupy: bool = True,
    launch_s: float | None = None,
) -> dict[str, str]:
    """Return `given` with variables that make programs load the software GPU; builds it if needed.

    Args:
        gpus: names in the device table, separated by commas; default: `ATTUNE_SOFTWARE_GPU`, else
            an L4.
        with_cupy: False: without CuPy's runtime module, whose source is fetched by pip.
        launch_s: time limit of a launch in seconds; 0: no limit; None:
            `ATTUNE_SOFTWARE_GPU_LAUNCH_S`, else 600.

    Raises:
        InvalidProblem, UnknownName: a name is not in the table, or there are too many.
        ToolMissing: a compiler, CUDA's headers, CuPy or its source is missing.
        CompileError: a library does not compile.
    """
    table = device_table(gpus or given.get(CHOICE, "") or _DEFAULT)
    driver = driver_folder()
    environment = dict(given)
    environment["ATTUNE_SOFTWARE_GPU_TABLE"] = table
    environment["ATTUNE_SOFTWARE_GPU_EMULATOR"] = str(build_library(_EXECUTE))
    environment["ATTUNE_SOFTWARE_GPU_THREADS"] = str(worker_threads())
    if launch_s is not None:
        environment["ATTUNE_SOFTWARE_GPU_LAUNCH_S"] = f"{launch_s:g}"
    reader = [sys.executable, "-m", "engine.software_gpu.reader"]
    environment["ATTUNE_SOFTWARE_GPU_READER"] = f"cd {shlex.quote(str(_ROOT))} && exec " + (
        shlex.join(reader)
    )
    environment["LD_LIBRARY_PATH"] = _before(str(driver), given.get("LD_LIBRARY_PATH"))
    if with_cupy:
        environment["ATTUNE_SOFTWARE_GPU_RUNTIME"] = str(runtime_module(driver))
        site = str(Path(__file__).with_name("site"))
        environment["PYTHONPATH"] = _before(site, given.get("PYTHONPATH"))
        # CuPy's module for CUB contains NVIDIA's runtime, which does not start here.
        environment["CUPY_ACCELERATORS"] = ""
    return environment


def _before(first: str, rest: str | None) -> str:
    return first + (os.pathsep + rest if rest else "")


def device_table(names: str) -> str:
    """Return a line for each device in the format that native/table.h reads.

    Args:
        names: GPUs of the device table, or MIG slices by CUDA's name: "H200 MIG 1g.18gb".

    Raises:
        UnknownName: a name is not in the device table.
        InvalidProblem: no name, or too many.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not 1 <= len(wanted) <= _MAX_DEVICES:
        raise InvalidProblem(
            f"{CHOICE} names {len(wanted)} GPUs: give 1 to {_MAX_DEVICES} of the device table, "
            "separated by commas."
        )
    return "\n".join(_line(find_device(name)) for name in wanted)


def _line(device: DeviceSpec) -> str:
    limits = limits_for(device.compute_capability)
    figures = (
        *device.compute_capability,
        device.num_sms or 1,
        (device.boost_clock_mhz or 1000) * 1000,
        device.memory_bytes or 8 << 30,
        round((device.memory_gb_per_s or 100.0) * 1000),
        device.l2_bytes or 4 << 20,
        device.power_w or 100,
        limits.max_warps_per_sm,
        limits.max_ctas_per_sm,
        limits.max_threads_per_cta,
        limits.registers_per_sm,
        limits.max_registers_per_cta,
        limits.register_allocation_unit,
        limits.warp_allocation_granularity,
        limits.num_sub_partitions,
        limits.smem_per_sm_bytes,
        limits.smem_per_cta_bytes,
        limits.smem_per_cta_optin_bytes,
        limits.smem_allocation_unit_bytes,
        limits.reserved_smem_per_cta_bytes,
    )
    name = SOFTWARE + device.name.partition(" (")[0]  # a driver does not name a number of SMs
    return ";".join((name, *map(str, figures)))
