"""Checks that need no GPU: versions, both compilers, execution on the CPU, the browser."""

from __future__ import annotations

import os
import shutil

from engine.base.errors import CompileError, ToolMissing
from engine.base.status import Status
from engine.compiled_plan import compile_plan
from engine.cuda_on_host.toolchain import find_toolchain
from engine.cuda_source.nvrtc import toolchain
from engine.devices import DeviceSpec
from engine.environment import collect_environment
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest
from engine.plan import make_plan
from engine.problem import Problem
from engine.selfcheck.check import CheckFailed
from kernels.ladder import LADDER

PROBLEM = Problem(1, 2, 65, 64)  # a tile and one row more
_PACKAGES = ("attune", "numpy", "cupy", "torch", "nvrtc", "cuda_runtime")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def versions() -> str:
    environment = collect_environment()
    packages = [f"{name} {environment[name] or 'not installed'}" for name in _PACKAGES]
    return f"Python {environment['python']}, {', '.join(packages)}."


def gpu_compiler(device: DeviceSpec) -> str:
    """Every variant of the ladder that the GPU can run, by NVRTC."""
    name = toolchain().name
    has = device.compute_capability
    compiled = []
    for variant in LADDER:
        needed = variant.min_compute_capability
        if has < needed or (variant.arch_specific and has != needed):
            continue
        plan = make_plan(variant, PROBLEM, variant.default_config())
        try:
            compile_plan(plan, device.arch)
        except CompileError as error:
            raise CheckFailed(
                f"{variant.id} does not compile for {device.arch} by {name}: {error}"
            ) from error
        compiled.append(variant.id)
    return f"{name} compiles {', '.join(compiled)} for {device.name} ({device.arch})."


def host_compiler() -> str:
    return f"{find_toolchain().version}."


def cpu_execution(device: DeviceSpec) -> str:
    """The first variant, compiled for the host, executed and compared with the reference."""
    find_toolchain()
    request = EvaluationRequest(LADDER[0].id, PROBLEM, gpu=device.name, backend="cpu")
    evaluation = evaluate(request).evaluation
    if evaluation.status is not Status.PASSED:
        raise CheckFailed(
            f"{request.variant} on the CPU is {evaluation.status}: {evaluation.reason} See "
            f"`attune evaluate {request.variant} --backend cpu`."
        )
    return f"{request.variant} was executed on the CPU and agrees with the float64 reference."


def browser() -> str:
    """Needed by the browser tests alone; the app opens in any."""
    names = (os.environ.get("ATTUNE_CHROMIUM"), *_BROWSERS)
    if not any(name and shutil.which(name) for name in names):
        raise ToolMissing(
            "No Chromium or Chrome was found, which the browser tests drive: install one, or set "
            "ATTUNE_CHROMIUM to it. The app itself opens in any browser."
        )
    return "Chromium or Chrome is installed."
