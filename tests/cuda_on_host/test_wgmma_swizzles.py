"""wgmma reads shared memory in the layout of each swizzle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from host_kernels import KERNELS
from slow_cases import one_in

from engine.attention.tensors import decode, encode
from engine.base.errors import Status
from engine.base.launch_arguments import TensorArg
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.client import Buffer, Job, KernelLaunch


def laid_out(matrix, row_bytes):
    """Return the bytes of a [rows, columns] matrix of 2-byte elements, element by element.

    Blocks as wide as the swizzle follow each other. In a block the address's bits 4 and up are
    XORed with those from 7 on: 1 bit for 32 bytes, 2 for 64, 3 for 128 (CUTLASS: Swizzle<B, 4, 3>).
    """
    width = row_bytes // 2
    matrix = np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % width)))
    rows, columns = matrix.shape
    image = np.zeros(rows * columns, matrix.dtype)
    for row in range(rows):
        for column in range(columns):
            address = column // width * rows * row_bytes + row * row_bytes + column % width * 2
            bits = address >> 7 & (row_bytes // 16 - 1)
            image[(address ^ bits << 4) // 2] = matrix[row, column]
    return image


@pytest.mark.parametrize(
    ("row_bytes", "n", "a_transposed", "b_transposed"),
    one_in(
        7,
        list(itertools.product((32, 64, 128), (32, 96), (False, True), (False, True))),
        offset=1,
        slow=4,
    ),
)
def test_each_swizzle_against_plain_products(client, row_bytes, n, a_transposed, b_transposed):
    rng = np.random.default_rng(n + row_bytes)
    a = encode(rng.standard_normal((64, 64), dtype=np.float32), "float16")
    b = encode(rng.standard_normal((n, 64), dtype=np.float32), "float16")  # D = A @ B^T
    images = {
        "a": laid_out(a.T if a_transposed else a, row_bytes),
        "b": laid_out(b.T if b_transposed else b, row_bytes),
    }
    defines = {"N": n, "ROW_BYTES": row_bytes, "IS_BF16": 0}
    defines |= {"A_TRANSPOSED": int(a_transposed), "B_TRANSPOSED": int(b_transposed)}
    library = build_kernels(
        KERNELS / "wgmma_swizzle.cu",
        ["wgmma_swizzle"],
        [(k, str(v)) for k, v in defines.items()],
        check=True,
    )
    arguments = tuple(TensorArg(name) for name in ("a", "b", "d"))
    smem_bytes = sum(image.nbytes for image in images.values())
    launch = KernelLaunch("wgmma_swizzle", (1, 1, 1), (128, 1, 1), arguments, smem_bytes)
    buffers = (
        *(Buffer(name, data=image, read_only=True) for name, image in images.items()),
        Buffer("d", size_bytes=4 * 64 * n, returned=True),
    )
    result = client.run(Job(library, buffers, (launch,)))
    assert result.status is Status.PASSED, result.reason
    expected = decode(a, "float16").astype(float) @ decode(b, "float16").astype(float).T
    got = result.returned["d"].view(np.float32).reshape(64, n)
    np.testing.assert_allclose(got, expected, atol=1e-4)
