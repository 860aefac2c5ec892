"""One compile cache for the tests of the ladder, and the CPU backend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.backends.cpu import CpuBackend


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the processes of a parallel run too: compiling is the slow part."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernel-cache"


@pytest.fixture(autouse=True)
def _own_cache(kernel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(kernel_cache))


@pytest.fixture(scope="session")
def cpu() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()
