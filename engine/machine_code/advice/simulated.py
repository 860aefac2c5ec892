"""Advice that needs the simulated time on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from engine.machine_code.advice.counted import (
    Finding,
    by_line,
    executed,
    hottest,
    mask_of,
    shared_findings,
    wasted_sectors,
)
from engine.machine_code.advice.gain import (
    Advice,
    Change,
    Gain,
    Mask,
    Parts,
    Rerun,
    left_out,
    without_latency,
)
from engine.machine_code.analysis import is_conversion
from engine.machine_code.disassembly import Instruction, Loop, Pipe, find_loops
from engine.machine_code.emulation import EXECUTED, SECTORS, AccessKind, CtaTrace
from engine.machine_code.footprint import SharedBytes
from engine.machine_code.timing.cta_times import iterations_of
from engine.machine_code.timing.traffic import best_order, launch_traffic

_MIN_GAIN = 0.03
_AHEAD = 0.25  # of an iteration: a copy that is waited for sooner than this overlaps with nothing
_MIN_ITERATIONS = 3
_TENSOR_BUSY = 0.5  # busy share from which on the tensor pipe counts as well used
_MAX_PARTS = 8  # into which a CTA's loop is split to give every SM work
_MIN_IDLE = 0.1  # of the SMs: a smaller share is normal wave quantization
_MIN_TRAFFIC = 1.5  # DRAM bytes over those of the best order of the grid
_COPIES = ("LDG", "LDGSTS")


def simulated_findings(
    rerun: Rerun, groups: tuple[SharedBytes, ...]
) -> Iterator[tuple[Advice, Gain | None]]:
    """Advice that depends on the GPU, with its gain.

    Args:
        groups: bytes that the launch's CTAs share (`engine.machine_code.footprint`).
    """
    for finding in (*_copy_ahead(rerun), *_few_ctas(rerun)):
        yield finding.advice, rerun.gain(*finding.changes) if finding.changes else None
    for finding in shared_findings(wasted_sectors(rerun.analysis)):
        if (gain := rerun.gain(*finding.changes)).high >= _MIN_GAIN:
            yield finding.advice, gain
    yield from _tensor_idle(rerun)
    yield from _grid_order(rerun, groups)


# ---- copies ----


def _copy_ahead(rerun: Rerun) -> Iterator[Finding]:
    copies = mask_of(rerun.analysis, lambda i: i.opcode in _COPIES)
    loop = _copying_loop(rerun, copies)
    if loop is None or rerun.iterations_of(loop) < _MIN_ITERATIONS:
        return
    copies[: loop.first] = copies[loop.last + 1 :] = False
    if _ahead(rerun, loop, rerun.simulated.longest, copies) >= _AHEAD:
        return
    lines = by_line(rerun.analysis, copies)
    total = sum(line.total(SECTORS) for line in lines)
    most = max(lines, key=lambda line: line.total(SECTORS))
    sentence = (
        f"No prefetch: {most.mnemonics} is waited for in the iteration that issues it, with no "
        "arithmetic in between. Start the next tile's copy (cp.async into a second buffer) before "
        "this tile's arithmetic."
    )
    share = most.total(SECTORS) / total if total else 0.0
    yield Finding(Advice("copy_ahead", most.source, share, sentence), (without_latency,))


def _copying_loop(rerun: Rerun, copies: Mask) -> Loop | None:
    """The innermost loop with copies that takes most of the launch, not the loop over query tiles
    around it that persistent CTAs have."""
    if rerun.loop is None:
        return None
    totals = rerun.analysis.counts.totals[:, EXECUTED]

    def total(loop: Loop) -> int:
        return int(totals[loop.first : loop.last + 1].sum())

    fitting = [
        loop
        for loop in find_loops(rerun.analysis.program.instructions)
        if rerun.loop.first <= loop.first
        and loop.last <= rerun.loop.last
        and copies[loop.first : loop.last + 1].any()
        and 2 * total(loop) >= total(rerun.loop)
    ]
    return max(fitting, key=lambda loop: loop.depth, default=None)


def _ahead(rerun: Rerun, loop: Loop, trace: CtaTrace, copies: Mask) -> float:
    """Median distance from the issue of a copy to the wait for it, in iterations of the loop."""
    program = rerun.analysis.program.instructions
    heads = trace.instruction == loop.first
    warps = np.searchsorted(trace.warp_start, np.flatnonzero(heads), side="right") - 1
    warp = int(np.bincount(warps).argmax())
    begin, end = trace.warp_start[warp], trace.warp_start[warp + 1]
    executed_here = trace.instruction[begin:end].tolist()
    rows = trace.access[begin:end].tolist()
    waiting: dict[int, list[int]] = {}  # scoreboard → places of loads
    uncommitted: list[int] = []
    groups: list[list[int]] = []
    distances: list[int] = []
    for place, n in enumerate(executed_here):
        control = program[n].control
        for board in list(waiting):
            if control.wait_mask >> board & 1:
                distances += [place - at for at in waiting.pop(board)]
        kind = trace.kind[rows[place]] if rows[place] >= 0 else -1
        if kind == AccessKind.ASYNC_COMMIT:
            groups.append(uncommitted)
            uncommitted = []
        elif kind == AccessKind.ASYNC_WAIT:
            still_open = int(trace.amount[rows[place]])
            done, groups = (
                groups[: max(0, len(groups) - still_open)],
                groups[max(0, len(groups) - still_open) :],
            )
            distances += [place - at for group in done for at in group]
        elif copies[n]:
            if program[n].opcode == "LDGSTS":
                uncommitted.append(place)
            else:
                waiting.setdefault(control.write_barrier, []).append(place)
    places = np.flatnonzero(heads[begin:end])
    iteration = float(np.median(np.diff(places))) if len(places) > 1 else 1.0
    return float(np.median(distances)) / iteration if distances else 1.0


# ---- the tensor pipe ----


def _tensor_idle(rerun: Rerun) -> Iterator[tuple[Advice, Gain]]:
    analysis = rerun.analysis
    products = mask_of(analysis, lambda i: i.pipe is Pipe.TENSOR)
    busy = rerun.simulated.busy()[Pipe.TENSOR.value]
    if not products.any() or busy >= _TENSOR_BUSY:
        return
    causes = []
    for what, mask, changes in _causes(rerun):
        if mask.any():
            causes.append((rerun.gain(*changes), what, mask))
    gain, what, mask = max(causes, key=lambda cause: cause[0].high)
    if gain.high < _MIN_GAIN:
        return
    each = executed(analysis, mask) / executed(analysis, products)
    sentence = (
        f"The tensor pipe is busy {busy:.0%} of the time, because of {what}: {each:.1f} "
        "instructions per tensor instruction. The gain is that of executing fewer of them, or of "
        "overlapping them with the tensor pipe."
    )
    share = executed(analysis, mask) / analysis.counts.executed
    yield Advice("tensor_idle", hottest(analysis, mask), share, sentence), gain


def _causes(rerun: Rerun) -> Iterator[tuple[str, Mask, tuple[Change, ...]]]:
    analysis = rerun.analysis

    def is_arithmetic(i: Instruction) -> bool:
        return i.pipe in (Pipe.FMA, Pipe.ALU) and not is_conversion(i)

    for what, wanted in (
        ("scalar arithmetic", is_arithmetic),
        ("exponentials and other special functions", lambda i: i.opcode == "MUFU"),
        ("conversions", is_conversion),
        ("accesses to shared memory", lambda i: i.pipe is Pipe.SHARED),
    ):
        mask = mask_of(analysis, wanted)
        yield what, mask, left_out(mask)
    if not rerun.has_phases:
        mask = mask_of(analysis, lambda i: i.opcode == "BAR")
        yield "barriers", mask, left_out(mask)
    loads = mask_of(analysis, lambda i: i.opcode in _COPIES or i.opcode.startswith("UTMALDG"))
    yield "waiting for global memory", loads, (without_latency,)


# ---- the grid ----


def _few_ctas(rerun: Rerun) -> Iterator[Finding]:
    ctas, num_sms = rerun.analysis.launch.ctas, rerun.gpu.num_sms
    if ctas > (1 - _MIN_IDLE) * num_sms:
        return
    idle = num_sms - ctas
    sentence = (
        f"Too few CTAs: {ctas} for {num_sms} SMs leave {idle} of them idle. Use smaller tiles, or "
        "split the keys."
    )
    advice = Advice("few_ctas", None, idle / num_sms, sentence)
    most = min(max(_MAX_PARTS, num_sms // ctas), rerun.iterations)
    if most < 2:
        yield Finding(advice)
        return
    best = min(range(2, most + 1), key=lambda parts: -(-parts * ctas // num_sms) / parts)
    yield Finding(advice, (_part(rerun, 2), _part(rerun, best)))


def _part(rerun: Rerun, parts: int) -> Change:
    """Split each CTA's loop into parts: CTAs with a part of the iterations, as many as the busiest
    SM then gets."""
    ctas = -(-parts * rerun.analysis.launch.ctas // rerun.gpu.num_sms)

    def change(whole: Parts) -> Parts:
        iterations = max(1, -(-_iterations(rerun, whole.trace) // parts))
        return replace(whole, trace=rerun.cut(whole.trace, iterations), ctas=ctas)

    return change


def _iterations(rerun: Rerun, trace: CtaTrace) -> int:
    assert rerun.loop is not None
    return iterations_of(trace, rerun.loop)


def _grid_order(rerun: Rerun, groups: tuple[SharedBytes, ...]) -> Iterator[tuple[Advice, Gain]]:
    grid = rerun.analysis.launch.grid
    simulated, gpu = rerun.simulated, rerun.gpu
    running = simulated.resident_ctas * gpu.num_sms
    now = launch_traffic(groups, grid, running, gpu.kept_bytes)
    if simulated.dram_us == 0 or now.dram_bytes == 0:
        return  # each byte is read from DRAM at most once in any order
    best = best_order(groups, grid, running, gpu.kept_bytes)
    then = launch_traffic(groups, grid, running, gpu.kept_bytes, best)
    if now.dram_bytes < _MIN_TRAFFIC * then.dram_bytes:
        return
    gain = rerun.gain_of_traffic(gpu.dram.us(then.dram_bytes, then.written_bytes))
    order = ", ".join(f"blockIdx.{'xyz'[axis]}" for axis in best if grid[axis] > 1)
    sentence = (
        f"Grid order: {now.dram_bytes / 1e9:.2f} GB come from DRAM, because CTAs that run at the "
        f"same time share too little data; in the order {order} (fastest first) "
        f"{then.dram_bytes / 1e9:.2f} GB would. Swap the roles of these axes."
    )
    lines = by_line(rerun.analysis, lambda i: i.opcode in ("LDG", "LDGSTS", "UTMALDG", "UBLKCP"))
    most = max(lines, key=lambda line: line.total(SECTORS), default=None)
    share = 1 - then.dram_bytes / now.dram_bytes
    yield Advice("grid_order", most.source if most else None, share, sentence), gain
