"""The backward pass: its inputs besides Q, K and V, and the expected dQ, dK and dV.

    P = exp(scale · Q·Kᵀ − LSE)    dP = dO·Vᵀ    D = rowsum(dO ∘ O)    dS = P ∘ (dP − D)
    dQ = scale · dS·K              dK = scale · dSᵀ·Q                  dV = Pᵀ·dO

dK and dV of a shared head (GQA) are sums over its query heads. The reference is computed in float64
from exact inputs, O and LSE. Kernels get O and LSE as a forward kernel writes them: O rounded to
the dtype and a natural LSE in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np

from engine.attention.problem import Problem
from engine.attention.tensors import (
    NORMAL,
    FloatArray,
    InputKind,
    Inputs,
    RawArray,
    decode,
    encode,
    make_inputs,
)
from engine.base.errors import ToolMissing
from engine.correctness.findings import FindingCode
from engine.correctness.reference import (
    MAX_ELEMENTS,
    MAX_WORK,
    Coverage,
    Float64Array,
    covered_blocks,
    everything,
    final_scores,
    score_blocks,
    slice_qkv,
    softmax_parts,
)
from kernels.variant import GRADIENTS

# Three more products than the forward pass, and five passes over S × S numbers.
_WORK_PER_SCORE = 400
_MAX_PREDICTED_SCORES = 1 << 22  # maximum scores of one head for which suspected bugs are computed


def inputs_of(problem: Problem, seed: int = 0, kind: InputKind = NORMAL) -> Inputs:
    """Make random inputs of either direction; backward with O and LSE. Raises as `make_inputs`."""
    inputs = make_inputs(problem, seed, kind)
    return with_forward(inputs) if problem.direction == "backward" else inputs


def with_forward(inputs: Inputs) -> Inputs:
    """Add O, rounded to the dtype, and LSE in float32, both computed in float64."""
    problem, every = inputs.problem, everything(inputs.problem)
    out = np.zeros((len(every.slices), problem.seqlen, problem.head_dim))
    lse = np.zeros(out.shape[:2])
    for part in covered_blocks(inputs, every):
        top = part.scores.max(axis=-1)
        weights, sums = softmax_parts(part.scores)
        out[part.slices, part.rows] = (weights @ part.v[:, : weights.shape[-1]]) / sums
        lse[part.slices, part.rows] = top + np.log(sums[..., 0])
    rounded = encode(out.astype(np.float32).reshape(problem.shape), problem.dtype)
    return replace(inputs, out=rounded, lse=lse.astype(np.float32).reshape(problem.shape[:3]))


def output_problem(problem: Problem, name: str) -> Problem:
    """Return a problem whose O has the shape of one gradient, for code that examines one output."""
    plain = replace(problem, direction="forward", causal=False)
    if name == "dq":
        return replace(plain, num_heads_kv=None, seqlen_kv=None)
    heads, keys = problem.kv_heads, problem.num_keys
    return replace(plain, num_heads=heads, num_heads_kv=None, seqlen=keys, seqlen_kv=None)


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedGradient:
    """One of dQ, dK and dV, and the error of SDPA's gradient in the problem's dtype."""

    name: str
    coverage: Coverage  # of `output_problem`
    reference: Float64Array  # [slices, rows, head_dim]
    max_abs_ref: float
    baseline_err: float
    cancelled: float = 0.0  # allowed FP32 error if the gradient is 0 only because dP = D


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedGradients:
    """dQ, dK and dV of the same K/V heads and their query heads."""

    inputs: Inputs
    outputs: tuple[ExpectedGradient, ...]
    baseline_name: str


def expect_gradients(inputs: Inputs) -> ExpectedGradients:
    """Compute references and baselines of as many heads as budgets of time and memory allow."""
    problem = inputs.problem
    kv = _covered_kv_slices(problem)
    group = problem.head_group
    of_q = (kv[:, None] * group + np.arange(group)).ravel()
    references: dict[str, list[Float64Array]] = {name: [] for name in GRADIENTS}
    for position in kv:
        for name, values in head_gradients(inputs, int(position)).items():
            references[name].append(values)
    baselines, baseline_name = _baseline(inputs, kv)
    made = []
    for name in GRADIENTS:
        reference = np.concatenate(references[name])
        whole = output_problem(problem, name)
        coverage = Coverage(whole, of_q if name == "dq" else kv, np.arange(whole.seqlen))
        error = float(np.abs(baselines[name] - reference).max())
        made.append(
            ExpectedGradient(
                name, coverage, reference, float(np.abs(reference).max()), error,
                _cancelled(inputs, name),
            )
        )  # fmt: skip
    return ExpectedGradients(inputs, tuple(made), baseline_name)


def _cancelled(inputs: Inputs, name: str) -> float:
    """Return the error by rounding of dQ and dK with a single key, where P = 1 and dP and D cancel.

    SDPA's gradient is exactly 0 there, because it takes both from one sum, so it gives no bound.
    """
    problem, dout = inputs.problem, inputs.dout
    if problem.num_keys > 1 or name == "dv" or dout is None:
        return 0.0
    of_dp, of_v = (float(np.linalg.norm(x, axis=-1).max()) for x in (dout, inputs.v))
    other, rows = (inputs.k, 1) if name == "dq" else (inputs.q, problem.seqlen * problem.head_group)
    left = 2.0**-23 * of_dp * of_v * np.sqrt(rows)
    return float(left * np.abs(other).max() * problem.softmax_scale)


def _covered_kv_slices(problem: Problem) -> np.ndarray:
    """Return the K/V heads to compare: all, or first, last and some in between."""
    total = problem.batch * problem.kv_heads
    rows = problem.head_group * problem.seqlen
    work = rows * problem.num_keys * (10 * problem.head_dim + _WORK_PER_SCORE)
    elements = max(rows, problem.num_keys) * problem.head_dim
    most = max(2, min(int(MAX_WORK // work), MAX_ELEMENTS // elements))
    if total <= most:
        return np.arange(total)
    return np.unique(np.linspace(0, total - 1, most).astype(np.intp))


def head_gradients(
    inputs: Inputs, kv_slice: int, rounding: Callable[[Float64Array], Float64Array] | None = None
) -> dict[str, Float64Array]:
    """Compute dQ `[group, seqlen, D]` and dK, dV `[1, num_keys, D]` of one K/V head.

    Args:
        rounding: rounds P, dS and the results; None: they stay in float64.
    """
    problem, rounded = inputs.problem, rounding or (lambda values: values)
    group = problem.head_group
    slices = np.arange(kv_slice * group, (kv_slice + 1) * group)
    q, k, v = slice_qkv(inputs, slices)
    assert inputs.dout is not None
    dout = decode(inputs.dout.reshape(-1, *inputs.dout.shape[2:])[slices], problem.dtype)
    dout = dout.astype(np.float64)
    dq, dk, dv = (np.zeros_like(x) for x in (q, k, v))
    for block, scores in score_blocks(problem, q, k, np.arange(problem.seqlen)):
        seen = scores.shape[-1]
        weights, sums = softmax_parts(scores)
        weights /= sums
        d_weights = dout[:, block] @ v[:, :seen].transpose(0, 2, 1)
        delta = (weights * d_weights).sum(axis=-1, keepdims=True)
        d_scores = rounded(np.asarray(weights * (d_weights - delta), np.float64))
        p = rounded(np.asarray(weights, np.float64))
        dv[:, :seen] += p.transpose(0, 2, 1) @ dout[:, block]
        dk[:, :seen] += problem.softmax_scale * (d_scores.transpose(0, 2, 1) @ q[:, block])
        dq[:, block] = problem.softmax_scale * (d_scores @ k[:, :seen])
    dk, dv = (x.sum(axis=0, keepdims=True) for x in (dk, dv))
    return {name: rounded(x) for name, x in zip(GRADIENTS, (dq, dk, dv), strict=True)}


def _baseline(inputs: Inputs, kv: np.ndarray) -> tuple[dict[str, FloatArray | Float64Array], str]:
    """Return the same gradients in the dtype's precision, and what computed them."""
    problem = inputs.problem
    why = "because PyTorch is not installed"
    try:
        from engine.backends.sdpa import sdpa_gradients, unsupported_features

        if not unsupported_features(replace(problem, direction="forward")):
            some = _selected(inputs, kv)
            found, name = sdpa_gradients(some)
            flat = {n: x.reshape(-1, *x.shape[2:]) for n, x in zip(GRADIENTS, found, strict=True)}
            if all(np.isfinite(x).all() for x in flat.values()):
                return dict(flat), name
            why = f"because {name} gave NaN or infinity"
    except ToolMissing:
        pass

    def rounding(values: Float64Array) -> Float64Array:
        single = values.astype(np.float32)
        return decode(encode(single, problem.dtype), problem.dtype).astype(np.float64)

    made: dict[str, list[Float64Array]] = {name: [] for name in GRADIENTS}
    for position in kv:
        for name, values in head_gradients(inputs, int(position), rounding).items():
            made[name].append(values)
    name = f"an emulation of {problem.dtype} gradients in NumPy, {why}"
    return {n: np.concatenate(parts) for n, parts in made.items()}, name


