"""Axes, points, constraints and ids."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_data import SMALL, point
from words import raises

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem, UnknownName
from engine.base.schema import decode, encode
from engine.pipeline.request import EvaluationRequest
from engine.search.space import (
    MAX_POINTS,
    ProblemAxes,
    Space,
    SweepOptions,
    parse_values,
    point_id,
)
from kernels.ladder import by_id


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("128", (128,)),
        ("1,2, 4", (1, 2, 4)),
        ("64:256:64", (64, 128, 192, 256)),
        ("64:250:64", (64, 128, 192)),
        ("3:5", (3, 4, 5)),
        ("64:1024:x2", (64, 128, 256, 512, 1024)),
        ("1,1:4:x2,4,2", (1, 2, 4)),
        ("7:7", (7,)),
    ],
)
def test_values_of_an_axis(text: str, values: tuple[int, ...]) -> None:
    assert parse_values(text, "--seqlen") == values


@pytest.mark.parametrize(
    "text",
    ["", "x", "1,,2", "1.5", "4:1", "0:4", "1:4:0", "1:4:-1", "1:4:x1", "1:4:x", "1:2:3:4", "a:b"],
)
def test_invalid_values(text: str) -> None:
    with raises(InvalidProblem, "values_form", "--seqlen"):
        parse_values(text, "--seqlen")


def test_a_range_that_would_fill_the_memory_is_refused_at_once() -> None:
    with raises(InvalidProblem, "sweep_too_large"):
        parse_values("1:1000000000000", "--seqlen")


def test_axes_span_their_product_once() -> None:
    axes = ProblemAxes(batch=(1, 2, 2), seqlen=(64, 128), causal=(False, True))
    problems = axes.problems()
    assert len(problems) == len(set(problems)) == 8
    assert problems[0] == Problem(1, 1, 64, 64)
    with raises(InvalidProblem, "sweep_too_large"):
        ProblemAxes(batch=tuple(range(1, 1002)), seqlen=tuple(range(1, 1002))).problems()


def test_a_variants_whole_space_is_searched() -> None:
    space = Space(("v01", "v05"), (SMALL,))
    points = space.points(SweepOptions())
    expected = dict.fromkeys(("v01", "v05"), 1)
    for v in expected:
        for t in by_id(v).tunables:
            expected[v] *= len(t.values)
    assert space.count() == len(points) == sum(expected.values())
    for v, count in expected.items():
        assert sum(p.request.variant == v for p in points) == count


def test_tunables_restrict_the_space_and_defaults_only_fixes_the_rest() -> None:
    points = Space(("v05",), (SMALL,), {"num_splits": (1, 2)}, own_values=False).points(
        SweepOptions()
    )
    configs = [dict(p.request.config) for p in points]
    default = by_id("v05").default_config()
    assert configs == [{**default, "num_splits": 1}, {**default, "num_splits": 2}]
    # A variant without that tunable remains in the space.
    both = Space(("v01", "v05"), (SMALL,), {"num_splits": (1, 2)}, own_values=False)
    assert len(both.points(SweepOptions())) == 3


def test_constraints_are_decided_before_anything_is_compiled() -> None:
    space = Space(("v01", "v02"), (replace(SMALL, head_dim=4),), own_values=False)
    one, two = space.points(SweepOptions())
    assert one.why_not is None
    assert two.why_not is not None
    assert "head_dim 4" in two.why_not
    (wrong,) = Space(("v05",), (SMALL,), {"num_splits": (3,)}, own_values=False).points(
        SweepOptions()
    )
    assert wrong.why_not is not None
    assert "num_splits=3" in wrong.why_not


def test_a_gpu_may_have_any_of_its_names() -> None:
    space = Space(("v01",), (SMALL,))
    first, second = (space.points(SweepOptions(gpu=name)) for name in ("NVIDIA L4", "l4"))
    assert first == second
    assert first[0].request.gpu == "L4"
    with raises(UnknownName, "gpu_unknown", "L4"):
        space.points(SweepOptions(gpu="L44"))


def test_unknown_names_are_refused_before_a_sweep_begins() -> None:
    with raises(UnknownName, "unknown_variant", "v05"):
        Space(("v5",), (SMALL,))
    with raises(UnknownName, "tunable_of_no_variant", "num_splits"):
        Space(("v05",), (SMALL,), {"splits": (1,)})


def test_too_many_points_give_a_one_sentence_error() -> None:
    problems = tuple(Problem(b, 1, s, 64) for b in range(1, 200) for s in range(1, 200))
    space = Space(("v05",), problems)
    assert space.count() > MAX_POINTS
    with raises(InvalidProblem, "sweep_too_large"):
        space.points(SweepOptions())


def test_ids_depend_only_on_the_evaluation() -> None:
    request = point("v05", num_splits=2).request
    same = EvaluationRequest(
        "v05_kv_split", SMALL, {"num_splits": 2}, gpu="L4", timeout_s=5.0, effort="quick"
    )
    assert point_id(request) == point_id(same)  # with defaults, without the time limit
    different = [
        replace(request, gpu="H100 SXM"),
        replace(request, seed=1),
        replace(request, execute=False),
        replace(request, effort="full"),
        replace(request, config={**request.config, "num_splits": 4}),
        replace(request, problem=replace(SMALL, causal=True)),
        replace(request, problem=replace(SMALL, seqlen=129)),
        replace(request, variant="v02", config={}),
    ]
    ids = {point_id(r) for r in [request, *different]}
    assert len(ids) == 1 + len(different)


def test_ids_never_change() -> None:
    """Point ids are stable, so that old journals can be resumed: this is an id of version 1."""
    assert point_id(EvaluationRequest("v01", SMALL, {"block_n": 64}, gpu="L4")) == (
        "6ce914c752d07e51"
    )


@given(
    batch=st.lists(st.integers(1, 64), min_size=1, max_size=3),
    splits=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4),
    own=st.booleans(),
)
def test_a_space_is_read_back_from_its_journal(
    batch: list[int], splits: list[int], own: bool
) -> None:
    problems = ProblemAxes(batch=tuple(batch), causal=(False, True)).problems()
    space = Space(("v01", "v05"), problems, {"num_splits": tuple(splits)}, own)
    again = decode(Space, encode(space))
    assert again == space
    assert [p.id for p in again.points(SweepOptions())] == [
        p.id for p in space.points(SweepOptions())
    ]
    assert len(space.points(SweepOptions())) == space.count()
