"""The timing model: instruction rates, waiting, dependence on length and grid, traffic."""

from __future__ import annotations

import heapq
import struct
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from words import raises, says

from engine.base.errors import CompileError, ToolMissing, UnknownName
from engine.cuda_source import compile_kernel
from engine.devices import find_device
from engine.history.simulation import time_launch
from engine.machine_code.analysis import analyse, notes
from engine.machine_code.cubin import Entry
from engine.machine_code.disassembly import NO_BARRIER, Control, Instruction, Program, pipe_of
from engine.machine_code.emulation import AccessKind, CtaTrace, Emulator
from engine.machine_code.launch import Launch, buffer_address, parse_arguments
from engine.machine_code.timing import simulate
from engine.machine_code.timing.constants import (
    ARCHS,
    CONSTANTS,
    MEASURED_ARCHS,
    SmConstants,
    SmTiming,
    StallReason,
    interval,
    kept_l2_bytes,
    kernel_class,
    l2_share_bytes_per_cycle,
    sm_constants,
)
from engine.machine_code.timing.cta_times import CtaTimes, grid_cycles, measure
from engine.machine_code.timing.native import (
    gpu_rates,
    simulate_counts,
    simulate_slot_releases,
    simulate_sm,
    sm_kernel,
)
from engine.machine_code.timing.simulate import CtaClass, simulate_launch
from engine.machine_code.timing.traffic import KvOrder, traffic

KERNELS = Path(__file__).parent / "kernels"


def line(
    text: str,
    *,
    stall: int = 1,
    sets: int = NO_BARRIER,
    waits: int = 0,
) -> Instruction:
    """Return an instruction parsed from text, as "FFMA R0, R1, R2, R3"."""
    mnemonic, _, operands = text.partition(" ")
    opcode, *modifiers = mnemonic.split(".")
    control = Control(stall, False, sets, NO_BARRIER, waits, 0)
    return Instruction(
        address=0,
        opcode=opcode,
        modifiers=tuple(modifiers),
        operands=tuple(o.strip() for o in operands.split(",") if o),
        predicate="",
        control=control,
        pipe=pipe_of(opcode),
    )


def program(*instructions: Instruction, arch: str = "sm_90") -> Program:
    return Program("kernel", arch, instructions, 32, 0, "")


Row = tuple[AccessKind, int, int, int]  # kind, wavefronts, address, amount


def trace(warps: list[list[tuple[int, Row | None]]]) -> CtaTrace:
    """Return a trace of warps of (instruction, access); accesses do not touch global memory."""
    entries = [entry for warp in warps for entry in warp]
    rows = [row for _, row in entries if row is not None]
    numbers = iter(range(len(rows)))
    column = lambda i, dtype: np.array([r[i] for r in rows], dtype)  # noqa: E731
    none = np.zeros(len(rows), np.uint16)
    return CtaTrace(
        warp_start=np.cumsum([0, *map(len, warps)], dtype=np.int64),
        instruction=np.array([i for i, _ in entries], np.int32),
        lanes=np.full(len(entries), 32, np.uint8),
        access=np.array([-1 if row is None else next(numbers) for _, row in entries], np.int32),
        kind=column(0, np.uint8),
        wavefronts=column(1, np.uint16),
        ideal_wavefronts=column(1, np.uint16),
        sectors=none,
        ideal_sectors=none,
        size_bytes=np.zeros(len(rows), np.uint32),
        address=column(2, np.uint64),
        amount=column(3, np.int32),
        line_start=np.zeros(len(rows) + 1, np.int64),
        line=np.zeros(0, np.uint64),
        line_sectors=np.zeros(0, np.uint8),
        cta=(0, 0, 0),
    )


def timed(
    code: Program, warps: list[list[tuple[int, Row | None]]], gpu: str = "H200", ctas: int = 1
) -> SmTiming:
    kernel = sm_kernel(code, gpu_rates(find_device(gpu)), "alone", 0, fetches_code=False)
    try:
        return simulate_sm(kernel, [trace(warps)], [0] * ctas, ctas)
    except ToolMissing as missing:
        pytest.skip(str(missing))


def repeated(count: int) -> list[tuple[int, Row | None]]:
    return [(0, None)] * count


# ---- rates ----


