"""What goes to the driver itself, as CuPy has no call for it: tensor maps and clusters."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeGpu
from fake_kernels import PROBLEM, finish, gpu_with, make_plan, produce

from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend, cupy_calls
from engine.backends.cuda.cupy_calls import CupyCalls
from engine.base.errors import Status
from engine.base.launch import ScalarArg, StructArg, TensorMapArg
from engine.tensors import Inputs

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")
driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

ROW = PROBLEM.head_dim * 2
Q_MAP = TensorMapArg("q_map", "q", (PROBLEM.head_dim, 3, 5), (ROW, 3 * ROW), (16, 8, 1), 32)


class FakeDriver:
    """`cuda.bindings.driver` with its own types, and the two calls on a fake GPU."""

    def __init__(self, gpu: FakeGpu, status: str = "CUDA_SUCCESS") -> None:
        self._gpu = gpu
        self._status = getattr(driver.CUresult, status)
        self.encoded: list[tuple[Any, ...]] = []
        self._encode = cupy_calls._EncodeTiled(self._encode_tiled)
        self.clusters: list[tuple[int, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(driver, name)

    def cuGetProcAddress(self, name: bytes, version: int, flags: Any) -> Any:  # noqa: N802
        assert (name, version, int(flags)) == (b"cuTensorMapEncodeTiled", 12000, 0)
        pointer = ctypes.cast(self._encode, ctypes.c_void_p).value
        return driver.CUresult.CUDA_SUCCESS, pointer, None

    def _encode_tiled(self, to: int, kind: int, rank: int, address: int | None, *rest: Any) -> int:
        """`cuTensorMapEncodeTiled`; refuses what its documentation says it refuses."""
        if to % 64:
            return int(driver.CUresult.CUDA_ERROR_INVALID_VALUE)
        dims, strides, box, steps, *modes = rest
        # A stride for each dimension but the innermost.
        sizes = [
            list(x[:n]) for x, n in ((dims, rank), (strides, rank - 1), (box, rank), (steps, rank))
        ]
        enums = (driver.CUtensorMapInterleave, driver.CUtensorMapSwizzle)
        enums += (driver.CUtensorMapL2promotion, driver.CUtensorMapFloatOOBfill)
        names = [enum(mode).name for enum, mode in zip(enums, modes, strict=True)]
        self.encoded.append(
            (driver.CUtensorMapDataType(kind).name, rank, address or 0, *sizes, *names)
        )
        words = (ctypes.c_uint64 * 16)(*((address or 0) + i for i in range(16)))
        ctypes.memmove(to, words, 128)
        return int(self._status)

    def cuLaunchKernelEx(self, config: Any, function: Any, params: int, extra: int) -> Any:  # noqa: N802
        from fake_cupy import _FUNCTIONS

        assert extra == 0
        assert int(config.hStream), "the default stream"
        (attribute,) = config.attrs
        assert config.numAttrs == 1
        assert attribute.id.name == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"
        dims = attribute.value.clusterDim
        self.clusters.append((dims.x, dims.y, dims.z))
        pointers = (ctypes.c_void_p * 3).from_address(params)
        kinds = (np.uint64, np.uint64, np.int32)  # of `produce`
        args = [
            np.frombuffer((ctypes.c_char * np.dtype(kind).itemsize).from_address(at), kind)[0]
            for at, kind in zip(pointers, kinds, strict=True)
        ]
        if not int(self._status):
            kernel = _FUNCTIONS[int(function)]
            grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
            block = (config.blockDimX, config.blockDimY, config.blockDimZ)
            stream = self._gpu.cupy.cuda.Stream(non_blocking=True)
            kernel(grid, block, args, config.sharedMemBytes, stream=stream)
        return (self._status,)


@pytest.fixture
def gpu() -> FakeGpu:
    return gpu_with(produce=produce, finish=finish)


def test_the_driver_encodes_what_the_map_says(gpu: FakeGpu) -> None:
    fake = FakeDriver(gpu)
    found = CupyCalls(gpu.cupy, fake).tensor_map(Q_MAP, 0x7F00)
    assert (found.dtype, found.nbytes) == (np.uint8, 128)
    assert found.view(np.uint64).tolist() == [0x7F00 + i for i in range(16)]
    assert fake.encoded == [
        (
            *("CU_TENSOR_MAP_DATA_TYPE_UINT16", 3, 0x7F00),
            *([PROBLEM.head_dim, 3, 5], [ROW, 3 * ROW], [16, 8, 1], [1, 1, 1]),
            *("CU_TENSOR_MAP_INTERLEAVE_NONE", "CU_TENSOR_MAP_SWIZZLE_32B"),
            *("CU_TENSOR_MAP_L2_PROMOTION_L2_128B", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"),
        )
    ]


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_every_swizzle_has_its_name(gpu: FakeGpu, swizzle: int) -> None:
    fake = FakeDriver(gpu)
    CupyCalls(gpu.cupy, fake).tensor_map(dataclasses.replace(Q_MAP, swizzle_bytes=swizzle), 0)
    end = f"{swizzle}B" if swizzle else "NONE"
    assert fake.encoded[0][8] == f"CU_TENSOR_MAP_SWIZZLE_{end}"


def test_a_pass_gets_the_map_of_its_own_buffer(gpu: FakeGpu, inputs: Inputs) -> None:
    """Also where the address is that of another copy of the inputs, as in a graph."""
    plan = make_plan()
    first = dataclasses.replace(plan.passes[0], args=(*plan.passes[0].args, Q_MAP))
    plan = dataclasses.replace(plan, passes=(first, plan.passes[1]))
    seen = []

    def mapped(gpu: FakeGpu, *args: Any) -> None:
        seen.append((int(args[0]), int(args[3].view(np.uint64)[0])))
        produce(gpu, *args[:3])

    gpu = gpu_with(produce=mapped)
    result = CudaBackend(CupyCalls(gpu.cupy, FakeDriver(gpu))).run(plan, inputs, RunOptions())
    assert (result.status, result.reason) == (Status.PASSED, "")
    assert seen
    assert all(q == address for q, address in seen)


def test_a_map_lies_where_the_driver_wants_it(gpu: FakeGpu) -> None:
    """Wherever the allocator happens to put things."""
    calls = CupyCalls(gpu.cupy, FakeDriver(gpu))
    kept = [(calls.tensor_map(Q_MAP, 0x7F00), np.empty(16 * i + 1, np.uint8)) for i in range(64)]
    assert len(kept) == 64


def test_a_map_that_the_driver_refuses_is_a_sentence(gpu: FakeGpu, inputs: Inputs) -> None:
    plan = make_plan()
    first = dataclasses.replace(plan.passes[0], args=(*plan.passes[0].args, Q_MAP))
    plan = dataclasses.replace(plan, passes=(first, plan.passes[1]))
    fake = FakeDriver(gpu, "CUDA_ERROR_INVALID_VALUE")
    result = CudaBackend(CupyCalls(gpu.cupy, fake)).run(plan, inputs, RunOptions())
    assert result.status is Status.LAUNCH_ERROR
    assert "cuTensorMapEncodeTiled" in result.reason


def test_a_structure_is_passed_by_value(inputs: Inputs) -> None:
    """As one element of its bytes: CuPy refuses arrays of several."""
    plan = make_plan()
    fields = (ScalarArg("a", "int32", 7), ScalarArg("b", "float64", 0.5))
    args = (*plan.passes[0].args, StructArg("s", fields))
    first = dataclasses.replace(plan.passes[0], args=args)
    plan = dataclasses.replace(plan, passes=(first, plan.passes[1]))
    seen: list[bytes] = []

    def takes(gpu: FakeGpu, *args: Any) -> None:
        seen.append(args[3].tobytes())
        produce(gpu, *args[:3])

    result = CudaBackend(gpu_with(produce=takes).calls()).run(plan, inputs, RunOptions())
    assert (result.status, result.reason) == (Status.PASSED, "")
    assert set(seen) == {struct.pack("<i4xd", 7, 0.5)}


def test_clusters_are_launched_with_their_arguments(gpu: FakeGpu, inputs: Inputs) -> None:
    plan = make_plan()
    first = dataclasses.replace(plan.passes[0], cluster=(2, 1, 1))
    plan = dataclasses.replace(plan, passes=(first, plan.passes[1]))
    fake = FakeDriver(gpu)
    result = CudaBackend(CupyCalls(gpu.cupy, fake)).run(plan, inputs, RunOptions(repeat=False))
    assert (result.status, result.reason) == (Status.PASSED, "")
    assert fake.clusters == [(2, 1, 1)]
    assert gpu.launches == [("produce", (2, 1, 1), 256, 1024), ("finish", (2, 1, 1), 256, 0)]
    assert result.out is not None
    assert np.array_equal(result.out.view(np.uint16), inputs.q.view(np.uint16))


def test_what_the_driver_refuses_is_a_sentence(gpu: FakeGpu, inputs: Inputs) -> None:
    plan = make_plan()
    first = dataclasses.replace(plan.passes[0], cluster=(2, 1, 1))
    plan = dataclasses.replace(plan, passes=(first, plan.passes[1]))
    fake = FakeDriver(gpu, "CUDA_ERROR_INVALID_VALUE")
    result = CudaBackend(CupyCalls(gpu.cupy, fake)).run(plan, inputs, RunOptions())
    assert result.status is Status.LAUNCH_ERROR
    assert result.reason.startswith("produce was launched with an argument that CUDA refuses")
    assert "cuLaunchKernelEx" in result.reason
