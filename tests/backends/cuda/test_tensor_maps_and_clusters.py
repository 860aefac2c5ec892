"""What goes to the driver itself, as CuPy has no call for it: tensor maps and clusters."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeGpu
from fake_kernels import PROBLEM, finish, gpu_with, make_plan, produce

from engine.arguments import TensorMapArg
from engine.backends.base import RunOptions
from engine.backends.cuda import CudaBackend
from engine.backends.cuda.cupy_calls import CupyCalls
from engine.evaluation import Status
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
        self.clusters: list[tuple[int, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(driver, name)

    def cuTensorMapEncodeTiled(self, kind: Any, rank: int, address: int, *rest: Any) -> Any:  # noqa: N802
        dims, strides, box, steps, *modes = rest
        sizes = [[int(x) for x in group] for group in (dims, strides, box, steps)]
        self.encoded.append((kind.name, rank, address, *sizes, *(mode.name for mode in modes)))
        tensor_map = driver.CUtensorMap()
        tensor_map.opaque = [driver.cuuint64_t(address + i) for i in range(16)]
        return self._status, tensor_map

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
