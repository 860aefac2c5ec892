"""The table of CUDA features is correct, small formats round once, and no CUDA name is missing."""

from __future__ import annotations

import itertools
import re
import subprocess
from fractions import Fraction

import numpy as np
import pytest
import torch
from cuda_feature_cases import GROUPS, LACKING, lacking_sentence
from slow_cases import one_in
from words import says

from engine.attention.plan import TensorArg
from engine.base.cxx import find_toolchain
from engine.base.errors import ToolMissing
from engine.cuda_on_host.build import NATIVE_DIR, build_kernels
from engine.cuda_on_host.client import Buffer, Job, KernelLaunch
from engine.cuda_source.nvrtc import toolchain

WARPS = [group.name for group in GROUPS].index("warps and blocks")


@pytest.mark.parametrize(
    ("group", "check"),
    one_in(
        2 * len(GROUPS),
        list(itertools.product(GROUPS, (False, True))),
        offset=2 * WARPS + 1,
        slow=6,
    ),
    ids=lambda value: getattr(value, "name", "check" if value else "fast"),
)
def test_each_feature_computes_the_expected_values(group, check, client, tmp_path):
    wrong = {name: why for name, why in group.run(client, tmp_path, check).items() if why}
    assert not wrong


@pytest.mark.parametrize("name", one_in(len(LACKING), list(LACKING), offset=4, slow=3))
def test_unsupported_features_give_one_sentence(name, tmp_path):
    top, body, named = LACKING[name]
    sentence = lacking_sentence(top, body, tmp_path)
    assert re.search(named, sentence)
    names = ("cpu_backend_lacks", "cuda_name_unknown_on_cpu", "tile_sizes_on_cpu")
    assert any(says(f"lacking.cu:1: {sentence}", name) for name in names)
    assert "\n" not in sentence


# ---- rounding ----

COUNT = 3000
_EXACT = (
    lambda a, b, _: a + b,
    lambda a, b, _: a - b,
    lambda a, b, _: a * b,
    lambda a, b, _: a / b,
    lambda a, b, c: a * b + c,
)
_SOURCE = """
#include <cuda_bf16.h>
#include <cuda_fp8.h>
template <class T> __device__ void all(const unsigned short *in, unsigned short *out) {
    const T *x = reinterpret_cast<const T *>(in);
    T *y = reinterpret_cast<T *>(out);
    for (int i = threadIdx.x; i < COUNT; i += 32) {
        const T a = x[3 * i], b = x[3 * i + 1], c = x[3 * i + 2];
        y[i] = __hadd(a, b);
        y[COUNT + i] = __hsub(a, b);
        y[2 * COUNT + i] = __hmul(a, b);
        y[3 * COUNT + i] = __hdiv(a, b);
        y[4 * COUNT + i] = __hfma(a, b, c);
        out[5 * COUNT + i] = __nv_fp8_e4m3(a).__x;
        out[6 * COUNT + i] = __nv_fp8_e5m2(a).__x;
    }
}
extern "C" __global__ void f16(const unsigned short *in, unsigned short *out) {
    all<half>(in, out);
}
extern "C" __global__ void bf16(const unsigned short *in, unsigned short *out) {
    all<__nv_bfloat16>(in, out);
}
"""


def _magnitude(bits: int, mantissa_bits: int) -> Fraction:
    """Return the magnitude; infinity counts as the next power of two after the largest."""
    exponent, mantissa = bits >> mantissa_bits, bits & ((1 << mantissa_bits) - 1)
    bias = (1 << (14 - mantissa_bits)) - 1
    if exponent == 0:
        return Fraction(mantissa) * Fraction(2) ** (1 - bias - mantissa_bits)
    return Fraction(mantissa + (1 << mantissa_bits)) * Fraction(2) ** (
        exponent - bias - mantissa_bits
    )


