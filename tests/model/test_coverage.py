"""Uncalibrated intervals: most recorded values lie inside the 90 % interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.attention.problem import Problem
from engine.choose.batch.validate import validate
from engine.devices import find_device
from engine.model.calibrate import calibrate, leave_one_out, prepare
from engine.model.kernel import Kernel, Known
from engine.model.measured_points import read_measurements
from kernels.variant import Config, Pass, Variant, Work, ceil_div

H200 = find_device("H200")
DATA = Path(__file__).parent / "data" / "h200_sdpa_flash.csv"

ROWS = 128


def _smem_bytes(problem: Problem, _: Config) -> int:
    """Return bytes of Q, and of K and V tiles of 128 rows at D = 64, 64 rows at D = 128."""
    return 48 * 1024 if problem.head_dim == 64 else 64 * 1024


# FlashAttention-2's forward kernel: 128 query rows and four warps per CTA.
FA2 = Variant(
    id="fa2",
    name="fa2",
    title="FlashAttention-2",
    idea="",
    head_dims=(64, 128),
    dtypes=("float16",),
    min_compute_capability=(8, 0),
    tunables=(),
    constraints=(),
    scratch=(),
    passes=(
        Pass(
            "flash_fwd",
            lambda p, _: (ceil_div(p.seqlen, ROWS), p.num_heads, p.batch),
            lambda _p, _c: 128,
            _smem_bytes,
            (),
        ),
    ),
    work=Work(
        math_unit="tensor",
        math_threads=lambda _p, _c: 128,
        query_rows=lambda _p, _c: ROWS,
        kv_rows=lambda p, _: ceil_div(p.seqlen, 64) * 64,
    ),
    source=Path("fa2.cu"),
)


def test_tensor_kernels_on_an_h200(known: Known) -> None:
    points = read_measurements(DATA)
    found = validate(Kernel.of(FA2, H200), points, known)
    assert len(found.rows) > 40
    assert found.share_inside >= 0.8
    # Not so wide that everything would be inside.
    assert max(row.high_us / row.low_us for row in found.rows) < 15


@pytest.mark.parametrize("head_dim", [64, 128])
def test_calibrated_on_large_problems_it_predicts_them(known: Known, head_dim: int) -> None:
    points = [
        p for p in read_measurements(DATA) if p.problem.head_dim == head_dim and p.measured_us > 100
    ]
    prepared = prepare(Kernel.of(FA2, H200), points, known)
    assert "pace" in calibrate(prepared).fitted
    loo = leave_one_out(prepared)
    assert loo is not None
    assert loo.mean_error < 0.15
