"""Sizes of tables, which show texts without cutting them."""

from __future__ import annotations

from app.shared.tables import row_px, text_px

REM_PX = 14  # the app's font size


def test_rows_are_high_enough_to_wrap_a_long_text() -> None:
    """Streamlit wraps texts in rows above 4 rem only."""
    assert row_px(["block_n=64", ""], letters=10) is None
    height = row_px(["block_n=64", "block_n=64 stages=2"], letters=10)
    assert height is not None
    assert height > 4 * REM_PX


def test_a_column_is_as_wide_as_its_longest_text() -> None:
    assert text_px(["defaults", "row_tiles=1 stages=2"]) > text_px(["defaults"]) > text_px([])