def _selected(inputs: Inputs, kv: np.ndarray) -> Inputs:
    """Return a problem of some K/V heads and their query heads, with batch 1."""
    problem, group = inputs.problem, inputs.problem.head_group
    if len(kv) == problem.batch * problem.kv_heads:
        return inputs
    of_q = (kv[:, None] * group + np.arange(group)).ravel()
    own = replace(
        problem, batch=1, num_heads=len(of_q), num_heads_kv=None if group == 1 else len(kv)
    )

    def take(x: RawArray, which: np.ndarray) -> RawArray:
        return cast(RawArray, x.reshape(-1, *x.shape[2:])[which][None])

    assert inputs.dout is not None
    return Inputs(
        own,
        take(inputs.q, of_q),
        take(inputs.k, kv),
        take(inputs.v, kv),
        dout=take(inputs.dout, of_q),
    )


# Suspected bugs of backward kernels: their outputs are compared with the actual one.


@dataclass(frozen=True, slots=True, eq=False)
class _Head:
    """One K/V head and its query heads, as whole matrices in float64."""

    problem: Problem
    q: Float64Array  # [group, seqlen, D]
    k: Float64Array
    v: Float64Array
    dout: Float64Array
    scores: Float64Array  # scaled, without a mask, [group, seqlen, num_keys]
    visible: np.ndarray  # [seqlen, num_keys]

    @classmethod
    def of(cls, inputs: Inputs, kv_slice: int) -> _Head:
        problem, group = inputs.problem, inputs.problem.head_group
        slices = np.arange(kv_slice * group, (kv_slice + 1) * group)
        q, k, v = slice_qkv(inputs, slices)
        assert inputs.dout is not None
        dout = decode(inputs.dout.reshape(-1, *inputs.dout.shape[2:])[slices], problem.dtype)
        rows, keys = np.arange(problem.seqlen), np.arange(problem.num_keys)
        scores = problem.softmax_scale * q @ k.transpose(0, 2, 1)
        scores = final_scores(problem, scores, rows, keys, None)
        return cls(problem, q, k, v, dout.astype(np.float64), scores, _visible(problem, 0))

    def gradients(
        self,
        *,
        moved: int | None = 0,
        delta_factor: float = 1.0,
        p_of_ds: Callable[[Float64Array], Float64Array] | None = None,
        p_of_dv: Callable[[Float64Array], Float64Array] | None = None,
        with_p: bool = True,
        keep: np.ndarray | None = None,
        log_factor: float = 1.0,
        scaled: tuple[int, int] = (1, 1),
        heads: slice = slice(None),
    ) -> dict[str, Float64Array]:
        """Compute the three gradients, with one deviation.

        Args:
            moved: keys by which the diagonal is too far right; None: no mask.
            delta_factor: factor of D.
            with_p: False: dS without the factor P.
            keep: `[seqlen, num_keys]`, scores that are included in the sums.
            log_factor: factor of the LSE in the exponent.
            scaled: powers of the softmax scale in dQ and in dK.
            heads: query heads that dK and dV sum over.
        """
        scale = self.problem.softmax_scale
        right = np.where(self.visible, self.scores, -np.inf)
        top = right.max(axis=-1, keepdims=True)
        lse = top + np.log(np.exp(right - top).sum(axis=-1, keepdims=True))
        seen = self.visible if moved == 0 else _visible(self.problem, moved)
        exponent = np.minimum(self.scores - log_factor * lse, 80.0)
        weights = np.where(seen, np.exp(exponent), 0.0)
        d_weights = self.dout @ self.v.transpose(0, 2, 1)
        exact = np.where(self.visible, np.exp(np.minimum(self.scores - lse, 0.0)), 0.0)
        delta = (exact * d_weights).sum(axis=-1, keepdims=True)
        factor = weights if p_of_ds is None else p_of_ds(weights)
        d_scores = (factor if with_p else seen * 1.0) * (d_weights - delta_factor * delta)
        if keep is not None:
            d_scores, weights = d_scores * keep, weights * keep
        of_dv = weights if p_of_dv is None else p_of_dv(weights)
        dk = scale ** scaled[1] * (d_scores.transpose(0, 2, 1) @ self.q)
        dv = of_dv.transpose(0, 2, 1) @ self.dout
        dq = scale ** scaled[0] * (d_scores @ self.k)
        return {"dq": dq, "dk": dk[heads].sum(0)[None], "dv": dv[heads].sum(0)[None]}


