"""Rewritten kernels of published series: correct, and simulated with the times of the originals."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from slow_cases import slow_ones
from words import says

from engine.cuda_source import compile_kernel
from engine.history.simulation import time_launch
from engine.machine_code.analysis import analyse, launch_figures, notes, program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.execution import GlobalBuffer, Hazard, execute
from engine.machine_code.launch import (
    Launch,
    arguments_and_memory,
    buffer_address,
    parse_arguments,
    tables,
)
from tests.bench.counted_sets import counted_points
from tests.machine_code.rewritten import (
    BF16,
    CP_ASYNC,
    FP16,
    INT8,
    KERNELS,
    PADDED,
    PLAIN,
    REGISTERS,
    REWRITTEN,
    SWIZZLED,
    TMA,
    TWO_AXES,
    Rewritten,
    gemm,
    gpu,
)

POINTS = {(p.series, p.name): p for p in counted_points()}
RANDOM = np.random.default_rng(1)
# Largest deviation from the simulated time of the author's code, as the compiler generates other
# code for the rewritten kernel. The transpose waits at its mbarrier with other instructions.
FAR, FURTHER = 0.2, 0.3


def executed(
    kernel: Rewritten, arch: str, arrays: Sequence[NDArray[Any]], launch: Launch | None = None
) -> None:
    """Execute it on the arrays, in the order of its pointers and maps; no hazard is found."""
    source = KERNELS / kernel.file
    cubin = read_cubin(compile_kernel(source, kernel.defines, arch, (kernel.entry,)).cubin)
    hazards: list[Hazard] = []
    execute(
        program_of(cubin, kernel.entry),
        cubin.entries[kernel.entry],
        launch or kernel.launch(),
        [
            GlobalBuffer(f"array {n}", buffer_address(n), array.reshape(-1).view(np.uint8))
            for n, array in enumerate(arrays)
        ],
        threads=2,
        hazards=hazards,
    )
    assert hazards == []


def as_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the BF16 bits of values that BF16 represents exactly."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    ("arch", "element", "copy", "layout", "stages", "group"),
    [
        ("sm_75", FP16, REGISTERS, SWIZZLED, 1, TWO_AXES),
        ("sm_80", BF16, REGISTERS, PLAIN, 1, 0),
        ("sm_80", FP16, CP_ASYNC, PADDED, 1, 0),
        ("sm_89", BF16, CP_ASYNC, SWIZZLED, 3, 2),
        ("sm_90a", FP16, TMA, SWIZZLED, 2, 0),
        ("sm_120a", BF16, TMA, SWIZZLED, 2, 0),
        ("sm_120a", INT8, TMA, SWIZZLED, 2, TWO_AXES),
    ],
)
def test_products_are_correct(
    arch: str, element: int, copy: int, layout: int, stages: int, group: int
) -> None:
    size, depth = 256, 128 if element == INT8 else 64
    kernel = gemm(
        *("", "", "", ""),
        size=size,
        block=(128, 64, depth),
        element=element,
        copy=copy,
        layout=layout,
        stages=stages,
        group=group,
    )
    a, b = RANDOM.integers(-4, 5, (2, size, size))
    kind = {FP16: np.float16, BF16: np.float32, INT8: np.int8}[element]
    operands: list[NDArray[Any]] = [x.astype(kind) for x in (a, b)]
    if element == BF16:
        operands = [as_bf16(x) for x in operands]
    right = a @ b.T
    found = np.zeros((size, size), {BF16: np.uint16, INT8: np.int32}.get(element, np.float32))
    executed(kernel, arch, [*operands, found])
    if element == BF16:  # rounded: half an ulp
        values = (found.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(values, right, rtol=2.0**-8)
    else:
        np.testing.assert_array_equal(found, right)


def test_memory_bound_kernels_are_correct() -> None:
    whole = {c.entry: c for c in REWRITTEN if c.file == "streams.cu"}

    def launch(entry: str, grid: tuple[int, int, int], *arguments: str) -> Launch:
        given = parse_arguments(list(arguments) or list(whole[entry].arguments))
        return Launch(grid, (whole[entry].threads, 1, 1), 0, given)

    x = RANDOM.integers(-8, 9, 2 * 16 * 4096).astype(np.float32)
    total = np.zeros(1, np.float32)
    executed(whole["sum"], "sm_90a", [x, total], launch("sum", (2, 1, 1)))
    assert total[0] == x.sum()

    numbers = RANDOM.integers(-9, 10, (3, 512)).astype(np.int32)
    sums = np.zeros_like(numbers)
    executed(whole["scan"], "sm_90a", [numbers, sums], launch("scan", (3, 1, 1)))
    np.testing.assert_array_equal(sums, numbers.cumsum(1))

    rows = RANDOM.normal(size=(2, 3000)).astype(np.float32)
    out = np.zeros_like(rows)
    at = launch("softmax", (2, 1, 1), "ptr", "ptr", "i32:3000")
    executed(whole["softmax"], "sm_89", [rows, out], at)
    weights = np.exp(rows.astype(np.float64))
    np.testing.assert_allclose(out, weights / weights.sum(1, keepdims=True), rtol=1e-4)

    matrix = RANDOM.normal(size=(64, 96)).astype(np.float32)
    turned = np.zeros((96, 64), np.float32)
    maps = "tensormap:f32[96,64]box[32,32]", "tensormap:f32[64,96]box[32,32]"
    at = launch("transpose", (3, 2, 1), *maps)
    executed(whole["transpose"], "sm_90a", [matrix, turned], at)
    np.testing.assert_array_equal(turned, matrix.T)


@pytest.mark.parametrize("kernel", slow_ones(8, REWRITTEN), ids=str)
def test_a_rewritten_kernel_takes_the_time_of_the_original(kernel: Rewritten) -> None:
    """If this fails, the model has changed and the recorded counts are out of date."""
    original = POINTS[kernel.series, kernel.name].as_shipped_us
    away = abs(math.log(kernel.simulated_us() / original))
    assert away <= math.log1p(FURTHER if kernel.entry == "transpose" else FAR)


@pytest.mark.slow
def test_tma_copies_count_as_touched_bytes_on_every_arch() -> None:
    size = 1024
    for arch in ("sm_90a", "sm_120a"):
        kernel = gemm(*("", "", "", ""), size=size, copy=TMA, stages=2)
        source = KERNELS / kernel.file
        cubin = compile_kernel(source, kernel.defines, arch, ("gemm",)).cubin
        analysis = analyse(cubin, "gemm", kernel.launch())
        name = "H100 SXM" if arch == "sm_90a" else "RTX 5090"
        assert time_launch(analysis, gpu(name), quick=True).touched_bytes == 3 * size * size * 2
        assert not says(notes(analysis), "tensor_maps_unknown")


def test_a_tensor_map_in_memory_is_reported_or_read(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    text = (KERNELS / "streams.cu").read_text()
    old = "const __grid_constant__ TensorMap from,"
    assert old in text
    text = text.replace(old, "const TensorMap* from,").replace("&from,", "from,")
    source.write_text(text)
    (tmp_path / "hopper.cuh").write_text((KERNELS / "hopper.cuh").read_text())
    cubin = compile_kernel(source, (), "sm_90a", ("transpose",)).cubin
    grid, block = (2, 2, 1), (1024, 1, 1)
    mapped = "tensormap:f32[64,64]box[32,32]"
    arguments = parse_arguments(["ptr", mapped])
    analysis = analyse(cubin, "transpose", Launch(grid, block, 0, arguments))
    said = [n for n in notes(analysis) if says(n, "tensor_maps_unknown")]
    assert len(said) == 1
    assert "k.cu:" in said[0] or "hopper.cuh:" in said[0]
    # With the map given as memory contents, its copies count as touched bytes.
    arguments, contents = arguments_and_memory([f"ptr:{mapped}", mapped])
    known = analyse(cubin, "transpose", Launch(grid, block, 0, arguments, tables(contents)))
    assert not says(notes(known), "tensor_maps_unknown")
    (sectors, before) = (launch_figures(a.counts).global_sectors for a in (known, analysis))
    assert sectors - before == 64 * 64 * 4 // 32


@pytest.mark.slow
def test_an_instruction_late_in_the_loop_is_counted_as_shared() -> None:
    """With 256 products in between, the loads of a loop come after the part examined first."""
    kernel = gemm(*("", "", "", ""), size=4096, stages=2)
    cubin = compile_kernel(KERNELS / kernel.file, kernel.defines, "sm_120a", ("gemm",)).cubin
    analysis = analyse(cubin, "gemm", kernel.launch())
    timed = time_launch(analysis, gpu("RTX 5090"), quick=True)
    assert timed.touched_bytes == pytest.approx(3 * 4096 * 4096 * 2, rel=0.01)


@pytest.mark.slow
def test_rewritten_kernels_get_the_arguments_that_they_declare() -> None:
    """Arguments have the sizes that the cubins declare, and each array another address."""
    for kernel in REWRITTEN:
        arch = gpu(kernel.gpu).arch.replace("120", "120a").replace("90", "90a")
        source = KERNELS / kernel.file
        cubin = read_cubin(compile_kernel(source, kernel.defines, arch, (kernel.entry,)).cubin)
        arguments = kernel.launch().arguments
        sizes = [p.size for p in cubin.entries[kernel.entry].parameters]
        assert [len(value) for value in arguments] == sizes
        arrays = [
            struct.unpack("<Q", value[:8])[0]
            for text, value in zip(kernel.arguments, arguments, strict=True)
            if text == "ptr"
        ]
        assert set(arrays) <= {buffer_address(n) for n in range(len(kernel.arguments))}
        assert len(set(arrays)) == len(arrays)


def test_every_series_has_a_rewritten_kernel() -> None:
    """The kernels of the series below are other files of this folder, which the benchmark runs."""
    elsewhere = {
        "H200": "flash_mma.cu, floors.cu",
        "SGEMM RTX A6000": "sgemm.cu",
        "SGEMM RTX 4090": "sgemm.cu",
        "SGEMM A100 40GB SXM": "sgemm.cu",
        "learn-cuda 02a 4070 Ti SUPER": "sgemm.cu",
        "blackwell-tensorcore H100": "sgemm.cu, flash_mma.cu",
        "fast.cu H100": "gemm_wgmma.cu",
        "learn-cuda 07 RTX 5090": "flash_steps.cu",
        "learn-cuda 08 RTX 5090": "gemm_mma.cu",  # as 02c INT8, but for its scales
    }
    counted = json.loads((KERNELS.parents[1] / "bench" / "counted_sets.json").read_text())
    series = {s["series"] for s in counted["series"]}
    assert series == {c.series for c in REWRITTEN} | set(elsewhere)
    for files in elsewhere.values():
        assert all((KERNELS / file).exists() for file in files.split(", "))
