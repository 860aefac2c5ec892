"""Lines of device code that ran; the comment at the end of a line gives the expectation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted import run
from words import says

from engine.attention.coverage import LineCoverage, describe_lines, largest_block, marked_source
from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.schema import decode, encode
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.instrument import ExecutedStatements
from engine.pipeline.execute import coverage_of

HEADER = """\
#if USES_TABLE
constexpr float TABLE[2] = {1.f, 2.f};  // not compiled
#else
__device__ float twice(float x) { return 2.f * x; }
#endif
__device__ float thrice(float x) { return 3.f * x; }  // not run
"""

SOURCE = """\
#include "tiny.cuh"
struct Pair {
    float first, second;
    __device__ float sum() const {
        return first + second;
    }
    __device__ float product() const {
        return first * second;  // not run
    }
};
template <bool NEGATED>
__device__ float signed_value(float x) {
    if constexpr (NEGATED) {
        return -x;  // not run
    } else {
        return x;
    }
}
template <int N>
__device__ float never_instantiated(float x) {
    return x + N;  // not run
}
#if __CUDA_ARCH__ >= 900
__device__ float for_hopper(float x) {  // not compiled
    return x;  // not compiled
}  // not compiled
#endif
extern "C" __global__ void k(const float *in, float *out, float *scratch, int *counter, int n) {
    __shared__ float staged[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    staged[threadIdx.x] =
        in[threadIdx.x];
    __syncthreads();
    float x = staged[63 - threadIdx.x];
    if (n < 0) return;  // partly
    if (n < 0) {
        x = 0.f;  // not run
    } else if (n == 1) {
        x = 1.f;  // not run
    } else
        x += 1.f;
#pragma unroll
    for (int j = 0; j < n - 256; j++)
        x = thrice(x);  // not run
    switch (n) {
        case 1:
            x = 7.f;  // not run
            break;  // not run
        case 256:
            x = twice(x);
            break;
        default:
            x = 8.f;  // not run
    }
    asm volatile("add.f32 %0, %0, %1;" : "+f"(x) : "f"(1.f));
#ifdef NOT_DEFINED
    x = 9.f;  // not compiled
#endif
    do {
        x += Pair{1.f, 2.f}.sum();
    } while (x < 0.f);
    while (n > 1000) n--;  // partly
    out[i] = signed_value<false>(x);
}
"""


@pytest.fixture
def library(tmp_path):
    (tmp_path / "tiny.cuh").write_text(HEADER)
    (tmp_path / "tiny.cu").write_text(SOURCE)
    return build_kernels(
        tmp_path / "tiny.cu", ["k"], [("USES_TABLE", "0")], check=True, arch="sm_80"
    )


def marked(text: str, mark: str) -> set[int]:
    return {
        number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"// {mark}")
    }


def lines_of(ranges) -> set[int]:
    return {line for first, last in ranges for line in range(first, last + 1)}


def test_executed_and_skipped_lines_are_reported(client, library):
    result = run(client, library, "k")
    assert result.status is Status.PASSED, result.reason
    kernel, header = coverage_of(result.executed, "tiny.cu")
    assert (kernel.file, header.file) == ("tiny.cu", "tiny.cuh")
    for coverage, text in ((kernel, SOURCE), (header, HEADER)):
        assert lines_of(coverage.not_run) == marked(text, "not run")
        assert lines_of(coverage.partly_run) == marked(text, "partly")
        assert lines_of(coverage.not_compiled) == marked(text, "not compiled")
    assert header.lines_not_run == 1
    assert header.lines == 2
    sentence = describe_lines((kernel, header))
    assert says(sentence, "not_executed_so", "of tiny.cu, lines 47–48, 8, 14, ")
    assert "(tiny.cuh)" in sentence


def test_marks_are_reset_for_each_launch(client, library):
    first = run(client, library, "k").executed
    assert run(client, library, "k").executed == first


def test_two_executions_of_one_build():
    statements = ((0, "a.cu", 1, 2), (1, "a.cu", 2, 2), (2, "a.cu", 4, 4))
    one = ExecutedStatements(statements, (), frozenset({0}))
    other = ExecutedStatements(statements, (), frozenset({2}))
    (alone,) = coverage_of(one, "a.cu")
    assert (alone.lines, alone.not_run, alone.partly_run) == (3, ((4, 4),), ((2, 2),))
    (both,) = coverage_of(one | other, "a.cu")
    assert (both.not_run, both.partly_run) == ((), ((2, 2),))
    assert says(describe_lines((both,)), "every_line_device")
    assert describe_lines(()) == ""


def test_the_list_of_lines_is_kept_short():
    ranges = tuple((line, line) for line in range(1, 40, 2))
    coverage = LineCoverage("a.cu", 50, ranges, (), ())
    assert says(
        describe_lines((coverage,)), "never_ran", "a.cu, lines 1, 3, 5, 7, 9, 11 and 14 more"
    )


def test_the_largest_block_is_first_with_its_condition():
    source = """\
constexpr int PARTS = NUM_SPLITS / 2;
__global__ void k() {
    if (a) {
        b;
    }
    if constexpr (PARTS > 1) {
        c;
        // Why.
        d;
        e;
        f;
        g;
        h;
    } else if (left > 0) {
        i;
        j;
        k;
        l;
        m;
        n;
    }
}
"""
    coverage = LineCoverage("a.cu", 9, ((4, 4), (7, 13)), (), ())
    assert says(describe_lines((coverage,)), "never_ran", "a.cu, lines 7–13 and 4")
    tunables, config = {"block_n": (32, 64), "num_splits": (1, 2, 4)}, {"num_splits": 2}
    block = largest_block(source, coverage, tunables, config)
    assert block is not None
    assert block.tunable == "num_splits"
    assert says(block.sentence, "largest_block_not_run", "7–13", "if constexpr (PARTS > 1)")
    assert says(block.sentence, "check_another_value", "num_splits = 1 or 4", "2")
    coverage = LineCoverage("a.cu", 9, ((15, 20),), (), ())
    block = largest_block(source, coverage, tunables, config)
    assert block is not None
    assert block.tunable == ""
    assert says(block.sentence, "largest_block_not_run", "15–20", "} else if (left > 0)")
    assert says(block.sentence, "check_other_lengths")
    small = LineCoverage("a.cu", 9, ((4, 4),), (), ())
    assert largest_block(source, small, tunables, config) is None


def test_a_file_holds_the_lines():
    coverage = LineCoverage("a.cu", 9, ((2, 3),), ((5, 5),), ())
    evaluation = Evaluation(
        Status.SKIPPED, "Not executed.", "v01", Problem(1, 1, 64, 64), {}, "unknown", ""
    )
    with_lines = replace(evaluation, line_coverage=(coverage,))
    assert decode(Evaluation, encode(with_lines)) == with_lines
    assert "line_coverage" not in encode(evaluation)
    assert decode(Evaluation, encode(evaluation)) == evaluation


def test_marks_before_the_lines():
    coverage = LineCoverage(
        "a.cu", 3, not_run=((2, 2),), partly_run=((1, 1),), not_compiled=((4, 4),)
    )
    assert marked_source("a\nb\nc\nd", coverage) == "◐ a\n✗ b\n  c\n· d"
