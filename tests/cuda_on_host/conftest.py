"""One child process per test worker."""

from __future__ import annotations

import pytest

from engine.cuda_on_host.client import Client


@pytest.fixture(scope="session")
def client():
    client = Client(workers=2)
    yield client
    client.close()
