"""Input tensors on the host: formats, kinds of contents, and the precision of each format.

NumPy has no bfloat16, so a *raw* array is `numpy.float16` for FP16, `numpy.uint16` (the bit
patterns) for BF16 and `numpy.float32` for FP32. `encode` and `decode` convert from and to float32.
All kinds of inputs (`MEANINGS`) are made from the same N(0, 1) draws of a seed. Kinds with large or
increasing scores find bugs in the softmax that normal inputs, with scores of a few units, do not
show.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from engine.attention.fp8 import E4M3_LARGEST, e4m3_bytes, e4m3_values
from engine.attention.paged_kv import Pages
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.schema import Text
from kernels.variant import (
    ALIBI_SLOPES,
    BLOCK_TABLE,
    CU_SEQLENS_K,
    CU_SEQLENS_Q,
    DOUT,
    GRADIENTS,
    KV_SCALES,
    LSE,
    PACKED,
    SEQLENS,
    SINKS,
    Dtype,
    Layout,
    Lse,
)

_Array: TypeAlias = npt.NDArray[np.float32]

NORMAL = "normal"
# The kind of inputs of a second run in every check.
EXTREME = "extreme"
DEFAULT_FACTOR = 8.0
# Scores of scaled inputs grow with its square; the largest FP16 number is 65,504.
MAX_FACTOR = 4096.0

# In FP32 exp(_FAR) is infinite and exp(−_FAR) is 0, also with denormals.
_FAR = 160.0
_HUGE_V = 4096.0
_HUGE_KEY = 60.0
_EXTREME_SCALE = 32.0
_STEP_KEYS = 16
_PEAKS = 4  # keys with raised scores in each head

MEANINGS: Mapping[str, str] = {
    NORMAL: "N(0, 1)",
    "large_logits": "Q and K times 4: scores of about ±60",
    "structured_v": "V encodes its row and column: reading a wrong one gives a large error",
    "scaled": f"Q and K times {DEFAULT_FACTOR:g}, or scaled:FACTOR for any other factor",
    "huge_v": f"V times {_HUGE_V:g}: unnormalised sums leave FP16's range",
    "huge_key": f"one key of every head times {_HUGE_KEY:g}, which decides half of the rows",
    "negative_scores": f"every score about −{_FAR:g}: exp underflows to 0 unless the maximum is "
    "subtracted",
    "constant_rows": "all K rows of a head equal: softmax is uniform",
    "climbing": f"scores that climb from −{_FAR:g} to 0 in steps of {_STEP_KEYS} keys: every key "
    "tile raises the maximum",
    EXTREME: f"rows with scores about +{_FAR:g}, −{_FAR:g}, 0, climbing from −{_FAR:g} to 0, "
    f"falling from +{_FAR:g} to 0, spread {_EXTREME_SCALE:g} times as far, and with one key at "
    f"+{_FAR:g}, in no order",
}
INPUT_KINDS = tuple(MEANINGS)
# By the names in snapshots, links and commands, including those of earlier versions.
INPUT_KIND_OF: Mapping[str, str] = {**{kind: kind for kind in INPUT_KINDS}, "harsh": EXTREME}

_SCALED = re.compile(r"scaled:([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)", re.ASCII)


def check_input_kind(kind: str) -> str:
    """Return the present name of a kind of inputs.

    Raises:
        InvalidProblem: it is neither a known name nor `scaled:FACTOR` with a factor in range.
    """
    if (known := INPUT_KIND_OF.get(kind)) is not None:
        return known
    match = _SCALED.fullmatch(kind)
    if match is None:
        raise InvalidProblem(
            f"inputs must be one of {', '.join(INPUT_KINDS)} or scaled:FACTOR, not {kind!r}.",
            code="inputs_kind_unknown",
        )
    if not 0 < float(match[1]) <= MAX_FACTOR:
        raise InvalidProblem(
            f"the factor of scaled inputs must be above 0 and at most {MAX_FACTOR:g}, not "
            f"{match[1]}."
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
    """Return what a kind of inputs is, as part of a sentence."""
    name, _, factor = check_input_kind(kind).partition(":")
    return f"Q and K times {factor}" if factor else MEANINGS[name]


def shape_inputs(
    kind: InputKind, q: _Array, k: _Array, v: _Array, rng: np.random.Generator
) -> None:
    """Turn N(0, 1) draws into a kind of inputs, in place.

    Args:
        q: `[batch, num_heads, seqlen, head_dim]`.
        k, v: `[batch, num_heads_kv, seqlen_kv, head_dim]`.
        rng: for further draws.

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
        case "extreme":
            which = rng.integers(0, 7, q.shape[:3])
            q[which == 3] *= _EXTREME_SCALE
            _climb(q, k, np.array([0.0, 0.0, 0.0, 0.0, 1.0, -1.0, 0.0], np.float32)[which])
            _shift_scores(q, k, np.array([_FAR, -_FAR, 0.0, 0.0, 0.0, 0.0, 0.0], np.float32)[which])
            _raise_one_key(q, k, which == 6, rng)


