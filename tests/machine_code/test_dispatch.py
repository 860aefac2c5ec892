"""Launches with partial last query tiles: which SM takes the last CTAs."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from engine.machine_code.timing.simulate import SlotTimes

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")

# Two CTAs per SM: one alone takes 60 cycles, two together 100, and so on.
ENDS = [0.0, 60.0, 100.0, 160.0, 200.0, 260.0, 300.0]


def slots(shift: float) -> SlotTimes:
    """Return times by which an SM with a CTA of 1 row, not 64, is free `shift` cycles later."""
    return SlotTimes(64, (1,), ((-5.0, 0.0),), (((shift, shift),) * 2,))


def test_an_early_sm_gets_two_of_the_last_ctas() -> None:
    # Three SMs with two each, then two more CTAs; the first SM has one whose query tile is cut.
    is_cut = np.arange(8) == 0
    assert slots(-20.0).launch(1, is_cut, ENDS, 3) == 200.0 - 20.0
    # If only one of its slots is free before those of the others, each takes one.
    assert slots(-3.0).launch(1, is_cut, ENDS, 3) == 160.0
    # If it is late, it takes none, and the others take one each.
    assert slots(30.0).launch(1, is_cut, ENDS, 3) == 160.0


def test_a_nearly_full_query_tile_counts_as_full() -> None:
    is_cut = np.arange(8) == 0
    assert slots(-20.0).launch(60, is_cut, ENDS, 3) == 160.0
    assert slots(-20.0).launch(1, np.zeros(8), ENDS, 3) == 160.0
