"""The checks of `selfcheck` that need a GPU, on a fake one: each can pass and fail."""

from __future__ import annotations

import numpy as np
import pytest
from fake_gpu import FakeGpu
from words import raises

from engine.backends.cuda import CudaBackend
from engine.selfcheck import CheckFailed, State, checks, perform
from engine.selfcheck import checks as timing
from kernels.ladder import LADDER

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")


def backend_of(fake: FakeGpu) -> CudaBackend:
    return CudaBackend(fake.calls())


def writes(gpu: FakeGpu, _: np.uint64, out: np.uint64, *, at: int) -> None:
    gpu.view(int(out) + at, 64).view(np.uint16)[:] = 1


def test_guard_zones_are_tried_on_both_sides() -> None:
    runs = 0

    def inside_then_behind(gpu: FakeGpu, q: np.uint64, out: np.uint64) -> None:
        nonlocal runs
        runs += 1
        writes(gpu, q, out, at=0 if runs <= 2 else 2 * 16 * 32)

    good = backend_of(FakeGpu({"k": inside_then_behind}))
    assert checks.guard_zones(good) == "A write past the end of the output is detected."
    blind = backend_of(FakeGpu({"k": lambda g, q, out: writes(g, q, out, at=0)}))
    with raises(CheckFailed, "guard_zones"):
        checks.guard_zones(blind)


def test_graphs_are_timed_against_an_empty_one() -> None:
    fake = FakeGpu({"k": lambda *_: None}, launch_us=0.5)
    assert timing.graph_timing(backend_of(fake)) == (
        "An empty graph takes 5.0 µs, an empty kernel in a graph 0.50 µs."
    )
    assert fake.allocations == 0
    assert fake.modules == 0
    with raises(CheckFailed, "graph_times"):
        timing.graph_timing(backend_of(FakeGpu({"k": lambda *_: None}, launch_us=0.0)))


def test_a_torch_without_cuda_is_said_once_and_is_no_failure() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this PyTorch finds a GPU")
    found = perform("SDPA", timing.sdpa_backends)
    assert found.state is State.NOT_POSSIBLE
    assert found.sentence.count("finds no CUDA device") == 1


def test_occupancy_is_compared_with_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    few = (LADDER.by_id("v01"), LADDER.by_id("v05"))
    monkeypatch.setattr(checks, "LADDER", few)
    fake = FakeGpu({})
    with raises(CheckFailed, "occupancy_differs"):
        checks.occupancy_model(backend_of(fake))
    assert fake.modules == 0
    monkeypatch.setattr(checks, "occupancy", lambda *_: type("Model", (), {"ctas_per_sm": 7}))
    fake.ctas_per_sm = 7
    count = sum(len(variant.passes) for variant in few)
    said = checks.occupancy_model(backend_of(fake))
    assert f"agree about CTAs per SM of {count} kernels" in said
