"""NVIDIA's disassembler: found in its wheel or an installed toolkit, run on one cubin."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from engine.compile.toolkit import INSTALL_HINT
from engine.errors import CompileError, ToolMissing

_WHEELS = ("nvidia-cuda-nvdisasm", "nvidia-cuda-nvcc-cu12")
_NAMES = ("nvdisasm", "nvdisasm.exe")
_TIMEOUT_S = 120.0  # of the clock, and of CPU time
_MEMORY_KIB = 16 << 20
_OUT_OF_TIME = (128 + signal.SIGXCPU, 128 + signal.SIGKILL)
# A damaged file can keep it busy for ever. It ends with its limits, and when nobody holds the other
# end of the pipe that is standard input any more, however this process ended.
_BOUNDED = """
ulimit -t "$1" && ulimit -v "$2" 2>/dev/null; shift 2
exec 3<&0
"$@" 3<&- </dev/null &
tool=$!
{ read -r _ <&3; kill -9 "$tool"; } >/dev/null 2>&1 &
watch=$!
wait "$tool"; code=$?
kill -9 "$watch" 2>/dev/null
exit "$code"
"""


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


def _too_long() -> CompileError:
    return CompileError(
        f"nvdisasm did not finish within {_TIMEOUT_S:.0f} s: the cubin is damaged, or very large."
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
        held, hold = os.pipe()
        limits = [str(round(_TIMEOUT_S)), str(_MEMORY_KIB)]
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", _BOUNDED, "sh", *limits, str(tool), *options, str(path)],
                stdin=held,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _too_long() from None
        finally:
            os.close(hold)
            os.close(held)
    if done.returncode in (126, 127):  # as a shell says of what cannot be started
        why = done.stderr.strip().rpartition(": ")[2] or "it cannot be started"
        raise ToolMissing(
            f"nvdisasm at {tool} does not run ({why}): {INSTALL_HINT} brings one that does."
        )
    if done.returncode in _OUT_OF_TIME:
        raise _too_long()
    if done.returncode != 0:
        message = done.stderr.replace(str(path), "the file").strip().splitlines()
        reason = message[0] if message else f"exit code {done.returncode}"
        raise CompileError(f"nvdisasm cannot read this cubin: {reason.rstrip('.')}.")
    return done.stdout
