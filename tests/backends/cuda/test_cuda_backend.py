"""The backend's control flow on a fake GPU. What CUDA itself does is tested with marker gpu."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from fake_gpu import CudaError, FakeGpu
from fake_kernels import COUNT, PROBLEM, finish, gpu_with, make_plan, produce, verdict
from words import raises

from engine.backends.base import Backend, RunOptions
from engine.backends.cuda import CudaBackend
from engine.base.errors import MeasureError, Status, ToolMissing
from engine.tensors import POISON_BITS, Inputs, make_inputs

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

OPTIONS = RunOptions(timeout_s=1.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_passes_run_and_the_output_comes_back(dtype: str) -> None:
    problem = dataclasses.replace(PROBLEM, dtype=dtype)
    inputs = make_inputs(problem)
    gpu = gpu_with()
    backend: Backend = CudaBackend(gpu.calls())
    assert backend.name == "cuda"
    result = backend.run(make_plan(problem), inputs, OPTIONS)
    assert (result.status, result.reason) == (Status.PASSED, "")
    assert result.out is not None
    assert result.out.dtype == inputs.q.dtype
    assert result.out.shape == problem.shape
    assert np.array_equal(result.out.view(np.uint16), inputs.q.view(np.uint16))
    assert (result.inputs_unchanged, result.repeatable, result.guards_intact) == (True,) * 3
    assert result.execution_ms is not None
    assert "produce" in result.log
    one_run = [("produce", (2, 1, 1), 256, 1024), ("finish", (2, 1, 1), 256, 0)]
    assert gpu.launches == one_run * 2
    assert gpu.allocations == 0


def test_without_repeat_it_runs_once(inputs: Inputs) -> None:
    gpu = gpu_with()
    CudaBackend(gpu.calls()).run(make_plan(), inputs, RunOptions(repeat=False))
    assert len(gpu.launches) == 2


def test_what_is_not_written_stays_poisoned(inputs: Inputs) -> None:
    def lazy(gpu: FakeGpu, *args: np.generic) -> None:
        finish(gpu, *args)
        gpu.view(int(args[2]), 2 * COUNT).view(np.uint16)[5:9] = POISON_BITS

    result = CudaBackend(gpu_with(finish=lazy).calls()).run(make_plan(), inputs, OPTIONS)
    assert result.out is not None
    unwritten = np.flatnonzero(result.out.view(np.uint16) == POISON_BITS)
    assert unwritten.tolist() == [5, 6, 7, 8]


def test_output_and_scratch_start_poisoned_in_both_runs(inputs: Inputs) -> None:
    seen: list[bool] = []

    def looks(gpu: FakeGpu, *args: np.generic) -> None:
        scratch = gpu.view(int(args[1]), 4 * COUNT)
        seen.append(bool(np.isnan(scratch.view(np.float32)).all()))
        produce(gpu, *args)

    outputs: list[bool] = []

    def looks_too(gpu: FakeGpu, *args: np.generic) -> None:
        outputs.append(bool((gpu.view(int(args[2]), 2 * COUNT).view(np.uint16) == 0x7FA5).all()))
        finish(gpu, *args)

    CudaBackend(gpu_with(produce=looks, finish=looks_too).calls()).run(make_plan(), inputs, OPTIONS)
    assert seen == outputs == [True, True]


def test_a_counter_starts_at_zero_and_keeps_its_value_between_runs(inputs: Inputs) -> None:
    counts: list[int] = []

    def counts_on(gpu: FakeGpu, *args: np.generic) -> None:
        counts.append(int(gpu.view(int(args[1]), 4).view(np.int32)[0]))
        finish(gpu, *args)

    CudaBackend(gpu_with(finish=counts_on).calls()).run(make_plan(), inputs, OPTIONS)
    assert counts == [0, 1]


def test_another_answer_the_second_time_is_noticed(inputs: Inputs) -> None:
    runs: list[int] = []

    def fickle(gpu: FakeGpu, *args: np.generic) -> None:
        finish(gpu, *args)
        gpu.view(int(args[2]), 2).view(np.uint16)[0] += len(runs)
        runs.append(1)

    result = CudaBackend(gpu_with(finish=fickle).calls()).run(make_plan(), inputs, OPTIONS)
    assert result.status is Status.PASSED
    assert not result.repeatable


def test_a_changed_input_is_noticed(inputs: Inputs) -> None:
    def overwrites(gpu: FakeGpu, q: np.uint64, *rest: np.generic) -> None:
        produce(gpu, q, *rest)
        gpu.view(int(q) + 2, 2).view(np.uint16)[0] ^= 1

    result = CudaBackend(gpu_with(produce=overwrites).calls()).run(make_plan(), inputs, OPTIONS)
    assert not result.inputs_unchanged


@pytest.mark.parametrize(
    ("offset", "sentence"),
    [
        (2 * COUNT, f"The kernel wrote past the end of out ({2 * COUNT:,} bytes): bytes 0 to 1"),
        (2 * COUNT + 60_000, "The kernel wrote past the end of out (1,024 bytes): bytes 60,000 to"),
        (-2, "The kernel wrote in front of out: bytes -2 to -1 changed."),
    ],
)
def test_a_write_beside_a_buffer_is_noticed(offset: int, sentence: str, inputs: Inputs) -> None:
    def spills_over(gpu: FakeGpu, *args: np.generic) -> None:
        finish(gpu, *args)
        gpu.view(int(args[2]) + offset, 2)[:] = 0

    result = CudaBackend(gpu_with(finish=spills_over).calls()).run(make_plan(), inputs, OPTIONS)
    assert not result.guards_intact
    assert result.reason.startswith(sentence)


def test_a_kernel_that_does_not_end_is_a_timeout(inputs: Inputs, kept: list[object]) -> None:
    gpu = gpu_with()
    gpu.hang = True
    backend = CudaBackend(gpu.calls())
    result = backend.run(make_plan(), inputs, RunOptions(timeout_s=0.01))
    assert result.status is Status.TIMEOUT
    assert result.reason == "produce did not finish within 0.01 s: it may loop for ever."
    after = backend.run(make_plan(), inputs, OPTIONS)
    assert after.status is Status.LAUNCH_ERROR
    assert after.reason == (
        "An earlier kernel still runs (produce): restart Attune's worker to use the GPU again."
    )
    backend.close()
    assert gpu.freed_blocks == 1  # once before the run; now it would wait for the kernel
    assert gpu.modules > 0  # unloading would, too
    assert len(kept) == 1


def test_an_illegal_address_names_its_pass_and_loses_the_context(inputs: Inputs) -> None:
    def strays(gpu: FakeGpu, *_: np.generic) -> None:
        gpu.view(64, 4)

    backend = CudaBackend(gpu_with(finish=strays).calls())
    result = backend.run(make_plan(), inputs, OPTIONS)
    assert result.status is Status.OUT_OF_BOUNDS
    assert result.reason.startswith("finish read or wrote memory that is not its own: run it on")
    assert "check build" in result.reason
    again = backend.run(make_plan(), inputs, OPTIONS)
    assert again.status is Status.LAUNCH_ERROR
    assert "broke this process's CUDA context (finish read" in again.reason
    assert backend.gpu_error is not None
    with (
        pytest.raises(MeasureError, match="broke this process's CUDA context"),
        backend.timer(make_plan(), inputs, verdict(passed=True)),
    ):
        pass


def test_a_refused_launch_keeps_the_context(inputs: Inputs) -> None:
    def refuses(*_: object) -> None:
        raise CudaError(9, "cudaErrorInvalidConfiguration")

    gpu = gpu_with(finish=refuses)
    backend = CudaBackend(gpu.calls())
    result = backend.run(make_plan(), inputs, OPTIONS)
    assert result.status is Status.LAUNCH_ERROR
    assert result.reason.startswith("finish was launched with a grid or CTA this GPU")
    gpu.kernels = {"produce": produce, "finish": finish}
    assert backend.run(make_plan(), inputs, OPTIONS).status is Status.PASSED


@pytest.mark.parametrize("error", [TypeError("Unsupported type"), RuntimeError("a bug")])
def test_what_is_not_cudas_is_a_status_that_names_it(inputs: Inputs, error: Exception) -> None:
    def defect(*_: object) -> None:
        raise error

    backend = CudaBackend(gpu_with(finish=defect).calls())
    result = backend.run(make_plan(), inputs, OPTIONS)
    assert result.status is Status.LAUNCH_ERROR
    assert f"{type(error).__name__}: {error}" in result.reason
    assert backend.gpu_error is None


def test_too_little_memory_is_said_before_anything_is_allocated(inputs: Inputs) -> None:
    gpu = gpu_with()
    gpu.memory_bytes = make_plan().device_bytes - 1
    gpu.cupy.cuda.alloc = lambda _: pytest.fail("allocated")
    result = CudaBackend(gpu.calls()).run(make_plan(), inputs, OPTIONS)
    assert result.status is Status.OUT_OF_MEMORY
    assert "of GPU memory" in result.reason
    assert "is free" in result.reason


def test_memory_that_runs_out_on_the_way_is_freed_again(inputs: Inputs) -> None:
    gpu = gpu_with()
    gpu.memory_bytes = 400 * 1024  # enough for the tensors, not for all their guard zones
    result = CudaBackend(gpu.calls()).run(make_plan(), inputs, OPTIONS)
    assert result.status is Status.OUT_OF_MEMORY
    assert "ran out of memory" in result.reason
    assert gpu.allocations == 0


def test_too_much_shared_memory_is_said_with_both_figures(inputs: Inputs) -> None:
    plan = make_plan()
    large = dataclasses.replace(plan.passes[0], dynamic_smem_bytes=100 * 1024)
    plan = dataclasses.replace(plan, passes=(large, plan.passes[1]))
    result = CudaBackend(gpu_with().calls()).run(plan, inputs, OPTIONS)
    assert result.status is Status.LAUNCH_ERROR
    assert result.reason.startswith("produce needs 100 KiB of shared memory per CTA and this GPU")
    assert "99 KiB" in result.reason


def test_a_source_that_does_not_compile(inputs: Inputs, tmp_path: Path) -> None:
    source = tmp_path / "broken.cu"
    source.write_text("int x = ;\n")
    result = CudaBackend(gpu_with().calls()).run(make_plan(source=source), inputs, OPTIONS)
    assert result.status is Status.COMPILE_ERROR
    assert result.reason.startswith("broken.cu(")
    assert "error" in result.log


def test_no_compiler_is_a_sentence(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ToolMissing("NVRTC is missing")

    monkeypatch.setattr("engine.backends.cuda.backend.compile_plan", missing)
    result = CudaBackend(gpu_with().calls()).run(make_plan(), inputs, OPTIONS)
    assert (result.status, result.reason) == (Status.COMPILE_ERROR, "NVRTC is missing")


def test_a_gpu_that_is_gone_before_the_run_is_a_status(inputs: Inputs) -> None:
    def gone() -> int:
        raise CudaError(46, "cudaErrorDevicesUnavailable")

    gpu = gpu_with()
    gpu.cupy.cuda.runtime.memGetInfo = gone
    result = CudaBackend(gpu.calls()).run(make_plan(), inputs, OPTIONS)
    assert result.status is Status.LAUNCH_ERROR
    assert "cudaErrorDevicesUnavailable" in result.reason


def test_a_gpu_that_others_hold_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def held() -> None:
        raise CudaError(46, "cudaErrorDevicesUnavailable: busy")

    monkeypatch.setattr("engine.backends.cuda.backend.why_not_cuda", lambda: None)
    monkeypatch.setattr("engine.backends.cuda.cupy_calls.CupyCalls", held)
    with raises(ToolMissing, "gpu_busy", "cudaErrorDevicesUnavailable: busy"):
        CudaBackend()


def test_closing_twice_is_safe() -> None:
    backend = CudaBackend(gpu_with().calls())
    backend.close()
    backend.close()
