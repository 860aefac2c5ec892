"""wgmma, TMA, mbarriers, setmaxnreg, consumer warpgroups: from a kernel to its simulated time."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from engine.cuda_source import compile_kernel
from engine.devices import find_device
from engine.machine_code import AccessKind, Program, disassemble, read_cubin
from engine.machine_code.emulation import CtaTrace, Emulator
from engine.machine_code.launch import Launch, buffer_address
from engine.machine_code.timing.constants import SmTiming
from engine.machine_code.timing.native import gpu_rates, simulate_sm, sm_kernel

KERNELS = Path(__file__).parent / "kernels"
SEQLEN, TILE_BYTES = 256, 64 * 64 * 2


def attention(consumers: int) -> tuple[Program, CtaTrace]:
    """Return program and trace of one CTA over 256 keys, with 64 rows per consumer."""
    defines = (("CONSUMERS", str(consumers)),)
    compiled = compile_kernel(KERNELS / "flash_wgmma.cu", defines, "sm_90a", ("flash",))
    cubin = read_cubin(compiled.cubin)
    arguments = (bytes(128),) * 3 + (
        struct.pack("<Q", buffer_address(3)),
        struct.pack("<if", SEQLEN, 0.125),
    )
    arguments = (*arguments[:4], arguments[4][:4], arguments[4][4:])
    grid = (1, SEQLEN // (64 * consumers), 1)
    launch = Launch(grid, (128 * (consumers + 1), 1, 1), (4 + consumers) * TILE_BYTES, arguments)
    program = disassemble(cubin).program("flash")
    return program, Emulator(program, cubin.entries["flash"], launch).trace()[0]


def timed(program: Program, trace: CtaTrace, ctas: int = 1) -> SmTiming:
    kernel = sm_kernel(program, gpu_rates(find_device("H200")), "alone", 0, fetches_code=False)
    return simulate_sm(kernel, [trace], [0] * ctas, ctas)


@pytest.mark.slow
def test_two_consumer_groups_share_the_tiles_of_one_producer() -> None:
    times = {}
    for consumers in (1, 2):
        program, trace = attention(consumers)
        kind = trace.kind[trace.access[trace.access >= 0]]
        rows = trace.access[trace.access >= 0]
        tiles, warps = SEQLEN // 64, 4 * consumers
        # Four wgmma for S and four for O per tile and warp.
        assert (kind == AccessKind.TENSOR).sum() == 8 * tiles * warps
        copied = rows[kind == AccessKind.BULK_LOAD]
        assert len(copied) == 2 * tiles + consumers
        assert set(trace.size_bytes[copied].tolist()) == {TILE_BYTES}
        # Each consumer takes registers, the producer gives some back.
        assert (kind == AccessKind.SET_REGISTERS).sum() == warps + 4
        # A consumer releases each tile by one arrival, and a phase needs the arrivals of all.
        init = rows[kind == AccessKind.MBARRIER_INIT]
        assert sorted(trace.amount[init].tolist()) == sorted([1, 1, 1, consumers, consumers])
        times[consumers] = timed(program, trace)
    one, two = times[1], times[2]
    # m64n64k16 keeps the tensor cores of an SM for 32 cycles: 8 of them a tile and group.
    for consumers, timing in times.items():
        assert timing.busy_cycles["tensor"] == pytest.approx(4 * 32 * 8 * 4 * consumers)
    # Twice the rows in less than twice the time: one group's products overlap the other's exp2.
    assert one.cycles < two.cycles < 1.7 * one.cycles


@pytest.mark.slow
def test_a_wait_for_the_phase_before_the_first_one_does_not_block() -> None:
    program, trace = attention(1)
    waits = trace.kind[trace.access[trace.access >= 0]] == AccessKind.MBARRIER_WAIT
    phases = trace.amount[trace.access[trace.access >= 0][waits]]
    assert phases.min() == -1  # the ring is empty when the producer begins
    assert timed(program, trace, ctas=2).cycles > 0


def cluster_of(size: int) -> tuple[Program, CtaTrace]:
    """Return a CTA that needs 16 tiles of 16 KB; each CTA of its cluster copies a share."""
    defines = (("CLUSTER", str(size)),)
    compiled = compile_kernel(KERNELS / "cluster_tiles.cu", defines, "sm_90a", ("tiles",))
    cubin = read_cubin(compiled.cubin)
    pointers = (struct.pack("<Q", buffer_address(n)) for n in range(2))
    launch = Launch((8, 1, 1), (128, 1, 1), 2 * 16384 + 32, (*pointers, struct.pack("<i", 16)))
    program = disassemble(cubin).program("tiles")
    return program, Emulator(program, cubin.entries["tiles"], launch).trace()[0]


@pytest.mark.slow
def test_a_multicast_is_read_once_and_arrives_at_every_cta_of_the_cluster() -> None:
    cycles = {}
    for size in (1, 2, 4):
        program, trace = cluster_of(size)
        rows = trace.access[trace.access >= 0]
        copied = rows[trace.kind[rows] == AccessKind.BULK_LOAD]
        assert trace.size_bytes[copied].tolist() == [16384 // size] * 16
        assert trace.amount[copied].tolist() == [size] * 16
        cycles[size] = timed(program, trace).cycles
    # An SM reads fewer bytes from L2 for the same tiles.
    assert cycles[4] <= cycles[2] <= cycles[1]
