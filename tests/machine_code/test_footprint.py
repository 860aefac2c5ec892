"""The bytes that a launch touches do not depend on which CTA computes which tile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from words import raises

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.cuda_source import compile_kernel
from engine.devices import find_device
from engine.history.simulation import time_launch
from engine.machine_code import counts, footprint
from engine.machine_code.analysis import analyse
from engine.machine_code.counts import count_launch
from engine.machine_code.cubin import read_cubin
from engine.machine_code.disassembly import disassemble
from engine.machine_code.emulation import Emulator
from engine.machine_code.execution import execute
from engine.machine_code.footprint import (
    PersistentTouch,
    SharedBytes,
    shared_bytes,
    touched_bytes,
)
from engine.machine_code.launch import Launch, parse_arguments
from engine.machine_code.timing.simulate import TimedLaunch
from engine.machine_code.timing.traffic import KvOrder, launch_traffic, persistent_traffic
from engine.model.kernel import Kernel, analyse_plan
from engine.pipeline.simulated_launches import time_passes
from tests.machine_code.small_kernels import counted

KERNEL = Path(__file__).parent / "kernels" / "tile_order.cu"
TWO_AXES, ROWS, GROUPED, PERSISTENT = range(4)
GPU = "A40"  # 6 MiB of L2; on an A10 the CTAs may run in step, which changes their time by 9 %


def timed(order: int, size: int) -> TimedLaunch:
    device = find_device(GPU)
    cubin = compile_kernel(KERNEL, (("ORDER", str(order)),), device.arch, ("gemm",)).cubin
    tiles = size // 64
    grid = {TWO_AXES: (tiles, tiles, 1), PERSISTENT: (device.num_sms or 1, 1, 1)}
    arguments = parse_arguments(["ptr", "ptr", "ptr", f"i32:{size}"])
    launch = Launch(grid.get(order, (tiles * tiles, 1, 1)), (256, 1, 1), 0, arguments)
    return time_launch(analyse(cubin, None, launch), device, quick=True)


@pytest.mark.parametrize(
    ("order", "size"),
    [
        (ROWS, 768),
        pytest.param(GROUPED, 768, marks=pytest.mark.slow),
        pytest.param(PERSISTENT, 768, marks=pytest.mark.exhaustive),
    ],
)
def test_any_mapping_from_block_index_to_tile_touches_the_same(order: int, size: int) -> None:
    plain, mapped = timed(TWO_AXES, size), timed(order, size)
    assert plain.touched_bytes == 3 * size * size * 4
    assert mapped.touched_bytes == pytest.approx(plain.touched_bytes, rel=0.05)
    if order != PERSISTENT:
        assert mapped.simulated.dram_us == pytest.approx(plain.simulated.dram_us, rel=0.05)
    if order == ROWS:
        us = mapped.simulated.latency.median_us
        assert us == pytest.approx(plain.simulated.latency.median_us, rel=0.05)


# Persistent CTAs, of which some take two tiles and some one; all of them also read a table.
UNEVEN = """
extern "C" __global__ void k(const float4* in, const float4* table, float4* out, int tiles) {
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
    for (int i = threadIdx.x; i < 3000; i += blockDim.x) {
      const float4 x = in[tile * 3000 + i], y = table[i], z = table[3000 + i];
      out[tile * 3000 + i] = make_float4(x.x + y.x + z.x, x.y + y.y + z.y, x.z + y.z, x.w + z.w);
    }
}
"""


def test_tiles_of_some_persistent_ctas_only_are_counted(tmp_path: Path) -> None:
    device, tiles, tile_bytes = find_device("T4"), 60, 3000 * 16
    asked = f"ptr ptr ptr i32:{tiles}"
    code = counted(tmp_path, UNEVEN, asked, (40, 1, 1), (256, 1, 1), device.arch)
    launch = time_launch(code, device, quick=True)
    assert launch.touched_bytes == (2 * tiles + 2) * tile_bytes
    assert launch.simulated.dram_bytes > 0  # 4 MiB of L2 do not hold them


# A causal launch: CTA x reads the tiles 0 to x of its row of the grid, and writes one tile.
PREFIXES = """
extern "C" __global__ void k(const float* in, float* out) {
  float sum = 0.f;
  for (int tile = 0; tile <= blockIdx.x; tile++)
    sum += in[(blockIdx.y * gridDim.x + tile) * blockDim.x + threadIdx.x];
  out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] = sum;
}
"""


def test_shorter_ctas_share_the_bytes_of_longer_ones(tmp_path: Path) -> None:
    tiles, rows = 24, 3
    code = counted(tmp_path, PREFIXES, "ptr ptr", (tiles, rows, 1), (128, 1, 1), "sm_86")
    emulator = Emulator(code.program, code.entry, code.launch)
    # As of a launch of many CTAs.
    groups = shared_bytes(emulator, emulator.trace((tiles - 1, 0, 0))[0], probe_steps=0)
    assert touched_bytes(groups, code.launch.grid) == 2 * tiles * rows * 128 * 4


# CTA x sums a separate part; the last part is partial.
PARTS = """
extern "C" __global__ void k(const float* in, float* out, int n, int part) {
  float sum = 0.f;
  int end = min(n, (int(blockIdx.x) + 1) * part);
  for (int i = blockIdx.x * part + threadIdx.x; i < end; i += blockDim.x) sum += in[i];
  if (threadIdx.x == 0) out[blockIdx.x] = sum;  // neighbours share a sector
}
"""


def test_a_shorter_last_cta_does_not_change_the_bytes_of_the_others(tmp_path: Path) -> None:
    ctas, part = 40, 1024
    for last in (part // 3, 1):
        n = (ctas - 1) * part + last
        asked = f"ptr ptr i32:{n} i32:{part}"
        code = counted(tmp_path, PARTS, asked, (ctas, 1, 1), (128, 1, 1), "sm_86")
        emulator = Emulator(code.program, code.entry, code.launch)
        # As of a launch of many CTAs.
        groups = shared_bytes(emulator, emulator.trace((0, 0, 0))[0], probe_steps=0)
        touched = touched_bytes(groups, code.launch.grid)
        assert touched == pytest.approx(4 * ctas * part, rel=0.03)


# CTA x has row x % ROWS and column x / ROWS. It reads the first half of its row and column before
# some work, the other half after it, and in addition up to 1 KiB that no other CTA reads.
LATE = """
extern "C" __global__ void k(const float* a, const float* b, float* out, int rows, int work) {
  int row = blockIdx.x % rows, column = blockIdx.x / rows, n = blockDim.x;
  const float* at = a + row * 16 * n + threadIdx.x;
  const float* bt = b + column * 2 * n + threadIdx.x;
  float sum = at[0] + bt[0];
  for (int i = 0; i < work; i++) sum = sum * sum + 1.f;
  sum += at[n] + bt[n] * at[(2 + column) * n];
  out[blockIdx.x * n + threadIdx.x] = sum;
}
"""


def test_late_reads_are_assumed_shared(
    tmp_path: Path,
) -> None:
    rows, columns, threads, work = 6, 7, 64, 5000
    asked = f"ptr ptr ptr i32:{rows} i32:{work}"
    code = counted(tmp_path, LATE, asked, (rows * columns, 1, 1), (threads, 1, 1), "sm_86")
    emulator = Emulator(code.program, code.entry, code.launch)
    for cta in (0, 17, rows * columns - 1):
        groups = shared_bytes(
            emulator, emulator.trace((cta, 0, 0))[0], probe_steps=rows * columns * work
        )
        strips = 2 * rows + 2 * columns + 2 * rows * columns
        assert touched_bytes(groups, code.launch.grid) == strips * threads * 4
        assert sum(g.unit_bytes for g in groups) == 6 * threads * 4


def test_a_listed_order_is_followed_wave_by_wave() -> None:
    # 8 CTAs on 4 units of 1,000 bytes, 2 at a time; data of a wave stay in L2 or are evicted.
    grid = (8, 1, 1)
    near = SharedBytes(1000, (1, 1, 1), np.array([0, 0, 1, 1, 2, 2, 3, 3]))
    far = SharedBytes(1000, (1, 1, 1), np.array([0, 1, 2, 3, 0, 1, 2, 3]))
    assert launch_traffic([near], grid, 2, 2000).dram_bytes == 4000
    assert launch_traffic([far], grid, 2, 2000).dram_bytes == 8000
    assert launch_traffic([far], grid, 2, 3999).dram_bytes > 4000
    assert launch_traffic([far], grid, 2, 4000).dram_bytes == 0
    # The axes in another order: of a grid of 4 by 2 the second pair of rows beside the first.
    turned = launch_traffic([far], (4, 2, 1), 2, 2000, (1, 0, 2))
    assert turned.dram_bytes == 4000


@pytest.mark.parametrize(
    ("grid", "shares"),
    [
        ((5, 3, 4), (5, 1, 1)),
        ((5, 3, 4), (2, 3, 1)),
        ((3, 7, 2), (1, 2, 2)),
        ((1, 4, 6), (1, 1, 6)),
    ],
)
def test_heads_of_the_first_ctas_follow_their_indices(
    grid: tuple[int, int, int], shares: tuple[int, int, int]
) -> None:
    order = KvOrder(grid, shares)
    places = [
        tuple(n // share for n, share in zip(place, shares[::-1], strict=True))
        for place in np.ndindex(grid[::-1])
    ]
    heads = sorted(set(places))
    for count in range(1, order.num_ctas + 2):
        assert order.first(count).tolist() == [heads.index(place) for place in places[:count]]
    assert len(KvOrder((1 << 30, 65_000, 65_000), (1 << 30, 1, 1)).first(5)) == 5


def test_a_cold_launch_reads_each_unit_once_and_keeps_its_writes_in_l2() -> None:
    read = SharedBytes(1000, (2, 1, 1))
    written = SharedBytes(500, (1, 1, 1), None, 500)
    grid, touched = (8, 1, 1), 4 * 1000 + 8 * 500
    assert launch_traffic([read, written], grid, 2, touched).dram_bytes == 0
    cold = launch_traffic([read, written], grid, 2, touched, is_cold=True)
    assert (cold.dram_bytes, cold.written_bytes, cold.miss_share) == (4000, 0, 1)
    # If the data exceed L2, every launch starts cold.
    short = launch_traffic([read, written], grid, 2, touched - 1, is_cold=True)
    assert short == launch_traffic([read, written], grid, 2, touched - 1)
    assert short.dram_bytes == touched
    together = PersistentTouch(10_000, 2500, ((3000, 2000), (1000, 9000)))
    assert persistent_traffic(together, 20_000, is_cold=True).dram_bytes == 7500


def test_persistent_ctas_read_evicted_data_again() -> None:
    touch = PersistentTouch(10_000, 2500, ((3000, 2000), (1000, 9000)))
    assert persistent_traffic(touch, 20_000).dram_bytes == 0
    assert persistent_traffic(touch, 9000).dram_bytes == 10_000
    assert persistent_traffic(touch, 9000).written_bytes == 2500
    assert persistent_traffic(touch, 4000).dram_bytes == 11_000
    assert persistent_traffic(touch, 1000).miss_share == 1.0


@pytest.mark.parametrize("ctas", [1 << 14, 64])
def test_stored_and_loaded_bytes_are_distinguished(tmp_path: Path, ctas: int) -> None:
    """64 MiB are copied, by CTAs of one piece each and by persistent ones."""
    source = """extern "C" __global__ void k(const uint4* a, uint4* b, int n) {
        for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) b[i] = a[i]; }"""
    pieces = 1 << 22
    arguments = f"ptr ptr i32:{pieces}"
    code = counted(tmp_path, source, arguments, (ctas, 1, 1), (256, 1, 1), "sm_86")
    device = find_device("A40")
    simulated = time_launch(code, device, quick=True).simulated
    assert simulated.dram_bytes == 32 * pieces
    assert device.memory_gb_per_s is not None
    achieved = simulated.dram_bytes / simulated.dram_us / 1e3 / device.memory_gb_per_s
    assert achieved == pytest.approx(device.copy_efficiency, rel=0.01)


@pytest.mark.exhaustive
def test_very_long_persistent_ctas_count_the_bytes_of_their_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(footprint, "_MAX_PERSISTENT_STEPS", 0)
    kernel = Kernel.of("v19", "H100 SXM")
    problem = Problem(batch=16, num_heads=32, seqlen=512, head_dim=64, causal=True)
    plan = kernel.plan(problem)
    analyses = analyse_plan(plan, kernel.device.arch)
    (launch,) = time_passes(kernel, plan, analyses, None)
    assert launch.simulated.dram_bytes == launch.touched_bytes == plan.device_bytes
    # Without a plan, as for a cubin, each CTA's bytes count as separate.
    alone = time_launch(analyses[0], kernel.device, quick=True)
    assert alone.touched_bytes > 1.5 * plan.device_bytes


@pytest.mark.slow
def test_bytes_of_long_ctas_are_interpolated() -> None:
    device = find_device(GPU)
    cubin = read_cubin(
        compile_kernel(KERNEL, (("ORDER", str(PERSISTENT)),), device.arch, ("gemm",)).cubin
    )
    (name,) = cubin.entries
    arguments = parse_arguments(["ptr", "ptr", "ptr", "i32:512"])
    # 64 tiles: some CTAs take one tile more than others, and the last ones fewer.
    launch = Launch((24, 1, 1), (256, 1, 1), 0, arguments)

    program = disassemble(cubin).program(name)
    each, few = (
        count_launch(Emulator(program, cubin.entries[name], launch), most)
        for most in (counts.MAX_EMULATED, 1)
    )
    assert each.exact
    assert not few.exact
    assert few.emulated < each.emulated
    assert few.executed == pytest.approx(each.executed, rel=0.25)


@pytest.mark.parametrize("grid", [(1, 2, 1), (3, 1, 1), (1, 1, 4)])
def test_a_grid_that_is_no_whole_number_of_clusters_is_refused(
    tmp_path: Path, grid: tuple[int, int, int]
) -> None:
    # A CTA's cluster is found by division by the number of clusters along an axis.
    path = tmp_path / "k.cu"
    path.write_text(
        'extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* x) { x[blockIdx.y] = 1; }'
    )
    cubin = read_cubin(compile_kernel(path, (), "sm_90", ("k",)).cubin)
    entry = cubin.entries["k"]
    launch = Launch(grid, (32, 1, 1), 0, parse_arguments(["ptr"]))
    with raises(InvalidProblem, "grid_cuts_clusters"):
        execute(disassemble(cubin).program("k"), entry, launch, [], cluster=entry.cluster)
