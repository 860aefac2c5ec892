"""The backward pass: gradients against float64, the verdict on each output, auto, files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backward_bugs import BUGS, GradientMutation, planted
from planted_bugs.anchors import spans
from planted_bugs.hopper import ordering_statements
from untimed import untimed
from words import says

from engine.attention.evaluation import Correctness
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import encode as to_raw
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import InvalidProblem, Status
from engine.base.schema import decode, encode
from engine.choose.auto import choose
from engine.correctness import check_with_maps, inputs_of, maps_from_arrays, maps_to_arrays
from engine.correctness.gradients import head_gradients
from engine.cuda_on_host.client import RunResult
from engine.devices import find_device
from engine.history import History
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest
from kernels.ladder import LADDER, by_id

SMALL = Problem(1, 2, 20, 32, causal=True, direction="backward")
ODD = (
    SMALL,
    Problem(2, 4, 37, 64, causal=True, seqlen_kv=70, num_heads_kv=2, direction="backward"),
    Problem(1, 2, 130, 96, dtype="bfloat16", direction="backward"),
    Problem(1, 4, 70, 128, seqlen_kv=33, num_heads_kv=1, direction="backward"),
    Problem(1, 1, 1, 64, direction="backward"),
    Problem(
        1, 4, 203, 128, causal=True, dtype="bfloat16", seqlen_kv=333, num_heads_kv=2,
        direction="backward",
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuBackend]:
    made = CpuBackend()
    yield made
    made.close()


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with untimed() as made:
        yield made


def _right(problem: Problem) -> dict[str, np.ndarray]:
    inputs, made = inputs_of(problem), {"dq": [], "dk": [], "dv": []}
    for head in range(problem.batch * problem.kv_heads):
        for name, values in head_gradients(inputs, head).items():
            made[name].append(values)
    shapes = {"dq": problem.shape, "dk": problem.k_shape, "dv": problem.k_shape}
    return {n: np.concatenate(x).reshape(shapes[n]) for n, x in made.items()}


def _judged(problem: Problem, gradients: dict[str, np.ndarray]) -> Correctness:
    raw = {n: to_raw(x.astype(np.float32), problem.dtype) for n, x in gradients.items()}
    return check_with_maps(inputs_of(problem), RunResult(Status.PASSED, gradients=raw))[0]


def test_the_reference_is_the_derivative() -> None:
    """Compared with finite differences of the loss Σ dO·O, in float64."""
    problem = Problem(1, 2, 5, 4, causal=True, seqlen_kv=7, num_heads_kv=1, direction="backward")
    inputs = inputs_of(problem)
    gradients = _right(problem)
    rng = np.random.default_rng(1)
    for name, of in (("dq", "q"), ("dk", "k"), ("dv", "v")):
        tensor = getattr(inputs, of).astype(np.float64)
        step = rng.standard_normal(tensor.shape)
        loss = [_loss(inputs, **{of: tensor + sign * 1e-5 * step}) for sign in (1, -1)]
        assert (loss[0] - loss[1]) / 2e-5 == pytest.approx(np.vdot(gradients[name], step), rel=1e-6)


def _loss(inputs: object, **changed: np.ndarray) -> float:
    q, k, v, dout = (
        np.asarray(changed.get(name, getattr(inputs, name)), np.float64)
        for name in ("q", "k", "v", "dout")
    )
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    hidden = np.arange(k.shape[2]) > np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    weights = np.exp(np.where(hidden, -np.inf, scores))
    out = weights / weights.sum(-1, keepdims=True) @ v
    return float((out * dout).sum())


def test_the_wrong_gradient_is_reported_first_and_stored() -> None:
    right = _right(SMALL)
    passed = _judged(SMALL, right)
    assert passed.passed
    assert [x.name for x in passed.outputs] == ["dQ", "dK", "dV"]
    wrong = _judged(SMALL, right | {"dk": right["dk"] / SMALL.softmax_scale})
    assert not wrong.passed
    assert says(wrong.reason, "gradient_is_wrong", "dK")
    assert wrong.findings[0].pattern == "softmax_scale"
    assert [x.passed for x in wrong.outputs] == [True, False, True]
    assert decode(Correctness, encode(wrong), name="it") == wrong
    right["dv"][0, 1, 3, 4] = np.nan
    assert _judged(SMALL, right).nonfinite_count == 1


def test_gradients_with_one_key_are_rounding_errors() -> None:
    """dP and D are equal, but for the rounding of two FP32 sums."""
    problem = replace(ODD[4], seqlen=5, seqlen_kv=1, num_heads=2, num_heads_kv=1)
    right = _right(problem)
    assert np.abs(right["dq"]).max() < 1e-3 > np.abs(right["dk"]).max()
    for left, passes in ((5e-7, True), (1e-4, False)):
        assert _judged(problem, right | {"dq": right["dq"] + left}).passed == passes
        assert _judged(problem, right | {"dk": right["dk"] + left}).passed == passes
    assert not _judged(problem, right | {"dv": right["dv"] + 0.01}).passed


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (("dq", "dk"), "look_at_dp"),
        (("dq",), "look_at_ds_k"),
        (("dk",), "look_at_ds_q"),
        (("dv",), "look_at_p_do"),
    ],
)
def test_a_correct_output_helps_to_locate_the_bug(broken: tuple[str, ...], name: str) -> None:
    right = _right(SMALL)
    wrong = _judged(SMALL, right | {output: right[output] + 1.0 for output in broken})
    assert says(wrong.reason, name)


def test_maps_of_three_outputs_are_stored() -> None:
    raw = {n: to_raw(x.astype(np.float32), "float16") for n, x in _right(SMALL).items()}
    maps = check_with_maps(inputs_of(SMALL), RunResult(Status.PASSED, gradients=raw))[1]
    assert [m.name for m in maps][2:4] == ["dk_batch_by_head", "dk_row_by_column"]
    again = maps_from_arrays(maps_to_arrays(maps))
    assert [(m.name, m.row_axis, m.values.shape) for m in again] == [
        (m.name, m.row_axis, m.values.shape) for m in maps
    ]


def test_each_rung_supports_one_direction() -> None:
    forward = replace(SMALL, direction="forward")
    for variant in LADDER.every():
        problem = forward if variant.is_backward else SMALL
        why = variant.unsupported(problem, variant.default_config())
        assert why is not None
        assert "backward" in why
    assert LADDER.of(SMALL) == LADDER.backward
    assert LADDER.of(forward) == tuple(LADDER)
    softcap = replace(SMALL, softcap=20.0)
    assert "softcap" in str(by_id("v24").unsupported(softcap, by_id("v24").default_config()))


def test_flops_and_bytes_count_both_ways() -> None:
    forward = replace(SMALL, direction="forward")
    assert SMALL.flops == 5 * forward.flops // 2
    assert SMALL.io_bytes == 2 * forward.io_bytes + 4 * 2 * 20


def _some_slow(cases: list[tuple[object, ...]], slow: Callable[..., bool]) -> list[Any]:
    """Mark some cases `slow` and the others `exhaustive`."""
    return [
        pytest.param(*case, marks=pytest.mark.slow if slow(*case) else pytest.mark.exhaustive)
        for case in cases
    ]


@pytest.mark.parametrize(
    ("name", "number"),
    _some_slow(
        [
            (v.id, n)
            for v in LADDER.backward
            for n, problem in enumerate(ODD)
            if problem.head_dim in v.head_dims
        ],
        lambda name, number: number == 1 and name == "v23",
    ),
)
def test_gradients_on_odd_shapes_in_and_out_of_order(
    backend: CpuBackend, name: str, number: int
) -> None:
    """Each problem has a different config."""
    variant, problem = by_id(name), ODD[number]
    configs = [variant.default_config()]
    configs += [
        configs[0] | {t.name: x} for t in variant.tunables for x in t.values if x != t.default
    ]
    config = configs[number % len(configs)]
    if variant.unsupported(problem, config) is not None:
        config = configs[0]
    plan, inputs = make_plan(variant, problem, config), inputs_of(problem)
    for options in (RunOptions(), RunOptions(check=True, schedule="random", repeat=False)):
        result = backend.run(plan, inputs, options)
        assert result.status is Status.PASSED, result.reason
        found = check_with_maps(inputs, result, plan)[0]
        assert found.passed, (problem.label(), config, found.reason)


@pytest.mark.parametrize(
    "name", _some_slow([(v.id,) for v in LADDER.backward], lambda name: name in ("v24", "v26"))
)
def test_machine_code_gives_the_gradients(evaluator: Evaluator, name: str) -> None:
    gpu = "H100 SXM" if by_id(name).arch_specific else "L4"
    request = EvaluationRequest(name, ODD[1], gpu=gpu, backend="machine-code", check=True)
    done = evaluator.evaluate(request, simulates=False, keeps=False).evaluation
    assert done.status is Status.PASSED, done.reason
    assert done.correctness is not None
    assert [x.passed for x in done.correctness.outputs] == [True] * 3
    assert says(done.reason, "same_bits_in_another_order")


@pytest.mark.exhaustive
def test_auto_chooses_a_backward_rung() -> None:
    device = find_device("A100 80GB SXM")
    problem = Problem(1, 4, 256, 64, direction="backward")
    choice = choose(problem, device, None, History())
    assert choice.variant in LADDER.backward[1:]
    assert choice.time is not None
    assert choice.time.method == "machine code"
    with pytest.raises(InvalidProblem):
        choose(problem, device, {"num_splits": 2})


SOME = (4,)


def test_a_planted_bug_removes_each_ordering_statement_of_v26() -> None:
    text = by_id("v26").source.read_text(encoding="utf-8")
    left_out = set()
    for bug in BUGS:
        if bug.variant == "v26" and bug.new in ("", ";"):
            places = spans(text, bug.old)
            left_out |= {end for _, end in (places if bug.nth is None else [places[bug.nth]])}
    found = list(ordering_statements(text))
    assert len(found) >= 26
    assert [statement[0] for statement in found if statement.end() not in left_out] == []


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, marks=pytest.mark.slow if i in SOME else pytest.mark.exhaustive)
        for i, bug in enumerate(BUGS)
    ],
    ids=lambda b: f"{b.variant} {b.name}".replace(" ", "_"),
)
def test_a_planted_bug_is_found_and_named(
    backend: CpuBackend, bug: GradientMutation, tmp_path: object
) -> None:
    found, named, said = planted(backend, bug, tmp_path)
    assert found, said
    assert named, said
