"""What a server prepares at its start."""

from __future__ import annotations

import threading

import pytest

from app import preparation


@pytest.fixture
def importing(monkeypatch):
    """Preparation that stops amid its imports, until the event is set."""
    goes_on = threading.Event()
    monkeypatch.setattr(preparation, "_start_cpu_runtime", lambda: None)
    monkeypatch.setattr(preparation, "_start_worker", lambda: None)
    monkeypatch.setattr(preparation, "_import_first_page", goes_on.wait)
    yield goes_on
    goes_on.set()
    preparation.wait_for_imports()


def test_a_page_waits_for_the_imports_of_the_preparation(importing) -> None:
    """Two threads that import one package can end in Python's _DeadlockError."""
    preparation.prepare()
    page = threading.Thread(target=preparation.wait_for_imports, daemon=True)
    page.start()
    page.join(0.05)
    assert page.is_alive()
    importing.set()
    page.join(10)
    assert not page.is_alive()


def test_nobody_waits_for_imports_that_fail(importing, monkeypatch) -> None:
    monkeypatch.setattr(preparation, "_start_worker", lambda: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    preparation.prepare()
    preparation.wait_for_imports()
    assert not importing.is_set()


def test_without_a_preparation_nobody_waits() -> None:
    preparation.wait_for_imports()
