"""CUDA features as small kernels of 32 threads with the expected result of each thread, and those
that the CPU backend lacks, with what their error names."""

# ruff: noqa: E501  a case is a line

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.attention.plan import TensorArg
from engine.base.errors import CompileError
from engine.cuda_on_host.build import DEFAULT_ARCH, build_kernels
from engine.cuda_on_host.client import Buffer, Client, Job, KernelLaunch

LANES = 32
Expected = float | Callable[[int], float]


@dataclass(frozen=True)
class Group:
    """Features that share a source; each body computes `r` from the lane `t`."""

    name: str
    features: Mapping[str, tuple[str, Expected]]
    top: str = ""
    relative_error: float = 2e-3
    ctas: int = 1  # CTAs of each launch, as one cluster; `r` of the first CTA is checked
    arch: str = DEFAULT_ARCH

    def source(self, names: list[str]) -> str:
        kernels = "".join(
            f'extern "C" __global__ {self._cluster()}void f{i}(float *out) {{ const int t = threadIdx.x; float r = 0;\n'
            f"{self.features[name][0]}\nif (blockIdx.x == 0) out[t] = r; }}\n"
            for i, name in enumerate(names)
        )
        return f"{self.top}\n{kernels}"

    def _cluster(self) -> str:
        return f"__cluster_dims__({self.ctas}, 1, 1) " if self.ctas > 1 else ""

    def run(self, client: Client, folder: Path, check: bool = False) -> dict[str, str]:
        """ "" for every feature that computes what it must, else what went wrong."""
        names = list(self.features)
        together = self._run(client, folder, names, check)
        if not isinstance(together, str):
            return dict(zip(names, together, strict=True))
        answers = {}
        for name in names:
            alone = self._run(client, folder, [name], check)
            answers[name] = alone if isinstance(alone, str) else alone[0]
        return answers

    def _run(self, client: Client, folder: Path, names: list[str], check: bool) -> list[str] | str:
        path = folder / "features.cu"
        path.write_text(self.source(names))
        entries = [f"f{i}" for i in range(len(names))]
        try:
            library = build_kernels(path, entries, check=check, arch=self.arch)
        except CompileError as error:
            return str(error)
        launches = (
            KernelLaunch(entry, (self.ctas, 1, 1), (LANES, 1, 1), (TensorArg(entry),), 4096)
            for entry in entries
        )
        buffers = (Buffer(entry, size_bytes=4 * LANES, returned=True) for entry in entries)
        result = client.run(Job(library, tuple(buffers), tuple(launches)), 60.0)
        if not result.returned:
            return result.reason
        return [
            self._difference(result.returned[entry].view(np.float32), self.features[name][1])
            for entry, name in zip(entries, names, strict=True)
        ]

    def _difference(self, got: np.ndarray, expected: Expected) -> str:
        wanted = np.array([expected(t) if callable(expected) else expected for t in range(LANES)])
        right = np.isclose(got, wanted, rtol=self.relative_error, atol=1e-6)
        if right.all():
            return ""
        t = int(np.flatnonzero(~right)[0])
        return f"thread {t} computes {got[t]} and not {wanted[t]}"


def lacking_sentence(top: str, body: str, folder: Path) -> str:
    """Return the error for a source that uses a feature, "" if it compiles."""
    path = folder / "lacking.cu"
    path.write_text(f'{top}\nextern "C" __global__ void f(float *out) {{\n{body}\n}}\n')
    try:
        build_kernels(path, ["f"])
    except CompileError as error:
        return re.sub(r"^lacking\.cu:\d+: ", "", str(error))
    return ""


def _half(values: str) -> str:
    return f"const half a = __float2half(1.5f + t), b = __float2half(0.5f); half2 c(a, b), d(b, a); {values}"


def _bf16(values: str) -> str:
    return (
        _half(values)
        .replace("__float2half", "__float2bfloat16")
        .replace("half2", "__nv_bfloat162")
        .replace("half ", "__nv_bfloat16 ")
    )


def _both(
    feature: Callable[[str], str], expected: Mapping[str, tuple[str, Expected]]
) -> dict[str, tuple[str, Expected]]:
    return {name: (feature(body), wanted) for name, (body, wanted) in expected.items()}