def _visible(problem: Problem, moved: int | None) -> np.ndarray:
    rows, keys = np.arange(problem.seqlen)[:, None], np.arange(problem.num_keys)
    if not problem.causal or moved is None:
        return np.ones((problem.seqlen, problem.num_keys), bool)
    return keys <= rows + problem.kv_offset + moved


@dataclass(frozen=True, slots=True)
class GradientBug:
    """A known mistake and its effect on the gradients."""

    code: FindingCode
    what: str  # completes "The output matches …"
    look_at: str
    outputs: tuple[str, ...]  # affected outputs
    make: Callable[[_Head], Mapping[str, Float64Array]]


def gradient_bugs(problem: Problem, block_m: int, block_n: int) -> Iterator[GradientBug]:
    """Return suspected bugs of a kernel with these tiles, simple ones first."""
    both, every = ("dq", "dk"), GRADIENTS
    yield GradientBug(
        FindingCode.MISSING_DELTA,
        "dS = P · dP, without D = rowsum(dO · O)",
        "look at the pass that computes D and at what is taken from dP",
        both,
        partial(_Head.gradients, delta_factor=0.0),
    )
    yield GradientBug(
        FindingCode.MISSING_DELTA,
        "dS = P · (dP + D): D is added instead of subtracted",
        "look at the sign of D",
        both,
        partial(_Head.gradients, delta_factor=-1.0),
    )
    for power, words in ((0, "without the softmax scale"), (2, "with the softmax scale twice")):
        yield GradientBug(
            FindingCode.SOFTMAX_SCALE,
            f"dQ {words}",
            "dQ = scale · dS · K: look at where dQ is stored",
            ("dq",),
            partial(_Head.gradients, scaled=(power, 1)),
        )
        yield GradientBug(
            FindingCode.SOFTMAX_SCALE,
            f"dK {words}",
            "dK = scale · dSᵀ · Q: look at where dK is stored",
            ("dk",),
            partial(_Head.gradients, scaled=(1, power)),
        )
    yield GradientBug(
        FindingCode.NOT_NORMALISED,
        "dS = dP − D, without P",
        "look at the product that makes dS",
        both,
        partial(_Head.gradients, with_p=False),
    )
    for factor, words in (
        (0.0, "P without LSE"),
        (float(np.log2(np.e)), "LSE in base 2 taken for natural"),
        (float(np.log(2)), "LSE times ln 2"),
    ):
        yield GradientBug(
            FindingCode.NOT_NORMALISED,
            f"gradients of {words}",
            "P = exp(scale · q·k − LSE) with a natural LSE: look at the exponent",
            every,
            partial(_Head.gradients, log_factor=factor),
        )
    if problem.causal:
        for moved, words in (
            (-1, "without the diagonal (key < query)"),
            (1, "with the key behind the diagonal (key ≤ query + 1)"),
            (None, "without the causal mask"),
        ):
            yield GradientBug(
                FindingCode.CAUSAL_MASK if moved is None else FindingCode.CAUSAL_DIAGONAL,
                f"gradients {words}",
                "look at the comparison of key and query where P is made",
                every,
                partial(_Head.gradients, moved=moved),
            )
        if problem.kv_offset:
            yield GradientBug(
                FindingCode.CAUSAL_CORNER,
                "gradients under a mask that begins at the first key",
                "query i stands at i + KV − S: look at the comparison of key and query",
                every,
                partial(_Head.gradients, moved=-problem.kv_offset),
            )
    if problem.head_group > 1:
        for heads, words in ((slice(0, 1), "first"), (slice(-1, None), "last")):
            yield GradientBug(
                FindingCode.KV_HEAD,
                f"dK and dV of the {words} query head of each group alone",
                "dK and dV sum over all query heads that share the K/V head",
                ("dk", "dv"),
                partial(_Head.gradients, heads=heads),
            )
    yield from _lost_tiles(problem, block_m, block_n)
    swapped = {"dq": "dk", "dk": "dv", "dv": "dk"}
    for name, other in swapped.items():
        if name != "dq" or problem.shape == problem.k_shape:
            yield GradientBug(
                FindingCode.OPERAND,
                f"{other} in the place of {name}",
                "look at which accumulator is stored where",
                (name,),
                partial(_swapped, name=name, other=other),
            )


