"""Simulated against measured times of every validation point: the error of the simulator.

    python tests/bench/bench_sass_validation.py [--set NAME] [--pairs FILE]

Compiles the kernels of tests/machine_code/kernels for each GPU, runs their machine code in the
emulator and the timing model, and prints measured, simulated, error; then for each set the mean
error, the rank correlation, and how many of the pairs that differ by over 10 % are in the right
order.
About two minutes on two idle cores: SGEMM's CTAs are long.

Choices made on points. `fetch_cycles`: on three H200 points. The issue order is a published one
(Huerta); when it was adopted again, the errors of all points were known with it and with the
previous one, and those of steps 2 to 10 of the RTX A6000 series with a third. TMA writes interleave
with other accesses to shared memory: after the wgmma points were 35 % too slow. These points are
marked "chosen on" and are in no mean and no counted pair. Nothing was chosen on the other points.
The register file, the queues and the widths of loads come from a prototype made with knowledge of
the A6000's figures.

Nearly all points are simulated too fast, by 6 % on average, as effects that are not simulated cost
time. One counted point is beyond 17 %: step 4 on the A100 (19 %; 12 % with a third more L2
bandwidth, with which its CTAs stay in step). Unknown: the clock of the 4090 during the series, and
the distance of an SM from its nearest and furthest L2 slices. If lines differed as much as SMs do
(222 to 339 cycles on an L40, arXiv 2606.22588), the mean error would be the same.

Sources. H200: this project's own measurements, CUDA graph, warm L2, of kernels that
tests/machine_code/kernels takes over step by step. SGEMM 4096 x 4096 x 4096: the tables of
github.com/siboehm/SGEMM_CUDA (A6000, README; A100, README of an early commit, for sizes of 4092 and
that day's kernels) and of a fork of it for the RTX 4090; clocks were not fixed there, as far as
published, so they are simulated at the clock of the energy model. The kernels here are rewritten
from that series' descriptions. wgmma: kernel 6 of github.com/pranjalssh/fast.cu (README),
likewise. Attention on an RTX 5090: five kernels of
github.com/gau-nernst/learn-cuda, rewritten; its power was limited to 400 W and the clock is not
published, so none is counted. Nothing was chosen on them. Step 1 needs more than 255 registers and
spills here; how much it spilled there is not known.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from engine.cuda_source import compile_kernel
from engine.devices import find_device
from engine.devices.spec import DeviceSpec, at_clock, limits_for
from engine.history.known_time import RANKING_ERROR
from engine.machine_code import Cubin, disassemble, read_cubin
from engine.machine_code.disassembly import Program
from engine.machine_code.emulation import Emulator
from engine.machine_code.footprint import SharedBytes
from engine.machine_code.launch import Launch, buffer_address
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US
from engine.machine_code.timing.native import GpuRates, gpu_rates, simulate_sm, sm_kernel
from engine.machine_code.timing.power import Work, sustained_clock
from engine.machine_code.timing.simulate import CtaClass, measured_ctas, simulate_launch
from engine.machine_code.timing.traffic import launch_traffic
from engine.model.occupancy import occupancy

CHOSEN_ON = "chosen on"
KERNELS = Path(__file__).resolve().parents[1] / "machine_code" / "kernels"
# Sizes of the matrices as published; rows of 4092 floats begin in the middle of a line.
SIZES = {"RTX A6000": 4096, "RTX 4090": 4096, "A100 40GB SXM": 4092}

# GFLOP/s as published, steps 1 to 10.
SGEMM = {
    "RTX A6000": (
        *(309.0, 1986.5, 2980.3, 8474.7, 15971.7),
        *(18237.3, 16213.4, 16459.2, 19721.0, 21779.3),
    ),
    "RTX 4090": (
        *(673.5, 5217.8, 6481.4, 19308.0, 35636.5),
        *(42464.2, 36609.9, 37057.6, 42827.2, 45319.9),
    ),
    "A100 40GB SXM": (
        *(292.1, 3119.0, 5451.9, 10368.6, 14155.1),
        *(15296.5, 15171.3, 15086.2, 16344.1, 17806.7),
    ),
}


@dataclass(frozen=True, slots=True)
class Point:
    group: str
    name: str
    measured: float
    simulated: Callable[[], float]
    unit: str = "us"
    left_out: str = ""  # reason why it is not counted


@lru_cache(maxsize=64)
def compiled(file: str, arch: str, entry: str, defines: tuple[tuple[str, str], ...]) -> Cubin:
    return read_cubin(compile_kernel(KERNELS / file, defines, arch, (entry,)).cubin)


@lru_cache(maxsize=64)
def program_of(
    file: str, arch: str, entry: str, defines: tuple[tuple[str, str], ...] = ()
) -> tuple[Program, Cubin]:
    cubin = compiled(file, arch, entry, defines)
    return disassemble(cubin).program(entry), cubin


def resident(program: Program, launch: Launch, device: DeviceSpec) -> int:
    return occupancy(
        limits_for(device.compute_capability),
        device.num_sms,
        launch.ctas,
        launch.threads,
        program.registers,
        program.static_smem_bytes + launch.dynamic_smem_bytes,
    ).ctas_per_sm


def packed(*values: int | float) -> tuple[bytes, ...]:
    return tuple(struct.pack("<f" if isinstance(v, float) else "<i", v) for v in values)


def pointers(count: int) -> tuple[bytes, ...]:
    return tuple(struct.pack("<Q", buffer_address(n)) for n in range(count))


# ---- H200 ----


def h200_us(file: str, entry: str, launch: Launch, fit: int | None = None) -> float:
    device = find_device("H200")
    program, cubin = program_of(file, device.arch, entry)
    trace = Emulator(program, cubin.entries[entry], launch).trace()[0]
    result = simulate_launch(
        program,
        [CtaClass(trace, launch.ctas)],
        launch,
        device,
        fit or resident(program, launch, device),
    )
    return result.latency.median_us


def flash_us(heads: int, seqlen: int) -> float:
    arguments = (*pointers(5), *packed(1, heads, seqlen, 0.125))
    launch = Launch((heads, 1, seqlen // 64), (128, 1, 1), 5 * 64 * 72 * 2, arguments)
    # Three CTAs of the measured kernel fit, as it has 136 registers; the one here has 128.
    return h200_us("flash_mma.cu", "flash", launch, fit=3)


def floor_us(entry: str, seqlen: int) -> float:
    pieces = seqlen * 8
    arguments = (*pointers(4), *packed(pieces))
    if entry == "copy":
        return h200_us("floors.cu", entry, Launch((pieces // 256, 1, 1), (256, 1, 1), 0, arguments))
    # Measured with 128 and 256 threads; the faster one is used in both.
    return min(
        h200_us("floors.cu", entry, Launch((seqlen // 16, 1, 1), (n, 1, 1), 32 * pieces, arguments))
        for n in (128, 256)
    )


def h200_points() -> Iterator[Point]:
    for seqlen, us in ((64, 3.3), (128, 4.2), (512, 10.6)):
        yield Point(
            "H200",
            f"flash_mma B*H=1 S={seqlen}",
            us,
            lambda s=seqlen: flash_us(1, s),  # type: ignore[misc]
            left_out=CHOSEN_ON,
        )
    yield Point("H200", "flash_mma B*H=256 S=128", 9.85, lambda: flash_us(256, 128))
    for entry, seqlen, us in (
        *(("copy", 64, 1.04), ("copy", 256, 1.26)),
        *(("stage", 64, 1.43), ("stage", 128, 1.72), ("stage", 256, 2.1), ("stage", 512, 2.74)),
    ):
        yield Point(
            "H200",
            f"{entry} S={seqlen}",
            us,
            lambda e=entry, s=seqlen: floor_us(e, s),  # type: ignore[misc]
        )


# ---- SGEMM ----


def sgemm_gflops(gpu: str, step: int) -> float:
    """Return GFLOP/s, with the K loop extrapolated linearly from two lengths to 4096.

    At the sustained clock of the power limit: the benchmark launches a kernel 10 times or more in a
    row, which takes at least 30 ms at this size.
    """
    device = find_device(gpu)
    defines, rows, columns, threads = [("STEP", str(step))], 128, 128, 256
    if step == 4:
        rows, columns, threads = 64, 64, 512
    elif step == 10:
        threads = 128
    if gpu.startswith("A100") and step == 9:
        defines += [("THREAD_M", "4"), ("THREAD_N", "4"), ("BLOCK_M", "64"), ("BLOCK_N", "64")]
        rows = columns = 64
    elif gpu.startswith("A100") and step == 10:
        defines += [("BLOCK_M", "64"), ("WARP_M", "32"), ("STEPS_N", "1"), ("THREAD_M", "4")]
        rows = 64
    program, cubin = program_of("sgemm.cu", device.arch, "sgemm", tuple(sorted(defines)))
    size = SIZES[gpu]
    block, depths = (threads, 1, 1), (256, 512)
    if step <= 3:
        rows = columns = 32
        block, depths = (32, 32, 1) if step == 1 else (1024, 1, 1), (128, 256)
    # Rows of A have the length of the sum, and begin at the same place in a line as at full size.
    cut_off = -size % 32
    tile = 1 if step <= 2 else 32  # the depth to which the loop rounds up, or a multiple
    grid = -(-size // columns), -(-size // rows), 1
    traces = []
    for depth in (depths[0] - cut_off, depths[1] - cut_off):
        arguments = (
            *packed(size, size, depth, 1.0),
            *pointers(3)[:2],
            *packed(0.0),
            pointers(3)[2],
        )
        launch = Launch(grid, block, 0, arguments)
        traces.append(Emulator(program, cubin.entries["sgemm"], launch).trace()[0])
    held = resident(program, launch, device)
    lengths = [_rounded(depth - cut_off, tile) for depth in depths]

    def cycles_of(at: DeviceSpec) -> float:
        rates = gpu_rates(at)
        times = measured_ctas(
            program,
            rates,
            at,
            "streaming",
            program.static_smem_bytes,
            (traces[0], traces[1]),
            (lengths[0], lengths[1]),
            held,
            miss_share=miss_share(step, grid, rows, columns, size, rates, held),
        )
        return times.of(-(-launch.ctas // rates.num_sms), _rounded(size, tile))

    executed = [float(len(trace.instruction)) for trace in traces]
    further = (_rounded(size, tile) - lengths[0]) / (lengths[1] - lengths[0])
    instructions = launch.ctas * (executed[0] + further * (executed[1] - executed[0]))
    cycles = cycles_of(device)
    matrices_bytes = 3.0 * 4 * size**2
    work = Work(
        ((cycles, 0.0),), tensor_flops=0.0, instructions=instructions, dram_bytes=matrices_bytes
    )
    found = sustained_clock(device, work)
    if found is not None and found.is_limited:
        device = at_clock(device, found.clock_mhz, "sustained")
        cycles = cycles_of(device)
    return 2 * size**3 / (LAUNCH_FLOOR_US + cycles / gpu_rates(device).cycles_per_us) / 1e3


def _rounded(depth: int, tile: int) -> float:
    return float(-(-depth // tile) * tile)


def miss_share(
    step: int,
    grid: tuple[int, int, int],
    rows: int,
    columns: int,
    size: int,
    gpu: GpuRates,
    held: int,
) -> float:
    """Return the share of A's rows and B's columns that misses L2 for concurrent CTAs."""
    along_x, along_y = (grid[0], 1, 1), (1, grid[1], 1)
    # In steps 1 to 3 blockIdx.x indexes rows, in the others columns.
    of_a, of_b = (along_y, along_x) if step <= 3 else (along_x, along_y)
    panels = SharedBytes(rows * size * 4, of_a), SharedBytes(columns * size * 4, of_b)
    return launch_traffic(panels, grid, held * gpu.num_sms, gpu.kept_bytes).miss_share


def sgemm_points(gpu: str) -> Iterator[Point]:
    for step, gflops in enumerate(SGEMM[gpu], start=1):
        yield Point(
            f"SGEMM {gpu}",
            f"step {step}",
            gflops,
            lambda s=step: sgemm_gflops(gpu, s),  # type: ignore[misc]
            unit="GFLOP/s",
            left_out=CHOSEN_ON if gpu == "RTX A6000" and step > 1 else "",
        )


# ---- wgmma ----

# TFLOP/s of kernel 6 of github.com/pranjalssh/fast.cu on an H100 SXM, by matrix size: BF16 there,
# FP16 here, which take the same time. 128 persistent CTAs; the power limit sets their clock.
WGMMA = {6144: 766.3, 12288: 777.9}
PERSISTENT_CTAS = 128


def wgmma_tflops(size: int) -> float:
    """Return TFLOP/s from the full depth and two tiles a CTA, as later tiles repeat the second."""
    device = find_device("H100 80GB SXM")
    rates = gpu_rates(device)
    program, cubin = program_of("gemm_wgmma.cu", "sm_90a", "gemm")
    smem_bytes = 6 * 192 * 64 * 2
    tiles = (size // 192) ** 2 // PERSISTENT_CTAS
    cycles = []
    for count in (1, 2):
        # With fewer CTAs than tiles each CTA has several tiles.
        ctas = (size // 192) ** 2 // count
        arguments = (bytes(128), bytes(128), pointers(3)[2], *packed(size, size))
        launch = Launch((ctas, 1, 1), (512, 1, 1), smem_bytes, arguments)
        trace = Emulator(program, cubin.entries["gemm"], launch).trace()[0]
        kernel = sm_kernel(program, rates, "shared", smem_bytes, fetches_code=False)
        cycles.append(simulate_sm(kernel, [trace], [0], 1).cycles)
    total = cycles[0] + (tiles - 1) * (cycles[1] - cycles[0])
    return 2 * size**3 / (LAUNCH_FLOOR_US + total / rates.cycles_per_us) / 1e6


def wgmma_points() -> Iterator[Point]:
    for size, tflops in WGMMA.items():
        yield Point(
            "wgmma GEMM H100 SXM",
            f"size {size}",
            tflops,
            lambda s=size: wgmma_tflops(s),  # type: ignore[misc]
            unit="TFLOP/s",
            left_out=CHOSEN_ON,
        )


# ---- attention by mma.sync ----

# TFLOP/s of github.com/gau-nernst/learn-cuda, 07_attention at e83c256 on an RTX 5090 held to 400 W:
# B=4, H=8, 4096 queries, 8192 keys, D=128, BF16. (query rows of a CTA, tiles of 64 rows in smem).
STEPS = {
    1: (142.87, 128, 2),
    2: (181.11, 64, 2),
    3: (189.84, 64, 2),
    4: (194.33, 64, 2),
    5: (197.74, 64, 3),
}


def steps_tflops(step: int) -> float:
    device = find_device("RTX 5090")
    _, rows, tiles = STEPS[step]
    defines = (("ROWS", str(rows)), ("STEP", str(step)))
    program, cubin = program_of("flash_steps.cu", device.arch, "flash", defines)
    arguments = (*pointers(4), *packed(4096, 8192))
    launch = Launch((32 * 4096 // rows, 1, 1), (128, 1, 1), tiles * 64 * 256, arguments)
    trace = Emulator(program, cubin.entries["flash"], launch).trace()[0]
    fit = resident(program, launch, device)
    result = simulate_launch(program, [CtaClass(trace, launch.ctas)], launch, device, fit)
    return 4 * 32 * 4096 * 8192 * 128 / result.latency.median_us / 1e6


def steps_points() -> Iterator[Point]:
    for step, (tflops, _, _) in STEPS.items():
        yield Point(
            "attention RTX 5090",
            f"step {step}",
            tflops,
            lambda s=step: steps_tflops(s),  # type: ignore[misc]
            unit="TFLOP/s",
            left_out="clock unknown",
        )


# ---- the tables ----


def ranks(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values))


def right_pairs(measured: list[float], simulated: list[float]) -> tuple[int, int]:
    """Return (pairs in the right order, pairs), for pairs that differ by over 10 %."""
    right = total = 0
    for (a, x), (b, y) in itertools.combinations(zip(measured, simulated, strict=True), 2):
        if max(a, b) > 1.1 * min(a, b):
            total += 1
            right += (a > b) == (x > y)
    return right, total


def neighbour_pair(before: tuple[Point, float], after: tuple[Point, float]) -> dict[str, object]:
    """Return ratios of times of two steps on one GPU, for which the clock need not be known."""

    def ratio(first: float, second: float) -> float:
        return round(second / first if after[0].unit == "us" else first / second, 4)

    return {
        "group": after[0].group,
        "before": before[0].name,
        "after": after[0].name,
        "measured": ratio(before[0].measured, after[0].measured),
        "simulated": ratio(before[1], after[1]),
        "chosen_on": CHOSEN_ON in (before[0].left_out, after[0].left_out),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", default="", help="only sets whose name contains this")
    parser.add_argument(
        "--pairs",
        type=Path,
        help="write the steps that follow each other here (engine/versions/neighbour_pairs.json)",
    )
    args = parser.parse_args()
    chosen = args.set.lower()
    points = [*h200_points(), *(p for gpu in SGEMM for p in sgemm_points(gpu))]
    points += [*wgmma_points(), *steps_points()]
    points = [p for p in points if chosen in p.group.lower()]
    errors: list[float] = []
    neighbours: list[dict[str, object]] = []
    pairs = [0, 0]
    apart: list[tuple[float, bool]] = []  # simulated ratio of each counted pair, in the right order
    for group, members in itertools.groupby(points, key=lambda p: p.group):
        print(f"\n{group}")
        began = time.perf_counter()
        before: tuple[Point, float] | None = None
        measured, simulated, here = [], [], []
        all_measured, all_simulated = [], []
        for p in members:
            value = p.simulated()
            all_measured.append(p.measured)
            all_simulated.append(value)
            if before is not None and p.name.startswith("step"):
                neighbours.append(neighbour_pair(before, (p, value)))
            before = p, value
            if not p.left_out:
                measured.append(p.measured)
                simulated.append(value)
            # Errors of times: a simulated rate that is too high is a time that is too short.
            error = value / p.measured - 1 if p.unit == "us" else p.measured / value - 1
            note = f"  {p.left_out}" if p.left_out else ""
            print(
                f"  {p.name:26} measured {p.measured:9.2f}  simulated {value:9.2f} {p.unit:8}"
                f" time {error:+6.1%}{note}"
            )
            if not p.left_out:
                here.append(error)
        errors += here
        for (a, x), (b, y) in itertools.combinations(zip(measured, simulated, strict=True), 2):
            apart.append((max(x, y) / min(x, y), (a > b) == (x > y)))
        right, total = right_pairs(measured, simulated)
        all_right, all_total = right_pairs(all_measured, all_simulated)
        pairs[0] += right
        pairs[1] += total
        if not here:
            continue
        spread = math.sqrt(float(np.mean(np.log1p(here) ** 2)))
        print(
            f"  mean error {np.mean(np.abs(here)):.1%} over {len(here)} counted points, worst "
            f"{max(map(abs, here)):.0%}, residual {spread:.3f}; rank correlation "
            f"{np.corrcoef(ranks(all_measured), ranks(all_simulated))[0, 1]:.2f}; faster one "
            f"named in {right} of {total} counted pairs, {all_right} of {all_total} of all; "
            f"{time.perf_counter() - began:.0f} s"
        )
    if args.pairs is not None:
        rows = ",\n".join(f"  {json.dumps(pair)}" for pair in neighbours)
        args.pairs.write_text(f"[\n{rows}\n]\n")
    if not errors:
        return
    print(
        f"\nAll: mean error {np.mean(np.abs(errors)):.1%} over {len(errors)} counted points, worst "
        f"{max(map(abs, errors)):.0%}; faster one named in {pairs[0]} of {pairs[1]} counted pairs "
        f"({pairs[0] / max(1, pairs[1]):.0%}). Goals: 10 %, 95 %."
    )
    far = [right for ratio, right in apart if ratio > 1 + RANKING_ERROR]
    near = [right for ratio, right in apart if ratio <= 1 + RANKING_ERROR]
    print(
        f"Of {len(far)} counted pairs simulated more than {RANKING_ERROR:.0%} apart the faster "
        f"one is named in {sum(far)}; of {len(near)} nearer ones in {sum(near)}."
    )


if __name__ == "__main__":
    main()
