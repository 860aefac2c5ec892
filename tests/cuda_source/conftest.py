"""A separate cache for every test, with the C++ compiler's outputs shared by the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shared_builds import own_cache

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = own_cache(tmp_path_factory.mktemp("cache"), ["cpu"])
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def data() -> Path:
    return DATA


@pytest.fixture
def cuda_file(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a kernel and returns its path."""

    def write(text: str, name: str = "kernel.cu") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
