"""The folder that CuPy makes when it is imported; where it cannot, it does not import."""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from engine.base.errors import ToolMissing


def make_cupy_folder() -> None:
    """To be called before CuPy is imported: a home that cannot be written must not end a run."""
    folder = Path(os.environ.get("CUPY_CACHE_DIR", "~/.cupy/kernel_cache"))
    try:
        folder.expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # there may be no home at all
        scratch = tempfile.mkdtemp(prefix="attune-cupy-")
        os.environ["CUPY_CACHE_DIR"] = scratch
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)


# Where the CUDA headers are: wheels of CUDA 12 or 13, conda, or an installed toolkit.


INSTALL_HINT = "pip install -e '.[cuda13]'"

_MARKER = "cuda_fp16.h"
_CRT = Path("crt", "mma.h")
_HEADER_WHEELS = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
_CUDART_VERSION = re.compile(r"^\s*#\s*define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)


def find_include_dir(nvrtc_version: tuple[int, int]) -> Path:
    """The folder of CUDA headers that fits this NVRTC.

    Raises:
        ToolMissing: none is installed, or only those of another major version.
    """
    return choose_include_dir(_candidates(), nvrtc_version)


def choose_include_dir(candidates: Iterable[Path], nvrtc_version: tuple[int, int]) -> Path:
    """The first candidate whose headers have NVRTC's major version. Raises ToolMissing."""
    others = []
    for folder in candidates:
        if not (folder / _MARKER).is_file():
            continue
        version = headers_version(folder)
        if version is not None and version[0] == nvrtc_version[0]:
            return folder
        others.append(version)
    major, minor = nvrtc_version
    if others and others[0] is not None:
        raise ToolMissing(
            f"NVRTC is {major}.{minor} but the CUDA headers found are "
            f"{others[0][0]}.{others[0][1]}: install the ones that fit with {hint(major)}"
        )
    raise ToolMissing(f"The CUDA headers that kernels include are missing: {hint(major)}")


def hint(major: int) -> str:
    """The pip command that brings NVRTC and its headers for this CUDA major version."""
    return INSTALL_HINT.replace("13", str(major))


def is_libcudacxx(folder: Path) -> bool:
    """Whether the folder holds libcu++ (`<cuda/barrier>`, `<cuda/std/…>`), which is the toolkit's:
    it compiles as it is."""
    return (folder / "cuda" / "std" / "version").is_file() or (
        folder / "cuda" / "std" / "barrier"
    ).is_file()


def more_headers(include_dir: Path) -> tuple[Path, ...]:
    """Folders that CUDA keeps apart from `include_dir`: of libcu++, and of the compiler (`crt`).

    CUDA 13 has libcu++ in a folder of its own, the wheels of CUDA 12 have a folder per package.
    What is not installed is left out.
    """
    wheels = include_dir.parents[1]
    libraries = (include_dir / "cccl", wheels / "cuda_cccl" / "include")
    compiler = wheels / "cuda_nvcc" / "include"
    found = [folder for folder in libraries if is_libcudacxx(folder)][:1]
    if not (include_dir / _CRT).is_file() and (compiler / _CRT).is_file():
        found.append(compiler)
    return tuple(found)


def headers_version(folder: Path) -> tuple[int, int] | None:
    """CUDA version of an include folder, from `CUDART_VERSION`; None when it does not say."""
    try:
        text = (folder / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = _CUDART_VERSION.search(text)
    return (int(match[1]) // 1000, int(match[1]) % 1000 // 10) if match else None


def _candidates() -> Iterator[Path]:
    """Folders worth a look, the most specific first; they need not exist."""
    for wheel in _HEADER_WHEELS:
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        yield from (Path(str(f.locate())).parent for f in files if f.name == _MARKER)
    try:
        from cuda import pathfinder

        if folder := pathfinder.find_nvidia_header_directory("cudart"):
            yield Path(folder)
    except (ImportError, AttributeError, RuntimeError):
        pass  # cuda-bindings is optional here, and its older releases lack the search
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if root := os.environ.get(variable):
            yield Path(root) / "include"
            yield Path(root) / "targets" / "x86_64-linux" / "include"
    yield Path("/usr/local/cuda/include")
