"""Print the simulated backward pass beside FlashAttention's published figures.

On an A100 forward and backward together (FlashAttention-2), on an H100 the backward pass alone
(FlashAttention-3), at the boost clock and at the sustained clock of the power limit. `a100` or
`h100` prints one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from engine.attention.evaluation import Latency
from engine.attention.problem import Problem
from engine.history import History
from engine.model.kernel import Kernel
from engine.pipeline.simulated_launches import SUSTAINED, device_of_plan

LENGTHS = (512, 1024, 2048, 4096)
# Forward and backward together, TFLOP/s at those lengths: (head_dim, causal).
PUBLISHED = {
    (64, False): (132, 153, 162, 171),
    (64, True): (88, 119, 140, 156),
    (128, False): (150, 173, 187, 196),
    (128, True): (99, 133, 155, 173),
}
# Backward alone at 2,048 and 4,096 on an H100 SXM; causal only as a plot.
ON_HOPPER = {(64, False): (422, 453), (128, False): (501, 542)}
TOKENS, HIDDEN = 16384, 2048


def simulated(
    variant_id: str, problem: Problem, gpu: str = "A100 80GB SXM", clock: str | None = None
) -> Latency:
    """Return the simulated time in the default config."""
    kernel = Kernel.of(variant_id, gpu)
    device = device_of_plan(kernel, clock, kernel.plan(problem))
    latency = History().estimate(replace(kernel, device=device), problem).latency
    assert latency is not None
    return latency


def a100() -> Iterator[str]:
    for (head_dim, causal), published in PUBLISHED.items():
        for seqlen, tflops in zip(LENGTHS, published, strict=True):
            sizes = (TOKENS // seqlen, HIDDEN // head_dim, seqlen, head_dim, causal)
            forward, backward = Problem(*sizes), Problem(*sizes, direction="backward")
            first_us = min(simulated(name, forward).median_us for name in ("v11", "v13"))
            v24_us, v25_us = (simulated(name, backward).median_us for name in ("v24", "v25"))
            both = (forward.flops + backward.flops) / (first_us + v24_us) / 1e6
            yield (
                f"{backward.label():32} v24 {backward.flops / v24_us / 1e6:4.0f}  "
                f"v25 {backward.flops / v25_us / 1e6:4.0f}  both {both:4.0f}  "
                f"FlashAttention-2 {tflops}  {both / tflops:.2f}x"
            )


def h100() -> Iterator[str]:
    for head_dim, causal in PUBLISHED:
        for seqlen, published in zip(
            LENGTHS[2:], ON_HOPPER.get((head_dim, causal), ("–", "–")), strict=True
        ):
            sizes = (TOKENS // seqlen, HIDDEN // head_dim, seqlen, head_dim, causal)
            problem = Problem(*sizes, direction="backward")
            line = f"{problem.label():32}"
            for name in ("v24", "v26"):
                for clock in (None, SUSTAINED):
                    found = simulated(name, problem, "H100 SXM", clock)
                    rate, low, high = (
                        problem.flops / us / 1e6
                        for us in (found.median_us, found.high_us, found.low_us)
                    )
                    line += f" {name} {clock or 'boost'} {rate:.0f} ({low:.0f}–{high:.0f})"
            yield f"{line}  FlashAttention-3 {published}"


if __name__ == "__main__":
    tables = {"a100": a100, "h100": h100}
    for name in sys.argv[1:] or tables:
        for line in tables[name]():
            print(line, flush=True)
