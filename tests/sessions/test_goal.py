"""Goal against result: state computed from the intervals, and its sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sessions_data import evaluation_maker, make_latency
from words import says

from engine.attention.evaluation import BaselineTiming, Evaluation
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.history.known_time import not_comparable
from engine.sessions.goal import describe_goal, goal_status, timeline_rows
from engine.sessions.snapshot import Goal, TimelineEntry
from engine.sessions.tables import hypothesis_state


def timed(median_us: float, baseline_us: float = 25.0, **changes: Any) -> Evaluation:
    return evaluation_maker(median_us=median_us, baseline_us=baseline_us, **changes)


def speedup(value: float, **filters: Any) -> Goal:
    return Goal(metric="speedup", value=value, **filters)


@pytest.mark.parametrize(
    ("value", "state", "name", "fact"),
    [
        (1.9, "met", "goal_met", "v05 at B1 H1 S128 D64 fp16 over flash"),
        (2.0, "undecided", "goal_undecided", "the target of 2×"),
        (2.5, "missed", "missed_by", "20%"),
    ],
)
def test_the_state_of_a_speed_up_goal(value: float, state: str, name: str, fact: str) -> None:
    status = goal_status(speedup(value), [timed(12.5)])
    assert (status.state, status.value) == (state, 2.0)
    assert says(status.sentence, name, "2× (1.98× to 2.02×)", fact)


@pytest.mark.parametrize(
    ("target", "state", "name", "facts"),
    [
        (None, "open. ", "hypothesis_untargeted", ()),
        (speedup(1.9), "confirmed. ", "goal_met", ("2×",)),
        (speedup(2.0), "open. ", "goal_undecided", ()),
        (speedup(2.5), "refuted. ", "missed_by", ("20%",)),
    ],
)
def test_a_hypothesis_is_decided_by_the_numbers(
    target: Goal | None, state: str, name: str, facts: tuple[str, ...]
) -> None:
    told = hypothesis_state(target, [timed(12.5)], "")
    assert told.startswith(state)
    assert says(told, name, *facts)


def test_the_goal_uses_the_best_variant_of_the_worst_problem() -> None:
    short, long = Problem(1, 1, 128, 64), Problem(1, 1, 512, 64)
    evaluations = [
        timed(20.0, problem=short, variant="v01"),
        timed(10.0, problem=short, variant="v02"),
        timed(20.0, problem=long, variant="v02"),
    ]
    status = goal_status(speedup(2.0), evaluations)
    assert (status.state, status.value, status.problem) == ("missed", 1.25, long)
    assert says(status.sentence, "problems_worst_them", "2")
    assert goal_status(speedup(2.0, seqlen=128), evaluations).state == "met"
    assert goal_status(speedup(2.0, seqlen=128, variant="v01"), evaluations).state == "missed"
    for nothing in ({"batch": 2}, {"num_heads": 2}, {"head_dim": 32}, {"variant": "v09"}):
        status = goal_status(speedup(2.0, **nothing), evaluations)
        assert status.state == "undecided"
        assert says(status.sentence, "nothing_yet")


def test_the_fastest_baseline_counts_unless_one_is_named() -> None:
    evaluation = replace(
        timed(10.0),
        baselines=(
            BaselineTiming("flash", make_latency(30.0, 0)),
            BaselineTiming("cudnn", make_latency(15.0, 0)),
            BaselineTiming("math", None, "out of memory"),
        ),
    )
    assert goal_status(speedup(2.0), [evaluation]).state == "missed"
    assert goal_status(speedup(2.0, baseline="flash"), [evaluation]).state == "met"
    assert goal_status(speedup(2.0, baseline="math"), [evaluation]).state == "undecided"


def test_a_new_measurement_replaces_the_old_one() -> None:
    assert goal_status(speedup(2.0), [timed(5.0), timed(20.0)]).state == "missed"
    assert goal_status(speedup(2.0), [timed(20.0), timed(5.0)]).state == "met"


def test_a_large_miss_is_given_in_whole_per_cent() -> None:
    status = goal_status(Goal(metric="latency_us", value=1.0), [timed(20.0)])
    assert says(status.sentence, "missed_by", "1,900%")


def test_predictions_and_wrong_results_never_meet_a_target() -> None:
    baseline = BaselineTiming("flash", make_latency(25.0, 0, origin="predicted"))
    predicted = replace(
        timed(1.0), latency=make_latency(1.0, 0, origin="predicted"), baselines=(baseline,)
    )
    status = goal_status(speedup(2.0), [predicted])
    assert status.state == "undecided"
    assert says(status.sentence, "only_predictions_so", "be met")  # 25 times as fast
    slower = replace(predicted, latency=make_latency(20.0, 0, origin="predicted"))
    slower = replace(slower, problem=replace(slower.problem, batch=2))
    missed = goal_status(speedup(2.0), [predicted, slower])  # the worst problem decides
    assert missed.state == "undecided"
    assert says(missed.sentence, "only_predictions_so", "be missed", "1.25×")
    wrong = replace(predicted, status=Status.INCORRECT, reason="wrong", correctness=None)
    assert says(goal_status(speedup(2.0), [wrong]).sentence, "nothing_yet")
    baseline = BaselineTiming("flash", make_latency(99.0, 0, origin="predicted"))
    assert goal_status(speedup(2.0), [replace(timed(1.0), baselines=(baseline,))]).state == (
        "undecided"
    )


def test_a_prediction_has_no_speed_up_over_a_measured_baseline() -> None:
    predicted = replace(timed(1.0), latency=make_latency(1.0, 0, origin="predicted"))
    status = goal_status(speedup(2.0), [predicted])
    assert (status.state, status.value) == ("undecided", None)
    assert status.sentence == f"Undecided: {not_comparable('predicted', 'measured')}."


IMPORTED: dict[str, Any] = {"status": Status.SKIPPED, "reason": "elsewhere", "correctness": None}


def imported(us: float) -> Evaluation:
    recorded = make_latency(us, 0, origin="recorded")
    return replace(timed(us), latency=recorded, source_sha256="", **IMPORTED)


def test_a_gain_is_of_times_of_one_kernel_and_one_method() -> None:
    def predicted(us: float, method: str) -> Evaluation:
        latency = make_latency(us, 0, origin="predicted", reason=f"By {method}: test data.")
        return replace(timed(us), latency=latency)

    def gain(*evaluations: Evaluation) -> float | None:
        entries = [
            TimelineEntry(when="2026-11-21T00:00:00Z", what="x", evaluation=i)
            for i in range(len(evaluations))
        ]
        return timeline_rows(entries, evaluations, "S")[-1].gain

    code, roofline = predicted(10.0, "machine code"), predicted(40.0, "roofline")
    assert gain(roofline, code) == 1.0  # over itself
    assert gain(roofline, predicted(20.0, "machine code"), code) == 2.0
    assert gain(imported(30.0), timed(10.0)) == 1.0
    assert gain(timed(30.0), timed(10.0)) == 3.0
    cold = replace(timed(30.0), latency=make_latency(30.0, 0, kind="device_cold"))
    assert gain(cold, timed(10.0)) == 1.0


def test_another_kernels_time_meets_no_goal_of_a_variant() -> None:
    goal, other = Goal(metric="latency_us", value=2.0), replace(imported(1.0), notes=("series: b",))
    status = goal_status(goal, [other], "A study: of kernels")
    assert status.state == "met"
    assert says(status.sentence, "name_of_reference", "A study", "series: b")
    assert goal_status(goal.model_copy(update={"variant": "v05"}), [other]).state == "undecided"


EDITED = "3f2a91ab" + "0" * 56  # the hash of a source that the file no longer has
EDITED_NAME = "v05 (source 3f2a91ab)"


def test_a_target_is_met_by_the_present_source_else_the_other_is_named() -> None:
    goal = Goal(metric="latency_us", value=12.0, variant="v05")
    before, now = timed(10.0, source_sha256=EDITED), timed(20.0)
    met = goal_status(goal, [before])
    assert met.state == "met"
    assert EDITED_NAME in met.sentence
    for evaluations in ([before, now], [now, before]):
        assert goal_status(goal, evaluations).state == "missed"
        assert EDITED_NAME not in goal_status(goal, evaluations).sentence


def test_the_gain_per_unit_is_of_one_source() -> None:
    evaluations = [
        timed(100.0, source_sha256=EDITED),
        timed(400.0, problem=Problem(8, 8, 128, 64)),
    ]
    goal = Goal(metric="per_unit_gain", value=2)
    assert goal_status(goal, evaluations).state == "undecided"


def test_the_timeline_names_the_source_before_an_edit_and_compares_with_it() -> None:
    entries = [TimelineEntry(when="2026-11-21T00:00:00Z", what="x", evaluation=i) for i in range(2)]
    rows = timeline_rows(entries, [timed(30.0, source_sha256=EDITED), timed(10.0)], "S")
    assert rows[0].what.startswith(EDITED_NAME)
    assert rows[1].what.startswith("v05 ")
    assert EDITED_NAME not in rows[1].what
    assert rows[1].gain == 3.0


def test_recorded_figures_count_with_a_note_if_without_interval() -> None:
    single = replace(make_latency(10.0, 0, origin="recorded"), low_us=10.0, high_us=10.0)
    evaluation = replace(timed(10.0), latency=single, baselines=())
    status = goal_status(Goal(metric="latency_us", value=10.0), [evaluation])
    assert status.state == "met"
    assert says(status.sentence, "figure_without_interval", "10 µs")


@pytest.mark.parametrize(("value", "state"), [(20.0, "met"), (12.5, "undecided"), (12.0, "missed")])
def test_the_state_of_a_latency_goal(value: float, state: str) -> None:
    evaluations = [timed(12.5), timed(14.0, variant="v01")]
    assert goal_status(Goal(metric="latency_us", value=value), evaluations).state == state


def test_the_state_of_a_goal_per_unit() -> None:
    evaluations = [
        timed(100.0),
        timed(150.0, problem=Problem(2, 4, 128, 64)),
        timed(400.0, problem=Problem(8, 8, 128, 64)),
        timed(1.0, problem=Problem(64, 8, 512, 64)),  # another S, so it has no start of its own
    ]
    status = goal_status(Goal(metric="per_unit_gain", value=10), evaluations)
    assert (status.state, status.value) == ("met", 16.0)
    assert status.problem == Problem(8, 8, 128, 64)
    assert goal_status(Goal(metric="per_unit_gain", value=17), evaluations).state == "missed"
    alone = goal_status(Goal(metric="per_unit_gain", value=2), evaluations[:1])
    assert alone.state == "undecided"
    # From a predicted start the gain of a measured time is unknown.
    start = replace(evaluations[0], latency=make_latency(100.0, 0, origin="predicted"))
    mixed = goal_status(Goal(metric="per_unit_gain", value=2), [start, evaluations[2]])
    assert (mixed.state, mixed.value) == ("undecided", None)


@pytest.mark.parametrize(
    ("goal", "text"),
    [
        (speedup(2, baseline="cudnn", variant="v12"), "speed-up ≥ 2× over cudnn, v12"),
        (
            Goal(metric="latency_us", value=2.5, batch=1, num_heads=8),
            "latency ≤ 2.5 µs at B=1 H=8",
        ),
    ],
)
def test_a_goal_in_words(goal: Goal, text: str) -> None:
    assert describe_goal(goal) == text


def test_a_goal_without_a_baseline_is_against_the_best() -> None:
    told = describe_goal(speedup(1.5, seqlen=128))
    assert says(told, "speedup_goal", "1.5×", "S=128")
    assert says(told, "best_baseline")
