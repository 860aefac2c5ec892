"""What Q, K and V are filled with: by name, and as numbers.

Every kind starts from the same N(0, 1) draws of a seed. The harsh ones are there because a bug in
the softmax hides where scores stay within a few units of 0: a kernel that never takes the maximum
out, or takes it of the wrong rows, is exact there and overflows or divides 0 by 0 here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.errors import InvalidProblem
from engine.base.text import Text

_Array: TypeAlias = npt.NDArray[np.float32]

NORMAL = "normal"
# The second inputs of every checked run.
HARSH = "harsh"
DEFAULT_FACTOR = 8.0
# Scores of scaled inputs grow with its square; FP16 itself ends at 65,504.
MAX_FACTOR = 4096.0

# exp of it is infinite in FP32, exp of minus it is 0, also where denormals are kept.
_FAR = 160.0
_HUGE_V = 4096.0
_HUGE_KEY = 60.0
_HARSH_SCALE = 32.0
_STEP_KEYS = 16

MEANINGS: Mapping[str, str] = {
    NORMAL: "N(0, 1)",
    "large_logits": "Q and K times 4: scores of about ±60",
    "structured_v": "V tells its own row and column: a wrong one shows as a large error",
    "scaled": f"Q and K times {DEFAULT_FACTOR:g}, or scaled:FACTOR for any other factor",
    "huge_v": f"V times {_HUGE_V:g}: unnormalised sums leave FP16's range",
    "huge_key": f"one key of every head times {_HUGE_KEY:g}, which decides half of the rows",
    "negative_scores": f"every score about −{_FAR:g}: exp of it, without its maximum, is 0",
    "constant_rows": "all K rows of a head equal: softmax is uniform",
    "climbing": f"scores that climb from −{_FAR:g} to 0 in steps of {_STEP_KEYS} keys: every key "
    "tile raises the maximum",
    HARSH: f"rows with scores about +{_FAR:g}, −{_FAR:g}, 0, climbing from −{_FAR:g} to 0, falling "
    f"from +{_FAR:g} to 0, and spread {_HARSH_SCALE:g} times as far, in no order",
}
INPUT_KINDS = tuple(MEANINGS)

_SCALED = re.compile(r"scaled:([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)", re.ASCII)


def check_input_kind(kind: str) -> str:
    """The kind itself.

    Raises:
        InvalidProblem: it is neither a name nor `scaled:FACTOR` with a factor in range.
    """
    if kind in MEANINGS:
        return kind
    match = _SCALED.fullmatch(kind)
    if match is None:
        raise InvalidProblem(
            f"inputs must be one of {', '.join(INPUT_KINDS)} or scaled:FACTOR, not {kind!r}.",
            code="inputs_kind",
        )
    if not 0 < float(match[1]) <= MAX_FACTOR:
        raise InvalidProblem(
            f"the factor of scaled inputs must be above 0 and at most {MAX_FACTOR:g}, not "
            f"{match[1]}.",
            code="inputs_factor",
        )
    return kind


def _stored(kind: str) -> None:
    try:
        check_input_kind(kind)
    except InvalidProblem as error:
        raise ValueError(str(error)) from None


# A name of `MEANINGS`, or `scaled:FACTOR`.
InputKind: TypeAlias = Annotated[str, Text(r"^[a-z_]+(:[0-9.e+-]+)?$", 49, check=_stored)]


def meaning(kind: InputKind) -> str:
    """What the kind is, for a sentence."""
    name, _, factor = kind.partition(":")
    return f"Q and K times {factor}" if factor else MEANINGS[name]


def shape_inputs(
    kind: InputKind, q: _Array, k: _Array, v: _Array, rng: np.random.Generator
) -> None:
    """Turn N(0, 1) draws into a kind of inputs, in place.

    Args:
        q: `[batch, num_heads, seqlen, head_dim]`; k and v with as many heads and rows as K and V
            have.
        rng: for what else has to be drawn.

    Raises:
        InvalidProblem: there is no such kind.
    """
    name, _, factor = check_input_kind(kind).partition(":")
    match name:
        case "large_logits":
            _scale(4.0, q, k)
        case "scaled":
            _scale(float(factor or DEFAULT_FACTOR), q, k)
        case "structured_v":
            rows = np.arange(v.shape[2], dtype=np.float32)[:, None]
            columns = np.arange(v.shape[3], dtype=np.float32)[None, :]
            v[...] = np.sin(0.37 * rows) + 0.5 * np.cos(1.7 * columns + rows)
        case "huge_v":
            v *= _HUGE_V
        case "huge_key":
            key = rng.integers(0, k.shape[2], k.shape[:2])
            k[np.arange(k.shape[0])[:, None], np.arange(k.shape[1]), key] *= _HUGE_KEY
        case "negative_scores":
            _shift_scores(q, k, np.full(q.shape[:3], -_FAR, np.float32))
        case "constant_rows":
            k[...] = k[:, :, :1].copy()
        case "climbing":
            _climb(q, k, np.ones(q.shape[:3], np.float32))
        case "harsh":
            which = rng.integers(0, 6, q.shape[:3])
            q[which == 3] *= _HARSH_SCALE
            _climb(q, k, np.array([0.0, 0.0, 0.0, 0.0, 1.0, -1.0], np.float32)[which])
            _shift_scores(q, k, np.array([_FAR, -_FAR, 0.0, 0.0, 0.0, 0.0], np.float32)[which])


def told_before(kind: InputKind, schedule: str) -> str:
    """What a run was given that is not the usual, before its reason; empty where all is."""
    if kind == NORMAL:
        return ""
    order = f", threads in {schedule} order" if schedule else ""
    return f"With {kind} inputs ({meaning(kind)}){order}: "


def inputs_named(kind: InputKind) -> str:
    """`, harsh inputs`, to be added to a stage; empty for the usual ones."""
    return "" if kind == NORMAL else f", {kind.replace('_', ' ')} inputs"


def passed_too(max_abs_err: float, tolerance: float) -> str:
    """The sentence about the harsh inputs of a thorough check."""
    return (
        f"With {HARSH} inputs the largest error, {max_abs_err:.3g}, is within {tolerance:.3g} too."
    )


def _scale(factor: float, q: _Array, k: _Array) -> None:
    q *= factor
    k *= factor


def _shift_scores(q: _Array, k: _Array, by: _Array) -> None:
    """Add `by` (`[batch, num_heads, seqlen]`) to every score of a row, through column 0 alone.

    Softmax does not change by it, and neither does the rounding of its result: the column is the
    same in all keys.
    """
    column = _half_of_the_way(q)
    k[..., 0] = column
    q[..., 0] = by * math.sqrt(q.shape[3]) / column


def _climb(q: _Array, k: _Array, direction: _Array) -> None:
    """Raise the scores of rows from key to key, or lower them, through column 1: a rescale that
    comes too late, or not, shows there, and a maximum that is only the last tile's.

    `direction` is `[batch, num_heads, seqlen]`: 1 climbs from −_FAR to 0, −1 falls from _FAR to 0,
    and 0 leaves the column out.
    """
    if q.shape[3] < 2:
        return
    column = _half_of_the_way(q)
    step = np.arange(k.shape[2]) // _STEP_KEYS
    k[..., 1] = column * (step / max(1, step[-1]) - 1.0)
    q[..., 1] = direction * (_FAR * math.sqrt(q.shape[3]) / column)


def _half_of_the_way(q: _Array) -> float:
    """An element of K that makes a score of `_FAR` with one of Q of about the same size."""
    return float(2.0 ** round(math.log2(_FAR * math.sqrt(q.shape[3])) / 2))
