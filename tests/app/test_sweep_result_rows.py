"""A sweep's rows as a growing frame, and the cache of what is derived from it."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_data import rows_of, spec

from app.sweep import results
from app.sweep.filtered_rows import FilteredRows
from app.sweep.result_rows import ResultRows
from engine.search.autotune import problem_results
from engine.search.ranking import SweepRow
from engine.search.results import sweep_frame

ROWS = rows_of(spec(variants=("v01", "v02", "v05"), seqlens=(64,)))


def test_incremental_rows_equal_a_full_read():
    rows = ROWS
    kept = ResultRows()
    for count in (1, 2, 2, 7, len(rows)):
        kept.update(rows[:count], is_over=True)
        pd.testing.assert_frame_equal(kept.frame, sweep_frame(rows[:count]))
    assert kept.version == 4  # one less than the updates, since one changed nothing
    count = kept.cached("count", lambda: len(kept.rows))
    kept.update(rows, is_over=True)
    assert kept.cached("count", lambda: -1) == count == len(rows)
    again = [rows[0], SweepRow.from_result(rows[1].point, dict(rows[2].result), 0.2), *rows[2:]]
    kept.update(again, is_over=True)
    pd.testing.assert_frame_equal(kept.frame, sweep_frame(again))
    assert kept.cached("count", lambda: -1) == -1


def test_fewer_rows_are_read_anew():
    kept = ResultRows()
    for rows in (ROWS, ROWS[3:5], ()):
        kept.update(rows, is_over=True)
        assert kept.rows == tuple(rows)
        pd.testing.assert_frame_equal(kept.frame, sweep_frame(rows))
    assert kept.version == 3


def test_a_running_sweep_is_not_rebuilt_at_every_tick():
    rows = ROWS
    kept = ResultRows()
    kept.update(rows[:1], is_over=False)
    kept.update(rows[:2], is_over=False)
    assert len(kept.frame) == 1
    kept.update(rows, is_over=True)
    assert len(kept.frame) == len(rows)


@settings(max_examples=5, deadline=None)
@given(st.permutations(ROWS), st.integers(1, 5))
def test_frame_does_not_depend_on_order_or_chunks(order: list[SweepRow], step: int):
    # Tunables, times and reasons may appear late, so column types change meanwhile.
    kept = ResultRows()
    for count in range(step, 25, step):
        kept.update(order[:count], is_over=True)
        pd.testing.assert_frame_equal(kept.frame, sweep_frame(order[:count]))


def test_places_are_recomputed_for_other_final_rounds():
    kept = ResultRows()
    kept.update(ROWS, is_over=True)
    rows = FilteredRows(kept, "a sweep", None, ())
    first = problem_results(ROWS)
    slow = [replace(r, places=r.places[::-1]) for r in first]  # for instance measured again
    tables = [results._places(rows, each, each) for each in (first, slow)]
    assert tables[0].index[0] == first[0].places[0].point
    assert tables[1].index[0] == first[0].places[-1].point
