"""Prints simulated forward and backward on an A100 beside FlashAttention-2's published figures."""

from __future__ import annotations

from collections.abc import Iterator

from engine.devices import find_device
from engine.history import History
from engine.model.kernel import Kernel
from engine.problem import Problem
from kernels.ladder import by_id

LENGTHS = (512, 1024, 2048, 4096)
# Forward and backward together, TFLOP/s at those lengths: (head_dim, causal).
PUBLISHED = {
    (64, False): (132, 153, 162, 171),
    (64, True): (88, 119, 140, 156),
    (128, False): (150, 173, 187, 196),
    (128, True): (99, 133, 155, 173),
}
TOKENS, HIDDEN = 16384, 2048


def simulated_us(variant_id: str, problem: Problem) -> float:
    """With the variant's defaults on an A100."""
    device, variant = find_device("A100 80GB SXM"), by_id(variant_id)
    kernel = Kernel.of(variant, device, variant.default_config(device.num_sms))
    latency = History().estimate(kernel, problem).latency
    assert latency is not None
    return latency.median_us


def lines() -> Iterator[str]:
    for (head_dim, causal), published in PUBLISHED.items():
        for seqlen, tflops in zip(LENGTHS, published, strict=True):
            sizes = (TOKENS // seqlen, HIDDEN // head_dim, seqlen, head_dim, causal)
            forward, backward = Problem(*sizes), Problem(*sizes, direction="backward")
            first_us = min(simulated_us(name, forward) for name in ("v11", "v13"))
            v24_us, v25_us = (simulated_us(name, backward) for name in ("v24", "v25"))
            both = (forward.flops + backward.flops) / (first_us + v24_us) / 1e6
            yield (
                f"{backward.label():32} v24 {backward.flops / v24_us / 1e6:4.0f}  "
                f"v25 {backward.flops / v25_us / 1e6:4.0f}  both {both:4.0f}  "
                f"FlashAttention-2 {tflops}  {both / tflops:.2f}x"
            )


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
