"""Timing on a fake GPU whose launches take a known time."""

from __future__ import annotations

import numpy as np
import pytest
from fake_gpu import FakeGpu
from fake_kernels import COUNT, finish, gpu_with, make_plan, produce, verdict

from engine.backends.cuda import CudaBackend
from engine.errors import MeasureError
from engine.tensors import Inputs

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")


def test_times_are_those_of_the_launch(inputs: Inputs) -> None:
    gpu = gpu_with()
    gpu.launch_us = 20.0  # each of the two passes
    warm, cold, end_to_end = CudaBackend(gpu).time_device(make_plan(), inputs, verdict(passed=True))
    assert warm.median_us == pytest.approx(40.0, rel=0.003)
    assert cold.median_us == pytest.approx(40.0, rel=0.003)
    assert [x.kind for x in (warm, cold, end_to_end)] == [
        "device_warm",
        "device_cold",
        "end_to_end",
    ]
    assert gpu.allocations == 0


def test_no_wrong_kernel_is_timed(inputs: Inputs) -> None:
    gpu = gpu_with()
    with pytest.raises(ValueError, match="not correct"):
        CudaBackend(gpu).time_device(make_plan(), inputs, verdict(passed=False))
    assert gpu.launches == []


def test_a_kernel_that_is_right_only_alone_is_not_timed(inputs: Inputs) -> None:
    def forgets_to_reset(gpu: FakeGpu, *args: np.generic) -> None:
        finish(gpu, *args)
        count = int(gpu.view(int(args[1]), 4).view(np.int32)[0])
        if count > 50:
            gpu.view(int(args[2]), 2).view(np.uint16)[0] += 1

    gpu = gpu_with(finish=forgets_to_reset)
    with pytest.raises(MeasureError, match="another output than a single one"):
        CudaBackend(gpu).time_device(make_plan(), inputs, verdict(passed=True))
    assert gpu.allocations == 0


def test_copies_have_the_inputs_and_outputs_of_their_own(inputs: Inputs) -> None:
    gpu = gpu_with()
    gpu.l2_bytes = 4 * 2 * COUNT  # so that five copies and no more are needed
    gpu.launch_us = 1000.0
    outs: set[int] = set()

    def notes_its_output(gpu: FakeGpu, *args: np.generic) -> None:
        outs.add(int(args[2]))
        finish(gpu, *args)

    gpu.kernels = {"produce": produce, "finish": notes_its_output}
    _, cold, _ = CudaBackend(gpu).time_device(make_plan(), inputs, verdict(passed=True))
    assert "rotating over 5 copies" in cold.reason
    assert len(outs) == 5
    assert all(address % 256 == 0 for address in outs)


def test_running_out_of_memory_while_timing_is_a_sentence(inputs: Inputs) -> None:
    def exhausts(*_: object) -> None:
        raise MemoryError("no memory")

    gpu = gpu_with(finish=exhausts)
    with pytest.raises(MeasureError, match="GPU ran out of memory"):
        CudaBackend(gpu).time_device(make_plan(), inputs, verdict(passed=True))
    assert gpu.allocations == 0
