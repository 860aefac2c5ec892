"""The five kernels against float64: every instruction family, odd sizes, every schedule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from host_kernels import KERNELS, Attention, run_attention, tma_job
from slow_cases import of_each, one_in

from engine.attention.tensors import decode, encode
from engine.base.errors import Status
from engine.base.launch_arguments import ScalarArg, TensorArg, TensorMapArg
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.client import Buffer, Job, KernelLaunch

ATTENTION = ("fa1", "fa_split", "fa_mma", "fa_wgmma")
SHAPES = ((1, 1, 128), (1, 2, 1), (2, 1, 65), (1, 2, 203))
# Rounding of the output, and of P for tensor cores, in each format.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2}


@pytest.mark.parametrize(
    ("kernel", "causal", "dtype"),
    of_each(list(itertools.product(ATTENTION, (False, True), TOLERANCE))),
)
def test_the_fast_build_is_correct(client, kernel, causal, dtype):
    for shape in SHAPES:
        a = Attention.random(*shape, causal=causal, dtype=dtype)
        got = run_attention(client, kernel, a, repeat=True)
        assert got.result.status is Status.PASSED, got.result.reason
        assert got.out < TOLERANCE[dtype], shape
        assert got.lse < 1e-5, shape
        assert got.result.repeatable


@pytest.mark.parametrize(
    ("kernel", "schedule"),
    of_each(list(itertools.product(ATTENTION, ("random", "reverse")))),
)
def test_every_schedule_gives_the_same_bits(client, kernel, schedule):
    a = Attention.random(1, 2, 113, causal=True)
    expected = run_attention(client, kernel, a).result
    got = run_attention(client, kernel, a, schedule=schedule, seed=7, repeat=True).result
    assert got.status is Status.PASSED, got.reason
    np.testing.assert_array_equal(got.returned["out"], expected.returned["out"])
    assert got.repeatable


@pytest.mark.parametrize(
    ("kernel", "schedule"),
    of_each(list(itertools.product(ATTENTION, ("in_order", "random", "reverse"))), every=4, slow=3),
)
def test_check_build_raises_no_false_alarm(client, kernel, schedule):
    for dtype, causal, seqlen in (
        ("float16", False, 65),
        ("float16", True, 128),
        ("bfloat16", True, 63),
        ("bfloat16", False, 1),
    ):
        a = Attention.random(1, 2, seqlen, causal=causal, dtype=dtype)
        got = run_attention(client, kernel, a, check=True, schedule=schedule, seed=seqlen)
        assert got.result.status is Status.PASSED, got.result.reason
        assert got.out < TOLERANCE[dtype]


def test_more_splits_than_tiles(client):
    a = Attention.random(1, 1, 100)
    got = run_attention(client, "fa_split", a, check=True, num_splits=7)
    assert got.result.status is Status.PASSED, got.result.reason
    assert got.out < TOLERANCE["float16"]


@pytest.mark.parametrize("check", [False, True])
def test_warp_softmax(client, check):
    rows, columns = 37, 96
    values = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float16)
    defines = [("IS_BF16", "0"), ("COLUMNS", str(columns))]
    job = Job(
        library=build_kernels(KERNELS / "warp_softmax.cu", ["warp_softmax"], defines, check),
        buffers=(
            Buffer("in", data=values, read_only=True),
            Buffer("out", size_bytes=4 * values.size, returned=True),
        ),
        launches=(
            KernelLaunch(
                "warp_softmax",
                (5, 1, 1),
                (256, 1, 1),
                (TensorArg("in"), TensorArg("out"), ScalarArg("rows", "int32", rows)),
            ),
        ),
        schedule="random",
    )
    result = client.run(job)
    assert result.status is Status.PASSED, result.reason
    expected = np.exp(values.astype(np.float64))
    expected /= expected.sum(1, keepdims=True)
    got = result.returned["out"].view(np.float32).reshape(rows, columns)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("check", [False, True])
def test_grid_sum_with_an_odd_warp(client, check):
    values = np.arange(5000, dtype=np.float32)
    defines = [("IS_BF16", "0"), ("COLUMNS", "32")]
    job = Job(
        library=build_kernels(KERNELS / "warp_softmax.cu", ["grid_sum"], defines, check),
        buffers=(
            Buffer("in", data=values, read_only=True),
            Buffer("out", data=np.zeros(1, np.float32), returned=True),
        ),
        launches=(
            KernelLaunch(
                "grid_sum",
                (3, 1, 1),
                (96, 1, 1),
                (TensorArg("in"), TensorArg("out"), ScalarArg("n", "int32", values.size)),
            ),
        ),
    )
    result = client.run(job)
    assert result.status is Status.PASSED, result.reason
    assert result.returned["out"].view(np.float32)[0] == pytest.approx(values.sum(dtype=float))


@pytest.mark.parametrize(
    ("swizzle_bytes", "schedule", "check"),
    of_each(
        list(itertools.product((0, 32, 64, 128), ("in_order", "random"), (True, False))), most=2
    ),
)
def test_tma_load_and_store(client, check, schedule, swizzle_bytes):
    """Rows past the tensor's end read as zero and are not written."""
    row, rows = 5, 100
    values = np.random.default_rng(2).standard_normal((rows, 64)).astype(np.float16)
    result = client.run(tma_job(values, swizzle_bytes, row, check=check, schedule=schedule))
    assert result.status is Status.PASSED, result.reason
    columns = (swizzle_bytes or 128) // 2
    got = result.returned["negated"].view(np.float16).reshape(rows, 64)
    np.testing.assert_array_equal(got[:, :columns], -values[:, :columns])
    chunks = result.returned["second_chunk"].view(np.float16).reshape(2, 8)
    np.testing.assert_array_equal(chunks, values[[row, 64 + row], 8:16])


