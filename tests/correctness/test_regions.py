"""Descriptions of sets of indices."""

from __future__ import annotations

import numpy as np
import pytest

from engine.attention.problem import Problem
from engine.correctness.findings import Region, ordinal, place_of, span
from engine.correctness.reference import everything
from kernels.ladder import by_id


@pytest.mark.parametrize(
    ("indices", "total", "words"),
    [
        ([5], 64, "row 5"),
        ([0], 1, "row 0"),
        (range(64), 64, "every row"),
        (range(3, 9), 64, "rows 3–8"),
        ([3, 4], 64, "rows 3 and 4"),
        ([1, 5, 9], 64, "rows 1, 5 and 9"),
        (range(1, 62, 4), 64, "rows 1, 5, 9, …, 61 (every 4th)"),
        ([0, 3, 4], 64, "rows 0, 3 and 4"),
        ([0, 3, 4, 9, 11, 30, 33], 64, "7 rows between 0 and 33"),
    ],
)
def test_spans_of_indices(indices: list[int], total: int, words: str) -> None:
    assert span("row", np.array(list(indices)), total) == words


def test_batches_have_their_plural() -> None:
    assert span("batch", np.array([0, 1]), 4) == "batches 0 and 1"


@pytest.mark.parametrize(
    ("number", "word"), [(2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (21, "21st")]
)
def test_format_of_ordinals(number: int, word: str) -> None:
    assert ordinal(number) == word


@pytest.mark.parametrize(
    ("marked", "words"),
    [
        (np.s_[:], "every row of every head, every column"),
        (np.s_[4], "every row of batch 1, head 1, every column"),
        (np.s_[3:6, 7], "row 7 of every head of batch 1, every column"),
        (np.s_[[1, 4], :, 2], "every row of every batch, head 1, column 2"),
        (np.s_[[0, 4], 3], "row 3 of 2 of 6 (batch, head) slices, every column"),
    ],
)
def test_regions_of_several_axes(marked: object, words: str) -> None:
    mask = np.zeros((6, 10, 8), bool)
    mask[marked] = True
    assert Region.of(mask, everything(Problem(2, 3, 10, 8))).words() == words


@pytest.mark.parametrize(
    ("variant", "pattern", "sentence", "line"),
    [
        ("v08", "head_stride", "The output matches K and V of a head read", "size_t kv_head = "),
        ("v08", "head_stride", "The output matches K of a head read", "(k_smem, k + kv_head"),
        ("v08", "head_stride", "The output matches V of a head read", "(v_smem, v + kv_head"),
        ("v12", "head_stride", "The output matches V of a head read", "(v_smem, v + kv_head"),
        ("v15", "head_stride", "The output matches K of a head read", "&k_map"),
        ("v02", "head_stride", "The output matches Q of a head read", "(q_smem, q + q_head"),
        ("v02", "unwritten", "Never written: every row of batch 1", "size_t head_index = "),
        ("v08", "softmax_scale", "The output matches scores", "softmax_scale * LOG2_E"),
        ("v08", "lane_maximum", "Look at the row maximum", "= row_max(m_new[r]);"),
        ("v11", "tail_mask", "The output matches a missing tail mask", "const bool visible ="),
        ("v06", "kv_split_seam", "matches counting the first key tile twice", "chunk_end ="),
        ("v02", "online_rescale", "matches one that rescales O but not l", "l *= correction;"),
    ],
)
def test_a_finding_names_its_line(variant: str, pattern: str, sentence: str, line: str) -> None:
    source = by_id(variant).source
    name, number = place_of(pattern, source, sentence).split(":")
    assert name == source.name
    assert line in source.read_text().splitlines()[int(number) - 1]
