"""Every instruction is executed on the CPU and compared with a definition in Python."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_cases import BITS, INTEGERS, KINDS, LANES, Case, source, values
from ptx_float_cases import COMPARISONS, CONVERSIONS, FLOATS

from engine.base.launch_arguments import TensorArg
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.client import Buffer, Job, KernelLaunch

pytestmark = pytest.mark.slow  # each of two builds takes longer than all of its cases

CASES = [*INTEGERS, *BITS, *FLOATS, *COMPARISONS, *CONVERSIONS]


def _inputs(case: Case) -> list[np.ndarray]:
    return [values(kind, seed) for seed, kind in enumerate(case.inputs)]


@pytest.fixture(scope="module", params=["fast", "check"])
def results(request, client, tmp_path_factory):
    """Return the outputs' bits, [case, lane]."""
    path = tmp_path_factory.mktemp("cases") / "cases.cu"
    path.write_text(source(CASES))
    words = np.zeros((len(CASES), 4, LANES), np.uint64)
    for number, case in enumerate(CASES):
        for operand, drawn in enumerate(_inputs(case)):
            words[number, operand].view(drawn.dtype).reshape(LANES, -1)[:, 0] = drawn
    job = Job(
        library=build_kernels(path, ["cases"], check=request.param == "check"),
        buffers=(
            Buffer("in", data=words, read_only=True),
            Buffer("out", size_bytes=8 * LANES * len(CASES), returned=True),
        ),
        launches=(
            KernelLaunch("cases", (1, 1, 1), (LANES, 1, 1), (TensorArg("in"), TensorArg("out"))),
        ),
    )
    result = client.run(job, 60.0)
    assert result.returned, result.reason
    return result.returned["out"].view(np.uint64).reshape(len(CASES), LANES)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_each_case_gives_the_defined_value(results, number):
    case = CASES[number]
    dtype = KINDS[case.out][0]
    got = results[number].view(dtype).reshape(LANES, -1)[:, 0]
    rows = (
        zip(*(drawn.tolist() for drawn in _inputs(case)), strict=True)
        if case.inputs
        else [()] * LANES
    )
    with np.errstate(all="ignore"):
        expected = np.array([case.expected(*row) for row in rows], dtype)
    if dtype in (np.float16, np.float32, np.float64):
        np.testing.assert_allclose(got, expected, rtol=case.relative_error, atol=0)
        if not case.relative_error:
            zeros = expected == 0
            assert np.array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))
    else:
        assert got.tolist() == expected.tolist()