def inputs_clause(kind: InputKind, schedule: str) -> str:
    """Return the beginning of a reason that names unusual inputs or thread order; empty for the
    defaults."""
    if kind == NORMAL:
        return ""
    order = f", threads in {schedule} order" if schedule else ""
    return f"With {check_input_kind(kind)} inputs ({meaning(kind)}){order}: "


def inputs_suffix(kind: InputKind) -> str:
    """Return `, extreme inputs`, to append to the name of a stage; empty for normal inputs."""
    return "" if kind == NORMAL else f", {check_input_kind(kind).replace('_', ' ')} inputs"


def extreme_inputs_passed(max_abs_err: float, tolerance: float) -> str:
    """Return the sentence on a check that also passed on extreme inputs."""
    return (
        f"With {EXTREME} inputs the largest error, {max_abs_err:.3g}, is within {tolerance:.3g} "
        "too."
    )


def _scale(factor: float, q: _Array, k: _Array) -> None:
    q *= factor
    k *= factor


def _shift_scores(q: _Array, k: _Array, by: _Array) -> None:
    """Add `by`, `[batch, num_heads, seqlen]`, to all scores of a row by column 0 of Q and K.

    Softmax does not change, nor does the rounding of its result, because the column is the same in
    all keys.
    """
    column = _balanced_element(q)
    k[..., 0] = column
    q[..., 0] = by * math.sqrt(q.shape[3]) / column


def _climb(q: _Array, k: _Array, direction: _Array) -> None:
    """Let the scores of rows rise or fall from key to key, by column 1 of Q and K. This shows a
    late or missing rescale, and a maximum that is only the last tile's.

    `direction` is `[batch, num_heads, seqlen]`: 1 rises from −_FAR to 0, −1 falls from 0 to −_FAR,
    0 leaves the row unchanged.
    """
    if q.shape[3] < 2:
        return
    column = _balanced_element(q)
    step = np.arange(k.shape[2]) // _STEP_KEYS
    k[..., 1] = column * (step / max(1, step[-1]) - 1.0)
    q[..., 1] = direction * (_FAR * math.sqrt(q.shape[3]) / column)


def _raise_one_key(
    q: _Array, k: _Array, rows: npt.NDArray[np.bool_], rng: np.random.Generator
) -> None:
    """Raise the score of one key by `_FAR` in each of these rows, to show a maximum that omits it.

    A head has `_PEAKS` such keys, each by a column of its own; half of them are the last of 16,
    where tiles end.
    """
    if q.shape[3] < 2 + _PEAKS:
        return
    column = _balanced_element(q)
    batch, heads, keys = k.shape[:3]
    for peak in range(_PEAKS):
        key = rng.integers(0, keys, (batch, heads))
        if peak % 2:
            key = np.minimum(key | 15, keys - 1)
        k[np.arange(batch)[:, None], np.arange(heads), key, 2 + peak] = column
    which = 2 + rng.integers(0, _PEAKS, np.count_nonzero(rows))
    q[(*np.nonzero(rows), which)] = _FAR * math.sqrt(q.shape[3]) / column


def _balanced_element(q: _Array) -> float:
    """Return an element of K that gives a score of about `_FAR` with an equal element of Q."""
    return float(2.0 ** round(math.log2(_FAR * math.sqrt(q.shape[3])) / 2))


