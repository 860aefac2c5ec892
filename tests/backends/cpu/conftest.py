"""One child process per test worker, and a cache that the test run throws away."""

from __future__ import annotations

import os

import pytest

from engine.backends.cpu.client import Client


@pytest.fixture(scope="session", autouse=True)
def cpu_cache(tmp_path_factory):
    """One temporary cache for all test workers: tests neither use nor fill the user's."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of the whole run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTUNE_CACHE_DIR", str(folder / "cpu_cache"))
        yield


@pytest.fixture(scope="session")
def client():
    client = Client(workers=2)
    yield client
    client.close()