def _is_rounded_once(bits: int, exact: Fraction, mantissa_bits: int) -> bool:
    """Return whether `bits` is nearest to `exact`, and even if two are equally near."""
    magnitude = bits & 0x7FFF
    infinity = 0x7FFF >> mantissa_bits << mantissa_bits
    distance = abs(abs(exact) - _magnitude(magnitude, mantissa_bits))
    for neighbour in (magnitude - 1, magnitude + 1):
        if 0 <= neighbour <= infinity:
            other = abs(abs(exact) - _magnitude(neighbour, mantissa_bits))
            # A number nearer to the next power of two after the largest one becomes infinity.
            if other < distance or (other == distance and magnitude % 2):
                return False
    return magnitude == 0 or (bits >> 15 == 1) == (exact < 0)


@pytest.mark.parametrize("kind", ["f16", pytest.param("bf16", marks=pytest.mark.exhaustive)])
def test_values_are_rounded_once_to_nearest_even(kind, client, tmp_path):
    dtype, mantissa_bits = (torch.float16, 10) if kind == "f16" else (torch.bfloat16, 7)
    bits = np.random.default_rng(1).integers(0, 1 << 16, (COUNT, 3), dtype=np.uint16)
    path = tmp_path / "rounding.cu"
    path.write_text(_SOURCE)
    job = Job(
        library=build_kernels(path, [kind], [("COUNT", str(COUNT))]),
        buffers=(
            Buffer("in", data=bits, read_only=True),
            Buffer("out", size_bytes=2 * 7 * COUNT, returned=True),
        ),
        launches=(KernelLaunch(kind, (1, 1, 1), (32, 1, 1), (TensorArg("in"), TensorArg("out"))),),
    )
    result = client.run(job, 60.0)
    assert result.returned, result.reason
    out = result.returned["out"].view(np.uint16).reshape(7, COUNT)
    numbers = torch.from_numpy(bits.view(np.int16)).view(dtype).double().numpy()
    for operation, got in zip(_EXACT, out, strict=False):
        for operands, answer in zip(numbers, got.tolist(), strict=True):
            if not np.isfinite(operands).all() or operands[1] == 0:
                continue
            exact = operation(*(Fraction(x) for x in operands))
            assert _is_rounded_once(answer, exact, mantissa_bits), (operands, hex(answer))
    values = torch.from_numpy(numbers[:, 0]).float()
    for got, small in ((out[5], torch.float8_e4m3fn), (out[6], torch.float8_e5m2)):
        largest = torch.finfo(small).max
        wanted = values.clamp(-largest, largest).to(small).float()  # saturating
        answer = torch.from_numpy(got.astype(np.uint8)).view(small).float()
        assert torch.equal(answer.nan_to_num(12345.0), wanted.nan_to_num(12345.0))


# ---- names ----


@pytest.mark.slow
@pytest.mark.parametrize(
    "header",
    [
        "cuda_fp16.h",
        pytest.param("cuda_bf16.h", marks=pytest.mark.exhaustive),
        pytest.param("cuda_fp8.h", marks=pytest.mark.exhaustive),
    ],
)
def test_no_function_of_nvidias_header_is_missing(header):
    try:
        folder = toolchain().include_dir
    except ToolMissing as missing:
        pytest.skip(str(missing))
    text = re.sub(r"/\*.*?\*/", "", (folder / header).read_text(), flags=re.DOTALL)
    theirs = set(re.findall(r"DECL__[^;{(]*?\b(\w+)\s*\(", text.replace("\\\n", " ")))
    # Without a mask: removed since sm_70. The others are for sm_107 only, or not functions.
    unwanted = re.compile(
        r"__shfl(?:_up|_down|_xor)?|.*(?:ue5m3|__CUDA|__internal|__attribute__|_TO_US).*|defined"
    )
    theirs = {name for name in theirs if not unwanted.fullmatch(name)}
    command = [*find_toolchain().command, "-std=c++17", "-E", "-x", "c++"]
    for file in ("cuda_on_host.h", f"toolkit/{header}"):
        command += ["-include", str(NATIVE_DIR / file)]
    command += [f"-I{NATIVE_DIR}/toolkit", "/dev/null"]
    ours = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(theirs) > 15
    assert not {name for name in theirs if not re.search(rf"\b{name}\b", ours)}
