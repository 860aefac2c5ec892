"""The float64 reference that outputs are compared with.

The inputs are exact in float64, so the reference only has float64's own rounding errors, far below
those of kernels. It is computed with BLAS, one block of query rows at a time, so that memory is
bounded for every sequence length. If a problem is too large, only a sample of its rows is
computed; see `Coverage`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.problem import Problem
from engine.attention.tensors import FloatArray, Inputs, RawArray, alibi_slopes, decode, encode

Float64Array: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.intp]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]  # float64, or float32 in the emulation

# One block of scores, [slices, query rows, keys] in float64; small enough for a CPU's cache.
_BLOCK_BYTES = 8 << 20
# With fewer query rows at a time, K and V would be read from memory too often.
_MIN_BLOCK_ROWS = 16
# About 3 s on two cores: SDXL's 10 heads of 4,096 fit, Llama-3's 32 heads of 8,192 are sampled.
MAX_WORK = 200e9
# Limit of work in float64 for 16-bit outputs. Above it, only slices worth half of it are computed
# in float64. The others are computed in float32, in a third of the time, and those that are wrong
# again in float64.
MAX_FLOAT64_WORK = 5e9
# exp and its passes over memory, in operations (a multiply-add is two).
_SOFTMAX_WORK_PER_SCORE = 100
# Widening one element of K or V: most of the work for few queries and many keys.
_WORK_PER_WIDENED_ELEMENT = 50
# One float64 array of 512 MiB; the check holds a few of them.
MAX_ELEMENTS = 1 << 26
_MAX_SAMPLED_SLICES = 4096
# Rows at either end of a sampled sequence: the first and last tile of all usual sizes.
_EDGE_ROWS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """The query rows of (batch, head) slices for which the reference is computed."""

    problem: Problem
    slices: IntArray  # ascending, batch · num_heads + head
    rows: IntArray  # ascending query rows, the same for every slice
    # (batch, head) of each slice, if `problem` consists of slices of a larger one.
    pairs: tuple[tuple[int, int], ...] = ()
    others_in_float32: bool = False  # other slices are compared too, but not in maps and figures

    @property
    def complete(self) -> bool:
        total = self.problem.batch * self.problem.num_heads
        return len(self.slices) == total and self.all_rows

    @property
    def all_rows(self) -> bool:
        return len(self.rows) == self.problem.seqlen

    def take(self, whole: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the covered part of a `[batch, num_heads, seqlen, head_dim]` array.

        Returns:
            `[slices, rows, head_dim]`; a view if everything is covered.
        """
        p = self.problem
        flat = whole.reshape(p.batch * p.num_heads, p.seqlen, whole.shape[-1])
        if self.complete:
            return flat
        return flat[self.slices[:, None], self.rows[None, :]]

    def select(self, inputs: Inputs) -> Inputs:
        """Return a problem of the covered slices: batch 1, a head of Q, K and V for each."""
        if len(self.slices) == self.problem.batch * self.problem.num_heads:
            return inputs
        p = self.problem
        problem = replace(p, batch=1, num_heads=len(self.slices), num_heads_kv=None)
        of_kv = kv_slices(p, self.slices)
        q, k, v = (
            x.reshape(-1, *x.shape[2:])[slices][None]
            for x, slices in ((inputs.q, self.slices), (inputs.k, of_kv), (inputs.v, of_kv))
        )
        return Inputs(problem, q, k, v)

    def index(self, slice_position: int, row_position: int) -> tuple[int, int, int]:
        """Return (batch, head, query row) of one covered row."""
        number = int(self.slices[slice_position])
        batch, head = self.pairs[number] if self.pairs else divmod(number, self.problem.num_heads)
        return batch, head, int(self.rows[row_position])

    def sentence(self) -> str:
        """Return a sentence on what was compared; empty if everything was."""
        if self.complete or self.pairs:  # a partial run reports it itself
            return ""
        total = self.problem.batch * self.problem.num_heads
        if self.others_in_float32:
            return (
                f"Compared in float64 on {len(self.slices):,} of the {total:,} (batch, head) "
                "slices, first and last among them, and in float32 on the others."
            )
        rows = "all" if self.all_rows else f"{len(self.rows):,} of the {self.problem.seqlen:,}"
        return (
            f"Compared on {rows} query rows of {len(self.slices):,} of the {total:,} (batch, head) "
            "slices, first and last among them; NaN and unwritten elements were looked for "
            "everywhere."
        )


def everything(problem: Problem) -> Coverage:
    """Return the coverage of all slices and rows."""
    return Coverage(
        problem, np.arange(problem.batch * problem.num_heads), np.arange(problem.seqlen)
    )


