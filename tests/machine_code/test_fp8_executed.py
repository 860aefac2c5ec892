"""FP8 in machine code: conversions and tensor-core products, compared with tables computed here."""

from __future__ import annotations

import struct
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from numpy.typing import NDArray
from small_kernels import counted
from words import raises

from engine.cuda_source import compile_kernel
from engine.machine_code.analysis import launch_figures, program_of
from engine.machine_code.cubin import Cubin, read_cubin
from engine.machine_code.execution import ExecutionFault, GlobalBuffer, execute, load_module
from engine.machine_code.launch import Launch, buffer_address
from engine.machine_code.timing.native import tensor_fmas

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

FORMATS = ("e4m3", "e5m2")
PAIRS = tuple(product(FORMATS, FORMATS))
ARCHS = ("sm_89", "sm_90a", "sm_120")


def value_of(byte: int, kind: str) -> float:
    """Return the byte's value by the formats' definition (OCP 8-bit floating point, table 1)."""
    mantissa_bits, bias = (3, 7) if kind == "e4m3" else (2, 15)
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = byte >> mantissa_bits & (31 if kind == "e5m2" else 15), byte & 7
    mantissa &= (1 << mantissa_bits) - 1
    if kind == "e5m2" and exponent == 31:
        return sign * np.inf if mantissa == 0 else np.nan
    if kind == "e4m3" and byte & 0x7F == 0x7F:
        return np.nan
    fraction = mantissa / (1 << mantissa_bits)
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias)
    return sign * (1 + fraction) * 2.0 ** (exponent - bias)


TABLES = {kind: np.array([value_of(byte, kind) for byte in range(256)]) for kind in FORMATS}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def bytes_of(values: NDArray[np.float64], kind: str) -> NDArray[np.uint8]:
    """Round to the nearest FP8 number, ties to even, saturating at the largest."""
    positive = TABLES[kind][: 0x7F if kind == "e4m3" else 0x7C]
    magnitude = np.minimum(np.nan_to_num(np.abs(values), nan=0, posinf=np.inf), LARGEST[kind])
    above = np.searchsorted(positive, magnitude).clip(1, len(positive) - 1)
    to_above, to_below = positive[above] - magnitude, magnitude - positive[above - 1]
    near = np.where(to_above == to_below, above + above % 2 - 2 * (above % 2), above)
    near = np.where(to_above < to_below, above, np.where(to_above > to_below, above - 1, near))
    out = near | np.where(np.signbit(values), 0x80, 0)
    return np.where(np.isnan(values), 0x7F, out).astype(np.uint8)


@cache
def compiled(source: str, arch: str) -> Cubin:
    with TemporaryDirectory() as folder:
        path = Path(folder, "k.cu")
        path.write_text(source)
        return read_cubin(compile_kernel(path, (), arch, ()).cubin)


def run(
    source: str,
    arch: str,
    buffers: list[NDArray[np.generic]],
    *,
    entry: str = "k",
    threads: int = 32,
    grid: int = 1,
    smem: int = 0,
) -> None:
    """Run an entry of `source` on pointers to the buffers, which are changed in place."""
    cubin = compiled(source, arch)
    module = load_module(cubin)
    named = [
        GlobalBuffer(f"b{n}", buffer_address(n), data.reshape(-1).view(np.uint8))
        for n, data in enumerate(buffers)
    ]
    pointers = tuple(struct.pack("<Q", buffer_address(n)) for n in range(len(buffers)))
    launch = Launch((grid, 1, 1), (threads, 1, 1), smem, pointers)
    execute(program_of(cubin, entry), module.entries[entry], launch, [*named, *module.buffers])


