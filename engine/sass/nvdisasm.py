"""NVIDIA's disassembler: found in its wheel or an installed toolkit, run on one cubin."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from engine.compile.toolkit import INSTALL_HINT
from engine.errors import CompileError, ToolMissing

_WHEELS = ("nvidia-cuda-nvdisasm", "nvidia-cuda-nvcc-cu12")
_NAMES = ("nvdisasm", "nvdisasm.exe")
_TIMEOUT_S = 120.0


@functools.cache
def find_nvdisasm() -> Path:
    """Its path.

    Raises:
        ToolMissing: it is not installed; the sentence says how to get it.
    """
    for wheel in _WHEELS:
        try:
            installed = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in installed:
            if file.name in _NAMES and (path := Path(str(file.locate()))).is_file():
                return path
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if root := os.environ.get(variable):
            for name in _NAMES:
                if (path := Path(root) / "bin" / name).is_file():
                    return path
    if located := shutil.which("nvdisasm"):
        return Path(located)
    raise ToolMissing(
        "NVIDIA's disassembler nvdisasm, which reads machine code, is not installed: "
        f"{INSTALL_HINT} brings it (package nvidia-cuda-nvdisasm)."
    )


def run_nvdisasm(cubin: bytes, *options: str) -> str:
    """What it prints for a complete cubin.

    Raises:
        ToolMissing: it is not installed or does not run.
        CompileError: it refuses the file.
    """
    tool = find_nvdisasm()
    with tempfile.TemporaryDirectory(prefix="attune-sass-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        try:
            done = subprocess.run(
                [str(tool), *options, str(path)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"nvdisasm did not finish within {_TIMEOUT_S:.0f} s: is the cubin that large?"
            ) from None
        except OSError as error:
            raise ToolMissing(
                f"nvdisasm at {tool} does not run ({error.strerror or error}): {INSTALL_HINT} "
                "brings one that does."
            ) from None
    if done.returncode != 0:
        message = done.stderr.replace(str(path), "the file").strip().splitlines()
        reason = message[0] if message else f"exit code {done.returncode}"
        raise CompileError(f"nvdisasm cannot read this cubin: {reason}")
    return done.stdout