@pytest.mark.parametrize(
    ("n", "a_transposed", "b_transposed", "dtype"),
    one_in(
        3,
        [
            (8, False, False, "float16"),
            (96, False, False, "bfloat16"),
            (256, False, False, "float16"),
            (128, True, False, "float16"),
            (64, False, True, "bfloat16"),
            (192, True, True, "float16"),
        ],
        offset=1,
    ),
)
def test_wgmma_of_every_width_and_layout(client, n, a_transposed, b_transposed, dtype):
    rng = np.random.default_rng(n)
    a = encode(rng.standard_normal((64, 64), dtype=np.float32), dtype)
    b = encode(rng.standard_normal((n, 64), dtype=np.float32), dtype)  # D = A @ B^T
    stored = {"a": a.T if a_transposed else a, "b": b.T if b_transposed else b}
    stored = {name: np.ascontiguousarray(x) for name, x in stored.items()}
    maps = tuple(
        TensorMapArg(name, name, x.shape[::-1], (2 * x.shape[1],), (64, 64))
        for name, x in stored.items()
    )
    defines = {
        "N": n,
        "A_TRANSPOSED": int(a_transposed),
        "B_TRANSPOSED": int(b_transposed),
        "IS_BF16": int(dtype == "bfloat16"),
    }
    source = KERNELS / "wgmma_tile.cu"
    job = Job(
        library=build_kernels(source, ["wgmma_tile"], [(k, str(v)) for k, v in defines.items()]),
        buffers=(
            *(Buffer(name, data=x, read_only=True) for name, x in stored.items()),
            Buffer("d", size_bytes=4 * 64 * n, returned=True),
        ),
        launches=(
            KernelLaunch(
                "wgmma_tile",
                (1, 1, 1),
                (128, 1, 1),
                (*maps, TensorArg("d")),
                8192 * (1 + -(-n // 64)) + 8,
            ),
        ),
    )
    result = client.run(job)
    assert result.status is Status.PASSED, result.reason
    expected = decode(a, dtype).astype(float) @ decode(b, dtype).astype(float).T
    got = result.returned["d"].view(np.float32).reshape(64, n)
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("defines", [(), (("COH_SOFT_HALF", "1"),)])
def test_conversions_of_every_value(client, defines):
    """Also with the software conversions for compilers without _Float16."""
    bits = np.arange(65536, dtype=np.uint16)
    rng = np.random.default_rng(3)
    edges = np.array([0, -0.0, 65519.9, 65520, 65504, 2**-24, 2**-25, 2**-25 * 1.01, 6e-5, np.inf])
    floats = np.concatenate(
        [
            rng.integers(0, 2**32, 40000, dtype=np.uint32).view(np.float32),
            rng.standard_normal(20000).astype(np.float32),
            np.ldexp(rng.standard_normal(5526), rng.integers(-30, 20, 5526)).astype(np.float32),
            edges.astype(np.float32),
        ]
    )
    assert floats.size == 65536
    library = build_kernels(KERNELS / "conversions.cu", ["to_float", "from_float"], defines)
    names = ("half_bits", "bf16_bits", "from_half", "from_bf16", "values", "to_half", "to_bf16")
    tensors = {name: TensorArg(name) for name in names}
    n = ScalarArg("n", "int32", 65536)

    def launch(entry, *arguments):
        return KernelLaunch(entry, (256, 1, 1), (256, 1, 1), (*(tensors[a] for a in arguments), n))

    job = Job(
        library=library,
        buffers=(
            Buffer("half_bits", data=bits),
            Buffer("bf16_bits", data=bits),
            Buffer("values", data=floats),
            *(Buffer(name, size_bytes=4 * 65536, returned=True) for name in names[2:4]),
            *(Buffer(name, size_bytes=2 * 65536, returned=True) for name in names[5:]),
        ),
        launches=(
            launch("to_float", "half_bits", "bf16_bits", "from_half", "from_bf16"),
            launch("from_float", "values", "to_half", "to_bf16"),
        ),
    )
    result = client.run(job)
    assert result.status is Status.PASSED, result.reason
    got = result.returned
    np.testing.assert_array_equal(
        got["from_half"].view(np.float32), bits.view(np.float16).astype(np.float32)
    )
    np.testing.assert_array_equal(
        got["from_bf16"].view(np.float32), (bits.astype(np.uint32) << 16).view(np.float32)
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got["to_half"].view(np.float16), floats.astype(np.float16))
    words = floats.view(np.uint32).astype(np.uint64)
    rounded = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
    finite = ~np.isnan(floats)
    np.testing.assert_array_equal(got["to_bf16"].view(np.uint16)[finite], rounded[finite])
    as_float = (got["to_bf16"].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(as_float[~finite]).all()
