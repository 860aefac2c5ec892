"""A kernel's CTA time by its machine code, ahead of the previews and evaluations that use it."""

from __future__ import annotations

from engine.base.errors import AttuneError
from engine.history import History
from engine.pipeline.request import EvaluationRequest, resolve


def simulated_us(request: EvaluationRequest, history: History) -> float | None:
    """The request's time by machine code; its kernel is compiled and simulated where it was not.

    From then on previews and evaluations of the kernel on that GPU, of any problem, predict by
    machine code. Takes about a second the first time and a few milliseconds after that.

    Returns:
        None without a GPU, a compiler, nvdisasm or figures of the GPU, and of code that cannot be
        run.
    """
    try:
        kernel = resolve(request, history).kernel
        if kernel is None:
            return None
        predicted = history.doing("simulate").estimate(kernel, request.problem)
    except AttuneError:  # evaluating the request says what is wrong with it
        return None
    return predicted.latency.median_us if predicted.by_machine_code and predicted.latency else None
