"""Error maps: pooled so that no large error is hidden and no map is too large."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernel import Kernel

from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, decode, encode, make_inputs
from engine.base.errors import Status
from engine.correctness import (
    ErrorMap,
    check_against,
    check_with_maps,
    expect,
    maps_from_arrays,
    maps_to_arrays,
)
from engine.correctness.output_error import MAX_MAP_SIDE, NOT_COMPARED
from engine.correctness.reference import choose_coverage, reference
from engine.cuda_on_host.client import RunResult


def by_name(maps: tuple[ErrorMap, ...]) -> dict[str, ErrorMap]:
    return {m.name: m for m in maps}


def maps_of(inputs: Inputs, out: np.ndarray) -> dict[str, ErrorMap]:
    raw = encode(out.astype(np.float32), inputs.problem.dtype)
    return by_name(check_with_maps(inputs, RunResult(status=Status.PASSED, out=raw))[1])


def test_the_largest_error_is_in_every_map() -> None:
    inputs = make_inputs(Problem(2, 3, 200, 32))
    out = reference(inputs)
    out[1, 2, 130, 7] += 0.5
    maps = maps_of(inputs, out)
    stored = decode(encode(out.astype(np.float32), "float16"), "float16")
    worst = np.abs(stored - reference(inputs)).max()
    assert maps["batch_by_head"].values.shape == (2, 3)
    assert np.unravel_index(maps["batch_by_head"].values.argmax(), (2, 3)) == (1, 2)
    assert maps["row_by_column"].values.shape == (200, 32)
    assert np.unravel_index(maps["row_by_column"].values.argmax(), (200, 32)) == (130, 7)
    for name in ("batch_by_head", "row_by_column"):
        assert maps[name].values.max() == pytest.approx(worst)
    assert maps["query_tile_by_key_tile"].values.shape == (4, 4)
    assert (
        maps["query_tile_by_key_tile"].values[2].min()
        > 10 * maps["query_tile_by_key_tile"].values[1].max()
    )


def test_few_queries_have_one_row_of_tiles_and_a_column_for_every_key_tile() -> None:
    inputs = make_inputs(Problem(1, 2, 1, 64, seqlen_kv=600))
    out = reference(inputs)
    # Keys 128 to 191 are counted twice: an error of the third key tile.
    q, k, v = (decode(x, "float16").astype(float)[0, 1] for x in (inputs.q, inputs.k, inputs.v))
    weights = np.exp(q @ k.T / 8)
    out[0, 1] += (weights[:, 128:192] @ v[128:192]) / weights.sum()
    maps = maps_of(inputs, out)
    assert maps["batch_by_head"].values.shape == (1, 2)
    assert maps["row_by_column"].values.shape == (1, 64)
    by_tile = maps["query_tile_by_key_tile"].values
    assert by_tile.shape == (1, 10)
    assert by_tile.argmax() == 2
    assert by_tile[0, 2] > 3 * np.delete(by_tile[0], 2).max()


@pytest.mark.exhaustive
def test_more_key_tiles_than_equations_are_merged() -> None:
    inputs = make_inputs(Problem(1, 1, 1, 32, seqlen_kv=4096))
    found = maps_of(inputs, reference(inputs) + 0.1)["query_tile_by_key_tile"]
    # One query of 32 columns distinguishes 10 key tiles, not 64.
    assert found.columns_per_cell == 7
    assert found.values.shape == (1, 10)


def test_axes_are_named_and_counted() -> None:
    inputs = make_inputs(Problem(1, 2, 600, 32))
    maps = maps_of(inputs, reference(inputs))
    assert list(maps) == ["batch_by_head", "query_tile_by_key_tile", "row_by_column"]
    rows = maps["row_by_column"]
    assert (rows.row_axis, rows.column_axis) == ("query row", "column d")
    assert (rows.rows_per_cell, rows.columns_per_cell) == (3, 1)
    assert rows.values.shape == (200, 32)
    assert maps["query_tile_by_key_tile"].values.shape == (10, 10)


@pytest.mark.parametrize(
    "problem",
    [Problem(300, 2, 4, 8), Problem(1, 300, 3, 8), Problem(1, 1, 1, 4), Problem(1, 1, 5000, 4)],
    ids=Problem.label,
)
@pytest.mark.slow
def test_maps_are_never_larger_than_a_chart(problem: Problem) -> None:
    inputs = make_inputs(problem)
    raw = encode(np.zeros(problem.shape, np.float32), "float16")
    _, maps = check_with_maps(inputs, RunResult(status=Status.PASSED, out=raw))
    for found in maps:
        assert min(found.values.shape) >= 1
        assert max(found.values.shape) <= MAX_MAP_SIDE
        assert found.rows_per_cell >= 1
        assert found.columns_per_cell >= 1
    rows = by_name(maps)["row_by_column"]
    assert rows.values.shape[0] * rows.rows_per_cell >= problem.seqlen


def test_nan_is_kept_only_in_its_own_cells() -> None:
    inputs = make_inputs(Problem(1, 2, 200, 32))
    out = reference(inputs)
    out[0, 1, 70, 5] = np.inf
    maps = maps_of(inputs, out)
    assert np.isnan(maps["batch_by_head"].values).tolist() == [[False, True]]
    assert np.argwhere(np.isnan(maps["row_by_column"].values)).tolist() == [[70, 5]]
    broken = np.isnan(maps["query_tile_by_key_tile"].values)
    assert broken.all(axis=1).tolist() == [False, True, False, False] or not broken.any()


def test_elements_that_were_not_compared_are_marked() -> None:
    inputs = make_inputs(Problem(2, 8, 600, 16))
    expected = expect(inputs, coverage=choose_coverage(inputs.problem, 1e7))
    maps = by_name(check_against(expected, Kernel().run(inputs))[1])
    by_row = maps["row_by_column"].values.max(axis=1)
    assert (maps["batch_by_head"].values == NOT_COMPARED).sum() == 12
    assert (maps["batch_by_head"].values[:, [0, 7]] >= 0).all()
    assert (by_row == NOT_COMPARED).any()
    assert by_row[0] >= 0
    assert by_row[-1] >= 0


class TestKeyTiles:
    """An error is attributed to key tiles."""

    def worst_tile(self, kernel: Kernel, problem: Problem) -> np.ndarray:
        inputs = make_inputs(problem, seed=1)
        _, maps = check_with_maps(inputs, kernel.run(inputs))
        return by_name(maps)["query_tile_by_key_tile"].values

    @pytest.mark.parametrize("split", [0, 1, 3])
    def test_an_omitted_split_marks_its_key_tiles(self, split: int) -> None:
        found = self.worst_tile(Kernel(num_splits=4, skipped_split=split), Problem(1, 1, 512, 64))
        inside = np.arange(8) // 2 == split
        # The others are wrong too, but less: without the split's share their weights are too large.
        assert (found[:, inside].mean(axis=1) > 1.5 * found[:, ~inside].mean(axis=1)).all()
        assert (found[:, inside].min(axis=1) > found[:, ~inside].max(axis=1)).all()

    def test_a_causal_mask_off_by_one_marks_the_diagonal(self) -> None:
        found = self.worst_tile(Kernel(causal_shift=1), Problem(1, 1, 512, 64, True))
        off = found.copy()
        np.fill_diagonal(off, 0)
        assert (np.diag(found) > 3 * off.max(axis=1)).all()

    def test_a_wrong_query_row_marks_all_key_tiles_equally(self) -> None:
        kernel = Kernel(query_index=lambda rows, _: np.where(rows // 64 == 3, rows - 64, rows))
        found = self.worst_tile(kernel, Problem(1, 1, 512, 64))
        right = np.delete(found, 3, axis=0)
        assert found[3].min() > 20 * right.max()
        assert found[3].max() < 3 * found[3].min()

    def test_maps_of_a_correct_output_show_only_rounding(self) -> None:
        assert self.worst_tile(Kernel(), Problem(1, 1, 512, 64)).max() < 1e-3


def test_maps_survive_as_named_arrays() -> None:
    inputs = make_inputs(Problem(1, 2, 100, 32))
    maps = maps_of(inputs, reference(inputs))
    again = maps_from_arrays(maps_to_arrays(maps.values()))
    for a, b in zip(again, maps.values(), strict=True):
        np.testing.assert_array_equal(a.values, b.values)
        assert (a.name, a.row_axis, a.column_axis) == (b.name, b.row_axis, b.column_axis)
        assert (a.rows_per_cell, a.columns_per_cell) == (b.rows_per_cell, b.columns_per_cell)
