"""The CPU backend, once per test worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.backends.cpu import CpuBackend


@pytest.fixture(scope="session")
def cpu() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()
