"""The L4 study's file, and a stand-in for the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_history import MadeUpHistory, compiled_on_an_l4


@pytest.fixture(scope="session")
def reference_csv() -> Path:
    """Return the file with the L4 study's two series."""
    return Path(__file__).parent / "data" / "l4_fa1_baseline.csv"


@pytest.fixture(scope="session")
def known() -> MadeUpHistory:
    return compiled_on_an_l4()
