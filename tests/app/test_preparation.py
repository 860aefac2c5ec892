"""What a server imports and prepares at start."""

from __future__ import annotations

import threading

import pytest

from app import preparation


def test_a_page_waits_for_the_imports_of_the_preparation() -> None:
    """Two threads that import one package can end in Python's _DeadlockError."""
    imported = threading.Event()
    preparation.prepare([imported.wait])
    page = threading.Thread(target=preparation.wait_for_imports, daemon=True)
    page.start()
    page.join(0.05)
    assert page.is_alive()
    imported.set()
    page.join(10)
    assert not page.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_failed_imports_do_not_block_a_page() -> None:
    imported = threading.Event()
    thread = preparation.prepare([lambda: 1 / 0, imported.set])
    preparation.wait_for_imports()
    thread.join(10)
    assert not imported.is_set()


def test_without_a_preparation_nobody_waits() -> None:
    preparation.wait_for_imports()
