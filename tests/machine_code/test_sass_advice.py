"""Inefficiencies planted in small kernels are reported by line; clean kernels get no advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from words import says

from engine.attention.config import find_variant
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.devices import find_device
from engine.history.simulation import time_launch
from engine.machine_code.advice import Advice, AdviceKind
from engine.model.kernel import analyse_plan
from engine.pipeline.simulated_launches import advise_launch
from tests.machine_code.small_kernels import counted
from tests.slow_cases import one_in

GPU = "L4"
HEAD = "#include <cuda_fp16.h>\n"
# A ring of two buffers: the next tile's copy overlaps this tile's arithmetic.
CLEAN = """
__device__ void begin(float4* to, const float4* from) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
}
extern "C" __global__ void k(const float4* in, float4* out, int n) {
  __shared__ float4 tile[2][256];
  float4 sum = {};
  in += blockIdx.x * n * 256 + threadIdx.x;
  begin(&tile[0][threadIdx.x], in);
  for (int i = 0; i < n; i++) {
    if (i + 1 < n) begin(&tile[(i + 1) % 2][threadIdx.x], in + (i + 1) * 256);
    else asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    float4 x = tile[i % 2][threadIdx.x ^ 64];
#pragma unroll
    for (int j = 0; j < 64; j++) {
      sum.x += x.x * x.y; sum.y += x.y * sum.x; sum.z += x.z * x.w; sum.w += x.w * sum.z;
    }
    __syncthreads();
  }
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
"""
SIMPLE_LOOP = """
extern "C" __global__ void k(const float4* in, float4* out, int n) {
  __shared__ float4 tile[256];
  float4 sum = {};
  in += blockIdx.x * n * 256 + threadIdx.x;
  for (int i = 0; i < n; i++) {
    tile[threadIdx.x] = in[i * 256];
    __syncthreads();
    float4 x = tile[threadIdx.x ^ 64];
#pragma unroll
    for (int j = 0; j < 32; j++) {
      sum.x += x.x * x.y; sum.y += x.y * sum.x; sum.z += x.z * x.w; sum.w += x.w * sum.z;
    }
    __syncthreads();
    EXTRA
  }
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
"""
ONE_MMA = """
__device__ void product(float (&d)[4], unsigned (&a)[4], unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
    "{%8,%9}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
extern "C" __global__ void k(const unsigned* in, float* out, int n) {
  unsigned a[4], b[2]; float d[4] = {};
  for (int i = 0; i < 4; i++) a[i] = b[i % 2] = in[threadIdx.x + 256 * i];
  for (int i = 0; i < n; i++) {
    product(d, a, b);
    for (int j = 0; j < 4; j++) asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(d[j]));
  }
  for (int i = 0; i < 4; i++) out[threadIdx.x + 256 * i] = d[i];
}
"""


@dataclass(frozen=True, slots=True)
class Planted:
    kind: AdviceKind
    line: int | None  # of the advice; None: the launch as a whole
    name: str  # of its sentence, in words.json
    facts: tuple[str, ...]  # that the sentence contains
    source: str
    arguments: str = "ptr ptr i32:48"
    grid: tuple[int, int, int] = (58, 1, 1)


PLANTED = [
    Planted(
        "conflicts",
        6,
        "advice_conflicts",
        ("32-way", "4 bytes"),
        """
extern "C" __global__ void k(const float* in, float* out, int n) {
  __shared__ float tile[32][32];
  for (int i = threadIdx.x / 32; i < 32; i += 8) tile[i][threadIdx.x % 32] = in[threadIdx.x];
  __syncthreads();
  for (int i = 0; i < n; i++) out[i * 256 + threadIdx.x] = tile[threadIdx.x % 32][i % 32];
}
""",
    ),
    Planted(
        "sectors",
        3,
        "advice_uncoalesced",
        ("LDG.E", "8.0"),
        """
extern "C" __global__ void k(const float* in, float* out, int n) {
  float sum = 0; for (int i = 0; i < n; i++) sum += in[threadIdx.x * n + i];
  out[threadIdx.x] = sum;
}
""",
    ),
    Planted(
        "narrow",
        4,
        "advice_narrow",
        (),
        """
extern "C" __global__ void k(const __half* in, __half* out, int n) {
  for (int i = 0; i < n; i++)
    out[i * 256 + threadIdx.x] = in[i * 256 + threadIdx.x];
}
""",
    ),
    Planted(
        "narrow",
        6,
        "advice_struct",
        ("4", "STG.E.U16"),
        """
struct Four { __half a, b, c, d; };
extern "C" __global__ void k(const Four* in, Four* out, int n) {
  for (int i = 0; i < n; i++) {
    Four x = in[i * 256 + threadIdx.x]; x.a = __hadd(x.a, x.b);
    out[i * 256 + threadIdx.x] = x; }
}
""",
    ),
    Planted(
        "sectors",
        9,
        "advice_partial_sectors",
        ("LDG.E", "50%"),
        """
#include <mma.h>
using namespace nvcuda::wmma;
extern "C" __global__ void k(const half* a, const half* b, float* out, int n) {
  fragment<matrix_a, 16, 16, 16, half, row_major> x; fragment<accumulator, 16, 16, 16, float> sum;
  fragment<matrix_b, 16, 16, 16, half, col_major> y; fill_fragment(sum, 0.0f);
  for (int i = 0; i < n; i += 16) {
    load_matrix_sync(x, a + threadIdx.x / 32 * 16 * n + i, n);
    load_matrix_sync(y, b + threadIdx.x / 32 * 16 * n + i, n);
    mma_sync(sum, x, y, sum); }
  store_matrix_sync(out + threadIdx.x * 8, sum, 16, mem_row_major);
}
""",
        "ptr ptr ptr i32:1024",
    ),
    Planted(
        "conversions",
        4,
        "advice_conversions",
        (),
        """
extern "C" __global__ void k(const __half2* in, float* out, int n) {
  __half2 x = in[threadIdx.x]; float sum = 0;
  for (int i = 0; i < n; i++) sum += __half2float(x.x = __float2half(__half2float(x.x) * 1.5f));
  out[threadIdx.x] = sum;
}
""",
    ),
    Planted(
        "packing",
        6,
        "advice_packing",
        (),
        """
struct Eight { __half x[8]; };
extern "C" __global__ void k(const Eight* in, Eight* out, int n) {
  __shared__ Eight tile[256];
  for (int i = 0; i < n; i++) { tile[threadIdx.x] = in[i * 256 + threadIdx.x]; __syncthreads();
    out[i * 256 + threadIdx.x] = tile[threadIdx.x ^ 64]; __syncthreads(); }
}
""",
    ),
    Planted(
        "denormals",
        3,
        "advice_denormals",
        (),
        """
extern "C" __global__ void k(const float* in, float* out, int n) {
  float x = in[threadIdx.x]; for (int i = 0; i < n; i++) x = __expf(x);
  out[threadIdx.x] = x;
}
""",
    ),
    Planted(
        "spills",
        4,
        "advice_spills",
        (),
        """
extern "C" __global__ void k(const float* in, float* out, int n) {
  float kept[64]; for (int i = 0; i < 64; i++) kept[i] = in[i * 256 + threadIdx.x];
  float sum = 0; for (int i = 0; i < n; i++) sum += kept[i * n % 64];
  out[threadIdx.x] = sum;
}
""",
    ),
    Planted("copy_ahead", 7, "advice_copy_ahead", ("LDG.E.128",), SIMPLE_LOOP.replace("EXTRA", "")),
    Planted("barrier", 15, "advice_barrier", (), SIMPLE_LOOP.replace("EXTRA", "__syncthreads();")),
    Planted("tensor_idle", 12, "advice_tensor_idle", ("exponentials",), ONE_MMA),
    Planted("few_ctas", None, "advice_few_ctas", ("4", "58", "54"), CLEAN, grid=(4, 1, 1)),
    # More than half as many CTAs as SMs: their parts share SMs.
    Planted("few_ctas", None, "advice_few_ctas", ("32", "58", "26"), CLEAN, grid=(32, 1, 1)),
    Planted(
        "grid_order",
        5,
        "advice_grid_order",
        ("blockIdx.y, blockIdx.x",),
        """
extern "C" __global__ void k(const uint4* keys, uint4* out, int n) {
  uint4 sum = {};
  for (int i = 0; i < n; i++) {
    uint4 x = keys[(blockIdx.x * n + i) * 256 + threadIdx.x];
    sum.x += x.x; sum.y ^= x.y; sum.z += x.z; sum.w ^= x.w;
  }
  out[(blockIdx.y * gridDim.x + blockIdx.x) * 256 + threadIdx.x] = sum;
}
""",
        "ptr ptr i32:256",
        (256, 8, 1),
    ),
]


@lru_cache(maxsize=32)
def advice_on(
    folder: Path, source: str, arguments: str, grid: tuple[int, int, int]
) -> tuple[Advice, ...]:
    device = find_device(GPU)
    text = HEAD + source.strip()
    analysis = counted(folder, text, arguments, grid, (256, 1, 1), device.arch)
    return advise_launch(analysis, device, time_launch(analysis, device))


def kinds(advice: Sequence[Advice]) -> set[AdviceKind]:
    return {a.kind for a in advice}


@pytest.mark.parametrize(
    "case", one_in(len(PLANTED), PLANTED, slow=5), ids=[f"{p.kind} {p.name}" for p in PLANTED]
)
def test_a_planted_inefficiency_is_named(case: Planted, tmp_path: Path) -> None:
    advice = advice_on(tmp_path, case.source, case.arguments, case.grid)
    fitting = [a for a in advice if a.kind == case.kind]
    assert fitting, advice
    (named, *_) = fitting
    assert (named.source.line if named.source else None) == case.line, named
    assert says(named.sentence, case.name, *case.facts)
    assert 0 < named.share <= 1
    assert named.gain is not None
    assert 0 <= named.gain.low <= named.gain.high < 1
    assert named.gain.high >= 0.01


@pytest.mark.slow
def test_a_clean_kernel_has_no_advice(tmp_path: Path) -> None:
    assert advice_on(tmp_path, CLEAN, "ptr ptr i32:40", (232, 1, 1)) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "gpu", "named"),
    [
        # v10's header says that it adds what v08 lacks.
        ("v08", "L4", {"copy_ahead"}),
        pytest.param("v10", "L4", set(), marks=pytest.mark.exhaustive),
        # Persistent CTAs: the copying loop is inside one over query tiles.
        pytest.param("v13", "L4", set(), marks=pytest.mark.exhaustive),
        # v19 and v20 improve this; named barriers and mbarriers cannot be removed.
        ("v18", "H200", {"tensor_idle"}),
    ],
)
def test_the_ladder_gets_only_advice_that_its_next_rung_follows(
    variant: str, gpu: str, named: set[AdviceKind]
) -> None:
    device = find_device(gpu)
    found = find_variant(variant)
    problem = Problem(batch=4, num_heads=16, seqlen=1024, head_dim=64)
    plan = make_plan(found, problem, found.default_config())
    (analysis,) = analyse_plan(plan, device.arch)
    assert kinds(advise_launch(analysis, device, time_launch(analysis, device))) == named
