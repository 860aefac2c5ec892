"""Negative scores, whose maximum v19 and v20 compute only where it matters."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.correctness.check import Correctness, check_output
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR

_LOW = "m_rmem[r] < -RESCALE_THRESHOLD"  # if m is so low that such scores could raise it


def _checked(cpu: CpuBackend, variant_id: str, config: dict[str, int], folder: Path) -> Correctness:
    variant, problem = by_id(variant_id), Problem(1, 2, 200, 64)
    plan = make_plan(variant, problem, variant.default_config() | config)
    inputs = make_inputs(problem, kind="climbing")
    result = cpu.run(replace(plan, source=folder / variant.source.name), inputs, RunOptions())
    assert result.out is not None, result.reason
    return check_output(inputs, result, plan=plan)


@pytest.mark.parametrize(
    ("variant_id", "config"),
    [
        pytest.param("v19", {"block_n": 64, "rescale_threshold": 8}, marks=pytest.mark.slow),
        pytest.param("v19", {"block_n": 64}, marks=pytest.mark.exhaustive),
        pytest.param("v20", {"block_n": 64}, marks=pytest.mark.exhaustive),
    ],
)
def test_rising_negative_scores(
    cpu: CpuBackend, variant_id: str, config: dict[str, int], tmp_path: Path
) -> None:
    assert _checked(cpu, variant_id, config, KERNELS_DIR).passed
    # If the maximum is computed only for the first tile, m is below later scores.
    for file in (*KERNELS_DIR.glob("*.cuh"), by_id(variant_id).source):
        shutil.copy(file, tmp_path)
    source = tmp_path / by_id(variant_id).source.name
    text = source.read_text("utf-8")
    assert text.count(_LOW) == 1
    source.write_text(text.replace(_LOW, "m_rmem[r] == -INFINITY"), "utf-8")
    assert not _checked(cpu, variant_id, config, tmp_path).passed