@pytest.mark.parametrize(
    ("gpu", "text", "per_instruction"),
    [
        ("H200", "FADD R0, R2, R5", 1),  # two units of 16 lanes
        ("A100 80GB SXM", "FADD R0, R2, R5", 2),  # one
        ("H200", "IMAD R0, R2, R5, R4", 2),  # only on the first unit
        ("L4", "HFMA2 R0, R2, R5, R4", 2),
        ("H200", "IADD3 R0, R2, R5, R4", 2),
        ("H200", "MUFU.EX2 R0, R1", 8),
        ("L4", "HMMA.16816.F32 R0, R4, R8, R0", 16),
        ("A100 80GB SXM", "HMMA.16816.F32 R0, R4, R8, R0", 8),
        ("H200", "HMMA.16816.F32 R0, R4, R8, R0", 4 / 0.62),
        ("H200", "HGMMA.64x64x16.F32 R24, gdesc[UR8], R24, gsb0", 32),
        # GeForce halves FP32 sums and nothing else: 209.5, 419 and 838 TOP/s of an RTX 5090.
        ("RTX 5090", "HMMA.16816.F32.BF16 R0, R4, R8, R0", 32),
        ("RTX 5090", "HMMA.16816.F16 R0, R4, R8, R0", 16),
        ("RTX 5090", "IMMA.16832.S8.S8 R0, R4.ROW, R8.COL, R0", 16),
        ("RTX 5090", "QMMA.16832.F32.E4M3.E4M3 R0, R4, R8, R0", 32),
        ("RTX 5090", "QMMA.SF.16832.F32.E4M3.E4M3.E8 R0, R4, R8, R0", 16),
        ("RTX PRO 6000 Blackwell", "HMMA.16816.F32 R0, R4, R8, R0", 16),
        ("L4", "IMMA.16832.S8.S8 R0, R4.ROW, R8.COL, R0", 16),
    ],
)
def test_rates(gpu: str, text: str, per_instruction: float) -> None:
    arch = find_device(gpu).arch
    took = timed(program(line(text), arch=arch), [repeated(400)], gpu).cycles
    assert took == pytest.approx(400 * per_instruction, rel=0.02)


def test_a_warp_continues_beside_its_wgmma_until_its_wait() -> None:
    product = line("HGMMA.64x64x16.F32 R24, gdesc[UR8], R24, gsb0")
    code = program(product, line("MUFU.EX2 R0, R1"), line("WARPGROUP.DEPBAR"))
    products, exps = 8 * [(0, (AccessKind.TENSOR, 0, 0, 0))], 28 * [(1, None)]
    wait = [(2, (AccessKind.TENSOR_WAIT, 0, 0, 0))]
    took = timed(code, [products + exps + wait + exps[:1]]).cycles
    # Eight products take 256 cycles, 28 exp2 224: overlapped, and one after the other.
    assert 256 <= took < 330
    assert timed(code, [products + wait + exps]).cycles > 450


def test_register_bank_conflicts_cost_cycles() -> None:
    spread = timed(program(line("FFMA R0, R2, R5, R4")), [repeated(300)]).cycles
    crowded = timed(program(line("FFMA R0, R2, R6, R4")), [repeated(300)]).cycles
    reused = timed(program(line("FFMA R0, R2.reuse, R6.reuse, R4")), [repeated(300)]).cycles
    # Three reads of one register port take three cycles, two take two, one takes one.
    assert (spread, crowded) == (pytest.approx(600, rel=0.02), pytest.approx(900, rel=0.02))
    assert reused == pytest.approx(300, rel=0.02)


def test_warps_of_one_partition_share_its_issue_slot() -> None:
    code = program(line("FFMA R0, R2, R5, R7"))
    beside = timed(code, [repeated(200)] * 4).cycles  # one warp per partition
    behind = timed(code, [repeated(200)] * 8).cycles
    assert behind == pytest.approx(2 * beside, rel=0.03)


def test_bank_conflicts_occupy_the_shared_memory_port() -> None:
    code = program(line("LDS R0, [R1]"))
    ways = {n: timed(code, [[(0, (AccessKind.SHARED_LOAD, n, 0, 0))] * 64]).cycles for n in (1, 32)}
    assert ways[32] == pytest.approx(64 * 32, rel=0.1)
    assert ways[1] < 5 * 64  # a partition sends one every four cycles