RawArray: TypeAlias = npt.NDArray[np.float16] | npt.NDArray[np.uint16] | npt.NDArray[np.float32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
ByteArray: TypeAlias = npt.NDArray[np.uint8]

# A NaN in FP16 (exponent 0x7C00) and BF16 (exponent 0x7F80), and two of them in FP32, with a
# payload no kernel produces: an output element that still holds these bits was never written.
POISON_BITS = np.uint16(0x7FA5)
_POISON_BITS_OF_FP32 = np.uint32(0x7FA57FA5)
# Elements of one piece, and elements that are drawn; larger tensors repeat pieces of these.
_DRAWN_AT_ONCE, _MAX_DRAWN = 1 << 16, 1 << 22

_STORED_AS: Mapping[Dtype, type[np.generic]] = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
}


def bits_of(raw: RawArray) -> npt.NDArray[np.uint16] | npt.NDArray[np.uint32]:
    """Return the bit patterns of the elements, in the same shape."""
    return raw.view(np.uint32) if raw.itemsize == 4 else raw.view(np.uint16)


def poison_of(dtype: Dtype) -> np.uint16 | np.uint32:
    """Return the bit pattern of elements that were never written."""
    return _POISON_BITS_OF_FP32 if dtype == "float32" else POISON_BITS