def _swapped(head: _Head, *, name: str, other: str) -> Mapping[str, Float64Array]:
    right = head.gradients()
    return {**right, name: right[other]}


def _lost_tiles(problem: Problem, block_m: int, block_n: int) -> Iterator[GradientBug]:
    """Return bugs whose sums lack a tile, or have only one."""
    rows, keys = np.arange(problem.seqlen), np.arange(problem.num_keys)
    of_keys, of_rows = keys // block_n, rows // block_m
    for axis, tiles, names, what, cause in (
        (
            0,
            of_keys,
            ("dq",),
            "key",
            "atomics that overwrite each other, or a store where an add belongs",
        ),
        (1, of_rows, ("dk", "dv"), "query", "a sum that begins anew with each tile"),
    ):
        last = int(tiles[-1])
        if last == 0:
            continue
        chosen = {0, 1, last // 2, last - 1, last} & set(range(last + 1))
        for tile in sorted(chosen, key=lambda n: (n not in (0, last), n)):
            for alone in (True, False):
                kept = (tiles == tile) if alone else (tiles != tile)
                keep = kept[None, :] if axis == 0 else kept[:, None]
                yield GradientBug(
                    FindingCode.LOST_SUM if alone else FindingCode.KEY_TILE,
                    f"{' and '.join(names)} of {what} tile {tile} "
                    + ("alone" if alone else "left out"),
                    f"look for {cause}" if alone else "look at where the loop begins and ends",
                    names,
                    partial(_Head.gradients, keep=keep),
                )


def can_predict_bugs(problem: Problem) -> bool:
    """True if a head is small enough to compute suspected bugs."""
    return problem.head_group * problem.seqlen * problem.num_keys <= _MAX_PREDICTED_SCORES


def head_of(inputs: Inputs, kv_slice: int) -> _Head:
    """Return one K/V head for `GradientBug.make`."""
    return _Head.of(inputs, kv_slice)