def _e4m3(value: float) -> float:
    """Round a number in range to E4M3, to nearest even."""
    step = 2.0 ** (max(math.floor(math.log2(value)), -6) - 3) if value else 1.0
    return round(value / step) * step


def _wmma(shape: str, kind: str, sums: str) -> str:
    """Return a test with A = 1 (2 in the last row), B = 2, C = 1: D = 2k + 1, 4k + 1 in that row."""
    m, n, k = (int(x) for x in shape.split("x"))
    stored = "float" if "tf32" in kind else kind
    return f"""
__shared__ __align__(32) {stored} a[{m * k}], b[{k * n}]; __shared__ __align__(32) {sums} d[{m * n}];
for (int i = t; i < {m * k}; i += 32) a[i] = ({stored})(i / {k} == {m - 1} ? 2.0f : 1.0f);
for (int i = t; i < {k * n}; i += 32) b[i] = ({stored})2.0f;
__syncwarp();
wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {kind}, wmma::row_major> fa;
wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {kind}, wmma::col_major> fb;
wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {sums}> fd;
wmma::fill_fragment(fd, ({sums})1.0f);
wmma::load_matrix_sync(fa, a, {k}); wmma::load_matrix_sync(fb, b, {k});
wmma::mma_sync(fd, fa, fb, fd);
wmma::store_matrix_sync(d, fd, {n}, wmma::mem_row_major);
__syncwarp();
bool right = true;
for (int i = 0; i < {m * n}; i++) right = right && (float)d[i] == (i / {n} == {m - 1} ? {4 * k + 1} : {2 * k + 1});
r = right ? {2 * k + 1} : -1;"""


_HALF_FEATURES: dict[str, tuple[str, Expected]] = {
    "__hadd __hsub __hmul __hdiv __hneg __habs": ("r = __hadd(a, b) + __hsub(a, b) + __hmul(a, b) + __hdiv(a, b) + __hneg(a) + __habs(__hneg(a));", lambda t: 2 * (1.5 + t) + 2.5 * (1.5 + t)),
    "__hadd_rn __hsub_rn __hmul_rn and _sat": ("r = __hadd_rn(a, b) - __hsub_rn(a, b) + __hmul_rn(b, b) + __hadd_sat(a, b) + __hsub_sat(b, a) + __hmul_sat(a, b);", lambda t: 1 + 0.25 + 1 + 0 + min(1, 0.5 * (1.5 + t))),
    "__hfma, _sat, _relu": ("r = __hfma(a, b, b) + __hfma_sat(a, a, b) + __hfma_relu(__hneg(a), a, b);", lambda t: 0.5 * (1.5 + t) + 0.5 + 1),
    "__hmin __hmax, _nan": ("r = __hmin(a, b) + __hmax(a, b) + __hmin_nan(a, b) ; r += __hisnan(__hmax_nan(a, (b - b) / (b - b)));", lambda t: 1 + 1.5 + t + 1),
    "comparisons __heq … __hgtu": ("r = __heq(a, a) + 2 * __hne(a, b) + 4 * __hlt(b, a) + 8 * __hle(a, a) + 16 * __hgt(a, b) + 32 * __hge(b, a) + 64 * __hequ(a, b) + 128 * __hneu(a, b) + 256 * __hgtu(a, b);", 1 + 2 + 4 + 8 + 16 + 128 + 256),
    "pairs: __hadd2 __hsub2 __hmul2 __h2div __hfma2 __hneg2 __habs2": ("r = __low2float(__hadd2(c, d)) + __high2float(__hsub2(c, d)) + __low2float(__hmul2(c, d)) + __low2float(__h2div(c, d)) + __high2float(__hfma2(c, d, c)) + __low2float(__hneg2(c)) + __high2float(__habs2(c));", lambda t: (2 + t) + (-1 - t) + 2.5 * (1.5 + t) + 0.5 * (1.5 + t) + 0.5 - (1.5 + t) + 0.5),
    "pairs: __hmin2 __hmax2 __heq2 __hgt2_mask __hbge2": ("r = __low2float(__hmin2(c, d)) + __high2float(__hmax2(c, d)) + __low2float(__heq2(c, c)) + (__hgt2_mask(c, d) == 0xffffu) + __hbge2(c, c) + __hbne2(c, d);", lambda t: 0.5 + 1.5 + t + 4),
    "operators": ("auto e = a; e += b; e *= b; e = e - a / b; e++; r = -e; auto p = c + d; p *= d; r += p == p && p != c && !(e > a);", lambda t: -(((2 + t) * 0.5) - 2 * (1.5 + t) + 1) + 1),
    "hexp hexp2 hexp10 hlog hlog2 hlog10 hsqrt hrsqrt hrcp hsin hcos htanh": ("r = hexp(b) + hexp2(b) + hexp10(b) + hlog(b) + hlog2(b) + hlog10(b) + hsqrt(b) + hrsqrt(b) + hrcp(b) + hsin(b) + hcos(b) + htanh(b);", None),  # type: ignore[dict-item]
    "h2exp h2exp2 h2log h2sqrt h2rsqrt h2rcp h2tanh": ("r = __low2float(h2exp2(d)) + __low2float(h2log2(d)) + __low2float(h2sqrt(d)) + __low2float(h2rcp(d)) + __low2float(h2tanh(d));", 2**0.5 - 1 + 0.5**0.5 + 2 + math.tanh(0.5)),
    "hceil hfloor htrunc hrint": ("r = hceil(a) + hfloor(a) + htrunc(a) + hrint(b);", lambda t: 2 + t + 2 * (1 + t)),
    "implicit conversions from and to numbers": ("decltype(c.x) e = 3, f = 2.5, g = 1.25f; int i = f; r = (float)e + (float)g + i + (e ? 1 : 0);", 3 + 1.25 + 2 + 1),
    "shuffles, votes and loads": ("__shared__ decltype(c) s[32]; s[t] = c; __syncwarp(); r = (float)__shfl_xor_sync(~0u, a, 1) + __low2float(__shfl_sync(~0u, c, 3)) + __low2float(__ldcg(&s[5]));", lambda t: 1.5 + (t ^ 1) + 4.5 + 6.5),
    "atomicAdd": ("__shared__ decltype(c) s; if (t == 0) s = decltype(c)(b, b); __syncwarp(); atomicAdd(&s.x, b); __syncwarp(); atomicAdd(&s, decltype(c)(b, b)); __syncwarp(); r = (float)s.x + (float)s.y;", 0.5 + 16 + 16 + 16.5),
}  # fmt: skip
_FUNCTIONS = (math.exp(0.5) + 2**0.5 + 10**0.5 + math.log(0.5) - 1 + math.log10(0.5) + 0.5**0.5 + 2**0.5 + 2
              + math.sin(0.5) + math.cos(0.5) + math.tanh(0.5))  # fmt: skip
