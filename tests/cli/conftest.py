"""What tests of several commands share."""

from __future__ import annotations

import pytest


@pytest.fixture
def sass_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sass` reads files in a process of its own, which takes a second to start; that it does is
    proven in test_apart.py."""
    monkeypatch.setattr("engine.cli.sass.run_apart", lambda run, args, _: run(args))
