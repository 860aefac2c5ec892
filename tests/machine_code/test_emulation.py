"""Counts of small kernels equal those computed by hand, on several architectures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from words import raises

from engine.base.errors import CompileError
from engine.devices import find_device
from engine.history.simulation import time_launch
from engine.machine_code.analysis import launch_figures
from engine.machine_code.emulation import EXECUTED, AccessKind, Emulator
from tests.machine_code.small_kernels import counted
from tests.slow_cases import one_in

ARCHS = [
    pytest.param("sm_80"),
    *(pytest.param(a, marks=pytest.mark.slow) for a in ("sm_75", "sm_120")),
    *(pytest.param(a, marks=pytest.mark.exhaustive) for a in ("sm_90", "sm_100")),
]

# Each thread stores as often as an integer hash says, which uses every kind of integer instruction.
HASH = """
extern "C" __global__ void k(volatile unsigned* out, unsigned seed, int divisor, long long wide) {
  unsigned x = (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u ^ seed;
  x ^= x >> 15; x *= 0x85ebca6bu; x ^= x >> 13;
  int y = (int)x / divisor - (int)x % 7 + __popc(x) + __clz(x) + __brev(x) % 5;
  long long z = ((long long)x * wide) / (divisor + 1LL) + y;
  unsigned n = (unsigned)(z ^ z >> 32) % 11 + __byte_perm(x, y, 0x5140) % 3 + max(y, -y) % 2;
  for (unsigned i = 0; i < n; i++) out[threadIdx.x] = i;
}
"""


def stores_of(thread: int, seed: int, divisor: int, wide: int) -> int:
    mask = 0xFFFFFFFF
    x = (thread * 2654435761 & mask) ^ seed
    x ^= x >> 15
    x = x * 0x85EBCA6B & mask
    x ^= x >> 13
    signed = x - (1 << 32) if x >> 31 else x

    def divide(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    y = divide(signed, divisor) - (signed - 7 * divide(signed, 7)) + x.bit_count()
    y += 32 - x.bit_length() + int(f"{x:032b}"[::-1], 2) % 5
    y = (y + (1 << 31) & mask) - (1 << 31)
    z = divide(x * wide, divisor + 1) + y
    z = (z + (1 << 63) & (1 << 64) - 1) - (1 << 63)
    permuted = [x & 255, y & 255, x >> 8 & 255, y >> 8 & 255]
    mixed = sum(byte << 8 * n for n, byte in enumerate(permuted))
    absolute = max(y, -y)
    return ((z ^ z >> 32) & mask) % 11 + mixed % 3 + absolute % 2


@pytest.mark.parametrize("arch", ARCHS)
def test_integers_are_exact(arch: str, tmp_path: Path) -> None:
    arguments = (12345, 77, 987654321)
    text = "ptr u32:{} i32:{} i64:{}".format(*arguments)
    analysis = counted(tmp_path, HASH, text, grid=(3, 1, 1), block=(96, 1, 1), arch=arch)
    expected = sum(4 * stores_of(t, *arguments) for t in range(3 * 96))
    assert launch_figures(analysis.counts).global_bytes == expected
    assert not analysis.counts.stand_in.any()
    assert not analysis.counts.data_branch.any()


def stride_kernel(stride: int, kind: str = "float") -> str:
    return f"""
extern "C" __global__ void k({kind}* out, int turns) {{
  __shared__ {kind} tile[32 * {stride}];
  tile[threadIdx.x * {stride}] = {kind}();
  __syncthreads();
  {kind} got = tile[(threadIdx.x ^ turns) * {stride}];
  out[threadIdx.x] = got;
}}
"""


@pytest.mark.parametrize(
    ("stride", "ways"), one_in(6, [(32, 32), (1, 1), (2, 2), (8, 8), (33, 1), (3, 1)])
)
def test_bank_conflicts(stride: int, ways: int, tmp_path: Path) -> None:
    figures = launch_figures(counted(tmp_path, stride_kernel(stride), "ptr i32:1").counts)
    assert figures.ideal_shared_wavefronts == 2  # a store and a load
    assert figures.shared_wavefronts == 2 * ways


@pytest.mark.slow
def test_wide_accesses_take_several_wavefronts(tmp_path: Path) -> None:
    figures = launch_figures(counted(tmp_path, stride_kernel(1, "float4"), "ptr i32:4").counts)
    assert figures.shared_wavefronts == figures.ideal_shared_wavefronts == 8


@pytest.mark.slow
@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (8, 32), (100, 32)])
def test_sectors(stride: int, sectors: int, tmp_path: Path) -> None:
    source = 'extern "C" __global__ void k(float* p, int s) { p[threadIdx.x * s] = 1.0f; }'
    figures = launch_figures(counted(tmp_path, source, f"ptr i32:{stride}").counts)
    assert (figures.global_sectors, figures.ideal_global_sectors) == (sectors, 4)
    assert figures.global_bytes == 128


DIVERGENCE = """
__device__ __noinline__ int called(int x) { return x < 3 ? x * 5 : x * x / 3 + 1; }
extern "C" __global__ void k(volatile int* out, int n) {
  int lane = threadIdx.x % 32, sum = 0;
  if (lane % 3 == 0) for (int i = 0; i < lane; i++) sum += __popc(i * n);
  else if (lane % 3 == 1) sum = called(lane % 9);
  unsigned agree = __ballot_sync(~0u, sum & 1);
  sum += __shfl_xor_sync(~0u, sum, 1) + __reduce_add_sync(~0u, lane);
  if (__syncthreads_or(sum > 1000)) out[0] = 1;
  for (int i = 0; i < (sum + __popc(agree)) % 5; i++) out[threadIdx.x] = i;
}
"""


def divergence_stores(n: int) -> int:
    def called(x: int) -> int:
        return x * 5 if x < 3 else x * x // 3 + 1

    sums = []
    for lane in range(32):
        if lane % 3 == 0:
            sums.append(sum((i * n).bit_count() for i in range(lane)))
        else:
            sums.append(called(lane % 9) if lane % 3 == 1 else 0)
    agree = sum(s & 1 for s in sums)
    mixed = [s + sums[lane ^ 1] + sum(range(32)) for lane, s in enumerate(sums)]
    return sum((s + agree) % 5 for s in mixed)


@pytest.mark.parametrize("arch", [a for a in ARCHS if a.values[0] != "sm_75"])
def test_diverged_lanes_reconverge(arch: str, tmp_path: Path) -> None:
    analysis = counted(tmp_path, DIVERGENCE, "ptr i32:3", block=(64, 1, 1), arch=arch)
    assert launch_figures(analysis.counts).global_bytes == 2 * 4 * divergence_stores(3)


def test_a_branch_on_loaded_data_gives_a_note(tmp_path: Path) -> None:
    source = """
extern "C" __global__ void k(const float* in, float* out) {
  if (in[threadIdx.x] > 0.5f) out[threadIdx.x] = 2.0f;
}
"""
    counts = counted(tmp_path, source, "ptr ptr").counts
    (where,) = np.flatnonzero(counts.data_branch).tolist()[:1]
    assert counts.program.instructions[where].source[-1].line == 3
    assert launch_figures(counts).global_bytes == 2 * 128  # a load of 1.0, and its store


@pytest.mark.parametrize(
    ("body", "name", "facts"),
    [
        ('printf("%d", n);', "code_calls_driver", ["vprintf"]),
        ("F* f = n & 1 ? one : two; *x = f(*x);", "perhaps_a_function_pointer", []),
    ],
)
def test_calls_to_missing_code_are_named(
    tmp_path: Path, body: str, name: str, facts: list[str]
) -> None:
    source = f"""
typedef float F(float);
__device__ __noinline__ float one(float x) {{ return x + 1; }}
__device__ __noinline__ float two(float x) {{ return x * 2; }}
extern "C" __global__ void k(float* x, int n) {{ {body} }}
"""
    with raises(CompileError, name, *facts):
        counted(tmp_path, source, "ptr i32:5")


@pytest.mark.slow
def test_an_access_past_shared_memory_gives_a_one_sentence_error(tmp_path: Path) -> None:
    source = """
extern "C" __global__ void k(int* out, int n) {
  extern __shared__ int tile[];
  tile[threadIdx.x + n] = n;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
"""
    assert counted(tmp_path, source, "ptr i32:0", smem=128).counts.executed > 0
    with raises(CompileError, "smem_beyond_cta", "128 bytes"):
        counted(tmp_path, source, "ptr i32:8", smem=128)


@pytest.mark.slow
def test_a_deadlock_gives_a_one_sentence_error(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void k(int* p) { asm volatile("bar.sync 1, 64;"); *p = 1; }'
    with raises(CompileError, "threads_never_arrive", "BAR"):
        counted(tmp_path, source, "ptr")


@pytest.mark.slow
def test_counts_of_a_launch_are_sums_over_its_ctas(tmp_path: Path) -> None:
    source = """
extern "C" __global__ void k(float* p, int n, int part) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  int steps = blockIdx.y / 2 + blockIdx.x % part;
  for (int i = 0; i < steps; i++) if (row < n) p[row * (i + 1)] = i;
}
"""
    grid = (21, 9, 2)
    analysis = counted(tmp_path, source, "ptr i32:1300 i32:3", grid=grid, block=(64, 1, 1))
    emulator = Emulator(analysis.program, analysis.entry, analysis.launch)
    ctas = [(x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])]
    each = [emulator.totals(cta).values for cta in ctas]
    assert np.array_equal(sum(each), analysis.counts.totals)
    assert analysis.counts.emulated < len(ctas)
    work = np.broadcast_to(analysis.counts.work, grid[::-1])
    for (x, y, z), values in zip(ctas, each, strict=True):
        assert work[z, y, x] == values[:, EXECUTED].sum()


@pytest.mark.slow
def test_a_trace_agrees_with_the_counts(tmp_path: Path) -> None:
    source = """
extern "C" __global__ void k(float* p) {
  __shared__ float tile[64];
  tile[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = tile[threadIdx.x ^ 32];
}
"""
    analysis = counted(tmp_path, source, "ptr", block=(64, 1, 1))
    trace, totals = Emulator(analysis.program, analysis.entry, analysis.launch).trace()
    assert trace.num_warps == 2
    assert np.bincount(trace.instruction, minlength=len(totals.values)).tolist() == list(
        totals.values[:, EXECUTED]
    )
    kinds = [AccessKind(trace.kind[a]) for a in trace.access[trace.access >= 0]]
    assert kinds == 2 * [
        AccessKind.GLOBAL_LOAD,
        AccessKind.SHARED_STORE,
        AccessKind.BARRIER,
        AccessKind.SHARED_LOAD,
        AccessKind.GLOBAL_STORE,
    ]
    first = trace.access[trace.access >= 0][0]
    lines = slice(trace.line_start[first], trace.line_start[first + 1])
    assert trace.line_sectors[lines].tolist() == [15]


BULK_COPIES = """
extern "C" __global__ void k(const float* x, float* y, int n) {
  __shared__ alignas(128) float tile[256];
  __shared__ alignas(8) unsigned long long barrier;
  unsigned b = (unsigned)__cvta_generic_to_shared(&barrier);
  unsigned to = (unsigned)__cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b));
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < n; i++) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(b));
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                   "[%0], [%1], 1024, [%2];" :: "r"(to), "l"(x + i * 256), "r"(b) : "memory");
    }
    unsigned done = 0;
    while (!done)
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
                   "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(b), "r"(i & 1));
    sum += tile[threadIdx.x];
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}
"""


@pytest.mark.slow
def test_bulk_copies_complete_the_phases_that_warps_wait_for(tmp_path: Path) -> None:
    turns = 5
    text = f"ptr ptr i32:{turns}"
    analysis = counted(tmp_path, BULK_COPIES, text, block=(256, 1, 1), arch="sm_90a")
    trace, _ = Emulator(analysis.program, analysis.entry, analysis.launch).trace()
    rows = trace.access[trace.access >= 0]
    kinds = trace.kind[rows]
    copies = rows[kinds == AccessKind.BULK_LOAD]
    assert trace.size_bytes[copies].tolist() == turns * [1024]
    waits = rows[kinds == AccessKind.MBARRIER_WAIT]
    assert trace.amount[waits].tolist() == 8 * list(range(turns))  # each warp, phase by phase
    timed = time_launch(analysis, find_device("H200"))
    assert timed.simulated.cta_cycles > 0


# A single matrix: only the first eight lanes hold an address, and the registers after the first one
# hold other values, among them the loop's end.
SINGLE_MATRIX = """
extern "C" __global__ void k(unsigned* out, int n) {
  __shared__ __align__(16) unsigned s[256];
  s[threadIdx.x] = threadIdx.x;
  __syncwarp();
  const unsigned matrix = (unsigned)__cvta_generic_to_shared(s);
  unsigned sum = 0;
  for (int i = 0; i < n; i++) {  // loads of one address would become one
    const unsigned row = threadIdx.x < 8 ? matrix + 128 * i + 16 * threadIdx.x : 0xfffffff0u;
    unsigned value;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(value) : "r"(row));
    sum += value;
  }
  out[threadIdx.x] = sum;
}
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_a_single_matrix_is_addressed_by_eight_lanes(arch: str, tmp_path: Path) -> None:
    figures = launch_figures(counted(tmp_path, SINGLE_MATRIX, "ptr i32:5", arch=arch).counts)
    assert figures.shared_wavefronts == figures.ideal_shared_wavefronts == 1 + 5