def test_a_fence_waits_for_all_passes_of_a_store_to_shared_memory() -> None:
    store = (0, (AccessKind.SHARED_STORE, 32, 0, 0))
    code = program(line("STS [R1], R0"), line("FENCE.VIEW.ASYNC"), line("IADD3 R0, R2, R5, R4"))
    fenced, plain = (
        timed(code, [[store, *([(1, None)] if fence else []), (2, None)]])
        for fence in (True, False)
    )
    assert fenced.finished[0] >= 32 > 10 > plain.finished[0]
    assert fenced.stall_cycles()[StallReason.MEMBAR] >= 20


@pytest.mark.parametrize(("apart_bytes", "lookups"), [(128, 3), (512, 12), (16384, 12)])
def test_neighbouring_lines_are_looked_up_at_once(apart_bytes: int, lookups: int) -> None:
    """Loads of twelve lines each, which are in L1 after the first load."""
    lines, loads = 12, 200
    code = program(line("LDG.E R0, [R2.64]"))
    load = trace([[(0, (AccessKind.GLOBAL_LOAD, 1, 0, 0))] * loads])
    load = replace(
        load,
        line_start=np.arange(loads + 1, dtype=np.int64) * lines,
        line=np.tile(np.arange(lines, dtype=np.uint64) * np.uint64(apart_bytes), loads),
        line_sectors=np.full(lines * loads, 1, np.uint8),
    )
    kernel = sm_kernel(code, gpu_rates(find_device("H200")), "alone", 0, fetches_code=False)
    timing = simulate_sm(kernel, [load], [0], 1)
    assert timing.busy_cycles["l1_tags"] == lookups * loads


# ---- waiting ----


def test_a_wait_for_a_scoreboard_is_its_stall_reason() -> None:
    code = program(
        line("MUFU.EX2 R0, R1", sets=0), line("FADD R2, R0, R0", waits=1), line("EXIT", stall=1)
    )
    timing = timed(code, [[(0, None), (1, None), (2, None)]])
    assert timing.stalls[1, StallReason.SHORT_SCOREBOARD] == sm_constants("sm_90").mufu_cycles - 1
    assert timing.stall_cycles()[StallReason.SELECTED] == timing.issued == 3


def test_a_barrier_waits_for_the_last_warp_and_a_counted_one_for_its_threads() -> None:
    code = program(line("FFMA R0, R2, R5, R4"), line("BAR.SYNC 0x0"), line("EXIT"))
    barrier = (AccessKind.BARRIER, 0, 0, 64)
    slow, fast = [*repeated(500), (1, barrier), (2, None)], [(1, barrier), (2, None)]
    timing = timed(code, [slow, fast])
    assert timing.stalls[2, StallReason.BARRIER] > 900  # the FFMA's registers share a bank
    arrive = [(1, (AccessKind.BARRIER_ARRIVE, 0, 0, 64)), (2, None)]
    alone = timed(code, [arrive, fast])
    assert alone.cycles < 60


def test_copies_in_groups_are_waited_for_in_order() -> None:
    code = program(
        line("LDGDEPBAR", sets=0), line("DEPBAR.LE SB0, 0x1"), line("FFMA R0, R2, R5, R4")
    )
    commit, wait = (AccessKind.ASYNC_COMMIT, 0, 0, 0), (AccessKind.ASYNC_WAIT, 0, 0, 1)
    timing = timed(code, [[(0, commit), (0, commit), (1, wait), (2, None)]])
    assert timing.issued == 4


def test_a_phase_of_an_mbarrier_needs_all_its_arrivals() -> None:
    code = program(line("SYNCS.EXCH.64"), line("SYNCS.ARRIVE"), line("SYNCS.PHASECHK"))
    init, arrive, wait = (
        (AccessKind.MBARRIER_INIT, 0, 64, 2),
        (AccessKind.MBARRIER_ARRIVE, 0, 64, 1),
        (AccessKind.MBARRIER_WAIT, 0, 64, 0),
    )
    both = [[(0, init), (1, arrive), (2, wait), (2, None)], [(1, arrive), (2, None)]]
    assert timed(code, both).issued == 6
    with raises(CompileError, "simulated_deadlock"):
        timed(code, [[(0, init), (1, arrive), (2, wait), (2, None)]])


