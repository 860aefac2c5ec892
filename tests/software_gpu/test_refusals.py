"""Each error of the software driver is documented by CUDA for the function or for the error itself,
in the comments of the cuda.h that is compiled against."""

from __future__ import annotations

import re

import pytest

from engine.backends.cuda.calls import LOST_CONTEXT
from engine.base.errors import ToolMissing
from engine.cuda_source.toolkit import find_include_dir
from engine.software_gpu import process_environment as environment

NATIVE = environment._NATIVE
ERROR = re.compile(r"CUDA_ERROR_\w+")
# Errors of any call: of each, its description in cuda.h.
GENERAL = {
    "CUDA_ERROR_INVALID_VALUE": "not within an acceptable range of values",
    "CUDA_ERROR_NOT_INITIALIZED": "has not been initialized with ::cuInit",
    "CUDA_ERROR_INVALID_CONTEXT": "there is no context bound to the current thread",
    "CUDA_ERROR_INVALID_HANDLE": "a resource handle passed to the API call was not valid",
    "CUDA_ERROR_INVALID_IMAGE": "the device kernel image is invalid",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "no kernel image available that is suitable for the device",
    "CUDA_ERROR_NO_DEVICE": "no CUDA-capable devices were detected",
    "CUDA_ERROR_NOT_FOUND": "a named symbol was not found",
    "CUDA_ERROR_ILLEGAL_STATE": "a resource required by the API call is not in a valid state",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a load or store instruction on an invalid memory address",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "not permitted when the stream is capturing",
    "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED": "invalidated due to a previous error",
    "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED": "not initiated in this stream",
    "CUDA_ERROR_STREAM_CAPTURE_UNJOINED": "a fork that was not joined to the primary stream",
    "CUDA_ERROR_STREAM_CAPTURE_MERGE": "a merge of two independent capture sequences",
    "CUDA_ERROR_STREAM_CAPTURE_ISOLATION": "would have been created which crosses the capture",
    "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": "a disallowed implicit dependency",
    "CUDA_ERROR_CAPTURED_EVENT": "last recorded in a capturing stream",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "a kernel launch error due to cluster misconfiguration",
    "CUDA_ERROR_INVALID_PTX": "a PTX JIT compilation failed",
}
# Errors of functions that the driver lacks, which CUDA does not document.
NOT_THERE = {"CUDA_ERROR_NOT_SUPPORTED"}
# Errors of kernels, which a launch does not return yet.
OF_KERNELS = {
    "CUDA_ERROR_LAUNCH_FAILED": "an exception occurred on the device while executing a kernel",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the device kernel took too long to execute",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "on a memory address which is not aligned",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "encountered an illegal instruction",
}
# Internal functions, with the calls whose documentation they follow.
SHARED = {
    "launch": ("cuLaunchKernel", "cuLaunchCooperativeKernel"),
    "load": ("cuModuleLoadData",),
    "copy": ("cuMemcpyAsync",),
    "fill": ("cuMemsetD8Async",),
    "allocate": ("cuMemAlloc",),
}
# A function's head at column 0; its body ends at the next brace at column 0.
DEFINED = re.compile(r"^(?:inline |template .*\n)?CUresult (\w+)\([^;\n]*\{", re.M)


def header() -> str:
    try:
        return (find_include_dir((environment.cuda_and_cupy()[0], 0)) / "cuda.h").read_text(
            errors="replace"
        )
    except ToolMissing as missing:
        pytest.skip(str(missing))


def documentation(text: str) -> dict[str, str]:
    """Return the comments before each function, of all its versions."""
    found: dict[str, str] = {}
    for match in re.finditer(
        r"/\*\*((?:(?!\*/).)*?)\*/\s*(?:__CUDA_DEPRECATED )?CUresult CUDAAPI (cu\w+)\(", text, re.S
    ):
        found[match[2]] = found.get(match[2], "") + match[1]
    return found


def refusals() -> dict[str, set[str]]:
    """Return the errors that each function of the driver returns by itself."""
    found: dict[str, set[str]] = {}
    for file in (*sorted(NATIVE.glob("api_*.h")), NATIVE / "driver.cpp"):
        text = file.read_text()
        for match in DEFINED.finditer(text):
            end = text.find("\n", match.end())
            if not text[match.start() : end].rstrip().endswith("}"):
                end = text.index("\n}", match.end())
            body = text[match.start() : end]
            codes = set(ERROR.findall(body))
            for macro, code in (
                (r"\bREQUIRE\(", "CUDA_ERROR_INVALID_VALUE"),
                (r"\b(?:CONTEXT|STREAM\()", "CUDA_ERROR_INVALID_CONTEXT"),
                (r"\bSTREAM\(", "CUDA_ERROR_INVALID_HANDLE"),
                (r"\b(?:CONTEXT|STARTED|DEVICE\(|STREAM\()", "CUDA_ERROR_NOT_INITIALIZED"),
                (r"\bDEVICE\(", "CUDA_ERROR_INVALID_DEVICE"),
                (r"\bHANDLE\(", "CUDA_ERROR_INVALID_HANDLE"),
                (r"\bNOT_IN_CAPTURE\b", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
            ):
                if re.search(macro, body):
                    codes.add(code)
            found[match[1]] = found.get(match[1], set()) | codes
    return found


def test_each_refusal_is_documented_by_cuda() -> None:
    documented = documentation(header())
    found = refusals()
    assert len(found) > 120
    assert sum(map(len, found.values())) > 250
    without = {}
    for name, codes in found.items():
        text = "".join(documented.get(each, "") for each in SHARED.get(name, (name,)))
        rest = codes - set(ERROR.findall(text)) - set(GENERAL) - NOT_THERE
        if name == "code_of":
            rest -= set(OF_KERNELS)
        if rest:
            without[name] = sorted(rest)
    assert without == {}


def test_errors_of_any_call_are_documented() -> None:
    text = header()
    for code, says in (GENERAL | OF_KERNELS).items():
        place = re.search(rf"/\*\*((?:(?!\*/).)*?)\*/\s*{code}\s*=", text, re.S)
        assert place is not None, code
        assert says.lower() in re.sub(r"[\s*]+", " ", place[1]).lower(), code


def test_each_returned_error_has_a_name() -> None:
    """Otherwise a client that asks for an error's name gets none."""
    named = set(re.findall(r"E\((CUDA_\w+),", (NATIVE / "api_device.h").read_text()))
    numbers = {
        name: int(number) for name, number in re.findall(r"(CUDA_ERROR_\w+)\s*=\s*(\d+)", header())
    }
    answered = set().union(*refusals().values())
    assert answered <= named
    assert {name for name, number in numbers.items() if number in LOST_CONTEXT} <= named