def coverage_size(problem: Problem, most_work: float = MAX_WORK) -> tuple[int, int]:
    """Return (slices, query rows of each) that the budgets of time and memory allow."""
    total, rows = problem.batch * problem.num_heads, problem.seqlen
    work_per_row = _work_per_row(problem)
    affordable = max(1, min(int(most_work / work_per_row), MAX_ELEMENTS // problem.head_dim))
    if total * rows <= affordable:
        return total, rows
    num_slices = min(total, _MAX_SAMPLED_SLICES, max(len(_corners(problem)), affordable // rows))
    return num_slices, min(rows, max(2, affordable // num_slices))


def _work_per_row(problem: Problem) -> int:
    work = problem.num_keys * (4 * problem.head_dim + _SOFTMAX_WORK_PER_SCORE)
    if problem.causal and problem.kv_offset == 0:
        work //= 2
    widened = 2 * problem.num_keys * problem.head_dim
    return work + widened * _WORK_PER_WIDENED_ELEMENT // problem.seqlen


def choose_coverage(problem: Problem, most_work: float = MAX_WORK) -> Coverage:
    """Return full coverage if within the budget, else a sample that is the same on every machine.

    The sample has the four corners of batch × head, and the first and last query rows. The rest is
    random with a fixed seed, so that it does not coincide with a tile size.

    Args:
        most_work: the budget, in multiplications and additions.
    """
    num_slices, num_rows = coverage_size(problem, most_work)
    total, seqlen = problem.batch * problem.num_heads, problem.seqlen
    edge = max(1, min(_EDGE_ROWS, num_rows // 4))
    edges = {*range(min(edge, seqlen)), *range(max(0, seqlen - edge), seqlen)}
    return Coverage(
        problem,
        np.arange(total) if num_slices == total else _sample(total, _corners(problem), num_slices),
        np.arange(seqlen) if num_rows == seqlen else _sample(seqlen, edges, num_rows),
    )


def split_coverage(
    coverage: Coverage, most_work: float = MAX_FLOAT64_WORK
) -> tuple[Coverage, IntArray]:
    """Return the part of a large coverage to compute in float64, and the slices for float32.

    Only whole problems with 16-bit outputs are split: their rounding step is about a thousand times
    the error of float32.

    Args:
        most_work: budget in float64, in multiplications and additions.
    """
    problem = coverage.problem
    total = problem.batch * problem.num_heads
    affordable = int(most_work // (_work_per_row(problem) * problem.seqlen))
    if not coverage.complete or problem.dtype == "float32" or affordable >= total:
        return coverage, np.arange(0)
    count = max(len(_corners(problem)), affordable // 2)
    if count >= total:
        return coverage, np.arange(0)
    slices = _sample(total, _corners(problem), count)
    others = np.setdiff1d(coverage.slices, slices)
    return replace(coverage, slices=slices, others_in_float32=True), others


def _corners(problem: Problem) -> set[int]:
    """Return the first and last head of the first and last batch."""
    return {
        batch * problem.num_heads + head
        for batch in (0, problem.batch - 1)
        for head in (0, problem.num_heads - 1)
    }


def _sample(total: int, wanted: set[int], count: int) -> IntArray:
    """Return `count` ascending indices below `total` that include `wanted`."""
    chosen = set(wanted)
    rng = np.random.default_rng(total)
    while len(chosen) < count:
        chosen.update(rng.integers(0, total, count - len(chosen)).tolist())
    return np.array(sorted(chosen), dtype=np.intp)


def reference(inputs: Inputs) -> Float64Array:
    """Compute softmax(Q·Kᵀ/√D)·V with the problem's features in float64, `Problem.shape`."""
    return covered_reference(inputs, everything(inputs.problem)).reshape(inputs.problem.out_shape)


def covered_reference(inputs: Inputs, coverage: Coverage) -> Float64Array:
    """Compute the reference for the covered rows, `[slices, rows, value_dim]`.

    It is 0 in rows past the last query of a shorter sequence.
    """
    found: Float64Array = _covered_attention(inputs, coverage, np.float64)
    return found


def covered_in_float32(inputs: Inputs, coverage: Coverage) -> FloatArray:
    """Compute the covered rows in float32, a thousand times as accurate as 16 bits."""
    found: FloatArray = _covered_attention(inputs, coverage, np.float32)
    return found


def _covered_attention(inputs: Inputs, coverage: Coverage, dtype: type[np.floating[Any]]) -> Any:
    problem = inputs.problem
    out = np.zeros((len(coverage.slices), len(coverage.rows), problem.value_dim), dtype)

    def fill(group: slice) -> None:
        own = out[group]
        some = replace(coverage, slices=coverage.slices[group])
        for part in covered_blocks(inputs, some, dtype):
            weights, row_sum = softmax_parts(part.scores, part.sinks)
            own[part.slices, part.rows] = (weights @ part.v[:, : weights.shape[-1]]) / row_sum

    _on_all_cores(fill, list(slice_groups(len(coverage.slices), problem)))
    return out


def _on_all_cores(work: Callable[[slice], None], groups: Sequence[slice]) -> None:
    """Call `work` on each group, on one thread per core.

    BLAS's own threads take four times as much processor time while a kernel executes beside them;
    threads that each process whole groups do not.
    """
    threads = min(os.cpu_count() or 1, len(groups))
    if threads <= 1 or _blas_threads() is None:
        for group in groups:
            work(group)
        return
    with blas_on_one_thread(), ThreadPoolExecutor(threads, "reference") as pool:
        list(pool.map(work, groups))


class _OneThread:
    """Number of threads within `blas_on_one_thread`, and BLAS's thread count before the first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.before = 0


_one_thread = _OneThread()


@contextmanager
def blas_on_one_thread() -> Iterator[None]:
    """Make NumPy's BLAS use one thread in this process, if it is OpenBLAS.

    OpenBLAS's threads spin for 25 ms after each call, even after the norm of a vector.
    """
    set_threads = _blas_threads()
    if set_threads is None:
        yield
        return
    with _one_thread.lock:
        _one_thread.inside += 1
        if _one_thread.inside == 1:
            _one_thread.before = set_threads(1)
    try:
        yield
    finally:
        with _one_thread.lock:
            _one_thread.inside -= 1
            if not _one_thread.inside:
                set_threads(_one_thread.before)


@functools.cache
def _blas_threads() -> Callable[[int], int] | None:
    """Return a function that sets BLAS's thread count and returns the old one; None if unknown."""
    folder = Path(np.__file__).resolve().parents[1] / "numpy.libs"
    for file in sorted(folder.glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(file))  # already loaded
            get = library.scipy_openblas_get_num_threads64_
            put = library.scipy_openblas_set_num_threads64_
        except (OSError, AttributeError):
            continue

        def set_threads(number: int, get: Any = get, put: Any = put) -> int:
            before = int(get())
            put(number)
            return before

        return set_threads
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Scores of some covered rows: `scores` `[slices, rows, keys]`, `v` `[slices, num_keys, D]`."""

    slices: slice  # positions in the covered slices
    rows: slice  # positions in the covered rows
    scores: Floats
    v: Floats
    sinks: Floats | None  # `[slices, 1, 1]`


def covered_blocks(
    inputs: Inputs,
    coverage: Coverage,
    dtype: type[np.floating[Any]] = np.float64,
    given: Callable[[Floats], Floats] | None = None,
) -> Iterator[Block]:
    """Yield the final scores of all existing covered rows, block by block.

    Args:
        dtype: dtype of the computation.
        given: applied to Q, K and V before they are multiplied; None: they are used as they are.
    """
    problem, rows = inputs.problem, coverage.rows
    for group in slice_groups(len(coverage.slices), problem):
        slices = coverage.slices[group]
        q, k, v = slice_qkv(inputs, slices, dtype)
        of, seen = problem, rows
        if problem.seqlens is not None:  # a group is one slice
            of = problem.of_sequence(int(slices[0]) // problem.num_heads)
            q, k, v = q[:, : of.seqlen], k[:, : of.num_keys], v[:, : of.num_keys]
            seen = rows[rows < of.seqlen]
        of_q, of_k, of_v = (x if given is None else given(x) for x in (q, k, v))
        heads = slices % problem.num_heads
        slopes = alibi_slopes(problem.num_heads)[heads] if problem.alibi else None
        sinks = None if inputs.sinks is None else inputs.sinks[heads][:, None, None]
        for block, scores in score_blocks(of, of_q, of_k, seen, slopes):
            yield Block(group, block, scores, of_v, sinks)


def softmax_parts(scores: Floats, sinks: Floats | None = None) -> tuple[Floats, Floats]:
    """Compute exp(scores − row maximum) in place, and return its row sums `[..., 1]`.

    Args:
        sinks: logits that are added to the sums, of a shape that broadcasts to them.
    """
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks.astype(scores.dtype))
    scores -= top
    weights = np.exp(scores, out=scores)
    sums = weights.sum(axis=-1, keepdims=True)
    return weights, sums if sinks is None else sums + np.exp(sinks.astype(scores.dtype) - top)


def final_scores(
    problem: Problem, scaled: Any, rows: IntArray, keys: IntArray, slopes: Floats | None
) -> Any:
    """Apply softcap, then ALiBi, to scaled products in place; the mask comes after.

    Args:
        scaled: softmax_scale · q·k, `[..., rows, keys]`.
        slopes: of a shape that broadcasts to `scaled`; None without ALiBi.
    """
    if problem.softcap is not None:
        scaled /= problem.softcap
        np.tanh(scaled, out=scaled)
        scaled *= problem.softcap
    if slopes is not None:
        scaled -= slopes * np.abs(rows[:, None] + problem.kv_offset - keys).astype(scaled.dtype)
    return scaled


def visible_keys(problem: Problem, rows: IntArray, keys: IntArray) -> npt.NDArray[np.bool_]:
    """Return the mask of keys that each row sees, `[rows, keys]`; all without a mask."""
    position = rows[:, None] + problem.kv_offset
    visible = keys < np.full_like(position, problem.num_keys)
    if problem.causal:
        visible &= keys <= position
    if problem.window is not None:
        visible &= np.abs(position - keys) < problem.window
    return visible


def slice_groups(num_slices: int, problem: Problem) -> Iterator[slice]:
    """Group slices for BLAS: several short sequences, or one long one."""
    widest = max(problem.seqlen, problem.head_dim)  # of scores, K and V
    step = (
        1
        if problem.seqlens is not None
        else max(1, _BLOCK_BYTES // (8 * problem.num_keys * widest))
    )
    for start in range(0, num_slices, step):
        yield slice(start, min(start + step, num_slices))


def kv_slices(problem: Problem, slices: IntArray) -> IntArray:
    """Return the K/V slices (batch · kv_heads + K/V head) that (batch, head) slices read."""
    # Adjacent heads form groups, and batch · num_heads heads are batch · kv_heads groups.
    return slices // problem.head_group


def slice_qkv(
    inputs: Inputs, slices: IntArray, dtype: type[np.floating[Any]] = np.float64
) -> tuple[Any, Any, Any]:
    """Return Q, K and V of some (batch, head) slices in float64, or another `dtype`.

    Returns:
        `[slices, seqlen, head_dim]`, and two arrays `[slices, num_keys, head_dim]`.
    """

    def of(raw: RawArray, slices: IntArray) -> Floats:
        flat = raw.reshape(-1, *raw.shape[2:])
        return decode(flat[slices], inputs.problem.dtype).astype(dtype, copy=False)

    of_kv = kv_slices(inputs.problem, slices)
    return of(inputs.q, slices), of(inputs.k, of_kv), of(inputs.v, of_kv)


def score_blocks(
    problem: Problem, q: Floats, k: Floats, rows: IntArray, slopes: Floats | None = None
) -> Iterator[tuple[slice, Floats]]:
    """Yield final, masked scores block by block: (positions in `rows`, `[slices, block, keys]`).

    Args:
        q: `[slices, seqlen, head_dim]`; only `rows` are used.
        k: `[slices, num_keys, head_dim]`.
        slopes: ALiBi slopes, `[slices]`; None without ALiBi.

    Keys that no row of a causal block sees are left out, so `keys` may be less than num_keys.
    """
    step = max(_MIN_BLOCK_ROWS, _BLOCK_BYTES // (8 * len(q) * problem.num_keys))
    if problem.causal:
        # With short blocks, most of the masked half is skipped.
        step = min(step, max(64, problem.seqlen // 16))
    bias = None if slopes is None else slopes[:, None, None].astype(q.dtype)
    for start in range(0, len(rows), step):
        block = slice(start, min(start + step, len(rows)))
        seen = problem.keys_seen(int(rows[block][-1]))[1]
        scores = (q[:, rows[block]] * problem.softmax_scale) @ k[:, :seen].transpose(0, 2, 1)
        keys = np.arange(seen)
        scores = final_scores(problem, scores, rows[block], keys, bias)
        if problem.causal or problem.window is not None:
            np.copyto(scores, -np.inf, where=~visible_keys(problem, rows[block], keys))
        yield block, scores


# Same-dtype attention in NumPy, for machines without PyTorch.


def as_tf32(values: Floats) -> FloatArray:
    """Truncate FP32 numbers to 10 bits of mantissa, as tensor cores do."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def emulated_attention(
    inputs: Inputs, coverage: Coverage, products: Callable[[Floats], Floats] | None = None
) -> FloatArray:
    """Compute the covered rows as a correct kernel does, `[slices, rows, head_dim]`.

    Scores and sums are in float32; softmax weights are rounded to the problem's dtype before they
    are multiplied by V, as for tensor cores; the output is rounded to the dtype.

    Args:
        products: applied to Q, K, V and the weights before they are multiplied.
    """
    problem = inputs.problem
    given: Callable[[Floats], Floats] = products or (lambda values: values)
    out = np.zeros((len(coverage.slices), len(coverage.rows), problem.value_dim), np.float32)
    for part in covered_blocks(inputs, coverage, np.float32, products):
        weights, row_sum = softmax_parts(part.scores, part.sinks)
        weights = given(decode(encode(weights, problem.dtype), problem.dtype))
        out[part.slices, part.rows] = (weights @ part.v[:, : weights.shape[-1]]) / row_sum
    return decode(encode(out, problem.dtype), problem.dtype)