_HALF_FEATURES = {
    name: (body, _FUNCTIONS if wanted is None else wanted)
    for name, (body, wanted) in _HALF_FEATURES.items()
}

GROUPS = (
    Group("half, half2 (cuda_fp16.h)", _both(_half, _HALF_FEATURES) | {
        "__float2half _rn _rz _rd _ru, __half2int, __int2half": ("const float x = 1.0f + 0x1p-12f * 3; r = (float)__float2half_rz(x) + (float)__float2half_ru(x) + __half2int_rd(__float2half(-1.5f)) + (float)__int2half_rn(t) + __half2uint_rn(__float2half(2.5f));", lambda t: 2 + 2**-10 - 2 + t + 2),
        "__floats2half2_rn __halves2half2 __half22float2 __lows2half2": ("const half2 h = __floats2half2_rn(t, 2.0f); r = __half22float2(__lows2half2(h, __lowhigh2highlow(h))).y + __low2float(__halves2half2(h.y, h.x)) + __half_as_ushort(__ushort_as_half(7));", 2 + 2 + 7),
    }, top="#include <cuda_fp16.h>"),
    Group("bfloat16 (cuda_bf16.h)", _both(_bf16, _HALF_FEATURES) | {
        "__float2bfloat16 _rn _rz, __bfloat162int, __floats2bfloat162_rn": ("const __nv_bfloat162 h = __floats2bfloat162_rn(t, 3.0f); r = __bfloat1622float2(h).x + (float)__float2bfloat16_rz(1.99999f) + __bfloat162int_rz(h.y);", lambda t: t + 1.9921875 + 3),
        "half ↔ bfloat16": ("const half h(__nv_bfloat16(1.5f)); r = (float)h + (float)__nv_bfloat16(h);", 3),
    }, top="#include <cuda_bf16.h>", relative_error=2e-2),
    Group("FP8 (cuda_fp8.h)", {
        "__nv_fp8_e4m3, __nv_fp8_e5m2": ("r = (float)__nv_fp8_e4m3(0.3f * t) + (float)__nv_fp8_e5m2(1000.0f);", lambda t: _e4m3(0.3 * t) + 1024),
        "x2 and x4": ("r = ((float2)__nv_fp8x2_e4m3(make_float2(1, t))).y + ((float4)__nv_fp8x4_e5m2(make_float4(1, 2, 3, 4))).z;", lambda t: _e4m3(t) + 3),
        "__nv_cvt_float_to_fp8, __nv_cvt_fp8_to_halfraw": ("r = __nv_cvt_float_to_fp8(1e9f, __NV_SATFINITE, __NV_E4M3) + (float)half(__nv_cvt_fp8_to_halfraw(0x38, __NV_E4M3));", 0x7E + 1),
        "__nv_fp8_e8m0": ("r = (float)__nv_fp8_e8m0(3.0f);", 4),
    }, top="#include <cuda_fp8.h>"),
    Group("types", {
        "all vector types and make_*": ("char4 a = make_char4(1, 2, 3, 4); uchar2 b = make_uchar2(5, 6); short3 c = make_short3(7, 8, 9); longlong2 d = make_longlong2(1, 2); double3 e = make_double3(1, 2, 3); ulonglong4 f = make_ulonglong4(1, 2, 3, t); float1 g = make_float1(3); r = a.w + b.y + c.z + d.y + e.z + f.w + g.x;", lambda t: 4 + 6 + 9 + 2 + 3 + t + 3),
        "sizes and alignments": ("static_assert(sizeof(float3) == 12 && alignof(float4) == 16 && sizeof(char4) == 4 && alignof(double2) == 16, \"\"); r = sizeof(uint3) + alignof(longlong4);", 28),
        "dim3 and uint3": ("dim3 d(2, 3); uint3 u = threadIdx; d = dim3(u); uint3 v = d; r = v.x + blockDim.x + gridDim.y;", lambda t: t + 33),
        "reinterpret_cast<uint4 *>": ("__shared__ __align__(16) float s[128]; reinterpret_cast<uint4 *>(s)[t] = make_uint4(__float_as_uint(1.0f), 0, 0, 0); r = s[4 * t];", 1),
        "CUtensorMap (cuda.h)": ("r = sizeof(CUtensorMap) + alignof(CUtensorMap);", 192),
        "unions": ("union { float f; unsigned u; } x; x.f = 1.0f; r = x.u >> 23;", 127),
        "lambdas, if constexpr, static_assert, constexpr functions": ("auto add = [&](float x) { return x + t; }; r = add(two<3>());", lambda t: 9 + t),
        "__device__ variables, __constant__ arrays, anonymous namespaces": ("if (t == 0) counter = 5; __syncwarp(); r = table[t % 4] + counter;", lambda t: t % 4 + 1 + 5),
        "__launch_bounds__ with 1 to 3 arguments, __grid_constant__, __restrict__": ("r = bounded;", 1),
    }, top="#include <cuda.h>\n"
           "namespace { __device__ int counter; __constant__ float table[4] = {1, 2, 3, 4}; const int bounded = 1; }\n"
           "template <int N> constexpr int two() { static_assert(N > 0, \"\"); if constexpr (N == 3) return 9; else return 2; }\n"
           "__global__ void __launch_bounds__(32) g1(const float *__restrict__) {}\n"
           "__global__ void __launch_bounds__(32, 2) g2(const __grid_constant__ int) {}\n"
           "__global__ __launch_bounds__(32, 2, 1) void g3() {}\n"),
    Group("shared memory", {
        "arrays, alignment, several declarators": ("__shared__ __align__(16) float a[32], b[2][16]; a[t] = t; b[t / 16][t % 16] = 1; __syncwarp(); r = a[31 - t] + b[1][3];", lambda t: 32 - t),
        "structs without a name": ("__shared__ struct { float x[32]; int n; } s; s.x[t] = t; __syncwarp(); r = s.x[0] + s.x[31 - t];", lambda t: 31 - t),
        "outside of functions": ("tile[t] = t; __syncwarp(); r = tile[31 - t];", lambda t: 31 - t),
        "extern __shared__, several times and types": ("extern __shared__ float s[]; s[t] = t; __syncwarp(); r = again(31 - t);", lambda t: 31 - t),
        "in templates": ("r = reversed<float, 32>(t);", lambda t: 31 - t),
        "__cvta_generic_to_shared, __isShared": ("__shared__ float s[1]; if (t == 0) s[0] = 1; __syncwarp(); r = *(float *)__cvta_shared_to_generic(__cvta_generic_to_shared(s)) == 1 && __isShared(s) && !__isShared(out);", 1),
    }, top="__shared__ float tile[32];\n__device__ float again(int i) { extern __shared__ int s[]; return __int_as_float(s[i]); }\n"
           "template <class T, int N> __device__ T reversed(int t) { __shared__ T s[N]; s[t] = t; __syncwarp(); return s[N - 1 - t]; }\n"),
    Group("warps and blocks", {
        "__shfl_sync, _up, _down, _xor of 32 and 64 bits": ("r = __shfl_sync(~0u, t, 3) + __shfl_up_sync(~0u, (double)t, 1) + __shfl_down_sync(~0u, (long long)t, 1) + __shfl_xor_sync(~0u, (float)t, 16, 32);", lambda t: 3 + max(t - 1, 0) + min(t + 1, 31) + (t ^ 16) if t else 3 + 0 + 1 + 16),
        "__ballot_sync __any_sync __all_sync __syncwarp": ("r = __popc(__ballot_sync(~0u, t < 5)) + __any_sync(~0u, t == 9) + __all_sync(~0u, t < 32);", 7),
        "__reduce_add/min/max/and/or/xor_sync": ("r = __reduce_add_sync(~0u, t) + __reduce_min_sync(~0u, (unsigned)t + 3) + __reduce_max_sync(~0u, -t) + __reduce_or_sync(~0u, 1u << t % 3) + __reduce_and_sync(~0u, 7u) + __reduce_xor_sync(~0u, 1u);", 496 + 3 + 0 + 7 + 7),
        "__match_any_sync __match_all_sync": ("int p; __match_all_sync(~0u, 1.5f, &p); r = __popc(__match_any_sync(~0u, t / 8)) + p;", 9),
        "__activemask in a branch": ("if (t < 7) r = __popc(__activemask());", lambda t: 7 if t < 7 else 0),
        "__syncthreads, _count, _and, _or": ("__syncthreads(); r = __syncthreads_count(t < 3) + __syncthreads_and(t < 32) + __syncthreads_or(t == 2);", 5),
        "__threadfence, _block, _system": ("__threadfence(); __threadfence_block(); __threadfence_system(); r = 1;", 1),
        "clock64, clock, __nanosleep, warpSize": ("long long from = clock64(); __nanosleep(100); r = warpSize + (clock64() >= from) + 0 * clock();", 33),
        "assert, printf, __trap": ("assert(t < 32); if (t > 99) { printf(\"%d\", t); __trap(); } r = 1;", 1),
        "malloc and free in a kernel": ("float *p = (float *)malloc(8); p[1] = t; r = p[1]; free(p);", lambda t: t),
    }),
    Group("atomics", {
        "atomicAdd of int, unsigned, 64 bits, float, double, float2, float4": ("__shared__ int i; __shared__ unsigned long long l; __shared__ float f; __shared__ double d; __shared__ float4 v; if (t == 0) { i = 0; l = 0; f = 0; d = 0; v = make_float4(0, 0, 0, 0); } __syncwarp(); atomicAdd(&i, 1); atomicAdd(&l, 1ull); atomicAdd(&f, 0.5f); atomicAdd(&d, 0.5); atomicAdd(&v, make_float4(1, 2, 3, 4)); __syncwarp(); r = i + l + f + d + v.w;", 32 + 32 + 16 + 16 + 128),
        "atomicSub Exch Min Max And Or Xor Inc Dec": ("__shared__ int i; __shared__ unsigned u; if (t == 0) { i = 100; u = 0; } __syncwarp(); atomicSub(&i, 1); atomicMin(&i, 1000); atomicInc(&u, 100u); __syncwarp(); atomicMax(&i, 70); atomicOr(&u, 64u); __syncwarp(); r = i + u;", 70 + 96),
        "atomicCAS of 16, 32 and 64 bits": ("__shared__ unsigned short h; __shared__ unsigned long long l; if (t == 0) { h = 0; l = 0; } __syncwarp(); atomicCAS(&h, (unsigned short)0, (unsigned short)9); atomicCAS(&l, 0ull, 4ull); __syncwarp(); r = h + l;", 13),
        "64 bits: atomicMin, atomicMax, signed": ("__shared__ long long l; if (t == 0) l = -5; __syncwarp(); atomicMax(&l, (long long)t - 10); __syncwarp(); r = l;", 21),
        "_block and _system": ("__shared__ int i; if (t == 0) i = 0; __syncwarp(); atomicAdd_block(&i, 1); atomicAdd_system(&i, 1); __syncwarp(); r = i;", 64),
    }),
    Group("numbers", {
        "__popc __clz __ffs __brev and of 64 bits, __fns": ("r = __popc(t) + __clz(1 << t) + __ffs(8) + (__brev(1u) >> 31) + __popcll(~0ull) + __clzll(1) + __ffsll(1ll << 40) + __fns(0xf0u, 0, 2);", lambda t: t.bit_count() + 31 - t + 4 + 1 + 64 + 63 + 41 + 5),
        "__mulhi __umul64hi __mul24 __sad __byte_perm __funnelshift_l __dp4a": ("r = __mulhi(1 << 30, 8) + __umul64hi(1ull << 63, 4) + __mul24(3, t) + __sad(3, 5, 1u) + (__byte_perm(0x11223344, 0, 0x0003) == 0x44444411) + __funnelshift_l(0x80000000u, 1, 1) + __dp4a(0x01010101, 0x02020202, 1);", lambda t: 2 + 2 + 3 * t + 3 + 1 + 3 + 9),
        "__expf __logf __powf __sinf __fdividef __saturatef rsqrtf exp10f sincosf": ("float s, c; sincosf(0.5f, &s, &c); r = __expf(1) + __logf(2) + __powf(2, 3) + __sinf(1) + __fdividef(t, 2) + __saturatef(7) + rsqrtf(4) + exp10f(1) + s + c;", lambda t: math.e + math.log(2) + 8 + math.sin(1) + t / 2 + 1 + 0.5 + 10 + math.sin(0.5) + math.cos(0.5)),
        "__fadd_rz … __fsqrt_rd, __dadd_ru, __fmaf_rn": ("r = (__fadd_rd(1.0f, -0x1p-30f) < 1) + (__fadd_ru(1.0f, 0x1p-30f) > 1) + (__fmul_rz(1.0000001f, 1.0000001f) < 1.0000003f) + (__fdiv_ru(1, 3) > __fdiv_rd(1, 3)) + (__fsqrt_ru(2) > __fsqrt_rd(2)) + (__dadd_ru(1.0, 1e-30) > 1.0) + (__drcp_rd(3.0) < __drcp_ru(3.0)) + __fmaf_rn(2, 3, 1);", 14),
        "__float2int_rn … __ull2float_ru, __double2loint": ("r = __float2int_rn(2.5f) + __float2int_ru(2.1f) + __float2uint_rz(-3.0f) + __float2ll_rd(-1.5f) + __double2int_rn(3.5) + (__ull2float_ru(16777217ull) > 16777216.0f) + __double2hiint(1.0) / 0x100000 + __hiloint2double(0x3ff00000, 0);", 2 + 3 + 0 - 2 + 4 + 1 + 1023 + 1),
        "min and max of mixed types": ("r = min(1, 2u) + max(1.0, 2.0f) + max((long long)t, 3ll) + fminf(1, 2);", lambda t: 1 + 2 + max(t, 3) + 1),
        "normcdff erff rcbrtf sinpif hypotf": ("r = normcdff(0) + erff(0) + rcbrtf(8) + sinpif(0.5f) + hypotf(3, 4);", 0.5 + 0 + 0.5 + 1 + 5),
        "__ldg __ldcs __ldcg __ldca __stcs __stcg __stwt": ("__stcs(out + t, 2.0f); r = __ldcs(out + t) + __ldg(&scale) + __ldca(&scale); __stwt(out + t, r);", 8),
        "CUDART_INF_F, math_constants.h": ("r = CUDART_PI_F + (1.0f < CUDART_INF_F);", math.pi + 1),
        "__builtin_assume, #pragma unroll, volatile": ("__builtin_assume(t < 32);\n#pragma unroll 4\nfor (volatile int i = 0; i < 4; i = i + 1) r += i;", 6),
    }, top="#include <math_constants.h>\n#include <cuda_runtime.h>\n#include <stdint.h>\n__device__ const float scale = 3;"),
    Group("cooperative groups", {
        "thread_block, tiled_partition<N>, shuffles": ("auto block = cg::this_thread_block(); auto tile = cg::tiled_partition<8>(block); block.sync(); r = tile.shfl(t, 3) + tile.thread_rank() + tile.meta_group_rank() + tile.shfl_xor(t, 1) + tile.num_threads();", lambda t: t // 8 * 8 + 3 + t % 8 + t // 8 + (t ^ 1) + 8),
        "tiles that go on at their own pace": ("auto tile = cg::tiled_partition<4>(cg::this_thread_block()); for (int i = 0; i <= t / 4; i++) r += tile.shfl_down(1, 1); cg::tiled_partition<32>(cg::this_thread_block()).sync();", lambda t: t // 4 + 1),
        "tiled_partition at run time, thread_group": ("cg::thread_group g = cg::tiled_partition(cg::this_thread_block(), 16); g.sync(); r = g.thread_rank() + g.size();", lambda t: t % 16 + 16),
        "coalesced_threads in a branch": ("if (t % 3 == 0) { auto g = cg::coalesced_threads(); r = g.size() + g.thread_rank() + g.shfl(t, 1); }", lambda t: 11 + t // 3 + 3 if t % 3 == 0 else 0),
        "reduce": ("auto tile = cg::tiled_partition<16>(cg::this_thread_block()); r = cg::reduce(tile, t, cg::plus<int>()) + cg::reduce(tile, (float)t, cg::greater<float>());", lambda t: (120 if t < 16 else 376) + (15 if t < 16 else 31)),
        "inclusive_scan, exclusive_scan": ("auto warp = cg::tiled_partition<32>(cg::this_thread_block()); r = cg::inclusive_scan(warp, 1) + cg::exclusive_scan(warp, 1);", lambda t: 2 * t + 1),
        "labeled_partition, binary_partition": ("auto warp = cg::tiled_partition<32>(cg::this_thread_block()); r = cg::labeled_partition(warp, t / 4).size() + cg::binary_partition(warp, t < 10).size();", lambda t: 4 + (10 if t < 10 else 22)),
        "memcpy_async, wait": ("__shared__ __align__(16) float s[32]; auto block = cg::this_thread_block(); cg::memcpy_async(block, s, constants, sizeof s); cg::wait(block); r = s[31 - t];", lambda t: 1 if t == 31 else 0),
        "this_grid().sync(), as many CTAs as fit at once": ("cg::this_grid().sync(); r = cg::this_grid().size();", 32),
    }, top="#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n#include <cooperative_groups/scan.h>\n"
           "#include <cooperative_groups/memcpy_async.h>\nnamespace cg = cooperative_groups;\n__device__ __align__(16) float constants[32] = {1};"),
    Group("thread block clusters (sm_90)", {
        "cluster_group: sizes and ranks": ("auto c = cg::this_cluster(); r = c.num_blocks() + 10 * c.block_rank() + 100 * c.num_threads() + c.dim_blocks().x;", 2 + 6400 + 2),
        "map_shared_rank, sync": ("__shared__ float s[32]; auto c = cg::this_cluster(); s[t] = t + 100 * c.block_rank(); c.sync(); r = c.map_shared_rank(s, 1)[31 - t]; c.sync();", lambda t: 131 - t),
        "barrier_arrive, barrier_wait": ("__shared__ float s[32]; auto c = cg::this_cluster(); s[t] = c.block_rank() + 1; auto token = c.barrier_arrive(); c.barrier_wait(static_cast<decltype(token) &&>(token)); r = *c.map_shared_rank(&s[t], 1); c.sync();", 2),
        "atomics on another CTA's shared memory": ("__shared__ int s; auto c = cg::this_cluster(); if (t == 0) s = 0; c.sync(); atomicAdd(c.map_shared_rank(&s, 0), 1); c.sync(); r = s;", 64),
        "__cluster_barrier_arrive, __cluster_map_shared_rank": ("__shared__ float s[32]; s[t] = t + __clusterRelativeBlockRank(); __cluster_barrier_arrive(); __cluster_barrier_wait(); r = ((float *)__cluster_map_shared_rank(s, 1))[t] + __clusterSizeInBlocks(); __cluster_barrier_arrive(); __cluster_barrier_wait();", lambda t: t + 3),
        "mapa, ld.shared::cluster, barrier.cluster, %cluster_ctarank": (
            '__shared__ float s[32]; unsigned rank, at; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); s[t] = t + rank;\n'
            'asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");\n'
            'asm("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(at) : "r"((unsigned)__cvta_generic_to_shared(s + t)));\n'
            'asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(r) : "r"(at)); cg::this_cluster().sync();', lambda t: t + 1),
    }, top="#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;", ctas=2, arch="sm_90a"),
    Group("tensor cores (mma.h)", {
        f"wmma {shape} of {kind}": (_wmma(shape, kind, sums), lambda _t, shape=shape: 2.0 * int(shape.split("x")[2]) + 1)
        for shape, kind, sums in (
            ("16x16x16", "half", "float"), ("32x8x16", "half", "half"), ("8x32x16", "__nv_bfloat16", "float"),
            ("16x16x8", "wmma::precision::tf32", "float"), ("16x16x16", "signed char", "int"), ("8x8x4", "double", "double"),
        )
    }, top="#include <mma.h>\nusing namespace nvcuda;"),
    Group("asynchronous copies", {
        "__pipeline_memcpy_async (cuda_pipeline.h)": ("__shared__ __align__(16) float s[128]; __pipeline_memcpy_async(s + 4 * t, source + 4 * t, 16); __pipeline_commit(); __pipeline_wait_prior(0); __syncwarp(); r = s[127 - t];", 2),
    }, top="#include <cuda_pipeline.h>\n__device__ __align__(16) float source[128] = {TWOS};".replace("TWOS", ", ".join(["2"] * 128))),
    Group("host code in the file", {
        "<<<...>>>, cudaMalloc, main: ignored": ("r = 1;", 1),
    }, top="#include <vector>\n#include <cstdio>\n__global__ void k2(float *p) {}\nvoid launch(float *p, cudaStream_t s) { k2<<<1, 32, 0, s>>>(p); cudaDeviceSynchronize(); }\nint main() { std::vector<float> v(3); float *p; cudaMalloc(&p, 4); launch(p, 0); }"),
)  # fmt: skip

# name → (top, body, what the error names)
LACKING = {
    "cluster_group below sm_90": ("#include <cooperative_groups.h>", "cooperative_groups::this_cluster().sync();", "thread block clusters"),
    "cuda::barrier, cuda::pipeline": (
        "#include <cuda/barrier>",
        "__shared__ cuda::barrier<cuda::thread_scope_block> b; b.arrive_and_wait();",
        "libcu",
    ),
    "cub": (
        "#include <cub/cub.cuh>",
        "__shared__ cub::WarpReduce<float>::TempStorage s; out[0] = cub::WarpReduce<float>(s).Sum(1);",
        "libcu",
    ),
    "CUTLASS, CuTe": ("#include <cute/tensor.hpp>", "out[0] = cute::size(1);", "CUTLASS"),
    "FP4, FP6": ("#include <cuda_fp4.h>", "", "FP4 and FP6"),
    "textures": ("", "out[0] = tex2D<float>(0, 0, 0);", "textures"),
    "kernels that launch kernels": ("__global__ void g() {}", "g<<<1, 1>>>();", "launches of a kernel from a kernel"),
    "warp functions without a mask": ("", "out[0] = __shfl(1, 0);", "without a mask"),
    "SIMD video instructions": ("", "out[0] = __vadd4(1, 2);", "SIMD video"),
    "tiles of more than a warp": ("#include <cooperative_groups.h>", "cooperative_groups::tiled_partition<64>(cooperative_groups::this_thread_block());", "tiles of 1, 2, 4, 8, 16 or 32"),
    "wmma of 1 and 4 bits": ("#include <mma.h>", "nvcuda::wmma::bmma_sync(0, 0, 0, 0);", "wmma of 1 and 4 bits"),
    "any other intrinsic": ("", "out[0] = __some_intrinsic(1);", "does not know __some_intrinsic"),
}  # fmt: skip
