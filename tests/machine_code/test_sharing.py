"""CTAs that share SMs: which SM takes the next CTA, and when the last one ends."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from engine.machine_code.timing.traffic import share_sms

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")

COSTS = np.array([[0.0, 60.0, 100.0]])  # one kind: 60 cycles alone, two together 100
START = np.zeros(3)


def test_ctas_are_spread_over_sms_with_free_slots() -> None:
    # Three SMs with two CTAs each, then two more: each alone on an SM, not both on the first.
    assert share_sms(np.zeros(8), COSTS, COSTS, START, 3) == pytest.approx(160.0)
    assert share_sms(np.zeros(10), COSTS, COSTS, START, 3) == pytest.approx(200.0)


def test_concurrent_ctas_may_end_at_different_times() -> None:
    # The first ends after 90; the second 20 later, beside a third, which then continues alone.
    cycles = share_sms(np.zeros(3), COSTS, COSTS, START, first_work=(0.9, 1.1))
    assert cycles == pytest.approx(110.0 + 0.8 * 60.0)


def test_a_cta_alone_on_its_sm_takes_its_own_time() -> None:
    assert share_sms(np.zeros(3), COSTS, COSTS, START, 3, spread=0.2) == pytest.approx(60.0)
    assert share_sms(np.zeros(6), COSTS, COSTS, START, 3, spread=0.2) > 101.0
