"""The verdict on an LSE, and what it says of wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from engine.correctness.gradient_check import check_lse
from engine.problem import Problem
from engine.tensors import decode, make_inputs

PROBLEM = Problem(2, 2, 40, 64, seqlen_kv=200)
INPUTS = make_inputs(PROBLEM)


def _lse(begin: int = 0, end: int = 200) -> np.ndarray:
    """Of some of the keys."""
    q, k = (decode(x, "float16").astype(np.float64) for x in (INPUTS.q, INPUTS.k))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k[:, :, begin:end]) * PROBLEM.softmax_scale
    return np.asarray(np.log(np.exp(scores).sum(axis=-1)))


PARTS = np.stack([_lse(0, 96), _lse(96, 192), _lse(192, 200)])


@pytest.mark.parametrize(
    ("lse", "words"),
    [
        (_lse() / np.log(2), "base-2"),
        (-_lse(), "sign"),
        (_lse() + np.log(2), "twice what it is"),
        (PARTS[0], "keys 0 to 95 alone"),
        (PARTS[2], "the last part of 16 keys"),
        (PARTS.max(axis=0), "the largest of the LSEs of parts of 96 keys"),
        (_lse() - PARTS.max(axis=0), "maximum of the LSEs of the parts of 96 keys"),
    ],
)
def test_a_wrong_lse_is_named(lse: np.ndarray, words: str) -> None:
    judged = check_lse(INPUTS, lse.astype(np.float32))
    assert not judged.passed
    assert words in judged.sentence


def test_the_right_one_passes() -> None:
    assert check_lse(INPUTS, _lse().astype(np.float32)).passed
