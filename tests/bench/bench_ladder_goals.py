"""Print goals of the tensor-core rungs, their simulated values, and whether these meet the goals.

    python tests/bench/bench_ladder_goals.py [v12 …]    # minutes: kernels are compiled and counted

The goals of v19 are FlashAttention-3's published figures, beside the simulated ones at the clock
that the power limit sustains, and beside what the matrix products alone would reach at that clock.
v11 is compared likewise with FlashAttention-2's best on an A100.

Nothing here is measured. Times are simulated from the machine code, with the 90 % interval of the
simulator's validation. The median decides whether a goal is met. Times do not include the fusion of
split tiles (v13, v14), as a CTA simulated alone is never the last one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import log

from engine.attention.config import default_config
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.devices import find_device
from engine.history import History
from engine.machine_code.timing.constants import widened
from engine.machine_code.timing.power import sustained_clock, work_of
from engine.machine_code.timing.simulate import TimedLaunch
from engine.model.kernel import Kernel, analyse_plan
from engine.pipeline.simulated_launches import time_passes
from kernels.ladder import by_id

A100, L4, H200, RTX = "A100 80GB", "L4", "H200", "RTX 5090"
H100 = "H100 SXM"
# FlashAttention-3's forward pass, TFLOP/s at 4k and 16k, 16k tokens, hidden 2048: (D, causal).
FLASH_ATTENTION_3 = {
    (64, False): (476, 497),
    (64, True): (420, 473),
    (128, False): (638, 648),
    (128, True): (579, 616),
}
# FlashAttention-2's forward pass, best of its paper: 73 % of an A100's 312 TFLOP/s (2307.08691).
FLASH_ATTENTION_2 = 0.73 * 312
_DRAM_LATENCY_US = 0.8  # latency of a load for Little's law; assumed


@dataclass(frozen=True)
class Goal:
    what: str
    wanted: float
    simulated: float
    unit: str
    interval: str = ""
    at_most: bool = False

    def line(self) -> str:
        meets = self.simulated <= self.wanted if self.at_most else self.simulated >= self.wanted
        sign, verdict = "≤≥"[not self.at_most], "meets it" if meets else "MISSES it"
        return (
            f"{self.what:74} {sign} {self.wanted:6.2f}  {self.simulated:7.2f} {self.unit:9}"
            f"{self.interval:18} {verdict}"
        )


@lru_cache(maxsize=64)
def timed(
    name: str, gpu: str, problem: Problem, config: tuple[tuple[str, int], ...]
) -> TimedLaunch:
    kernel = Kernel.of(name, gpu, dict(config))
    plan = kernel.plan(problem)
    predicted = History().estimate(kernel, problem)
    return time_passes(kernel, plan, analyse_plan(plan, kernel.device.arch), predicted)[0]


def at(name: str, gpu: str, problem: Problem, **config: int) -> TimedLaunch:
    return timed(name, gpu, problem, tuple(config.items()))


def interval(launch: TimedLaunch) -> str:
    latency = launch.simulated.latency
    return f"({latency.low_us:.1f}–{latency.high_us:.1f} µs)"


def steady_busy(gpu: str, dim: int, block_n: int, num_warps: int) -> float:
    """Return the busy share of the tensor pipe in the main loop: the increase by 1,024 more keys,
    without prologue and epilogue. These K and V fit in the L2 of every GPU."""
    short, long = (
        at("v11", gpu, problem, block_n=block_n, num_warps=num_warps).simulated
        for keys in (1024, 2048)
        for problem in [Problem(2, 16, 1024, dim, seqlen_kv=keys, num_heads_kv=2)]
    )
    rounds = short.round, long.round
    busy = [r.cycles * r.busy()["tensor"] for r in rounds]
    return (busy[1] - busy[0]) / (rounds[1].cycles - rounds[0].cycles)


def v11() -> Iterator[Goal]:
    for gpu, wanted in ((A100, 0.90), (L4, 0.90), (RTX, 0.90), (H200, 0.85)):
        for dim in (64, 128):
            # block_n and num_warps: no more keys at D = 128, and 8 warps if one CTA fits.
            choices = ((32, 4), (64, 4)) if dim == 64 else ((32, 4), (32, 8))
            busy, (keys, warps) = max((steady_busy(gpu, dim, *c), c) for c in choices)
            what = f"v11 on {gpu}, D={dim}, block_n={keys}, num_warps={warps}: tensor pipe busy"
            yield Goal(what, wanted, busy, "")
    for dim in (64, 128):
        problem = Problem(4, 2048 // dim, 4096, dim)
        launch = at("v11", A100, problem, block_n=64 if dim == 64 else 32)
        tflops = problem.flops / launch.simulated.latency.median_us / 1e6
        what = f"v11 on {A100}, S=4096, D={dim}"
        yield Goal(what, 250.0, tflops, "TFLOP/s", interval(launch))
        yield from sustained_goals(
            "v11", A100, problem, {"block_n": 64 if dim == 64 else 32}, FLASH_ATTENTION_2
        )


def v12() -> Iterator[Goal]:
    """v12, and for many heads v22 beside it, where it has more room than a kernel for every GPU."""
    variant = by_id("v12")
    small = ((1, 64, 2.4), (1, 128, 2.4), (1, 256, 3.2), (1, 512, 4.4))
    recorded = ((8, 5.1), (32, 5.4), (64, 5.5), (128, 5.9), (256, 7.8))
    for heads, seqlen, wanted in (*small, *((h, 128, us / 2) for h, us in recorded)):
        problem = Problem(1, heads, seqlen, 64)
        choices = []
        for warps, sharing, keys, tiles in product((4, 8), (1, 2, 4, 8), (16, 32, 64, 128), (1, 2)):
            config = {
                "num_warps": warps,
                "row_warps": sharing,
                "keys_per_warp": keys,
                "row_tiles": tiles,
            }
            fits = variant.unsupported(problem, default_config(variant, config)) is None
            if fits and seqlen <= warps // sharing * keys < 2 * seqlen:
                choices.append(at("v12", H200, problem, **config))
        best = min(choices, key=lambda c: c.simulated.latency.median_us)
        us = best.simulated.latency.median_us
        what = f"on {H200}, B·H={heads}, S={seqlen}"
        yield Goal(f"v12 {what}", wanted, us, "µs", interval(best), True)
        if heads >= 64:
            both = [at("v22", H200, problem, num_warps=warps, keys=seqlen) for warps in (4, 8)]
            best = min(both, key=lambda c: c.simulated.latency.median_us)
            us = best.simulated.latency.median_us
            yield Goal(f"v22 {what}", wanted, us, "µs", interval(best), True)


def v13() -> Iterator[Goal]:
    for what, problem in (
        ("causal", Problem(1, 16, 2048, 64, causal=True)),
        ("1.1 rounds of CTAs", Problem(1, 15, 2048, 64)),
    ):
        before = at("v11", A100, problem)
        after = at("v13", A100, problem, num_ctas=216)
        gain = before.simulated.latency.median_us / after.simulated.latency.median_us
        yield Goal(f"v13 against v11 on {A100}, {what}", 1.15, gain, "×", interval(after))


def v14() -> Iterator[Goal]:
    """Print v14: bytes in flight against Little's law, or all of K and V if they are fewer."""
    device = find_device(H200)
    assert device.num_sms is not None
    assert device.memory_gb_per_s is not None
    for problem, tunables in (
        (
            Problem(1, 32, 1, 128, seqlen_kv=1024, num_heads_kv=4),
            {"num_splits": 32, "cluster_size": 8, "num_warps": 2},
        ),
        (Problem(1, 32, 1, 128, seqlen_kv=16384), {"num_splits": 8}),
        (Problem(32, 32, 1, 128, seqlen_kv=4096, num_heads_kv=8), {"num_splits": 1}),
    ):
        variant = by_id("v14")
        config = default_config(variant, tunables)
        plan = make_plan(variant, problem, config)
        what = f"v14 on {H200}, {problem.label()}"
        bytes_ratio = plan.device_bytes / problem.io_bytes
        yield Goal(f"{what}: bytes, scratch too, over the least", 1.05, bytes_ratio, "×", "", True)
        ctas = plan.passes[0].ctas
        yield Goal(f"{what}: CTAs to SMs", 0.90, ctas / device.num_sms, "×")
        launch = at("v14", H200, problem, **tunables)
        resident = min(launch.simulated.resident_ctas, -(-ctas // device.num_sms))
        tile = 2 * config["block_n"] * problem.head_dim * 2
        flying = min(ctas, resident * device.num_sms) * config["num_warps"]
        flying *= (config["stages"] - 1) * tile
        needed = device.memory_gb_per_s * 1e3 * _DRAM_LATENCY_US
        every = problem.kv_bytes
        yield Goal(
            f"{what}: loads under way, of Little's",
            min(0.85, every / needed),
            min(flying, every) / needed,
            "×",
        )


def v19() -> Iterator[Goal]:
    """Print v19, and v20 beside it at D = 64, for which v20 is made."""
    sms = {"num_ctas": find_device(H100).num_sms or 1}
    for (dim, causal), published in FLASH_ATTENTION_3.items():
        for seqlen, tflops in zip((4096, 16384), published, strict=True):
            problem = Problem(16384 // seqlen, 2048 // dim, seqlen, dim, causal)
            yield from sustained_goals(
                "v19", H100, problem, {"rescale_threshold": 8} | sms, 0.95 * tflops
            )
            if dim == 64:
                yield from sustained_goals("v20", H100, problem, sms, 0.95 * tflops)


def sustained_goals(
    name: str, gpu: str, problem: Problem, config: dict[str, int], wanted: float
) -> Iterator[Goal]:
    """Print TFLOP/s at the sustained clock, and at that of the products alone."""
    device, launch = find_device(gpu), at(name, gpu, problem, **config)
    variant = by_id(name)
    plan = make_plan(variant, problem, default_config(variant, config))
    simulated = launch.simulated
    work = work_of(
        analyse_plan(plan, device.arch)[0].counts,
        simulated.sm_cycles,
        simulated.dram_us,
        simulated.dram_bytes,
    )
    for whose, of in (("", work), (", products alone", replace(work, instructions=0))):
        clock = sustained_clock(device, of)
        assert clock is not None
        us = simulated.us_at(clock.clock_mhz)
        low, high = (problem.flops / t / 1e6 for t in interval_of(launch, us)[::-1])
        what = f"{name} on {gpu} at {clock.clock_mhz:.0f} MHz, {problem.label()}{whose}"
        reached = problem.flops / us / 1e6
        yield Goal(what, wanted, reached, "TFLOP/s", f"({low:.0f}–{high:.0f})")


def interval_of(launch: TimedLaunch, sustained_us: float) -> tuple[float, float]:
    latency = launch.simulated.latency
    half_width = log(latency.high_us / latency.median_us)
    return widened(sustained_us, half_width, "sustained")


def main() -> None:
    wanted = sys.argv[1:]
    for goals in (v11, v12, v13, v14, v19):
        if wanted and goals.__name__ not in wanted:
            continue
        for goal in goals():
            print(goal.line(), flush=True)


if __name__ == "__main__":
    main()
