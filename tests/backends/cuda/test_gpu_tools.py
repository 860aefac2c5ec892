"""Tools for GPU machines, tested as far as possible without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_gpu_tests_run_serially_by_default() -> None:
    """Processes that share a GPU would disturb each other's measurements."""
    one = "backends/cuda/test_cuda_gpu.py::test_fill_covers_exactly_the_given_range"
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", str(TESTS / one)],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "4 skipped" in found.stdout or "4 passed" in found.stdout
    assert "workers" not in found.stdout


def test_the_benchmark_runs_without_cuda_bench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("bench_gpu", TESTS / "bench" / "bench_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    monkeypatch.setitem(sys.modules, "cuda.bench", None)  # as if it were not installed
    module.beside_cuda_bench(None, None, "sm_90")
    assert "cuda-bench" in capsys.readouterr().out
