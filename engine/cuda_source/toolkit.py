"""Find the CUDA headers: in wheels of CUDA 12 or 13, conda, or an installed toolkit."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from engine.base.errors import ToolMissing
from engine.cuda_source.compiler import NvrtcError, NvrtcLibrary

INSTALL_HINT = "pip install -e '.[cuda13]'"

_MARKER = "cuda_fp16.h"
_CRT = Path("crt", "mma.h")
_HEADER_WHEELS = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
_CUDART_VERSION = re.compile(r"^\s*#\s*define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)


def find_include_dir(nvrtc_version: tuple[int, int]) -> Path:
    """Return the folder of CUDA headers for this NVRTC.

    Raises:
        ToolMissing: none is installed, or only those of another major version.
    """
    return choose_include_dir(_candidates(), nvrtc_version)


def choose_include_dir(candidates: Iterable[Path], nvrtc_version: tuple[int, int]) -> Path:
    """Return the first candidate with headers of NVRTC's major version. Raises ToolMissing."""
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
    raise ToolMissing(
        f"The CUDA headers that kernels include are missing: {hint(major)}",
        code="cuda_headers_missing",
    )


def hint(major: int) -> str:
    """Return the pip command that installs NVRTC and its headers for a CUDA major version."""
    return INSTALL_HINT.replace("13", str(major))


def is_libcudacxx(folder: Path) -> bool:
    """True if the folder has libcu++ (`<cuda/barrier>`, `<cuda/std/…>`), which compiles
    unchanged."""
    return (folder / "cuda" / "std" / "version").is_file() or (
        folder / "cuda" / "std" / "barrier"
    ).is_file()


def cuda_folders(folder: Path) -> tuple[Path, ...]:
    """Return the folders of CUDA's headers in an include folder, which compile unchanged.

    These are libcu++, or a toolkit with its libcu++; empty for a folder of a kernel's headers."""
    places = (folder, folder / "cccl", folder / "libcudacxx")
    found = tuple(place for place in places if is_libcudacxx(place))
    if folder not in found and (folder / _MARKER).is_file() and headers_version(folder):
        return (folder, *found)
    return found


def more_headers(include_dir: Path) -> tuple[Path, ...]:
    """Return CUDA header folders other than `include_dir`: of libcu++, and the compiler (`crt`).

    CUDA 13 has a separate folder for libcu++, and the wheels of CUDA 12 a folder per package. Only
    installed ones are returned.
    """
    wheels = include_dir.parents[1]
    libraries = (include_dir / "cccl", wheels / "cuda_cccl" / "include")
    compiler = wheels / "cuda_nvcc" / "include"
    found = [folder for folder in libraries if is_libcudacxx(folder)][:1]
    if not (include_dir / _CRT).is_file() and (compiler / _CRT).is_file():
        found.append(compiler)
    return tuple(found)


def headers_version(folder: Path) -> tuple[int, int] | None:
    """Return the CUDA version of an include folder, from `CUDART_VERSION`; None if unknown."""
    try:
        text = (folder / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = _CUDART_VERSION.search(text)
    return (int(match[1]) // 1000, int(match[1]) % 1000 // 10) if match else None


def _candidates() -> Iterator[Path]:
    """Return candidate folders, the most specific first; they need not exist."""
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
        pass  # cuda-bindings is optional, and older releases lack the search
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if root := os.environ.get(variable):
            yield Path(root) / "include"
            yield Path(root) / "targets" / "x86_64-linux" / "include"
    yield Path("/usr/local/cuda/include")


# Other installed NVRTC libraries than the one that CuPy loads.
#
# NVRTC includes ptxas, so another version is an entirely different compiler.

VARIABLE = "ATTUNE_NVRTC"  # further libraries, or folders of them, separated by `:`
_NAME = re.compile(r"libnvrtc\.so\.[\d.]+")
_MAPPED = re.compile(rf"/.*/{_NAME.pattern}$", re.M)


def version_of(value: int) -> tuple[int, int]:
    """Return a tunable's value as a version: 1209 → (12, 9)."""
    return divmod(value, 100)


@functools.cache
def other_nvrtc(version: tuple[int, int]) -> Path:
    """Return the library of a version.

    Raises:
        ToolMissing: it is not installed; names the installed ones.
    """
    found: dict[tuple[int, int], Path] = {}
    for path in _libraries():
        with contextlib.suppress(OSError, AttributeError, NvrtcError):
            found.setdefault(NvrtcLibrary(path).version(), path)
    if version not in found:
        known = ", ".join(f"{major}.{minor}" for major, minor in sorted(found)) or "none"
        major, minor = version
        raise ToolMissing(
            f"NVRTC {major}.{minor} is not installed here (there is {known}): pip install "
            f"--target FOLDER 'nvidia-cuda-nvrtc=={major}.{minor}.*', and name the folder's "
            f"library in {VARIABLE}.",
            code="nvrtc_version_missing",
        )
    return found[version]


def loaded_nvrtc(version: tuple[int, int]) -> Path:
    """Return the loaded library of a version. Raises OSError if it is not loaded."""
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    for found in dict.fromkeys(_MAPPED.findall(mapped)):
        with contextlib.suppress(OSError, AttributeError, NvrtcError):
            if NvrtcLibrary(Path(found)).version() == version:
                return Path(found)
    raise OSError("no file of it is loaded")


def headers_beside(library: Path) -> Iterator[Path]:
    """Return header folders of a toolkit or wheels; they need not exist."""
    place = library.resolve().parents
    yield place[1] / "include"
    yield place[2] / "cuda_runtime" / "include"
    yield place[2] / "include"


def _libraries() -> Iterator[Path]:
    """Return candidate files."""
    for named in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        path = Path(named)
        yield from [path] if path.is_file() else _within([path, *path.glob("nvidia/*/lib")])
    for root in filter(None, [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME")]):
        yield from _within([Path(root, "lib64")])
    for place in sys.path:
        yield from _within(Path(place or ".").glob("nvidia/*/lib"))
    yield from _within(Path("/usr/local").glob("cuda*/lib64"))


def _within(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        if folder.is_dir():
            yield from sorted(p for p in folder.iterdir() if _NAME.fullmatch(p.name))
