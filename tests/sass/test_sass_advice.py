"""Each inefficiency, planted in a small kernel, is named with its line; a clean kernel has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.sass.advice import Waste, advise
from tests.sass.small_kernels import counted
from tests.slow_cases import one_in

HEAD = "#include <cuda_fp16.h>\n"
CLEAN = """
extern "C" __global__ void k(const float4* in, float4* out, int n) {
  __shared__ float4 tile[256];
  float4 sum = {};
  for (int i = 0; i < n; i++) {
    tile[threadIdx.x] = in[i * 256 + threadIdx.x];
    __syncthreads();
    float4 x = tile[threadIdx.x ^ 64];
    sum.x += x.x * x.y; sum.y += x.y * x.z; sum.z += x.z * x.w; sum.w += x.w * x.x;
    __syncthreads();
  }
  out[threadIdx.x] = sum;
}
"""
PLANTED: list[tuple[Waste, int, str]] = [
    (
        "conflicts",
        6,
        """
extern "C" __global__ void k(const float* in, float* out, int n) {
  __shared__ float tile[32][32];
  for (int i = threadIdx.x / 32; i < 32; i += 8) tile[i][threadIdx.x % 32] = in[threadIdx.x];
  __syncthreads();
  for (int i = 0; i < n; i++) out[i * 256 + threadIdx.x] = tile[threadIdx.x % 32][i % 32];
}
""",
    ),
    (
        "sectors",
        3,
        """
extern "C" __global__ void k(const float* in, float* out, int n) {
  float sum = 0; for (int i = 0; i < n; i++) sum += in[threadIdx.x * n + i];
  out[threadIdx.x] = sum;
}
""",
    ),
    (
        "narrow",
        4,
        """
extern "C" __global__ void k(const __half* in, __half* out, int n) {
  for (int i = 0; i < n; i++)
    out[i * 256 + threadIdx.x] = in[i * 256 + threadIdx.x];
}
""",
    ),
    (
        "conversions",
        4,
        """
extern "C" __global__ void k(const __half2* in, float* out, int n) {
  __half2 x = in[threadIdx.x]; float sum = 0;
  for (int i = 0; i < n; i++) sum += __half2float(x.x = __float2half(__half2float(x.x) * 1.5f));
  out[threadIdx.x] = sum;
}
""",
    ),
    (
        "denormals",
        3,
        """
extern "C" __global__ void k(const float* in, float* out, int n) {
  float x = in[threadIdx.x]; for (int i = 0; i < n; i++) x = __expf(x);
  out[threadIdx.x] = x;
}
""",
    ),
    (
        "spills",
        4,
        """
extern "C" __global__ void k(const float* in, float* out, int n) {
  float kept[64]; for (int i = 0; i < 64; i++) kept[i] = in[i * 256 + threadIdx.x];
  float sum = 0; for (int i = 0; i < n; i++) sum += kept[i * n % 64];
  out[threadIdx.x] = sum;
}
""",
    ),
]


@pytest.mark.parametrize(
    ("waste", "line", "source"), one_in(len(PLANTED), PLANTED), ids=[p[0] for p in PLANTED]
)
def test_a_planted_inefficiency_is_named(
    waste: Waste, line: int, source: str, tmp_path: Path
) -> None:
    analysis = counted(tmp_path, HEAD + source.strip(), "ptr ptr i32:48", block=(256, 1, 1))
    named = {advice.waste: advice for advice in advise(analysis)}
    assert waste in named, named
    where = named[waste].source
    assert where is not None
    assert where.line == line
    assert 0 < named[waste].share <= 1


@pytest.mark.slow
def test_a_clean_kernel_has_no_advice_but_a_small_launch(tmp_path: Path) -> None:
    analysis = counted(tmp_path, CLEAN, "ptr ptr i32:20", block=(256, 1, 1))
    assert advise(analysis) == ()
    (few,) = advise(analysis, num_sms=58)
    assert few.waste == "few_ctas"
    assert "1 for 58 SMs leave 57 without work" in few.sentence
