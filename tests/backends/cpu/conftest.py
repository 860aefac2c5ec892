"""One child process per test worker, and a cache that the test run throws away."""

from __future__ import annotations

import pytest

from engine.backends.cpu.client import Client


@pytest.fixture(scope="session", autouse=True)
def cpu_cache(tmp_path_factory):
    """All of a worker's builds in one temporary cache: tests neither use nor fill the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTUNE_CACHE_DIR", str(tmp_path_factory.mktemp("cpu_cache")))
        yield


@pytest.fixture(scope="session")
def client():
    client = Client(workers=2)
    yield client
    client.close()
