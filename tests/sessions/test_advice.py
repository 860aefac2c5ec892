"""Advice on what to try next: predicted gains, order, reasons, none without data."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from made_up_history import MadeUpHistory, Times
from search_data import correctness
from words import says

from engine.attention.evaluation import CALIBRATED, Evaluation, Latency, Resources, basis_of
from engine.attention.problem import Problem
from engine.base.errors import Status, ToolMissing
from engine.choose.advice import (
    MAX_PROBLEMS,
    MAX_SUGGESTIONS,
    MIN_GAIN,
    Suggestion,
    advice_limits,
    advise,
)
from engine.choose.auto import candidates_for
from engine.choose.batch.alternatives import Situation, rank_options
from engine.devices import find_device
from engine.history.known_time import kernel_name, name_of, times_of, under_own_names
from engine.model.kernel import Kernel, variant_sources
from kernels.ladder import LADDER, by_id

PASSED: dict[str, Any] = {"status": Status.PASSED, "correctness": correctness()}
THROTTLED = PASSED | {"status": Status.THROTTLED}
PREDICTED = PASSED | {"latency": Latency("predicted", 9.0, 8.0, 10.0, "test data")}
WRONG: dict[str, Any] = {"status": Status.INCORRECT, "reason": "wrong", "latency": None}


def compiled(registers: int = 64, spill_bytes: int = 0) -> MadeUpHistory:
    """Return a history in which every pass has the same registers, instead of compiling."""
    return MadeUpHistory(registers_of=lambda *_: registers, spill_bytes=spill_bytes)


class NoCompiler(MadeUpHistory):
    def resources(self, *_: object) -> tuple[Resources, ...]:
        raise ToolMissing("There is no compiler here.")


def evaluation(variant: str = "v01", problem: Problem | None = None, **changes) -> Evaluation:
    base = Evaluation(
        status=Status.SKIPPED,
        reason="test data",
        variant=variant,
        problem=problem or Problem(1, 1, 512, 64),
        config=by_id(variant).default_config(),
        device="L4",
        when="2026-01-01T00:00:00Z",
        latency=Latency("recorded", 2133.0, 2133.0, 2133.0, "test data"),
    )
    return replace(base, **changes)


def titles(found: tuple[Suggestion, ...]) -> str:
    return "\n".join(s.title for s in found)


def test_advice_does_not_start_from_another_kernels_time() -> None:
    predicted = Latency("predicted", 9.0, 8.0, 10.0, "test data")
    ours = evaluation("v05", latency=predicted)
    found = advise([evaluation("v01"), ours], compiled())  # the source of v01's time is unknown
    assert [s.reason for s in found] == [s.reason for s in advise([ours], compiled())]
    assert found


def test_advice_does_not_start_from_a_time_before_an_edit() -> None:
    """The time is v13's, of a source that the file no longer has."""
    recorded = Latency("recorded", 15.0, 15.0, 15.0, "test data")
    before = evaluation("v13", source_sha256="0" * 64, latency=recorded, **PASSED)
    ours = evaluation("v05", latency=Latency("predicted", 99.0, 90.0, 110.0, "test data"))
    found = advise([before, ours], compiled())
    assert [s.reason for s in found] == [s.reason for s in advise([ours], compiled())]
    assert found


@pytest.mark.parametrize(
    ("outcome", "sha", "name"),
    [
        ({}, "", "Lab kernel (given as v01)"),
        ({}, "0" * 64, "Lab kernel (00000000)"),
        ({}, "present", "v01"),
        (PASSED, "present", "v01"),
        (PASSED, "0" * 64, "v01 (source 00000000)"),
        (PASSED, "f" * 64, "v01 (source ffffffff)"),
        (PREDICTED, "0" * 64, "v01 (source 00000000)"),
        (WRONG, "0" * 64, "v01 (source 00000000)"),
        (THROTTLED, "0" * 64, "v01 (source 00000000)"),
    ],
)
def test_a_kernel_has_the_variants_name_if_its_present_source_was_evaluated(
    outcome: dict[str, Any], sha: str, name: str
) -> None:
    sha = variant_sources(by_id("v01")).source_sha256 if sha == "present" else sha
    given = evaluation("v01", source_sha256=sha, **outcome)
    assert kernel_name(given, "Lab") == name
    assert [e.variant for e in under_own_names([given], "Lab")] == [name]
    assert [name_of(time) for time in times_of([given], session="Lab")] in ([name], [])


def test_suggestions_are_ordered_by_gain_and_each_has_its_reason() -> None:
    found = advise([evaluation()], compiled())
    gains = [s.gain for s in found]
    assert gains == sorted(gains, reverse=True)
    assert 3 <= len(found) <= MAX_SUGGESTIONS
    assert all(s.gain >= MIN_GAIN and s.reason and s.latency.origin == "predicted" for s in found)
    assert says(titles(found), "use_variant", "v08")
    assert "v21" not in titles(found)  # it needs paged K and V
    assert says(found[0].reason, "sms_get_work", "14%")  # 8 CTAs on 58 SMs


def test_advice_offers_the_fastest_candidate_of_auto() -> None:
    known, problem, device = compiled(), evaluation().problem, find_device("L4")
    now = Situation(Kernel.of("v01", device), problem, None)
    options, _ = rank_options(now, LADDER.of(problem), (), None, known)
    offered = {o.variant: o.latency_us for o in options}
    candidates = candidates_for(problem, device, known)
    assert len(candidates) > 3
    for kernel in candidates:
        latency = known.estimate(kernel, problem).latency
        assert latency is not None
        assert offered[kernel.variant.id] <= latency.median_us


