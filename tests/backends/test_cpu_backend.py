"""`CpuBackend` as the pipeline uses it: from launch plans to statuses and outputs."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from words import says

from engine.attention.plan import LaunchPlan, ScratchBuffer, make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import POISON_BITS, Inputs, decode, make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import Status
from engine.base.launch_arguments import PassLaunch, ScalarArg, TensorArg
from engine.cuda_on_host.client import Client
from kernels.ladder import by_id

PROBLEM = Problem(1, 2, 40, 32)

# out = q + k, through a scratch buffer that a second pass reads.
TWO_PASSES = """
#include <cuda_fp16.h>
extern "C" __global__ void first(const __half *q, const __half *k, float *sums, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && i != SKIPPED) sums[i] = __half2float(q[i]) + __half2float(k[i]);
}
extern "C" __global__ void second(const float *sums, __half *out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2half_rn(sums[i]);
}
"""


@pytest.fixture(scope="module")
def backend():
    backend = CpuBackend(Client(workers=2))
    yield backend
    backend.close()


def plan_of(folder, source, *passes, scratch=(), defines=()) -> LaunchPlan:
    path = folder / "tiny.cu"
    path.write_text(source)
    return LaunchPlan("tiny", PROBLEM, {}, path, tuple(defines), tuple(scratch), tuple(passes))


def one_pass(folder, body, arguments=("out",)) -> LaunchPlan:
    """Return a kernel over all elements of `out`; `i` is the element, T the pointer type."""
    parameters = ", ".join(f"unsigned short *{name}" for name in arguments)
    source = (
        f'extern "C" __global__ void k({parameters}) {{\n'
        f"    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    {body}\n}}\n"
    )
    launch = PassLaunch(
        "k", (PROBLEM.elements // 64, 1, 1), 64, 0, tuple(map(TensorArg, arguments))
    )
    return plan_of(folder, source, launch)


def two_passes(folder, skipped=-1) -> LaunchPlan:
    n = ScalarArg("n", "int32", PROBLEM.elements)
    grid = (PROBLEM.elements // 64, 1, 1)
    q, k, sums, out = map(TensorArg, ("q", "k", "sums", "out"))
    return plan_of(
        folder,
        TWO_PASSES,
        PassLaunch("first", grid, 64, 0, (q, k, sums, n)),
        PassLaunch("second", grid, 64, 0, (sums, out, n)),
        scratch=[ScratchBuffer("sums", "float32", (PROBLEM.elements,), "poison")],
        defines=[("SKIPPED", str(skipped))],
    )


@pytest.fixture
def inputs() -> Inputs:
    return make_inputs(PROBLEM)


@pytest.mark.parametrize("check", [False, True])
def test_passes_share_scratch(backend, tmp_path, inputs, check):
    result = backend.run(two_passes(tmp_path), inputs, RunOptions(check=check))
    assert result.status is Status.PASSED, result.reason
    assert result.out.shape == PROBLEM.shape
    assert result.out.dtype == np.float16
    expected = (inputs.q.astype(np.float32) + inputs.k.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(result.out, expected)
    assert result.inputs_unchanged
    assert result.repeatable
    assert result.guards_intact
    assert 0 < result.execution_ms < 60_000


def test_unwritten_scratch_is_nan_and_the_check_build_names_it(backend, tmp_path, inputs):
    plan = two_passes(tmp_path, skipped=77)
    fast = backend.run(plan, inputs, RunOptions())
    assert fast.status is Status.PASSED
    assert np.flatnonzero(np.isnan(fast.out)).tolist() == [77]
    checked = backend.run(plan, inputs, RunOptions(check=True))
    assert checked.status is Status.LAUNCH_ERROR
    assert says(checked.reason, "uninitialised_global", "second")
    assert says(checked.reason, "read_at_byte", "buffer 'sums'", f"{77 * 4}")
    assert checked.out is None


def test_output_is_poisoned(backend, tmp_path, inputs):
    result = backend.run(one_pass(tmp_path, "if (i != 5) out[i] = 0;"), inputs, RunOptions())
    assert result.status is Status.PASSED
    bits = result.out.view(np.uint16).reshape(-1)
    assert bits[5] == POISON_BITS
    assert np.count_nonzero(bits) == 1


def test_changed_inputs_are_noticed(backend, tmp_path, inputs):
    plan = one_pass(tmp_path, "out[i] = 0; if (i == 3) v[i] = 1;", ("out", "v"))
    before = inputs.v.copy()
    fast = backend.run(plan, inputs, RunOptions())
    assert fast.status is Status.PASSED
    assert not fast.inputs_unchanged
    np.testing.assert_array_equal(inputs.v, before)  # the caller's array is not changed
    checked = backend.run(plan, inputs, RunOptions(check=True))
    assert checked.status is Status.LAUNCH_ERROR
    assert checked.reason.startswith("tiny.cu:3: ")
    assert says(checked.reason, "write_to_input")
    assert not checked.inputs_unchanged


UNREPEATABLE = """
extern "C" __global__ void k(unsigned short *out, int *runs) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = (unsigned short)runs[0];
    if (i == 0) runs[1] += 1;
}
extern "C" __global__ void count(int *runs) { runs[0] = runs[1]; }
"""


def test_a_second_run_must_give_the_same_bits(backend, tmp_path, inputs):
    runs = TensorArg("runs")
    plan = plan_of(
        tmp_path,
        UNREPEATABLE,
        PassLaunch("k", (PROBLEM.elements // 64, 1, 1), 64, 0, (TensorArg("out"), runs)),
        PassLaunch("count", (1, 1, 1), 1, 0, (runs,)),
        scratch=[ScratchBuffer("runs", "int32", (2,), "zero")],
    )
    assert not backend.run(plan, inputs, RunOptions()).repeatable
    once = backend.run(plan, inputs, RunOptions(repeat=False))
    assert once.repeatable
    assert not once.out.any()  # the first run's output is returned


def test_a_write_past_the_output_is_reported(backend, tmp_path, inputs):
    plan = one_pass(tmp_path, "out[i + 1] = 0; if (i == 0) out[0] = 0;")
    fast = backend.run(plan, inputs, RunOptions())
    assert fast.status is Status.OUT_OF_BOUNDS
    assert not fast.guards_intact
    assert says(fast.reason, "guard_zone_written", "buffer 'out'")
    checked = backend.run(plan, inputs, RunOptions(check=True))
    assert checked.reason.startswith("tiny.cu:3: ")
    assert says(checked.reason, "out_of_bounds_global", "kernel k, CTA (")


def test_a_compile_error_is_a_status_with_its_line(backend, tmp_path, inputs):
    result = backend.run(one_pass(tmp_path, "out[i] = nonsense;"), inputs, RunOptions())
    assert result.status is Status.COMPILE_ERROR
    assert result.reason.startswith("tiny.cu:3: ")
    assert "nonsense" in result.log


def test_an_endless_kernel_is_stopped(backend, tmp_path, inputs):
    plan = one_pass(tmp_path, "volatile int on = 1;\n    while (on) {}\n    out[i] = 0;")
    result = backend.run(plan, inputs, RunOptions(timeout_s=0.5))
    assert result.status is Status.TIMEOUT
    assert "tiny.cu:4" in result.reason
    assert backend.run(two_passes(tmp_path), inputs, RunOptions()).status is Status.PASSED


def test_a_crash_is_a_status(backend, tmp_path, inputs):
    plan = one_pass(tmp_path, "if (i == 9) __builtin_abort();\n    out[i] = 0;")
    result = backend.run(plan, inputs, RunOptions())
    assert result.status is Status.CRASHED
    assert says(result.reason, "process_ended", "SIGABRT")


def test_a_missing_compiler_is_a_status(backend, tmp_path, inputs, monkeypatch):
    monkeypatch.setenv("ATTUNE_CXX", "/nowhere/c++")
    result = backend.run(two_passes(tmp_path), inputs, RunOptions())
    assert result.status is Status.COMPILE_ERROR
    assert says(result.reason, "install_cxx")


@pytest.mark.parametrize("check", [False, True])
def test_more_memory_than_there_is(tmp_path, inputs, check):
    """Refused by arithmetic, before anything is allocated."""
    plan = two_passes(tmp_path)
    large = replace(plan, scratch=(ScratchBuffer("sums", "float32", (1 << 23,), "poison"),))
    with closing(CpuBackend(Client(workers=2, free_bytes=lambda: 100 << 20))) as backend:
        result = backend.run(large, inputs, RunOptions(check=check))
    if not check:  # 32 MiB fit
        assert result.status is Status.PASSED
        return
    assert result.status is Status.OUT_OF_MEMORY  # with the race detector's records it does not fit
    assert says(result.reason, "of_memory_and")
    assert " 800." in result.reason
    assert says(result.reason, "memory_is_free", "100.0 MiB")


def test_threads_share_one_backend(backend, tmp_path):
    plans = []
    for skipped in range(3):
        folder = tmp_path / str(skipped)
        folder.mkdir()
        plans.append(two_passes(folder, skipped))

    def run(seed):
        inputs = make_inputs(PROBLEM, seed)
        result = backend.run(plans[seed % 3], inputs, RunOptions())
        expected = (inputs.q.astype(np.float32) + inputs.k.astype(np.float32)).astype(np.float16)
        expected.reshape(-1)[seed % 3] = np.nan
        np.testing.assert_array_equal(result.out, expected)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(24)))


def test_a_kernel_of_the_ladder_runs(backend):
    """Each kernel is covered by its own tests."""
    variant = by_id("v08")
    for dtype in variant.dtypes:
        problem = Problem(1, 2, 65, 64, causal=dtype == "bfloat16", dtype=dtype)
        inputs = make_inputs(problem)
        plan = make_plan(variant, problem, variant.default_config())
        result = backend.run(plan, inputs, RunOptions(schedule="random", seed=3))
        assert result.status is Status.PASSED, result.reason
        q, k, v = (decode(x, dtype).astype(float) for x in (inputs.q, inputs.k, inputs.v))
        scores = q @ k.swapaxes(-1, -2) * problem.softmax_scale
        if problem.causal:
            scores = np.where(np.tril(np.ones((65, 65), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True) @ v
        assert np.abs(decode(result.out, dtype) - expected).max() < 2e-2


def test_importing_the_package_is_cheap():
    code = (
        "import sys, engine.cuda_on_host\n"
        "assert 'numpy' not in sys.modules\n"
        "import engine.cuda_on_host.runtime_process\n"
        "assert 'numpy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