# Entries by the types that they convert, all in one file.
CONVERSIONS = "".join(
    f"""
extern "C" __global__ void widen_{kind}{relu}(const unsigned* x, uint2* y) {{
    unsigned v = x[threadIdx.x]; uint2 r;
    asm("cvt.rn{relu.replace("_", ".")}.f16x2.{kind}x2 %0, %1;"
        : "=r"(r.x) : "h"((short)v));
    asm("cvt.rn{relu.replace("_", ".")}.f16x2.{kind}x2 %0, %1;"
        : "=r"(r.y) : "h"((short)(v >> 16)));
    y[threadIdx.x] = r;
}}
extern "C" __global__ void narrow_{kind}{relu}(const float4* x, unsigned* y) {{
    int t = blockIdx.x * 32 + threadIdx.x; float4 v = x[t]; unsigned short a, b;
    asm("cvt.rn.satfinite{relu.replace("_", ".")}.{kind}x2.f32 %0, %1, %2;"
        : "=h"(a) : "f"(v.y), "f"(v.x));
    asm("cvt.rn.satfinite{relu.replace("_", ".")}.{kind}x2.f32 %0, %1, %2;"
        : "=h"(b) : "f"(v.w), "f"(v.z));
    y[t] = a | (unsigned)b << 16;
}}
extern "C" __global__ void halve_{kind}{relu}(const unsigned* x, unsigned short* y) {{
    int t = blockIdx.x * 128 + threadIdx.x;
    asm("cvt.rn.satfinite{relu.replace("_", ".")}.{kind}x2.f16x2 %0, %1;" : "=h"(y[t]) : "r"(x[t]));
}}"""
    for kind, relu in product(FORMATS, ("", "_relu"))
)


@pytest.mark.parametrize("relu", ["", "_relu"])
@pytest.mark.parametrize(("arch", "kind"), tuple(product((*ARCHS, "sm_100a"), FORMATS)))
def test_e4m3_bytes_are_converted_to_half(arch: str, kind: str, relu: str) -> None:
    x, y = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint16)
    run(CONVERSIONS, arch, [x, y], entry=f"widen_{kind}{relu}", threads=64)
    expected = TABLES[kind]
    if relu:
        expected = np.where(expected < 0, 0, expected)
    halves = y.view(np.float16)
    np.testing.assert_array_equal(halves, expected)
    assert set(y[np.isnan(halves)].tolist()) == {0x7FFF}
    assert y[0x80] == (0 if relu else 0x8000)


