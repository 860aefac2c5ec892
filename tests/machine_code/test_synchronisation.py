"""mbarriers waited for by token, and TMA with multicast: each wait ends with its phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.devices import find_device
from engine.machine_code.analysis import Analysis
from engine.machine_code.emulation import EXECUTED, AccessKind, CtaTrace, Emulator
from engine.machine_code.timing.native import gpu_rates, simulate_sm, sm_kernel
from tests.machine_code.small_kernels import counted

HEADER = """
struct alignas(64) TensorMap { unsigned long long words[16]; };
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void begin(unsigned long long* b, int n) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at(b)), "r"(n));
}
__device__ void expect(unsigned long long* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at(b)), "r"(bytes));
}
__device__ void wait(unsigned long long* b, int parity) {
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; "
               "@!p bra again; }" :: "r"(at(b)), "r"(parity) : "memory");
}
"""

# Every thread arrives and waits for its token's phase, repeatedly.
TOKENS = """
extern "C" __global__ void k(float* y, int n) {
  __shared__ alignas(8) unsigned long long barrier;
  unsigned b = (unsigned)__cvta_generic_to_shared(&barrier);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(b));
  __syncthreads();
  for (int i = 0; i < n; i++) {
    unsigned long long token;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(token) : "r"(b));
    unsigned done = 0;
    while (!done)
      asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; "
                   "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(b), "l"(token));
  }
  y[threadIdx.x] = n;
}
"""

# A tile of 8 KiB by TMA, repeatedly. COPIES: what this CTA copies, and to how many CTAs.
TILES = (
    HEADER
    + """
extern "C" __global__ void CLUSTER k(const __grid_constant__ TensorMap map, float* y, int n) {
  extern __shared__ __align__(1024) unsigned char tile[];
  __shared__ alignas(8) unsigned long long full;
  if (threadIdx.x == 0) begin(&full, 1);
  __syncthreads();
  for (int i = 0; i < n; i++) {
    if (threadIdx.x == 0) {
      expect(&full, 8192);
      COPY
    }
    wait(&full, i & 1);
    __syncthreads();
  }
  y[threadIdx.x] = tile[threadIdx.x];
}
"""
)
PLAIN = """asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
        ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
        "r"(at(tile)), "l"(&map), "r"(at(&full)), "r"(0), "r"(i % 64 * 64) : "memory");"""
MULTICAST = """asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
        ".mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::
        "r"(at(tile)), "l"(&map), "r"(at(&full)), "r"(0), "r"(i % 64 * 64), "h"((short)3)
        : "memory");"""


def traced(analysis: Analysis) -> tuple[CtaTrace, float]:
    """Return a CTA's trace and the cycles that it takes alone."""
    trace, _ = Emulator(analysis.program, analysis.entry, analysis.launch).trace()
    rates = gpu_rates(find_device("H200"))
    kernel = sm_kernel(analysis.program, rates, "alone", 0, fetches_code=False)
    return trace, simulate_sm(kernel, [trace], [0], 1).cycles


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_a_wait_by_token_waits_for_its_phase(arch: str, tmp_path: Path) -> None:
    analysis = counted(tmp_path, TOKENS, "ptr i32:5", block=(64, 1, 1), arch=arch)
    trace, cycles = traced(analysis)
    rows = trace.access[trace.access >= 0]
    arrivals = rows[trace.kind[rows] == AccessKind.MBARRIER_ARRIVE]
    assert trace.amount[arrivals].sum() == 5 * 64
    assert cycles > 0


def tiles(folder: Path, copy: str, box_rows: int, turns: int, cluster: int = 1) -> Analysis:
    source = TILES.replace("COPY", copy).replace(
        "CLUSTER", f"__cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
    )
    map_text = f"tensormap:f16[64,4096]box[64,{box_rows}]swizzle128"
    return counted(
        folder,
        source,
        f"{map_text} ptr i32:{turns}",
        (4, 1, 1),
        (64, 1, 1),
        "sm_90a",
        smem=8192,
    )


@pytest.mark.slow
@pytest.mark.parametrize("box_rows", [32, 64], ids=["each brings half", "one brings all"])
def test_a_multicast_by_tensor_map_arrives_once_for_each_bit_of_its_mask(
    box_rows: int, tmp_path: Path
) -> None:
    analysis = tiles(tmp_path, MULTICAST, box_rows, 6, cluster=2)
    trace, cycles = traced(analysis)
    rows = trace.access[trace.access >= 0]
    copied = rows[trace.kind[rows] == AccessKind.BULK_LOAD]
    assert trace.size_bytes[copied].tolist() == [box_rows * 128] * 6
    arriving = trace.size_bytes[copied].astype(int) * trace.amount[copied]
    assert arriving.tolist() == [8192] * 6  # as many bytes as the barrier expects
    assert cycles > 0


@pytest.mark.slow
def test_a_wait_for_copies_of_other_ctas_is_no_deadlock(tmp_path: Path) -> None:
    copy = f'unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); if (r) {{ {MULTICAST} }}'
    trace, cycles = traced(tiles(tmp_path, copy, 64, 6, cluster=2))
    rows = trace.access[trace.access >= 0]
    assert AccessKind.BULK_LOAD not in trace.kind[rows]
    assert cycles > 0


@pytest.mark.slow
def test_a_cta_may_copy_more_lines_by_tma_than_are_stored(tmp_path: Path) -> None:
    turns = 20_000  # of 64 lines: more than a million
    analysis = tiles(tmp_path, PLAIN, 64, turns)
    sectors = analysis.counts.totals[:, 4].sum()
    assert sectors >= 4 * turns * 256


CLUSTERS = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(volatile unsigned* y) {
  unsigned number, count;
  asm volatile("mov.u32 %0, %clusterid.x;" : "=r"(number));
  asm volatile("mov.u32 %0, %nclusterid.x;" : "=r"(count));
  for (unsigned i = number; i < 2 * count; i += count) y[threadIdx.x] = i;
}
"""


@pytest.mark.slow
def test_a_cluster_has_a_number(tmp_path: Path) -> None:
    analysis = counted(tmp_path, CLUSTERS, "ptr", (8, 1, 1), arch="sm_90a")
    assert analysis.entry.cluster == (2, 1, 1)
    stores = [n for n, i in enumerate(analysis.program.instructions) if i.opcode == "STG"]
    assert analysis.counts.totals[stores, EXECUTED].sum() == 8 * 2
