"""All checks in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from engine.base.errors import ToolMissing
from engine.devices import DeviceSpec, find_device
from engine.devices.detect import detect_local
from engine.selfcheck.check import Check, CheckResult, perform

DEFAULT_GPU = "L4"  # what is compiled for where there is no GPU and none is named


def selfcheck(gpu: str | None = None) -> Iterator[CheckResult]:
    """Results as they come; the slowest checks take seconds.

    Args:
        gpu: what to compile for; this machine's GPU where not given.

    Raises:
        UnknownName: `gpu` is not in the table.
    """
    target = _target(gpu)
    from engine.selfcheck import software

    yield perform("versions", software.versions)
    yield perform("NVRTC", lambda: software.gpu_compiler(target))
    yield perform("host compiler", software.host_compiler)
    yield perform("CPU backend", lambda: software.cpu_execution(target))
    yield perform("browser", software.browser)
    yield from _on_gpu()


def _target(gpu: str | None) -> DeviceSpec:
    if gpu is not None:
        return find_device(gpu)
    local = detect_local()
    return find_device(DEFAULT_GPU) if isinstance(local, str) else local.spec


def _on_gpu() -> Iterator[CheckResult]:
    """Every check is listed, whether there is a GPU or not."""
    from engine.backends.cuda import CudaBackend, why_not_cuda
    from engine.measure.device_lock import gpu_lock
    from engine.selfcheck import gpu
    from engine.selfcheck import gpu as timing

    made: list[CudaBackend] = []

    def with_backend(check: Callable[[CudaBackend], str]) -> Check:
        def body() -> str:
            if why_not_cuda() is not None:
                raise ToolMissing("This needs a GPU: see driver.")
            if not made:
                made.append(CudaBackend())
            if (why := made[0].gpu_error) is not None:
                raise ToolMissing(why)
            with gpu_lock("selfcheck", lambda sentence: print(sentence, file=sys.stderr)):
                return check(made[0])

        return body

    yield perform("driver", gpu.driver)
    for name, check in (
        ("launch", gpu.launch),
        ("guard zones", gpu.guard_zones),
        ("graph timing", timing.graph_timing),
        ("occupancy", gpu.occupancy_model),
        ("NVML", lambda _: gpu.nvml_readings()),
        ("SDPA", lambda _: timing.sdpa_backends()),
        ("A/A floor", timing.aa_floor),
    ):
        yield perform(name, with_backend(check))
    for backend in made:
        backend.close()