def numbers() -> NDArray[np.float32]:
    """Return all numbers of both formats, midpoints between them, neighbours of those, and more."""
    at = np.concatenate([table[np.isfinite(table)] for table in TABLES.values()])
    at = np.unique(np.concatenate([at, (at[1:] + at[:-1]) / 2, np.diff(at) / 3 + at[:-1]]))
    at = np.unique(np.concatenate([np.sort(at), (np.sort(at)[1:] + np.sort(at)[:-1]) / 2]))
    single = at.astype(np.float32)
    beside = [np.nextafter(single, np.float32(way)) for way in (-np.inf, np.inf)]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 3e38, 1e-45, 464.0, 465.0, 61440.0]
    wide = np.exp2(np.random.default_rng(1).uniform(-25, 20, 500))
    every = np.concatenate([single, *beside, special, wide, -wide]).astype(np.float32)
    return every[: len(every) // 128 * 128]


@pytest.mark.parametrize("relu", ["", "_relu"])
@pytest.mark.parametrize(("arch", "kind"), tuple(product(ARCHS, FORMATS)))
def test_four_floats_are_converted_to_bytes(arch: str, kind: str, relu: str) -> None:
    x = numbers()
    y = np.zeros(len(x), np.uint8)
    run(CONVERSIONS, arch, [x, y], entry=f"narrow_{kind}{relu}", grid=len(x) // 128)
    rounded = np.where(x <= 0, np.float32(0), x) if relu else x
    np.testing.assert_array_equal(y, bytes_of(rounded.astype(np.float64), kind))


@pytest.mark.parametrize(("arch", "kind"), tuple(product(ARCHS, FORMATS)))
def test_every_half_is_converted_to_a_byte(arch: str, kind: str) -> None:
    """All 65,536 of them."""
    x, y = np.arange(65536, dtype=np.uint16), np.zeros(65536, np.uint8)
    run(CONVERSIONS, arch, [x, y], entry=f"halve_{kind}", threads=128, grid=256)
    np.testing.assert_array_equal(y, bytes_of(x.view(np.float16).astype(np.float64), kind))


def test_bfloat16_is_converted_to_bytes_by_one_instruction() -> None:
    source = """#include <cuda_fp8.h>
extern "C" __global__ void k(const unsigned* x, unsigned short* y) {
    int t = blockIdx.x * 128 + threadIdx.x;
    __nv_bfloat162_raw v = {(unsigned short)x[t], (unsigned short)(x[t] >> 16)};
    y[t] = __nv_cvt_bfloat16raw2_to_fp8x2(v, __NV_SATFINITE, __NV_E5M2);
}"""
    x, y = np.arange(65536, dtype=np.uint16), np.zeros(65536, np.uint8)
    run(source, "sm_100a", [x, y], threads=128, grid=256)
    with np.errstate(invalid="ignore"):
        values = (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    np.testing.assert_array_equal(y, bytes_of(values, "e5m2"))


def test_relu_keeps_nan() -> None:
    source = """extern "C" __global__ void k(const float* x, unsigned* y) {
    unsigned h, b, f;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(x[0]), "f"(x[1]));
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(x[0]), "f"(x[1]));
    asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(f) : "r"(h), "r"(h), "r"(0xc000c000));
    y[0] = h, y[1] = b, y[2] = f;
}"""
    x, y = np.array([np.nan, -1.0], np.float32), np.zeros(3, np.uint32)
    run(source, "sm_80", [x, y], threads=1)
    assert [hex(word) for word in y] == ["0x7fff0000", "0x7fff0000", "0x7fff0000"]


def random_bytes(shape: tuple[int, ...], kind: str, seed: int) -> NDArray[np.uint8]:
    """Return finite numbers of medium magnitude."""
    values = np.random.default_rng(seed).normal(0, 2, shape)
    return bytes_of(values, kind)


def product_of(
    a: NDArray[np.uint8], b: NDArray[np.uint8], kinds: tuple[str, str]
) -> NDArray[np.float64]:
    """Return A `[m, k]` times B `[n, k]`, in float64."""
    out: NDArray[np.float64] = TABLES[kinds[0]][a] @ TABLES[kinds[1]][b].T
    return out


def warp_source(kinds: tuple[str, str], depth: int, sums: str) -> str:
    """Return an entry of one mma.m16n8k`depth`: fragments of A and B, and accumulators."""
    left, right, words = depth // 8, depth // 16, 4 if sums == "f32" else 2
    names = [f"%{n}" for n in range(2 * words + left + right)]
    groups, start = [], 0
    for count in (words, left, right, words):
        groups.append("{" + ", ".join(names[start : start + count]) + "}")
        start += count
    letter, word = ("f", "float") if sums == "f32" else ("r", "unsigned")
    outs = ", ".join(f'"={letter}"(D[{n}])' for n in range(words))
    ins = ", ".join(
        [
            *(f'"r"(a[t * {left} + {n}])' for n in range(left)),
            *(f'"r"(b[t * {right} + {n}])' for n in range(right)),
            *(f'"{letter}"(c[t * {words} + {n}])' for n in range(words)),
        ]
    )
    name = f"mma.sync.aligned.m16n8k{depth}.row.col.{sums}.{kinds[0]}.{kinds[1]}.{sums}"
    entry = f"{kinds[0]}_{kinds[1]}_{depth}_{sums}"
    return f"""
extern "C" __global__ void {entry}(const unsigned* a, const unsigned* b, {word}* c) {{
    int t = threadIdx.x; {word} D[{words}];
    asm("{name} {", ".join(groups)};" : {outs} : {ins});
    for (int n = 0; n < {words}; n++) c[t * {words} + n] = D[n];
}}"""


WARPS = "".join(
    warp_source(kinds, depth, sums)
    for kinds, depth, sums in product(PAIRS, (16, 32), ("f32", "f16"))
)


@pytest.mark.parametrize("sums", ["f32", "f16"])
@pytest.mark.parametrize("depth", [16, 32])
@pytest.mark.parametrize(("arch", "kinds"), tuple(product(ARCHS, PAIRS)))
def test_products_of_a_warp(arch: str, kinds: tuple[str, str], depth: int, sums: str) -> None:
    left, right = depth // 8, depth // 16
    a, b = random_bytes((16, depth), kinds[0], 1), random_bytes((8, depth), kinds[1], 2)
    c = np.random.default_rng(3).normal(size=(16, 8)).astype(np.float32)
    c = c if sums == "f32" else c.astype(np.float16)
    lane = np.arange(32)
    # Fragments by the PTX manual: four bytes of a row along k; sums two columns of a row.
    rows, ks = lane // 4, lane % 4 * 4
    of_a = np.stack(
        [
            a[rows + 8 * (n & 1), :][lane[:, None], (ks + 16 * (n >> 1))[:, None] + np.arange(4)]
            for n in range(left)
        ],
        1,
    )
    of_b = np.stack(
        [b[rows, :][lane[:, None], (ks + 16 * n)[:, None] + np.arange(4)] for n in range(right)], 1
    )
    columns = (lane % 4 * 2)[:, None] + np.arange(2)
    of_c = np.stack([c[(rows + 8 * n)[:, None], columns] for n in range(2)], 1)
    out = np.ascontiguousarray(of_c)
    entry = f"{kinds[0]}_{kinds[1]}_{depth}_{sums}"
    run(WARPS, arch, [np.ascontiguousarray(of_a), np.ascontiguousarray(of_b), out], entry=entry)
    found = np.zeros((16, 8))
    for n in range(2):
        found[(rows + 8 * n)[:, None], columns] = out[:, n]
    expected = product_of(a, b, kinds) + c
    tolerance = 1e-5 if sums == "f32" else 0.1  # half a unit of sums of some 100, twice on sm_90
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def swizzled(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return `[n, 128]` bytes in TMA's 128-byte swizzle."""
    n, k = np.indices(rows.shape)
    out = np.zeros(rows.size, np.uint8)
    out[n * 128 + (k ^ n % 8 << 4)] = rows
    return out


def group_source(
    kinds: tuple[str, str], sums: str, columns: int, in_registers: bool, scales: tuple[int, int]
) -> str:
    """Return an entry with a warpgroup's product of 64 rows over 128 bytes of K, in steps of 32."""
    depth = 32 if kinds[0] in FORMATS else 16
    entry = entry_of(kinds, sums, columns, in_registers, scales)
    words = columns // (2 if sums == "f32" else 4)
    letter, word = ("f", "float") if sums == "f32" else ("r", "unsigned")
    of_sums = "{" + ", ".join(f"%{n}" for n in range(words)) + "}"
    of_a = "{" + ", ".join(f"%{words + n}" for n in range(4)) + "}"
    of_a = of_a if in_registers else f"%{words}"
    at_b = words + (4 if in_registers else 1)
    majors = "" if depth == 32 else ", 0" if in_registers else ", 0, 0"
    outs = ", ".join(f'"+{letter}"(d[{n}])' for n in range(words))
    registers = ", ".join(f'"r"(a[step * 4 + {n}])' for n in range(4))
    ins = registers if in_registers else '"l"(da + 2 * step)'
    shape = f"m64n{columns}k{depth}.{sums}.{kinds[0]}.{kinds[1]}"
    return f"""
extern "C" __global__ void {entry}(const uint4* x, const unsigned* a_of_all, {word}* y) {{
    extern __shared__ __align__(1024) uint4 s[];
    for (int i = threadIdx.x; i < (64 + {columns}) * 8; i += 128) s[i] = x[i];
    __syncthreads();
    asm volatile("fence.proxy.async;");
    const unsigned* a = a_of_all + threadIdx.x * 16;
    unsigned long long at = (unsigned)__cvta_generic_to_shared(s) >> 4;
    unsigned long long da = at | 1ull << 16 | 64ull << 32 | 1ull << 62, db = da + 512;
    {word} d[{words}] = {{}};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int step = 0; step < 4; step++)
        asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{at_b + 1}, 0; "
            "wgmma.mma_async.sync.aligned.{shape} "
            "{of_sums}, {of_a}, %{at_b}, p, {scales[0]}, {scales[1]}{majors}; }}"
            : {outs} : {ins}, "l"(db + 2 * step), "r"(step));
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int n = 0; n < {words}; n++) y[threadIdx.x * {words} + n] = d[n];
}}"""


def entry_of(
    kinds: tuple[str, str], sums: str, columns: int, in_registers: bool, scales: tuple[int, int]
) -> str:
    signs = "".join("p" if scale > 0 else "n" for scale in scales)
    return f"{kinds[0]}_{kinds[1]}_{sums}_{columns}_{'r' if in_registers else 's'}_{signs}"


GROUPS = (
    *((kinds, "f32", columns) for kinds, columns in zip(PAIRS, (8, 64, 24, 128), strict=True)),
    (("e4m3", "e5m2"), "f16", 16),
    (("f16", "f16"), "f16", 16),
    (("f16", "f16"), "f32", 16),
    (("bf16", "bf16"), "f32", 32),
)
SCALES = ((1, 1), (1, -1), (-1, 1), (-1, -1))


def sums_of_group(y: NDArray[np.generic], columns: int) -> NDArray[np.float64]:
    """Return `[64, columns]` from the threads' registers: 16 rows a warp, 2 of 8 columns a lane."""
    thread, block, half, column = np.indices((128, columns // 8, 2, 2))
    rows = thread // 32 * 16 + thread % 32 // 4 + 8 * half
    found = np.zeros((64, columns))
    found[rows, block * 8 + thread % 4 * 2 + column] = y.reshape(128, columns // 8, 2, 2)
    return found


def group_sources() -> str:
    return "".join(
        group_source(*group, in_registers, scales)
        for group, in_registers, scales in product(GROUPS, (False, True), SCALES)
    )


@pytest.mark.parametrize("in_registers", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kinds", "sums", "columns"), GROUPS)
def test_products_of_a_warpgroup(
    kinds: tuple[str, str], sums: str, columns: int, in_registers: bool
) -> None:
    depth = 32 if kinds[0] in FORMATS else 16
    if depth == 32:
        a = random_bytes((64, 128), kinds[0], 4)
        b = random_bytes((columns, 128), kinds[1], 5)
        expected = product_of(a, b, kinds)
    else:
        of_a, of_b = (
            np.random.default_rng(n).normal(size=(m, 64)) for n, m in ((6, 64), (7, columns))
        )
        shift = 0 if kinds[0] == "f16" else 16
        if shift:
            bits = [
                (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for x in (of_a, of_b)
            ]
            values = [(x.astype(np.uint32) << 16).view(np.float32).astype(float) for x in bits]
        else:
            bits = [x.astype(np.float16).view(np.uint16) for x in (of_a, of_b)]
            values = [x.view(np.float16).astype(float) for x in bits]
        a, b = (x.view(np.uint8) for x in bits)
        expected = values[0] @ values[1].T
    thread = np.arange(128)
    # A's fragments: bytes along K of a row, as for mma; each warp has 16 rows.
    row = thread // 32 * 16 + thread % 32 // 4
    k = np.arange(4)[:, None] * 32 + np.array([0, 0, 16, 16])[None, :]
    rows = row[:, None, None] + np.array([0, 8, 0, 8])[None, None, :]
    start = k[None, :, :] + (thread % 4 * 4)[:, None, None]
    registers = np.ascontiguousarray(a[rows[..., None], start[..., None] + np.arange(4)])
    tolerance = 1e-4 if sums == "f32" else 0.5 if depth == 32 else 0.1
    found = {}
    for scales in SCALES:
        y = np.zeros((128, columns // 2), np.float32 if sums == "f32" else np.float16)
        run(
            group_sources(),
            "sm_90a",
            [np.concatenate([swizzled(a), swizzled(b)]), registers, y],
            entry=entry_of(kinds, sums, columns, in_registers, scales),
            threads=128,
            smem=(64 + columns) * 128,
        )
        found[scales] = sums_of_group(y, columns)
        of_sign = expected * scales[0] * scales[1]
        np.testing.assert_allclose(found[scales], of_sign, rtol=0, atol=tolerance)
    # Negated twice: by the general code, and by the fast path of the usual case.
    np.testing.assert_array_equal(found[1, 1], found[-1, -1])


@pytest.mark.parametrize(
    ("arch", "body", "name", "facts"),
    [
        (
            "sm_120a",
            'asm("cvt.rn.satfinite.e2m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(x[0]), "f"(x[1]));',
            "modifier_not_supported",
            ["E2M3"],
        ),
        (
            "sm_120a",
            'asm("cvt.rp.satfinite.ue8m0x2.f32 %0, %1, %2;" : "=h"(r) : "f"(x[0]), "f"(x[1]));',
            "modifier_not_supported",
            ["E8"],
        ),
        (
            "sm_90a",
            'float d[8] = {}; asm volatile("wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 '
            '{%0,%1,%2,%3,%4,%5,%6,%7}, %8, %8, 1, 1, 1;" : '
            + ", ".join(f'"+f"(d[{n}])' for n in range(8))
            + ' : "l"(x)); r = d[0] > 0;',
            "warpgroup_operation_not_supported",
            [],
        ),
    ],
)
def test_other_fp8_formats_are_refused_with_a_message(
    arch: str, body: str, name: str, facts: list[str]
) -> None:
    source = f"""extern "C" __global__ void k(const float* x, unsigned short* y) {{
    unsigned short r; {body} y[threadIdx.x] = r;
}}"""
    buffers: list[NDArray[np.generic]] = [np.zeros(64, np.float32), np.zeros(128, np.uint16)]
    with raises(ExecutionFault, name, *facts):
        run(source, arch, buffers, threads=128)


@pytest.mark.parametrize(("arch", "products"), [("sm_89", 1), ("sm_90a", 2), ("sm_120", 1)])
def test_conversions_and_products_are_counted(arch: str, products: int, tmp_path: Path) -> None:
    """Hopper converts the bytes of an mma to FP16 and executes two products."""
    source = """extern "C" __global__ void k(const unsigned* x, float* y) {
    int t = threadIdx.x; unsigned short p; float D[4] = {}; unsigned h;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((short)x[t]));
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(p) : "r"(h + x[t]));
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%4,%5},"
        " {%4,%5}, {%0,%1,%2,%3};"
        : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3]) : "r"((unsigned)p), "r"(x[t]));
    for (int n = 0; n < 4; n++) y[t * 4 + n] = D[n];
}"""
    analysis = counted(tmp_path, source, "ptr ptr", arch=arch)
    assert launch_figures(analysis.counts).tensor_math == products


def test_fp8_products_take_half_the_time_of_fp16_products() -> None:
    """In the simulation, tensor cores execute twice as many FP8 products per cycle."""

    def fmas(source: str, arch: str, entry: str) -> set[float]:
        program = program_of(compiled(source, arch), entry)
        return {tensor_fmas(i) for i in program.instructions} - {0.0}

    assert fmas(WARPS, "sm_89", "e4m3_e5m2_32_f32") == {16 * 8 * 32 / 2}
    assert fmas(WARPS, "sm_120", "e4m3_e5m2_16_f32") == {16 * 8 * 16 / 2}
    entry = entry_of(("e4m3", "e5m2"), "f32", 64, False, (1, 1))
    assert fmas(group_sources(), "sm_90a", entry) == {16 * 64 * 32 / 2}
    entry = entry_of(("f16", "f16"), "f32", 16, False, (1, 1))
    assert fmas(group_sources(), "sm_90a", entry) == {16 * 16 * 16}
