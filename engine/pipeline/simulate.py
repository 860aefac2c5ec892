"""A kernel's CTA time by its machine code, ahead of the previews and evaluations that use it."""

from __future__ import annotations

from engine.errors import AttuneError
from engine.model.estimate import estimate, launch_plan
from engine.pipeline.request import EvaluationRequest, resolve


def simulate(request: EvaluationRequest) -> bool:
    """Compile and simulate the request's kernel for its GPU; the result is kept on disk.

    From then on previews and evaluations of the kernel on that GPU, of any problem, predict by
    machine code. Takes about a second the first time and a few milliseconds after that.

    Returns:
        Whether there is a simulated time: not without a GPU, a compiler, nvdisasm or figures of the
        GPU, and not of code that cannot be run.
    """
    return simulated_us(request) is not None


def simulated_us(request: EvaluationRequest) -> float | None:
    """The request's time by machine code; None where there is none, as `simulate` says."""
    from engine.compile import compile_plan, resources
    from engine.model.simulated import simulated_of

    try:
        resolved = resolve(request)
        variant, device = resolved.variant, resolved.device
        if device is None:
            return None
        plan = launch_plan(variant, request.problem, resolved.config, device)
        compiled = compile_plan(plan, device.arch)
        simulated = simulated_of(variant, plan, compiled, device)
        found = estimate(variant, plan, resources(plan, compiled), device, simulated_of=simulated)
    except AttuneError:  # evaluating the request says what is wrong with it
        return None
    return found.latency.median_us if found.by_machine_code and found.latency else None