def test_a_calibrated_time_gives_no_gain_over_uncalibrated_ones() -> None:
    sha = variant_sources(by_id("v01")).source_sha256
    times = times_of([evaluation(source_sha256=sha)], session="test data")
    known = replace(compiled(), times=Times({"L4": times}))
    problem = Problem(1, 1, 256, 64)
    now = Situation(Kernel.of("v01", "L4"), problem, None)
    variants = [by_id("v01"), by_id("v05"), by_id("v08")]
    options, notes = rank_options(now, variants, (), None, known)
    (accept,) = (o for o in options if o.kind == "accept")
    calibrated = basis_of("predicted", f"By roofline: {CALIBRATED}")
    assert (accept.basis, accept.speedup) == (calibrated, 1.0)
    others = [o for o in options if o.variant != "v01"]
    assert {o.variant for o in others} == {"v05", "v08"}
    assert {(o.basis, o.speedup) for o in others} == {(basis_of("predicted", "By roofline:"), None)}
    assert any("v05" in note and "v08" in note for note in notes)
    # They are nevertheless ordered by value.
    costs = [o.per_query_us for o in options]
    assert costs == sorted(costs)
    found = [s for s in advise([evaluation(problem=problem)], known) if s.variant != "v01"]
    assert found
    assert {s.gain for s in found} == {None}
    assert all(s.latency.median_us < accept.latency_us for s in found)


def test_omitted_advice_is_reported() -> None:
    many = [
        evaluation(problem=Problem(1, 1, 64 * n, 64), config={}) for n in range(1, MAX_PROBLEMS + 2)
    ]
    assert advice_limits(many[:MAX_PROBLEMS]) == ""
    assert says(advice_limits(many), "some_problems_looked", "6", "7")
    shown = advise(many, compiled())
    assert many[-1].problem not in {s.problem for s in shown}


def test_tried_configs_are_not_suggested_again() -> None:
    before = advise([evaluation()], compiled())
    again = next(s for s in before if s.variant == "v08")
    slower = Latency("recorded", 9999.0, 9999.0, 9999.0, "test data")
    tried = evaluation("v08", config=again.config, latency=slower)
    after = advise([evaluation(), tried], compiled())
    key = (again.title, again.config)
    assert key in [(s.title, s.config) for s in before]
    assert key not in [(s.title, s.config) for s in after]


def test_advice_starts_from_the_fastest_kernel_of_a_problem() -> None:
    fast = Latency("recorded", 20.0, 20.0, 20.0, "test data")
    found = advise([evaluation(), evaluation("v08", latency=fast)], compiled())
    assert "v08 mma.sync" not in titles(found)
    predicted = Latency("predicted", 0.1, 0.1, 0.1, "test data")
    # A predicted time never ranks above a measured or recorded one.
    found = advise([evaluation(), evaluation("v08", latency=predicted)], compiled())
    assert all("Predicted 2.1" in s.reason for s in found if s.variant == "v04")


def test_a_batch_that_fills_the_gpu() -> None:
    problem = Problem(1, 1, 64, 64)
    found = advise([evaluation(problem=problem)], compiled())
    grow = next(s for s in found if s.title.startswith("Grow the batch"))
    batch = int(grow.title.rsplit(" ", 1)[1])
    assert batch > 1
    assert says(grow.reason, "sequences_fill_it", "gets 1", f"{batch}")
    now = next(s for s in found if s.latency is not None)
    assert now.gain is not None
    assert batch / 2 < grow.gain <= batch * 1.001


@pytest.mark.parametrize(
    ("registers", "facts"),
    [(200, ("128 registers", "200")), (32, ("32 KiB of shared memory", "40 KiB"))],
)
def test_raising_the_limiter_is_suggested_only_if_ctas_wait(
    registers: int, facts: tuple[str, ...]
) -> None:
    crowded = Problem(64, 16, 256, 64)
    found = advise([evaluation(problem=crowded)], compiled(registers))
    [lifted] = [s for s in found if says(s.title, "get_down_to", "v01")]
    assert says(lifted.title, "get_down_to", *facts)
    assert lifted.gain is not None
    assert lifted.gain > 1.1
    # If all CTAs are resident at once, no CTA waits and nothing is suggested.
    roomy = advise([evaluation(problem=Problem(1, 1, 64, 64))], compiled(registers))
    assert not says(titles(roomy), "get_down_to")


def test_spills_are_named_without_a_gain() -> None:
    found = advise([evaluation()], compiled(spill_bytes=128))
    (spilling,) = (a for a in found if a.title == "Stop v01 from spilling")
    assert spilling.gain is None


def test_no_advice_without_predictions() -> None:
    assert advise([], compiled()) == ()
    assert advise([evaluation()], NoCompiler()) == ()
    assert advise([evaluation(device="Unknown GPU")], compiled()) == ()
    foreign = evaluation(variant="v01")
    assert advise([replace(foreign, variant="sdpa", config={})], compiled()) == ()
    wrong = replace(foreign, status=Status.CRASHED, latency=None)
    assert advise([wrong], compiled()) == ()


@pytest.mark.slow
def test_every_variant_of_the_ladder_can_be_the_start() -> None:
    for variant, seqlen in itertools.product(LADDER, (64, 128)):
        problem = Problem(1, 2, seqlen, 64)
        if variant.unsupported(problem, variant.default_config()) is None:
            advise([evaluation(variant.id, problem=problem)], compiled())