def test_lanes_arrive_at_an_mbarrier_one_after_the_other() -> None:
    code = program(
        line("SYNCS.EXCH.64"),
        line("SYNCS.ARRIVE"),
        line("SYNCS.PHASECHK"),
        line("FFMA R0, R2, R5, R4"),
    )
    cycles = {}
    for lanes in (1, 32):
        init, arrive, wait = (
            (AccessKind.MBARRIER_INIT, 0, 64, 4 * lanes),
            (AccessKind.MBARRIER_ARRIVE, 0, 64, lanes),
            (AccessKind.MBARRIER_WAIT, 0, 64, 0),
        )
        first, others = [(0, init), (1, arrive), (2, wait), (3, None)], [(3, None)] * 8
        others += [(1, arrive), (2, wait), (3, None)]
        cycles[lanes] = timed(code, [first, *([others] * 3)]).cycles
    assert cycles[1] < 30
    assert 4 * 32 <= cycles[32] < 4 * 32 + 30


def test_ctas_of_a_queue_start_when_a_slot_falls_free() -> None:
    kernel = sm_kernel(
        program(line("FFMA R0, R2, R5, R7")), gpu_rates(find_device("H200")), "alone", 0, False
    )
    short, long = trace([repeated(100)]), trace([repeated(1000)])
    timing = simulate_sm(kernel, [short, long], [1, 0, 0], 2)
    assert timing.started[2] < timing.finished[0]
    assert timing.finished[2] < timing.finished[0]


# ---- length, grids, traffic ----


@lru_cache(maxsize=1)
def flash() -> tuple[Program, Entry]:
    pytest.importorskip("cupy")
    from engine.cuda_source import compile_kernel
    from engine.machine_code import disassemble, read_cubin

    try:
        compiled = compile_kernel(KERNELS / "flash_mma.cu", (), "sm_90", ("flash",))
        cubin = read_cubin(compiled.cubin)
        return disassemble(cubin).program("flash"), cubin.entries["flash"]
    except ToolMissing as missing:
        pytest.skip(str(missing))