def encode(values: npt.NDArray[np.float32], dtype: Dtype) -> RawArray:
    """Convert float32 to a raw array, rounding to nearest even."""
    if dtype == "float32":
        return values.astype(np.float32)
    if dtype == "float16":
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding may overflow a NaN's mantissa, so NaN is set to a quiet NaN.
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def decode(raw: RawArray, dtype: Dtype) -> FloatArray:
    """Convert a raw array to float32, exactly."""
    if dtype != "bfloat16":
        return raw.astype(np.float32)
    return (raw.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The raw tensors of a problem: Q `[batch, num_heads, seqlen, head_dim]`, K and V in their
    shapes.

    For sequences of different lengths, rows past the last query and the last key are zeros.
    """

    problem: Problem
    q: RawArray
    k: RawArray
    v: RawArray
    sinks: FloatArray | None = None  # logits, `[num_heads]`; None without sinks
    # Backward: the gradient of O, and O, raw, with `Problem.shape`; natural LSE,
    # `[batch, num_heads, seqlen]`.
    dout: RawArray | None = None
    out: RawArray | None = None
    lse: FloatArray | None = None
    # With K and V in FP8, `k` and `v` have the exact values of the FP8 numbers times factors. These
    # are the factors of K and V, `[2, num_heads_kv]`, and raw K and V before rounding to FP8.
    kv_scales: FloatArray | None = None
    before_fp8: tuple[RawArray, RawArray] | None = None

    def without_fp8(self) -> Inputs:
        """Return the inputs with K and V before rounding to FP8, to compute the error of the
        format."""
        if self.before_fp8 is None:
            return self
        problem = replace(self.problem, kv_dtype=None)
        k, v = self.before_fp8
        return Inputs(problem, self.q, k, v, self.sinks)

    @property
    def kv_stored(self) -> tuple[RawArray | ByteArray, RawArray | ByteArray]:
        """K and V as kernels read them: raw, or as FP8 bytes."""
        if self.kv_scales is None:
            return self.k, self.v
        dtype = self.problem.dtype
        k, v = (
            e4m3_bytes(decode(x, dtype) / scale[:, None, None])
            for x, scale in zip((self.k, self.v), self.kv_scales, strict=True)
        )
        return k, v

    @property
    def per_head(self) -> dict[str, FloatArray | npt.NDArray[np.int32]]:
        """Further inputs of the problem's features, by name: slopes and sinks, `[num_heads]`,
        factors of FP8, `[num_heads_kv]`, and the arrays of `lengths_of`."""
        found: dict[str, FloatArray | npt.NDArray[np.int32]] = {}
        if self.problem.alibi:
            found[ALIBI_SLOPES] = alibi_slopes(self.problem.num_heads)
        if self.sinks is not None:
            found[SINKS] = self.sinks
        if self.kv_scales is not None:
            found |= zip(KV_SCALES, self.kv_scales, strict=True)
        return found | lengths_of(self.problem)

    @property
    def of_backward(self) -> dict[str, RawArray | npt.NDArray[np.int32]]:
        """Further inputs of a backward kernel, by name; empty for the forward pass."""
        given = {"out": self.out, DOUT: self.dout, LSE: self.lse}
        return {name: x for name, x in given.items() if x is not None}

    def in_layouts(
        self,
        layouts: Mapping[str, Layout],
        pages: Pages | None = None,
        *,
        packed: bool = False,
        packs_sequences: bool = False,
    ) -> dict[str, RawArray | ByteArray | npt.NDArray[np.int32]]:
        """Return Q, K and V by name, contiguous in the kernel's layouts, with `per_head`.

        Args:
            layouts: by tensor; default: bhsd.
            pages: K and V are returned as pages, with their block table.
            packed: Q, K and V are one tensor.
            packs_sequences: each tensor is `[sum of lengths, heads, head_dim]`.
        """
        k, v = self.kv_stored
        tensors = {"q": self.q, "k": k, "v": v}
        if packs_sequences:
            lengths = self.problem.seqlens or ()
            rows = {"q": [min(self.problem.seqlen, n) for n in lengths]}
            rows |= {name: list(lengths) for name in "kv"}
            return {
                name: cast(
                    "RawArray | ByteArray",
                    np.concatenate(
                        [s[:, :n].swapaxes(0, 1) for s, n in zip(tensors[name], of, strict=True)]
                    ),
                )
                for name, of in rows.items()
            } | self.per_head
        if packed:
            by_row = [x.transpose(0, 2, 1, 3) for x in (self.q, self.k, self.v)]
            packed_kv = cast("RawArray | ByteArray", np.stack(by_row, axis=2))
            return {PACKED: packed_kv} | self.per_head
        ordered = {n: _reordered(x, layouts.get(n, "bhsd")) for n, x in tensors.items()}
        if pages is None:
            return {**ordered} | self.per_head | self.of_backward
        kv = {name: pages.scatter(tensors[name]) for name in ("k", "v")}
        return ordered | kv | {BLOCK_TABLE: pages.table()} | self.per_head


def lengths_of(problem: Problem) -> dict[str, npt.NDArray[np.int32]]:
    """Return the inputs of a kernel for sequences of different lengths, by name: the keys of each,
    `[batch]`, and its first row in packed Q and in packed K, `[batch + 1]`; empty for equal
    lengths."""
    if problem.seqlens is None:
        return {}
    keys = np.array(problem.seqlens, np.int32)
    queries = np.minimum(keys, problem.seqlen)
    begins = {CU_SEQLENS_Q: queries, CU_SEQLENS_K: keys}
    return {SEQLENS: keys} | {
        name: np.concatenate([[0], np.cumsum(of)]).astype(np.int32) for name, of in begins.items()
    }


def padded_output(raw: npt.NDArray[np.uint8], problem: Problem) -> RawArray:
    """Return O as `[batch, num_heads, seqlen, head_dim]` from packed `[sum of queries, num_heads,
    head_dim]`.

    Rows past the last query of a sequence are zeros.
    """
    words = raw.view(_STORED_AS[problem.dtype]).reshape(-1, problem.num_heads, problem.value_dim)
    out = np.zeros(problem.out_shape, words.dtype)
    begins = lengths_of(problem)[CU_SEQLENS_Q].tolist()
    for sequence, begin, end in zip(out, begins, begins[1:], strict=False):
        sequence[:, : end - begin] = words[begin:end].swapaxes(0, 1)
    return cast(RawArray, out)


def gradients_of(raw: Mapping[str, npt.NDArray[np.uint8]], problem: Problem) -> dict[str, RawArray]:
    """Return dQ, dK and dV by name, in the shapes of Q, K and V, from the bytes that a kernel
    wrote."""
    shapes = zip(GRADIENTS, (problem.shape, problem.k_shape, problem.v_shape), strict=True)
    stored = _STORED_AS[problem.dtype]
    return {name: cast(RawArray, raw[name].view(stored).reshape(shape)) for name, shape in shapes}


def alibi_slopes(num_heads: int) -> FloatArray:
    """Return the slope of each query head, `[num_heads]`: 2^(−8 (h + 1) / H) if H is a power of
    two.

    Otherwise, the slopes for the next lower power of two, then every other slope for twice that
    number of heads, as in Press et al. (arXiv 2108.12409).
    """
    below = 1 << (num_heads.bit_length() - 1)
    slopes = 2.0 ** (-8 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-4 * np.arange(1, 2 * below + 1, 2) / below)
    return np.concatenate([slopes, between])[:num_heads].astype(np.float32)


def _reordered(tensor: RawArray | ByteArray, layout: Layout) -> RawArray | ByteArray:
    if layout == "bhsd":
        return tensor
    return cast("RawArray | ByteArray", np.ascontiguousarray(tensor.transpose(0, 2, 1, 3)))


def output_of(raw: npt.NDArray[np.uint8], problem: Problem, layout: Layout) -> RawArray:
    """Return O as `[batch, num_heads, seqlen, head_dim]`, from the bytes that a kernel wrote.

    Unwritten elements past the last query of a shorter sequence are set to 0.
    """
    out = cast(RawArray, raw.view(_STORED_AS[problem.dtype]).reshape(problem.out_shape))
    if layout != "bhsd":
        batch, heads, rows, head_dim = problem.out_shape
        ordered = out.reshape(batch, rows, heads, head_dim).transpose(0, 2, 1, 3)
        out = cast(RawArray, np.ascontiguousarray(ordered))
    if problem.seqlens is None:
        return out
    out = out.copy()
    bits = bits_of(out)
    for sequence, keys in zip(bits, problem.seqlens, strict=True):
        behind = sequence[:, min(problem.seqlen, keys) :]
        behind[behind == poison_of(problem.dtype)] = 0
    return out


def lse_of(raw: npt.NDArray[np.uint8], problem: Problem, lse: Lse) -> FloatArray:
    """Return the natural LSE as `[batch, num_heads, seqlen]`, from the bytes that a kernel wrote.

    Unwritten elements past the last query of a shorter sequence are set to 0.
    """
    batch, heads, rows, _ = problem.shape
    values = raw.view(np.float32)
    if lse.layout == "bsh":
        values = values.reshape(batch, rows, heads).transpose(0, 2, 1)
    values = values.reshape(batch, heads, rows)
    if problem.seqlens is not None:
        values = np.array(values, order="C")
        for sequence, keys in zip(values.view(np.uint32), problem.seqlens, strict=True):
            behind = sequence[:, min(problem.seqlen, keys) :]
            behind[behind == poison_of("float32")] = 0
    return values if lse.base == "e" else values * np.float32(math.log(2))


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Dtype) -> RawArray:
    """Draw from N(0, 1) and round piece by piece, without a whole tensor in float32.

    Drawing hundreds of millions of numbers takes as long as executing a kernel on them. So the rest
    of a large tensor consists of copies from different random positions in its first part. No head
    is a copy of another, and equal rows are not at distances that a wrong index would have.
    """
    raw = np.empty(math.prod(shape), _STORED_AS[dtype])
    pieces = [raw[n : n + _DRAWN_AT_ONCE] for n in range(0, len(raw), _DRAWN_AT_ONCE)]
    drawn = _MAX_DRAWN // _DRAWN_AT_ONCE
    for piece in pieces[:drawn]:
        piece[:] = encode(rng.standard_normal(len(piece), dtype=np.float32), dtype)
    copies = pieces[drawn:]
    places = rng.choice(_MAX_DRAWN - _DRAWN_AT_ONCE, len(copies), replace=False)
    for piece, place in zip(copies, places.tolist(), strict=True):
        piece[:] = raw[place : place + len(piece)]
    return cast(RawArray, raw.reshape(shape))


def make_inputs(problem: Problem, seed: int = 0, kind: InputKind = NORMAL) -> Inputs:
    """Make random inputs, which are the same on every machine for the same (problem, seed, kind).

    Args:
        kind: a key of `MEANINGS`, or `scaled:FACTOR`.

    Returns:
        Inputs; for the backward pass with dO but without O and LSE, which
        `engine.correctness.gradients.inputs_of` adds.

    Raises:
        InvalidProblem: there is no such kind.
    """
    rng = np.random.default_rng(seed)
    shapes = (problem.shape, problem.k_shape, problem.v_shape)
    if kind == NORMAL:
        q_raw, k_raw, v_raw = (_normal(rng, shape, problem.dtype) for shape in shapes)
    else:
        q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
        shape_inputs(kind, q, k, v, rng)
        q_raw, k_raw, v_raw = (encode(x, problem.dtype) for x in (q, k, v))
    if problem.seqlens is not None:
        rows = (problem.seqlen, problem.num_keys, problem.num_keys)
        for raw, most in zip((q_raw, k_raw, v_raw), rows, strict=True):
            for sequence, keys in zip(raw, problem.seqlens, strict=True):
                sequence[:, min(most, keys) :] = 0
    sinks = None
    if problem.sinks:
        # About as large as the logarithm of a row sum, so that a missing sink has a large effect.
        keys = min(problem.num_keys, problem.window or problem.num_keys)
        sinks = rng.standard_normal(problem.num_heads, dtype=np.float32)
        sinks += np.float32(math.log(keys))
    dout = None
    if problem.direction == "backward":
        dout = encode(rng.standard_normal(problem.shape, dtype=np.float32), problem.dtype)
    if problem.kv_dtype is None:
        return Inputs(problem, q_raw, k_raw, v_raw, sinks, dout)
    before = (k_raw, v_raw)
    in_fp8 = [_rounded_to_fp8(x, problem.dtype, 2 * n) for n, x in enumerate(before)]
    scales = np.stack([scale for _, scale in in_fp8])
    (k_raw, v_raw) = (raw for raw, _ in in_fp8)
    return Inputs(problem, q_raw, k_raw, v_raw, sinks, dout, kv_scales=scales, before_fp8=before)


def _rounded_to_fp8(raw: RawArray, dtype: Dtype, turn: int) -> tuple[RawArray, FloatArray]:
    """Return K or V after rounding to FP8, and the factor of each head, `[num_heads_kv]`.

    A factor brings the largest number of its head into the range of E4M3. It has three significant
    bits, so that its products with FP8's four are exact in FP16 and BF16, and an output differs
    from the reference only by the kernel's own error. Neighbouring heads, and K and V, have
    different factors.

    Args:
        turn: shifts the sequence of mantissas that the factors of successive heads have.
    """
    values = decode(raw, dtype)
    most = np.maximum(np.abs(values).max(axis=(0, 2, 3)) / E4M3_LARGEST, 2.0**-8)
    mantissas = 1 + (np.arange(len(most)) + turn) % 4 / 4
    scales = (np.exp2(np.ceil(np.log2(most))) * mantissas).astype(np.float32)
    wide = scales[:, None, None]
    return encode(e4m3_values(e4m3_bytes(values / wide)) * wide, dtype), scales


# Precision of each format, and the error of its arithmetic.

UNIT_ROUNDOFF: Final[Mapping[Dtype, float]] = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
}
# Relative errors too small for conclusions: from rounding O, or in FP32, where that is less,
# from the arithmetic (exp with two units in the last place, sums of a thousand terms).
NOISE: Final[Mapping[Dtype, float]] = {**UNIT_ROUNDOFF, "float32": 2.0**-19}

# Fixed bounds: the study's old one in FP16, the same number of rounding steps in BF16, and
# in FP32 that of torch.testing.assert_close.
FIXED_BOUNDS: dict[Dtype, float] = {"float16": 0.002, "bfloat16": 0.016, "float32": 1e-5}

LARGEST: Final[Mapping[Dtype, float]] = {  # finite values
    "float16": 65504.0,
    "bfloat16": 2.0**128 - 2.0**120,
    "float32": 2.0**128 - 2.0**104,
}
_MIN_EXPONENT: dict[Dtype, int] = {"float16": -14, "bfloat16": -126, "float32": -126}


def absolute_tolerance(max_abs_ref: float, dtype: Dtype, num_keys: int = 1) -> float:
    """Return half the distance between neighbouring numbers of `dtype` at `max_abs_ref`.

    In FP32, multiplied by √num_keys, for the rounding errors of a sum of `num_keys` terms.
    """
    exponent = np.frexp(max_abs_ref)[1] - 1 if max_abs_ref > 0 else _MIN_EXPONENT[dtype]
    half_step = float(UNIT_ROUNDOFF[dtype] * 2.0 ** max(int(exponent), _MIN_EXPONENT[dtype]))
    return half_step * math.sqrt(num_keys) if dtype == "float32" else half_step
