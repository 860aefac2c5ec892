"""Fixtures: measurements of the L4 study, and a history that replaces the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_history import MadeUpHistory, compiled_on_an_l4


@pytest.fixture(scope="session")
def reference_csv() -> Path:
    """Return the CSV file with both series of the L4 study."""
    return Path(__file__).parents[2] / "model" / "data" / "l4_fa1_baseline.csv"


@pytest.fixture(scope="session")
def known() -> MadeUpHistory:
    return compiled_on_an_l4()