def flash_trace(seqlen: int) -> tuple[Program, CtaTrace]:
    code, entry = flash()
    arguments = (
        *(struct.pack("<Q", buffer_address(n)) for n in range(5)),
        *(struct.pack("<i", n) for n in (1, 1, seqlen)),
        struct.pack("<f", 0.125),
    )
    launch = Launch((1, 1, seqlen // 64), (128, 1, 1), 5 * 64 * 72 * 2, arguments)
    return code, Emulator(code, entry, launch).trace()[0]


@pytest.mark.slow
def test_time_is_linear_in_key_tiles() -> None:
    traces = {n: flash_trace(n) for n in (256, 512, 1024, 2048)}
    code, long = traces[2048]
    gpu = gpu_rates(find_device("H200"))
    kernel = sm_kernel(code, gpu, "shared", 3 * 47 * 1024, fetches_code=False)
    known = [traces[n][1] for n in (256, 512, 1024)]
    times = measure(kernel, kernel, known, (256.0, 512.0, 1024.0), 3)
    for count in (1, 2, 3, 4):
        full = simulate_sm(kernel, [long], [0] * count, 3).cycles
        assert times.of(count, 2048.0) == pytest.approx(full, rel=0.03)


def test_a_launch_on_a_gpu() -> None:
    code, one = flash_trace(128)
    launch = Launch((64, 2, 2), (128, 1, 1), 5 * 64 * 72 * 2, ())
    result = simulate_launch(code, [CtaClass(one, launch.ctas)], launch, find_device("H200"), 3)
    assert result.ctas_per_sm == 2
    assert 1.0 < result.sm_cycles / result.cta_cycles < 2.0
    assert result.latency.low_us < result.latency.median_us < result.latency.high_us
    assert 0.0 < result.busy()["tensor"] < 1.0


def test_a_long_loop_is_cut_and_its_time_is_a_straight_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, one = flash_trace(2048)
    launch = Launch((32, 32, 2), (128, 1, 1), 5 * 64 * 72 * 2, ())
    for resident in (1, 3):
        given = code, [CtaClass(one, launch.ctas)], launch, find_device("H200"), resident
        whole = simulate_launch(*given)
        with monkeypatch.context() as patch:
            length = resident * len(one.instruction)
            patch.setattr(simulate, "_MAX_ROUND_INSTRUCTIONS", length // 2)
            patch.setattr(simulate, "_CUT_ROUND_INSTRUCTIONS", length // 4)
            patch.setattr(simulate, "_MIN_ITERATIONS", 4)
            cut = simulate_launch(*given)
        assert whole.iterations is None
        assert cut.iterations is not None
        assert 4 * cut.iterations[0] <= cut.iterations[1]
        assert cut.sm_cycles == pytest.approx(whole.sm_cycles, rel=0.025)
        assert cut.cta_cycles == pytest.approx(whole.cta_cycles, rel=0.02)


def test_equal_ctas_per_sm_take_the_time_of_that_number_alone() -> None:
    kernel = sm_kernel(
        program(line("FFMA R0, R2, R5, R7"), line("MUFU.EX2 R1, R2", sets=0)),
        gpu_rates(find_device("H200")),
        *("shared", 0, False),
    )
    one = trace([[(0, None), (1, None)] * 50, [(0, None)] * 30])
    counts = (1, 2, 3, 4, 5, 7, 9)
    ends = simulate_counts(kernel, one, counts, 3)
    full = [simulate_sm(kernel, [one], [0] * count, 3).cycles for count in counts]
    assert ends.tolist() == full
    freed = simulate_slot_releases(kernel, [one], [0] * 12, 3)
    queue = simulate_sm(kernel, [one], [0] * 12, 3)
    assert freed.tolist() == np.sort(queue.finished)[:9].tolist()


def times_of(alone: float, together: float, more: float, **other: float) -> CtaTimes:
    """Return times of one, two, three and four CTAs, two at a time; they are proportional to the
    length."""
    cycles = (alone, together, together + more, together + 0.9 * together)
    shares = {
        "mixed_shares": (1.0, 1.0),
        "start_share": 0.0,
        "cta_spread": 0.0,
        "fetch_cycles": 0.0,
        "cta_start_cycles": 0.0,
    }
    return CtaTimes(
        resident=2,
        lengths=(1.0, 2.0),
        counts=(1, 2, 3, 4),
        cycles=(cycles, tuple(2 * x for x in cycles)),
        round_cycles=(0.9 * together, 2 * 0.9 * together),
        **(shares | other),
    )


def test_ctas_beyond_those_simulated_take_as_many_rounds_more() -> None:
    times = times_of(100, 160, 120)
    assert [times.of(n, 1.0) for n in (1, 2, 3, 4)] == [100, 160, 280, 304]
    assert [times.of(n, 1.0) for n in (5, 6, 9)] == [280 + 144, 304 + 144, 280 + 3 * 144]
    # No SM of eight takes two CTAs more than another.
    assert times.launch([8, 9, 33], [1.0] * 3, 8).tolist() == [100, 160, 280 + 144]
    assert times.of(3, 1.5) == pytest.approx(1.5 * 280)
    # For longer CTAs, a queue's time grows as that of CTAs that start at once.
    assert times.of(2, 4.0) == pytest.approx(4 * 160)
    assert [times.of(n, 4.0) for n in (3, 4, 6)] == [4 * 280, 4 * 304, 4 * (304 + 144)]


def test_the_start_of_a_cta_does_not_depend_on_its_length() -> None:
    def queues(start: float) -> CtaTimes:
        """Return times of CTAs of 100 cycles per unit of length, one at a time."""
        ends = tuple(tuple(n * 100 * x + (n - 1) * start for n in (1, 2, 3)) for x in (1.0, 2.0))
        rounds = (100 + start, 200 + start)
        return CtaTimes(
            1,
            (1.0, 2.0),
            (1, 2, 3),
            ends,
            rounds,
            (1.0, 1.0),
            0.0,
            0.0,
            0.0,
            cta_start_cycles=start,
        )

    for start in (0.0, 50.0):
        for count in (1, 2, 3, 8):
            found = queues(start).of(count, 50.0)
            assert found == pytest.approx(count * 5000 + (count - 1) * start)
        assert queues(start).beside([50.0])[0, 1] == pytest.approx(5000 + start)


@pytest.mark.parametrize("most", [5_000_000, 20_000])
def test_extrapolated_queues_of_long_ctas_equal_simulated_ones(most: int) -> None:
    """CTAs seven times as long as the longest simulated ones, whose second round is simulated only
    with the larger limit."""
    traces = {n: flash_trace(n) for n in (128, 256, 1792)}
    code, long = traces[1792]
    kernel = sm_kernel(
        code, gpu_rates(find_device("H200")), "shared", 47 * 1024, fetches_code=False
    )
    kernel.machine.cta_start_cycles = 3000  # CTAs take 4,900 and 8,500 cycles
    short = [traces[n][1] for n in (128, 256)]
    bounds = {"most_simulated": most, "least_settling": 0}
    times = measure(kernel, kernel, short, (128.0, 256.0), 1, **bounds)
    for count in (2, 4, 6):
        full = simulate_sm(kernel, [long], [0] * count, 1).cycles
        assert times.of(count, 1792.0) == pytest.approx(full, rel=0.01)


def test_long_ctas_first_end_sooner_than_long_ctas_last() -> None:
    times = times_of(100, 160, 160)
    lengths = np.repeat([4.0, 3.0, 2.0, 1.0], 8)
    assert grid_cycles(times, lengths, 8) < grid_cycles(times, lengths[::-1], 8)
    assert grid_cycles(times, [1.0] * 32, 8) == times.of(4, 1.0)


def test_ctas_of_several_lengths_are_followed_one_by_one() -> None:
    """One CTA per SM at a time, sixteen lengths in turn: each starts on the first free SM."""
    one = CtaTimes(
        1, (1.0, 2.0), (1,), ((100.0,), (200.0,)), (100.0, 200.0), (1.0, 1.0), 0.0, 0.0, 0.0, 0.0
    )
    lengths = np.tile(np.arange(16.0, 0.0, -1.0), 48)
    sms = [0.0] * 58
    for length in lengths:
        heapq.heappush(sms, heapq.heappop(sms) + 100 * length)
    assert grid_cycles(one, lengths, 58) == pytest.approx(max(sms))
    # With more CTAs than are followed one by one: the time of full SMs.
    often = grid_cycles(one, lengths, 58, 1000)
    assert often == pytest.approx(1000 * 100 * lengths.sum() / 58, rel=0.01)


def test_different_ctas_that_start_together_begin_later() -> None:
    lengths = [1.0, 2.0]
    at_once = grid_cycles(times_of(100, 180, 100, start_share=1.0), lengths, 1)
    assert at_once > grid_cycles(times_of(100, 180, 100), lengths, 1)
    # Which CTA ends last may depend on small differences: the mean is used, and it is reproducible.
    spread = times_of(100, 180, 100, cta_spread=0.05)
    many = lengths * 20
    average = grid_cycles(spread, many, 4)
    assert average == grid_cycles(spread, many, 4)
    assert average != grid_cycles(times_of(100, 180, 100), many, 4)
    assert average == pytest.approx(grid_cycles(times_of(100, 180, 100), many, 4), rel=0.03)


@pytest.mark.parametrize(
    ("gpu", "grid", "shares", "gigabytes"),
    [
        ("L4", (8, 32, 32), (1, 1, 32), 4.29),  # heads first: every query tile reads K/V again
        ("H200", (8, 32, 32), (1, 1, 32), 2.82),
        ("L4", (32, 8, 32), (32, 1, 1), 0.13),  # query tiles first
    ],
)
def test_the_order_of_ctas_decides_what_reaches_dram(
    gpu: str, grid: tuple[int, int, int], shares: tuple[int, int, int], gigabytes: float
) -> None:
    device = find_device(gpu)
    assert device.num_sms is not None and device.l2_bytes is not None  # noqa: PT018
    head_bytes = 2048 * 64 * 2 * 2
    order = KvOrder(grid, shares)
    kept_bytes = kept_l2_bytes(device.arch, device.l2_bytes)
    moved = traffic(order, head_bytes, 0.0, 3 * device.num_sms, kept_bytes)
    assert moved.dram_bytes / 1e9 == pytest.approx(gigabytes, abs=0.005)
    assert moved.streams


def test_data_that_fit_in_l2_are_read_once() -> None:
    moved = traffic(KvOrder((4, 2, 8), (1, 1, 8)), 1 << 20, 0.0, 32, 48 << 20)
    assert moved.dram_bytes == 0
    assert not moved.streams


def test_l2_of_two_partitions_keeps_less_than_its_size() -> None:
    """Published: an A100's bandwidth falls from 28 of 40 MiB on, an L40's only at its size."""
    assert kept_l2_bytes("sm_80", 40 << 20) == 28 << 20
    assert kept_l2_bytes("sm_89", 96 << 20) > 93 << 20
    assert kept_l2_bytes("sm_60", 4 << 20) == kept_l2_bytes("sm_75", 4 << 20)


@pytest.mark.parametrize(
    ("gpu", "gb_per_s"),
    [
        ("A100 80GB SXM", 5405),
        ("H100 PCIe", 6994),
        ("H200", 9900),
        ("L40", 5188),
        ("A40", 2434),
        ("RTX PRO 6000 Blackwell", 8700),
    ],
)
def test_l2_bandwidth_is_the_published_one(gpu: str, gb_per_s: float) -> None:
    rates = gpu_rates(find_device(gpu))
    share = l2_share_bytes_per_cycle(rates.constants.arch)
    assert share * rates.num_sms * rates.cycles_per_us / 1e3 == pytest.approx(gb_per_s, rel=0.07)


# ---- the table ----


def test_every_constant_has_a_value_per_arch_and_an_origin() -> None:
    names = [row.name for row in CONSTANTS]
    assert names == [f.name for f in fields(SmConstants) if f.name != "arch"]
    for row in CONSTANTS:
        assert len(row.values) == len(ARCHS), row.name
        assert row.source, row.name
    assert sm_constants("sm_90a").arch == "sm_90"
    assert sm_constants("sm_103").arch == "sm_100"
    with raises(UnknownName, "arch_not_timed", "sm_60"):
        sm_constants("sm_60")


def test_intervals_are_of_the_kernels_class() -> None:
    code = program(line("HMMA.16816.F32 R0, R4, R8, R0"), line("LDS R0, [R1]"))
    one = trace([[(0, None), (1, (int(AccessKind.SHARED_LOAD), 2, 0, 0))]])
    two = replace(one, ideal_wavefronts=one.wavefronts // 2)
    assert kernel_class(code, one) == "mma"
    assert kernel_class(code, two) == "conflict"
    assert kernel_class(program(line("FFMA R0, R2, R5, R4")), one) == "scalar"
    wgmma = program(line("HGMMA.64x64x16.F32 R0, gdesc[UR4], R0"))
    assert kernel_class(wgmma, two) == "wgmma"


def test_kernels_without_measured_relatives_have_the_widest_interval() -> None:
    low, high = interval(100.0, "sm_90a", "mma")
    unknown_low, unknown_high = interval(100.0, "sm_100", "mma")
    assert unknown_low < low < 100 < high < unknown_high
    assert "sm_100" not in MEASURED_ARCHS


@pytest.mark.slow
def test_how_far_apart_ctas_start_enters_the_interval() -> None:
    source = KERNELS / "tile_order.cu"
    device = find_device("A10")
    cubin = compile_kernel(source, (("ORDER", "0"),), device.arch, ("gemm",)).cubin
    arguments = parse_arguments(["ptr", "ptr", "ptr", "i32:512"])
    analysis = analyse(cubin, None, Launch((64, 16, 1), (256, 1, 1), 0, arguments))
    found = time_launch(analysis, device).simulated
    assert found.resident_ctas > 1
    assert 0 < found.start_spread < 0.3
    latency = found.latency
    at = latency.median_us, device.arch, kernel_class(analysis.program, found.longest)
    assert (latency.low_us, latency.high_us) == interval(*at, start_spread=found.start_spread)
    assert latency.low_us < interval(*at)[0]
    assert time_launch(analysis, device, quick=True).simulated.start_spread == 0
    told = [text for text in notes(analysis, None, 0.2) if "20%" in text]
    assert len(told) == 1
    assert not any(says(text, "ctas_sm_start") for text in notes(analysis, None, 0.02))
